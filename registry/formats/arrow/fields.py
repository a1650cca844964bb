"""Fields of an Arrow schema between JSON text and values."""

from typing import Any

import msgspec

from registry.formats.arrow.types import ArrowType, read_type, spell
from registry.formats.bounded_json import decode
from registry.formats.differences import BudgetExceeded, MalformedSchema, TooLarge

MAX_NESTING = 64  # what Arrow's own readers take
MAX_FIELDS = 100_000
KEYS = {"name", "type", "nullable", "children", "dictionary", "run_ends"}
# Names of these parts differ between producers and mean nothing.
PART_NAMES = {"list": ["item"], "fixed_size_list": ["item"], "map": ["key", "value"]}
INTEGERS = ("int", "uint")


class ArrowField(msgspec.Struct):
    """`index` is the type of a dictionary's indexes, `run_ends` that of run ends; else they are empty."""

    name: str
    type: ArrowType
    is_nullable: bool = True
    children: list["ArrowField"] = []
    index: str = ""
    is_ordered: bool = False
    run_ends: str = ""


def read_fields(text: str) -> list[ArrowField]:
    match decode(text):
        case {"fields": list() as items, **others} if not others:
            fields = _FieldParser().fields(items, "/fields", 1)
            _unique_names(fields, "/fields")
            return fields
    raise MalformedSchema('an Arrow schema is an object with "fields", a list, and nothing else')


class _FieldParser:
    def __init__(self) -> None:
        self.count = 0

    def fields(self, items: list[Any], path: str, depth: int) -> list[ArrowField]:
        if depth > MAX_NESTING:
            raise BudgetExceeded("schema nesting", MAX_NESTING)
        self.count += len(items)
        if self.count > MAX_FIELDS:
            raise TooLarge("fields", MAX_FIELDS)
        return [self.field(item, f"{path}/{index}", depth) for index, item in enumerate(items)]

    def field(self, item: Any, path: str, depth: int) -> ArrowField:
        if not isinstance(item, dict):
            raise MalformedSchema("a field is an object", path)
        if unknown := sorted(set(item) - KEYS):
            raise MalformedSchema(f'a field has no "{unknown[0]}"', path)
        name, kind, nullable = item.get("name"), item.get("type"), item.get("nullable", True)
        if not isinstance(name, str) or not isinstance(kind, str) or not isinstance(nullable, bool):
            raise MalformedSchema('a field needs "name" and "type", strings; "nullable" is true or false', path)
        children = item.get("children", [])
        if not isinstance(children, list):
            raise MalformedSchema('"children" is a list of fields', path)
        field = ArrowField(name, read_type(kind, f"{path}/type"), nullable)
        field.children = self.fields(children, f"{path}/children", depth + 1)
        _check_children(field, path)
        _read_encoding(field, item, path)
        return field


def _unique_names(fields: list[ArrowField], path: str) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise MalformedSchema(f'two fields are called "{field.name}"', path)
        seen.add(field.name)


def _check_children(field: ArrowField, path: str) -> None:
    kind, names = field.type.kind, PART_NAMES.get(field.type.kind)
    if kind == "null" and not field.is_nullable:
        raise MalformedSchema("a field of nulls is nullable", path)
    if names is not None:
        if len(field.children) != len(names):
            raise MalformedSchema(f"{kind} has {len(names)} children: {', '.join(names)}", path)
        for child, name in zip(field.children, names, strict=True):
            child.name = name
        if kind == "map":
            field.children[0].is_nullable = False
    elif kind == "struct":
        _unique_names(field.children, path)
    elif kind in ("dense_union", "sparse_union"):
        if len(field.children) != len(field.type.codes):
            raise MalformedSchema("a union has one child per type code", path)
    elif field.children:
        raise MalformedSchema(f"{spell(field.type)} has no children", path)


def _read_encoding(field: ArrowField, item: dict[str, Any], path: str) -> None:
    if "dictionary" in item:
        match item["dictionary"]:
            case {"index": str() as index, **others} if not set(others) - {"ordered"}:
                ordered = others.get("ordered", False)
            case _:
                raise MalformedSchema('"dictionary" is an object with "index" and "ordered"', path)
        if read_type(index, path).kind not in INTEGERS or not isinstance(ordered, bool):
            raise MalformedSchema("the indexes of a dictionary are integers, and ordered is true or false", path)
        field.index, field.is_ordered = index, ordered
    if "run_ends" in item:
        run_ends = item["run_ends"]
        if run_ends not in ("int16", "int32", "int64") or field.index:
            raise MalformedSchema('"run_ends" is int16, int32 or int64, without "dictionary"', path)
        field.run_ends = run_ends


def write_field(field: ArrowField, *, logical: bool, nullability: bool = True) -> dict[str, Any]:
    """The JSON of a field: what its values are, or exactly how they are stored."""
    value: dict[str, Any] = {"name": field.name, "type": spell(field.type.logical if logical else field.type)}
    if nullability:
        value["nullable"] = field.is_nullable
    if field.children:
        value["children"] = [write_field(child, logical=logical, nullability=nullability) for child in field.children]
    if field.index and not logical:
        value["dictionary"] = {"index": field.index, "ordered": field.is_ordered}
    if field.run_ends and not logical:
        value["run_ends"] = field.run_ends
    return value
