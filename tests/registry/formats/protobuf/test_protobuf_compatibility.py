"""Protobuf compatibility, one case per rule of the wire format and of the Confluent registry."""

import pickle
from typing import NamedTuple

import pytest

from registry.formats import protobuf
from registry.formats.differences import BudgetExceeded
from registry.formats.protobuf import comparison


class Case(NamedTuple):
    reason: str
    old: str
    new: str
    expected: list[tuple[str, str]] = []  # noqa: RUF012  never changed


def proto3(body: str) -> str:
    return f'syntax = "proto3";\n{body}'


def proto2(body: str) -> str:
    return f'syntax = "proto2";\n{body}'


def message(fields: str, more: str = "") -> str:
    return proto3(f"message M {{ {fields} }} {more}")


def old_message(fields: str, more: str = "") -> str:
    return proto2(f"message M {{ {fields} }} {more}")


def retyped(reason: str, old: str, new: str, *kinds: str) -> Case:
    return Case(reason, message(f"{old} x = 1;", TYPES), message(f"{new} x = 1;", TYPES), [(k, "/M/1") for k in kinds])


TYPES = "enum E { ZERO = 0; ONE = 1; } message Other { string s = 1; } message Third { string s = 1; }"
SCALAR = "FIELD_SCALAR_KIND_CHANGED"
KIND = "FIELD_KIND_CHANGED"
NAMED = "FIELD_NAMED_TYPE_CHANGED"
LABEL = "FIELD_NUMERIC_LABEL_CHANGED"

