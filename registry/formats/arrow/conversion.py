"""Between our text and pyarrow.Schema; pyarrow is imported only when asked for."""

from typing import Any

import msgspec

from registry.formats.arrow.fields import MAX_NESTING, ArrowField, write_field
from registry.formats.arrow.types import ArrowType, read_type, spell
from registry.formats.differences import BudgetExceeded, MalformedSchema

LISTS = {"list": 32, "large_list": 64, "list_view": -32, "large_list_view": -64}
LIST_MAKERS = {32: "list_", 64: "large_list", -32: "list_view", -64: "large_list_view"}
STRING_MAKERS = {32: "string", 64: "large_string", 0: "string_view"}
BINARY_MAKERS = {32: "binary", 64: "large_binary", 0: "binary_view"}


def from_arrow(schema: Any) -> str:
    """Return the text of a pyarrow.Schema. Metadata is left out, and an extension type becomes its storage type."""
    fields = [write_field(_read(field.name, field, 1), logical=False) for field in schema]
    return msgspec.json.encode({"fields": fields}, order="deterministic").decode()


def _read(name: str, field: Any, depth: int) -> ArrowField:
    import pyarrow as pa

    if depth > MAX_NESTING:
        raise BudgetExceeded("schema nesting", MAX_NESTING)
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    result = ArrowField(name, ArrowType("null"), field.nullable)
    if pa.types.is_dictionary(kind):
        result.index, result.is_ordered, kind = str(kind.index_type), kind.ordered, kind.value_type
    elif pa.types.is_run_end_encoded(kind):
        result.run_ends, kind = str(kind.run_end_type), kind.value_type
    result.type, parts = _read_type(kind)
    result.children = [_read(part_name, part, depth + 1) for part_name, part in parts]
    return result


def _read_type(kind: Any) -> tuple[ArrowType, list[tuple[str, Any]]]:
    """The type and its parts, each with the name that it has in our text."""
    import pyarrow as pa

    for name, width in LISTS.items():
        if getattr(pa.types, f"is_{name}")(kind):
            return ArrowType("list", width), [("item", kind.value_field)]
    if pa.types.is_fixed_size_list(kind):
        return ArrowType("fixed_size_list", size=kind.list_size), [("item", kind.value_field)]
    if pa.types.is_map(kind):
        return ArrowType("map", is_sorted=kind.keys_sorted), [
            ("key", kind.key_field),
            ("value", kind.item_field),
        ]
    fields = [kind.field(index) for index in range(kind.num_fields)]
    parts = [(field.name, field) for field in fields]
    if pa.types.is_struct(kind):
        return ArrowType("struct"), parts
    if pa.types.is_union(kind):
        return ArrowType(f"{kind.mode}_union", codes=tuple(kind.type_codes)), parts
    return read_type(str(kind), ""), []


def to_arrow_schema(fields: list[ArrowField]) -> Any:
    import pyarrow as pa

    try:
        return pa.schema([_write(field) for field in fields])
    except pa.ArrowException as error:
        raise MalformedSchema(f"pyarrow cannot hold this schema: {error}") from None


def _write(field: ArrowField) -> Any:
    import pyarrow as pa

    kind = _write_type(field.type, [_write(child) for child in field.children])
    if field.index:
        kind = pa.dictionary(getattr(pa, field.index)(), kind, field.is_ordered)
    elif field.run_ends:
        kind = pa.run_end_encoded(getattr(pa, field.run_ends)(), kind)
    return pa.field(field.name, kind, field.is_nullable)


def _write_type(kind: ArrowType, parts: list[Any]) -> Any:
    import pyarrow as pa

    match kind.kind:
        case "list":
            return getattr(pa, LIST_MAKERS[kind.width])(parts[0])
        case "fixed_size_list":
            return pa.list_(parts[0], kind.size)
        case "struct":
            return pa.struct(parts)
        case "map":
            return pa.map_(*parts, keys_sorted=kind.is_sorted)
        case "dense_union" | "sparse_union":
            return pa.union(parts, kind.kind.removesuffix("_union"), list(kind.codes))
    return _write_flat_type(kind)


def _write_flat_type(kind: ArrowType) -> Any:
    import pyarrow as pa

    match kind.kind:
        case "null":
            return pa.null()
        case "bool":
            return pa.bool_()
        case "int" | "uint" | "float" | "date":
            return getattr(pa, f"{kind.kind}{kind.width}")()
        case "utf8":
            return getattr(pa, STRING_MAKERS[kind.width])()
        case "binary":
            return getattr(pa, BINARY_MAKERS[kind.width])()
        case "fixed_size_binary":
            return pa.binary(kind.size)
        case "decimal":
            return getattr(pa, f"decimal{kind.width}")(kind.precision, kind.scale)
        case "time":
            return getattr(pa, f"time{kind.width}")(kind.unit)
        case "timestamp":
            return pa.timestamp(kind.unit, kind.zone or None)
        case "duration":
            return pa.duration(kind.unit)
        case "interval" if kind.unit == "month_day_nano":
            return pa.month_day_nano_interval()
    raise MalformedSchema(f"pyarrow has no type for {spell(kind)}")
