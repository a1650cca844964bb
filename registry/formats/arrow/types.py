"""Arrow's types and how they are spelled.

The spelling is pyarrow's where that is unambiguous: `int64`, `utf8`, `timestamp[us, tz=UTC]`,
`decimal128(10, 2)`, `fixed_size_binary[16]`, `fixed_size_list[3]`, `dense_union[0, 5]`. Types with parts
(`list`, `struct`, `map`, unions) say nothing of them; the parts are the field's children.
"""

import re

import msgspec

from registry.formats.differences import MalformedSchema

UNITS = ("s", "ms", "us", "ns")
DECIMAL_PRECISION = {32: 9, 64: 18, 128: 38, 256: 76}
MAX_SIZE = (1 << 31) - 1


class ArrowType(msgspec.Struct, frozen=True):
    """One type without its parts.

    `width` is in bits (of offsets for strings and lists, 0 for views); `size` counts bytes or items;
    `zone` is the name of a time zone, and `codes` are the type codes of a union's members.
    """

    kind: str
    width: int = 0
    unit: str = ""
    zone: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    codes: tuple[int, ...] = ()
    is_sorted: bool = False

    @property
    def logical(self) -> "ArrowType":
        """What the values are, whatever bytes hold them: no widths of offsets, and UTC for every zone."""
        if self.kind in ("utf8", "binary", "list"):
            return ArrowType(self.kind, 32)
        if self.zone:
            return ArrowType(self.kind, unit=self.unit, zone="UTC")
        return self


def _variants(kind: str, names: dict[str, int]) -> dict[str, ArrowType]:
    return {name: ArrowType(kind, width) for name, width in names.items()}


NAMED = (
    {name: ArrowType(name) for name in ("null", "bool", "struct")}
    | _variants("int", {f"int{bits}": bits for bits in (8, 16, 32, 64)})
    | _variants("uint", {f"uint{bits}": bits for bits in (8, 16, 32, 64)})
    | _variants("float", {f"float{bits}": bits for bits in (16, 32, 64)})
    | _variants("utf8", {"utf8": 32, "large_utf8": 64, "utf8_view": 0})
    | _variants("binary", {"binary": 32, "large_binary": 64, "binary_view": 0})
    | _variants("list", {"list": 32, "large_list": 64, "list_view": -32, "large_list_view": -64})
    | _variants("date", {"date32": 32, "date64": 64})
    | {f"time32[{unit}]": ArrowType("time", 32, unit) for unit in ("s", "ms")}
    | {f"time64[{unit}]": ArrowType("time", 64, unit) for unit in ("us", "ns")}
    | {f"timestamp[{unit}]": ArrowType("timestamp", unit=unit) for unit in UNITS}
    | {f"duration[{unit}]": ArrowType("duration", unit=unit) for unit in UNITS}
    | {f"interval[{unit}]": ArrowType("interval", unit=unit) for unit in ("month", "day_time", "month_day_nano")}
    | {"map": ArrowType("map"), "map[sorted]": ArrowType("map", is_sorted=True)}
)
SPELLINGS = {kind: name for name, kind in NAMED.items()}
ALIASES = {
    "string": "utf8",
    "large_string": "large_utf8",
    "string_view": "utf8_view",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
    "month_day_nano_interval": "interval[month_day_nano]",
}
ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([!-Z^-~]{1,64})\]\Z")
DECIMAL = re.compile(r"decimal(32|64|128|256)\(([0-9]{1,2}), ?(-?[0-9]{1,2})\)\Z")
SIZED = re.compile(r"(fixed_size_binary|fixed_size_list)\[([0-9]{1,10})\]\Z")
UNION = re.compile(r"(dense_union|sparse_union)\[([0-9]{1,3}(?:, ?[0-9]{1,3})*)?\]\Z")


def read_type(text: str, path: str) -> ArrowType:
    name = ALIASES.get(text, text)
    if name in NAMED:
        return NAMED[name]
    if match := ZONED.match(text):
        return ArrowType("timestamp", unit=match[1], zone=match[2])
    if match := DECIMAL.match(text):
        width, precision, scale = int(match[1]), int(match[2]), int(match[3])
        if not 1 <= precision <= DECIMAL_PRECISION[width]:
            raise MalformedSchema(f"decimal{width} has a precision of 1 to {DECIMAL_PRECISION[width]}", path)
        return ArrowType("decimal", width, precision=precision, scale=scale)
    if (match := SIZED.match(text)) and int(match[2]) <= MAX_SIZE:
        return ArrowType(match[1], size=int(match[2]))
    if match := UNION.match(text):
        codes = tuple(int(code) for code in match[2].split(",")) if match[2] else ()
        if len(set(codes)) != len(codes) or any(code > 127 for code in codes):
            raise MalformedSchema("a union has distinct type codes up to 127", path)
        return ArrowType(match[1], codes=codes)
    raise MalformedSchema(f'unknown type "{text}"', path)


def spell(kind: ArrowType) -> str:
    if kind in SPELLINGS:
        return SPELLINGS[kind]
    match kind.kind:
        case "timestamp":
            return f"timestamp[{kind.unit}, tz={kind.zone}]"
        case "decimal":
            return f"decimal{kind.width}({kind.precision}, {kind.scale})"
        case "fixed_size_binary" | "fixed_size_list":
            return f"{kind.kind}[{kind.size}]"
    return f"{kind.kind}[{', '.join(map(str, kind.codes))}]"