FIELDS = [
    Case("nothing changed", message("string a = 1;"), message("string a = 1;")),
    Case("a new field has a default", message("string a = 1;"), message("string a = 1; int32 b = 2;")),
    Case("a removed field is skipped", message("string a = 1; int32 b = 2;"), message("string a = 1;")),
    Case("names are not on the wire", message("string a = 1;"), message("string z = 1;")),
    Case("a new number is another field", message("string a = 1;"), message("string a = 2;")),
    Case("order is free", message("string a = 1; int32 b = 2;"), message("int32 b = 2; string a = 1;")),
    Case("a JSON name is not on the wire", message("string a = 1;"), message('string a = 1 [json_name = "z"];')),
    Case(
        "a number may become reserved",
        message("string a = 1; int32 b = 2;"),
        message("string a = 1; reserved 2;"),
    ),
    Case("a reserved number was not written", message("reserved 2;"), message("int32 b = 2;")),
    Case(
        "numbers may swap when types agree",
        message("int32 a = 1; int64 b = 2;"),
        message("int32 b = 1; int64 a = 2;"),
    ),
    Case(
        "numbers may not swap when types differ",
        message("int32 a = 1; string b = 2;"),
        message("string b = 1; int32 a = 2;"),
        [(SCALAR, "/M/1"), (SCALAR, "/M/2")],
    ),
    Case("options of a field are free", message("int32 a = 1;"), message("int32 a = 1 [deprecated = true];")),
    Case(
        "packing is free: parsers take both",
        message("repeated int32 a = 1 [packed = true];"),
        message("repeated int32 a = 1 [packed = false];"),
    ),
]
SCALARS = [
    retyped("int32, int64, uint32, uint64 and bool are one group", "int32", "int64"),
    retyped("uint64 to bool keeps the encoding", "uint64", "bool"),
    retyped("bool to uint32 keeps the encoding", "bool", "uint32"),
    retyped("sint32 and sint64 are one group", "sint32", "sint64"),
    retyped("zigzag is not plain", "sint32", "int32", SCALAR),
    retyped("plain is not zigzag", "int64", "sint64", SCALAR),
    retyped("fixed32 and sfixed32 are one group", "fixed32", "sfixed32"),
    retyped("fixed64 and sfixed64 are one group", "fixed64", "sfixed64"),
    retyped("fixed32 is half of fixed64", "fixed32", "fixed64", SCALAR),
    retyped("a fixed number is no varint", "fixed32", "int32", SCALAR),
    retyped("float and double differ in size", "float", "double", SCALAR),
    retyped("float has the size of fixed32 but not its meaning", "float", "fixed32", SCALAR),
    retyped("double has the size of fixed64 but not its meaning", "double", "fixed64", SCALAR),
    retyped("string and bytes are one group", "string", "bytes"),
    retyped("bytes and string are one group", "bytes", "string"),
    retyped("a number is no string", "int32", "string", SCALAR),
    retyped("a string is no number", "string", "int32", SCALAR),
    retyped("an enum is a number", "E", "int32"),
    retyped("a number may become an enum", "uint64", "E"),
    retyped("an enum is not zigzag", "E", "sint32", SCALAR),
    retyped("an enum is no string", "E", "string", SCALAR),
]
MESSAGES = [
    retyped("a scalar is no message", "int32", "Other", KIND),
    retyped("a message is no scalar", "Other", "bytes", KIND),
    retyped("an enum is no message", "E", "Other", KIND),
    retyped("another message of the same shape is another message", "Other", "Third", NAMED),
    retyped("a spelling of the same name", "Other", ".Other"),
    Case("a new message", message(""), message("", "message N {}")),
    Case("a removed message", message("", "message N {}"), message(""), [("MESSAGE_REMOVED", "/N")]),
    Case("messages in another order", message("", "message N {}"), proto3("message N {} message M {}")),
    Case(
        "a removed nested message",
        message("message N {}"),
        message(""),
        [("MESSAGE_REMOVED", "/M/N")],
    ),
    Case(
        "a fault in a nested message",
        message("message N { int32 a = 1; }"),
        message("message N { string a = 1; }"),
        [(SCALAR, "/M/N/1")],
    ),
    Case(
        "a fault in a message that a field uses is told once",
        message("N n = 1; message N { int32 a = 1; }"),
        message("N n = 1; message N { string a = 1; }"),
        [(SCALAR, "/M/N/1")],
    ),
    Case(
        "a nested message that moves out is another one",
        message("N n = 1; message N { int32 a = 1; }"),
        message("N n = 1;", "message N { int32 a = 1; }"),
        [(NAMED, "/M/1"), ("MESSAGE_REMOVED", "/M/N")],
    ),
    Case(
        "a recursive message",
        message("M next = 1; int32 a = 2;"),
        message("M next = 1; int64 a = 2;"),
    ),
    Case(
        "a package is part of every name",
        proto3("package a; message M {}"),
        proto3("package b; message M {}"),
        [("PACKAGE_CHANGED", "/")],
    ),
    Case(
        "the syntax is not on the wire",
        old_message("optional int32 a = 1;"),
        message("optional int32 a = 1;"),
    ),
    Case("services carry no data", message("", "service S { rpc A (M) returns (M); }"), message("")),
]
ENUMS = [
    Case("a new value", message("", "enum E { A = 0; }"), message("", "enum E { A = 0; B = 1; }")),
    Case(
        "a removed value stays a number",
        message("", "enum E { A = 0; B = 1; }"),
        message("", "enum E { A = 0; }"),
    ),
    Case("a renamed value", message("", "enum E { A = 0; B = 1; }"), message("", "enum E { A = 0; C = 1; }")),
    Case("a new enum", message(""), message("", "enum E { A = 0; }")),
    Case("a removed enum", message("", "enum E { A = 0; }"), message("")),
    Case(
        "an alias of a value",
        message("", "enum E { A = 0; }"),
        message("", "enum E { option allow_alias = true; A = 0; B = 0; }"),
    ),
]
LABELS = [
    Case("explicit presence is not on the wire", message("int32 a = 1;"), message("optional int32 a = 1;")),
    Case("a repeated string: the last one counts", message("repeated string a = 1;"), message("string a = 1;")),
    Case("a string becomes a list of one", message("string a = 1;"), message("repeated string a = 1;")),
    Case("bytes become a list of one", message("bytes a = 1;"), message("repeated bytes a = 1;")),
    Case("a message becomes a list of one", message("M a = 1;"), message("repeated M a = 1;")),
    Case("a list of messages is merged", message("repeated M a = 1;"), message("M a = 1;")),
    Case(
        "packed numbers are no number",
        message("repeated int32 a = 1;"),
        message("int32 a = 1;"),
        [(LABEL, "/M/1")],
    ),
    Case(
        "a number is not packed",
        message("optional int32 a = 1;"),
        message("repeated int32 a = 1;"),
        [(LABEL, "/M/1")],
    ),
    Case(
        "enums are numbers here too",
        message("repeated E a = 1;", TYPES),
        message("E a = 1;", TYPES),
        [(LABEL, "/M/1")],
    ),
    Case(
        "required is always there, so optional reads it",
        old_message("required int32 a = 1;"),
        old_message("optional int32 a = 1;"),
    ),
    Case(
        "optional may lack what required demands",
        old_message("optional int32 a = 1;"),
        old_message("required int32 a = 1;"),
        [("FIELD_BECAME_REQUIRED", "/M/1")],
    ),
    Case(
        "old data lacks a new required field",
        old_message("optional int32 a = 1;"),
        old_message("optional int32 a = 1; required int32 b = 2;"),
        [("REQUIRED_FIELD_ADDED", "/M/2")],
    ),
    Case(
        "a required field may not go: whoever still demands it fails",
        old_message("optional int32 a = 1; required int32 b = 2;"),
        old_message("optional int32 a = 1;"),
        [("REQUIRED_FIELD_REMOVED", "/M/2")],
    ),
    Case(
        "editions say required with a feature",
        'edition = "2023"; message M { int32 a = 1; }',
        'edition = "2023"; message M { int32 a = 1 [features.field_presence = LEGACY_REQUIRED]; }',
        [("FIELD_BECAME_REQUIRED", "/M/1")],
    ),
    Case(
        "a default is the reader's affair",
        old_message("optional int32 a = 1 [default = 4];"),
        old_message("optional int32 a = 1 [default = 5];"),
    ),
]
ONEOFS = [
    Case(
        "one field moves into a new oneof",
        message("string a = 1; int32 b = 2;"),
        message("string a = 1; oneof o { int32 b = 2; }"),
    ),
    Case(
        "one field moves into a new oneof with new fields",
        message("string a = 1;"),
        message("oneof o { string a = 1; int32 b = 2; }"),
    ),
    Case(
        "two fields that could be set together",
        message("string a = 1; int32 b = 2;"),
        message("oneof o { string a = 1; int32 b = 2; }"),
        [("MULTIPLE_FIELDS_MOVED_TO_ONEOF", "/M/o")],
    ),
    Case(
        "a field joins a oneof that was there",
        message("string a = 1; oneof o { int32 b = 2; }"),
        message("oneof o { string a = 1; int32 b = 2; }"),
        [("FIELD_MOVED_TO_EXISTING_ONEOF", "/M/o")],
    ),
    Case(
        "two oneofs become one",
        message("oneof o { int32 a = 1; } oneof p { int32 b = 2; }"),
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        [("FIELD_MOVED_TO_EXISTING_ONEOF", "/M/o")],
    ),
    Case(
        "a oneof splits",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } oneof p { int32 b = 2; }"),
    ),
    Case(
        "a field leaves a oneof",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; } int32 b = 2;"),
    ),
    Case(
        "a oneof is dissolved",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("int32 a = 1; int32 b = 2;"),
    ),
    Case(
        "a oneof is renamed",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof p { int32 a = 1; int32 b = 2; }"),
    ),
    Case(
        "a new field in a oneof",
        message("oneof o { int32 a = 1; }"),
        message("oneof o { int32 a = 1; int32 b = 2; }"),
    ),
    Case(
        "a field removed from a oneof: nobody can tell which was set",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof o { int32 a = 1; }"),
        [("ONEOF_FIELD_REMOVED", "/M/o/2")],
    ),
    Case(
        "a field removed from a oneof that is renamed",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof p { int32 a = 1; }"),
        [("ONEOF_FIELD_REMOVED", "/M/o/2")],
    ),
    Case(
        "a field removed from a oneof whose other fields move out",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("int32 a = 1;"),
        [("ONEOF_FIELD_REMOVED", "/M/o/2")],
    ),
    Case(
        "a field removed from a oneof that splits",
        message("oneof o { int32 a = 1; int32 b = 2; int32 c = 3; }"),
        message("oneof p { int32 a = 1; } oneof q { int32 c = 3; }"),
        [("ONEOF_FIELD_REMOVED", "/M/o/2")],
    ),
    Case(
        "a field removed from a oneof of a message within a message",
        message("message N { oneof o { int32 a = 1; int32 b = 2; } } N n = 1;"),
        message("message N { oneof p { int32 a = 1; } } N n = 1;"),
        [("ONEOF_FIELD_REMOVED", "/M/N/o/2")],
    ),
    Case(
        "all fields of a oneof are replaced under its name",
        message("oneof o { int32 a = 1; }"),
        message("oneof o { int32 b = 2; }"),
        [("ONEOF_FIELD_REMOVED", "/M/o/1")],
    ),
    Case(
        "a oneof removed with its fields, and another one added",
        message("oneof o { int32 a = 1; int32 b = 2; }"),
        message("oneof p { int32 c = 3; }"),
    ),
    Case(
        "a oneof removed with its fields",
        message("string s = 3; oneof o { int32 a = 1; }"),
        message("string s = 3;"),
    ),
    Case(
        "a type within a oneof",
        message("oneof o { int32 a = 1; }"),
        message("oneof o { string a = 1; }"),
        [(SCALAR, "/M/1")],
    ),
    Case(
        "a type of a field that moved into a oneof",
        message("int32 a = 1;"),
        message("oneof o { string a = 1; }"),
        [(SCALAR, "/M/1")],
    ),
]
MAPS = [
    Case(
        "a map's value within its group",
        message("map<string, int32> m = 1;"),
        message("map<string, int64> m = 1;"),
    ),
    Case(
        "a map's value outside its group",
        message("map<string, int32> m = 1;"),
        message("map<string, string> m = 1;"),
        [(SCALAR, "/M/1")],
    ),
    Case(
        "a map's key outside its group",
        message("map<string, int32> m = 1;"),
        message("map<int32, int32> m = 1;"),
        [(SCALAR, "/M/1")],
    ),
    Case("a map is no scalar", message("map<string, int32> m = 1;"), message("string m = 1;"), [(KIND, "/M/1")]),
    Case(
        "a map is no message",
        message("map<string, int32> m = 1;"),
        message("repeated M m = 1;"),
        [(KIND, "/M/1")],
    ),
    Case("a spelling of a map's value", message("map<string, M> m = 1;"), message("map<string, .M> m = 1;")),
]
GROUPS = [
    Case(
        "a group keeps its encoding",
        old_message("optional group G = 1 { optional int32 a = 1; }"),
        old_message("optional group G = 1 { optional int64 a = 1; }"),
    ),
    Case(
        "a fault within a group",
        old_message("optional group G = 1 { optional int32 a = 1; }"),
        old_message("optional group G = 1 { optional string a = 1; }"),
        [(SCALAR, "/M/G/1")],
    ),
    Case(
        "a group is delimited, a message has a length",
        old_message("optional group G = 1 { optional int32 a = 1; }"),
        old_message("optional G g = 1; message G { optional int32 a = 1; }"),
        [(KIND, "/M/1")],
    ),
    Case(
        "an edition may delimit like a group",
        old_message("optional group G = 1 { optional int32 a = 1; }"),
        'edition = "2023"; option features.message_encoding = DELIMITED;'
        " message M { G g = 1; message G { int32 a = 1; } }",
    ),
    Case(
        "the type of an extension",
        proto2("message M { extensions 100 to 200; } extend M { optional int32 a = 100; }"),
        proto2("message M { extensions 100 to 200; } extend M { optional string a = 100; }"),
        [(SCALAR, "/M/100")],
    ),
]
CASES = FIELDS + SCALARS + MESSAGES + ENUMS + LABELS + ONEOFS + MAPS + GROUPS


