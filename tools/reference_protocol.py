"""The tables of fields in docs/reference/protocol.md: name, type and description, as the JSON Schemas have them.

The sections and their sentences are written by hand; of a section's table only the rows are written here.
"""

import re
from pathlib import Path
from typing import Any

from tools import schema_files

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "protocol.md"
_TABLE = re.compile(
    r"^(### (\w+)\b[^\n]*\n(?:(?!###? ).*\n)*?\| field \| type \| \|\n\|---\|---\|---\|\n)((?:\|.*\n)*)", re.M
)
_ENVELOPE = {"request": {"type", "id", "protocol", "priority"}, "reply": {"type", "id"}}
_ITSELF = {"string": "string", "boolean": "boolean", "object": "object", "null": "null"}
_TO = "\N{EN DASH}"


def page() -> str:
    definitions = _definitions()
    return _TABLE.sub(lambda table: table[1] + _rows(*definitions[table[2]]), PAGE.read_text())


def _definitions() -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Return the schema of each message and record by its name, and which of its fields the table leaves out."""
    found: dict[str, tuple[dict[str, Any], set[str]]] = {}
    for kind, left_out in _ENVELOPE.items():
        for name in schema_files.MESSAGES[kind]:
            schema = schema_files.schema(kind, name)
            found |= {record: (fields, set()) for record, fields in schema.get("$defs", {}).items()}
            found[name] = (schema, left_out)
    return found


def _rows(schema: dict[str, Any], left_out: set[str]) -> str:
    rows = []
    for name, field in schema["properties"].items():
        if name not in left_out:
            optional = "" if name in schema.get("required", []) else " (optional)"
            cells = (f"`{name}`{optional}", type_of(field), field.get("description", ""))
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n")
    return "".join(rows)


def type_of(field: dict[str, Any]) -> str:
    """Return a type in few words: `string (≤ 1024) | null`, `array of Block`."""
    if "anyOf" in field:
        return " | ".join(type_of(one) for one in field["anyOf"])
    if "enum" in field:
        return " | ".join("null" if value is None else f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    kind = field.get("type", "any")
    if kind == "array":
        items = f" of {type_of(field['items'])}" if field.get("items") else ""
        return f"array{items}{_bounds(field, 'minItems', 'maxItems')}"
    if kind == "string":
        return f"string{_bounds(field, 'minLength', 'maxLength')}"
    if kind in ("integer", "number"):
        return f"{kind}{_bounds(field, 'minimum', 'maximum')}{_above(field)}"
    return _ITSELF.get(kind, str(kind))


def _bounds(field: dict[str, Any], least: str, most: str) -> str:
    low, high = field.get(least), field.get(most)
    if low is not None and high is not None:
        return f" ({_number(low)}{_TO}{_number(high)})"
    if low is not None:
        return f" (≥ {_number(low)})"
    return f" (≤ {_number(high)})" if high is not None else ""


def _above(field: dict[str, Any]) -> str:
    return f" (> {_number(field['exclusiveMinimum'])})" if "exclusiveMinimum" in field else ""


def _number(value: float) -> str:
    return "2^53" if value == 2**53 else f"{value:g}" if isinstance(value, float) else str(value)
