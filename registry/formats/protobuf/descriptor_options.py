"""Options within descriptors: between the fields of `google.protobuf.*Options` and `Option` values.

A custom option is an extension that only its number identifies here; it travels as `(number)` with its bytes
in hex, so nothing is lost and equal schemas stay equal.
"""

from registry.formats.differences import MalformedSchema
from registry.formats.protobuf.model import Option
from registry.formats.protobuf.tokens import quote, unquote
from registry.formats.protobuf.wire import WireMessage, blob_field, number_field

TEXT, FLAG = "text", "flag"
Kind = str | dict[int, str]
Table = dict[int, tuple[str, Kind]]

FEATURES: dict[int, tuple[str, dict[int, str]]] = {
    1: ("field_presence", {1: "EXPLICIT", 2: "IMPLICIT", 3: "LEGACY_REQUIRED"}),
    2: ("enum_type", {1: "OPEN", 2: "CLOSED"}),
    3: ("repeated_field_encoding", {1: "PACKED", 2: "EXPANDED"}),
    4: ("utf8_validation", {2: "VERIFY", 3: "NONE"}),
    5: ("message_encoding", {1: "LENGTH_PREFIXED", 2: "DELIMITED"}),
    6: ("json_format", {1: "ALLOW", 2: "LEGACY_BEST_EFFORT"}),
}
FILE: Table = {
    1: ("java_package", TEXT),
    8: ("java_outer_classname", TEXT),
    9: ("optimize_for", {1: "SPEED", 2: "CODE_SIZE", 3: "LITE_RUNTIME"}),
    10: ("java_multiple_files", FLAG),
    11: ("go_package", TEXT),
    16: ("cc_generic_services", FLAG),
    17: ("java_generic_services", FLAG),
    18: ("py_generic_services", FLAG),
    20: ("java_generate_equals_and_hash", FLAG),
    23: ("deprecated", FLAG),
    27: ("java_string_check_utf8", FLAG),
    31: ("cc_enable_arenas", FLAG),
    36: ("objc_class_prefix", TEXT),
    37: ("csharp_namespace", TEXT),
    39: ("swift_prefix", TEXT),
    40: ("php_class_prefix", TEXT),
    41: ("php_namespace", TEXT),
    44: ("php_metadata_namespace", TEXT),
    45: ("ruby_package", TEXT),
    50: ("features", ""),
}
MESSAGE: Table = {
    1: ("message_set_wire_format", FLAG),
    2: ("no_standard_descriptor_accessor", FLAG),
    3: ("deprecated", FLAG),
    11: ("deprecated_legacy_json_field_conflicts", FLAG),
    12: ("features", ""),
}
FIELD: Table = {
    1: ("ctype", {0: "STRING", 1: "CORD", 2: "STRING_PIECE"}),
    2: ("packed", FLAG),
    3: ("deprecated", FLAG),
    5: ("lazy", FLAG),
    6: ("jstype", {0: "JS_NORMAL", 1: "JS_STRING", 2: "JS_NUMBER"}),
    10: ("weak", FLAG),
    15: ("unverified_lazy", FLAG),
    16: ("debug_redact", FLAG),
    21: ("features", ""),
}
ONEOF: Table = {1: ("features", "")}
ENUM: Table = {
    2: ("allow_alias", FLAG),
    3: ("deprecated", FLAG),
    6: ("deprecated_legacy_json_field_conflicts", FLAG),
    7: ("features", ""),
}
ENUM_VALUE: Table = {1: ("deprecated", FLAG), 2: ("features", ""), 3: ("debug_redact", FLAG)}
SERVICE: Table = {33: ("deprecated", FLAG), 34: ("features", "")}
METHOD: Table = {
    33: ("deprecated", FLAG),
    34: ("idempotency_level", {0: "IDEMPOTENCY_UNKNOWN", 1: "NO_SIDE_EFFECTS", 2: "IDEMPOTENT"}),
    35: ("features", ""),
}
EXTENSION_RANGE: Table = {3: ("verification", {0: "DECLARATION", 1: "UNVERIFIED"}), 50: ("features", "")}


def check_options(given: list[Option], table: Table, path: str) -> None:
    """Options that Protobuf itself defines have values of their type, once; all others are free."""
    kinds = dict(table.values()) | {f"features.{name}": values for name, values in FEATURES.values()}
    seen: set[str] = set()
    for option in given:
        kind = kinds.get(option.name, "")
        if not kind:
            continue
        allowed = kind.values() if isinstance(kind, dict) else ("true", "false")
        is_valid = option.value.startswith('"') if kind == TEXT else option.value in allowed
        if not is_valid:
            raise MalformedSchema(f"{option.value} is not a value of the option {option.name}", path)
        if option.name in seen:
            raise MalformedSchema(f"the option {option.name} is set twice", path)
        seen.add(option.name)


def decode_options(wire: WireMessage, table: Table) -> list[Option]:
    options = []
    for number in wire.fields:
        name, kind = table.get(number, ("", ""))
        if name == "features":
            options += _features(wire.message(number))
        elif not name:
            options.append(Option(f"({number})", quote(wire.raw(number).hex())))
        elif kind == TEXT:
            options.append(Option(name, quote(wire.text(number))))
        elif isinstance(kind, dict):
            options.append(Option(name, kind.get(wire.integer(number), str(wire.integer(number)))))
        else:
            options.append(Option(name, "true" if wire.integer(number) else "false"))
    return options


def _features(wire: WireMessage) -> list[Option]:
    found = []
    for number in wire.fields:
        name, values = FEATURES.get(number, (f"({number})", {}))
        value = values.get(wire.integer(number), "") if values else ""
        found.append(Option(f"features.{name}", value or quote(wire.raw(number).hex())))
    return found


def encode_options(options: list[Option], table: Table) -> bytes:
    """Custom options given by name are left out: their numbers stand in files that need not be at hand."""
    by_name = {name: (number, kind) for number, (name, kind) in table.items()}
    data = features = b""
    for option in options:
        name, value = option.name, option.value
        if name.startswith("(") and name[1:-1].isdigit():
            data += _raw(value)
        elif name.startswith("features."):
            features += _encode_feature(name.removeprefix("features."), value)
        elif name in by_name:
            number, kind = by_name[name]
            if kind == TEXT:
                data += blob_field(number, unquote(value).encode("utf-8", "surrogateescape"))
            elif isinstance(kind, dict):
                data += _encode_enum(number, kind, value)
            else:
                data += number_field(number, value == "true")
    if features and "features" in by_name:
        data += blob_field(by_name["features"][0], features)
    return data


def _raw(value: str) -> bytes:
    try:
        return bytes.fromhex(unquote(value))
    except ValueError:
        raise MalformedSchema(f"{value} is not the hex of an option's bytes") from None


def _encode_feature(name: str, value: str) -> bytes:
    if name.startswith("(") and name[1:-1].isdigit():
        return _raw(value)
    for number, (known, values) in FEATURES.items():
        if known == name:
            return _encode_enum(number, values, value)
    return b""


def _encode_enum(number: int, values: dict[int, str], value: str) -> bytes:
    for code, name in values.items():
        if name == value:
            return number_field(number, code)
    return b""