@pytest.mark.parametrize("case", CASES, ids=[case.reason for case in CASES])
def test_new_schema_reads_old_data_or_says_where_not(case: Case) -> None:
    found = protobuf.compare(protobuf.parse(case.old, {}), protobuf.parse(case.new, {}))
    assert [(difference.kind, difference.path) for difference in found] == case.expected
    assert all(difference.message.endswith(".") for difference in found)


HOME = proto3("package demo; message Home { int32 id = 1; Room room = 2; } message Room { string name = 1; }")
IMPORTS = [
    ("the same import", HOME, "demo", []),
    ("the import's package is free", HOME.replace("package demo", "package other"), "other", []),
    ("a fault within the import", HOME.replace("int32 id", "string id"), "demo", [(SCALAR, "/Home/1")]),
    (
        "a fault in what the import uses",
        HOME.replace("string name", "int32 name"),
        "demo",
        [(SCALAR, "/Room/1")],
    ),
    (
        "another message of the import",
        HOME.replace("message Home", "message House") + " message Home {}",
        "demo",
        [],
    ),
]


@pytest.mark.parametrize(("reason", "changed", "package", "expected"), IMPORTS, ids=[case[0] for case in IMPORTS])
def test_types_of_imports_are_compared(
    reason: str, changed: str, package: str, expected: list[tuple[str, str]]
) -> None:
    text = 'import "home.proto"; message M { .%s.Home home = 1; }'
    old = protobuf.parse(proto3(text % "demo"), {"home.proto": HOME})
    new = protobuf.parse(proto3(text % package), {"home.proto": changed})
    assert [(d.kind, d.path) for d in protobuf.compare(old, new)] == expected


