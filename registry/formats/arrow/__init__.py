"""Arrow table schemas as JSON text.

The text is an object with `fields`, the columns in order. A field has

    name        a string, unique among its siblings
    type        see `types`: "int64", "utf8", "timestamp[us, tz=UTC]", "decimal128(10, 2)", "list", ...
    nullable    whether there may be nulls; true when absent
    children    the parts of a nested type: the item of a list, the fields of a struct, the key and the value
                of a map, the members of a union in the order of their codes
    dictionary  present when values are dictionary-encoded: {"index": "int32", "ordered": false}
    run_ends    present when values are run-end encoded: the type of the run ends, e.g. "int32"

and nothing else: metadata is no part of a schema here. For example:

    {"fields": [{"name": "at", "type": "timestamp[us, tz=UTC]", "nullable": false},
                {"name": "tags", "type": "list", "children": [{"name": "item", "type": "utf8"}]}]}

The canonical form says what the values are and not how bytes hold them: no widths of strings, binaries and
lists, a dictionary is its value type, a zoned timestamp is in UTC, items and entries have fixed names. So the
same table from Spark, pandas or polars has one hash. `shape_hash` leaves out nullability too, because
Spark derives that from expressions; `layout` is the exact form, for readers of bytes in shared memory.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from registry.formats.arrow.comparison import differences, layout_differences
from registry.formats.arrow.conversion import from_arrow, to_arrow_schema
from registry.formats.arrow.fields import ArrowField, read_fields, write_field
from registry.formats.differences import Difference, MalformedSchema, Parsed

__all__ = ["ArrowSchema", "compare", "compare_layout", "from_arrow", "normalize", "parse", "to_arrow"]


class ArrowSchema(Parsed):
    shape_hash: str
    layout: str
    layout_hash: str
    fields: list[ArrowField]


def parse(text: str, references: Mapping[str, str]) -> ArrowSchema:
    if references:
        raise MalformedSchema("an Arrow schema has no references")
    fields = read_fields(text)
    canonical, digest = _digest(fields, logical=True)
    layout, layout_digest = _digest(fields, logical=False)
    _, shape_digest = _digest(fields, logical=True, nullability=False)
    return ArrowSchema("ARROW", canonical, digest, shape_digest, layout, layout_digest, fields)


def _digest(fields: list[ArrowField], **form: bool) -> tuple[str, str]:
    data = msgspec.json.encode({"fields": [write_field(field, **form) for field in fields]}, order="deterministic")
    return data.decode(), hashlib.sha256(data).hexdigest()


def normalize(text: str, references: Mapping[str, str]) -> str:
    return parse(text, references).canonical


def compare(old: Parsed, new: Parsed) -> list[Difference]:
    """Return why a reader that selects and casts to the new schema cannot take every old table."""
    before, after = _schemas(old, new)
    return differences(before.fields, after.fields)


def compare_layout(old: Parsed, new: Parsed) -> list[Difference]:
    """Why the bytes of an old table, as they lie in memory, cannot be read as the new schema says."""
    before, after = _schemas(old, new)
    return layout_differences(before.fields, after.fields)


def _schemas(old: Parsed, new: Parsed) -> tuple[ArrowSchema, ArrowSchema]:
    if not isinstance(old, ArrowSchema) or not isinstance(new, ArrowSchema):
        raise TypeError("Arrow schemas are compared with Arrow schemas")
    return old, new


def to_arrow(text: str) -> Any:
    """The pyarrow.Schema that the text describes."""
    return to_arrow_schema(read_fields(text))