def test_a_message_that_moves_to_an_import_is_gone_from_the_schema() -> None:
    room = "message Room { string name = 1; }"
    old = protobuf.parse(message("Room room = 1;", room), {})
    new = protobuf.parse(proto3('import "room.proto"; message M { Room room = 1; }'), {"room.proto": proto3(room)})
    assert [(d.kind, d.path) for d in protobuf.compare(old, new)] == [("MESSAGE_REMOVED", "/Room")]
    assert protobuf.compare(new, old) == []


def test_well_known_types_are_compared_by_name() -> None:
    text = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; message M {%s}'
    at, after = (
        protobuf.parse(proto3(text % f"google.protobuf.{name} at = 1;"), {}) for name in ("Timestamp", "Duration")
    )
    assert protobuf.compare(at, at) == []
    assert [d.kind for d in protobuf.compare(at, after)] == [NAMED]


def test_an_own_type_does_not_stand_in_for_a_well_known_one() -> None:
    known = protobuf.parse(
        proto3('import "google/protobuf/any.proto"; message M { google.protobuf.Any a = 1; } message Any {}'),
        {},
    )
    own = protobuf.parse(message("Any a = 1;", "message Any {}"), {})
    assert [d.kind for d in protobuf.compare(known, own)] == [NAMED]


def test_parsed_schemas_travel_between_processes() -> None:
    old, new = (protobuf.parse(message(f"N n = 1; message N {{ {kind} a = 1; }}"), {}) for kind in ("int32", "string"))
    travelled = [pickle.loads(pickle.dumps(schema)) for schema in (old, new)]
    assert protobuf.compare(*travelled) == protobuf.compare(old, new)


def test_a_huge_comparison_exceeds_a_named_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = protobuf.parse(message(" ".join(f"int32 f{number} = {number};" for number in range(1, 100))), {})
    monkeypatch.setattr(comparison, "MAX_STEPS", 100)
    with pytest.raises(BudgetExceeded, match="steps"):
        protobuf.compare(schema, schema)
