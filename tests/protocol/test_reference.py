"""docs/reference says what the code says: every message and field."""

import re
from pathlib import Path

import pytest

from tests.protocol.messages import KINDS
from tools import schema_files

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ENVELOPE = {"type", "id", "protocol", "priority"}
EVERY_EVENT = {"type", "revision", "previous", "at"}


def section(wire_type: str) -> str:
    text = (REFERENCE / "protocol.md").read_text()
    if KINDS[wire_type] == "event":
        (found,) = re.findall(rf"^\| {wire_type} \|.*$", text, re.MULTILINE)
        return str(found)
    (found,) = re.findall(rf"^### {wire_type}(?: →[^\n]*)?\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize("wire_type", sorted(KINDS))
def test_every_message_is_documented_with_exactly_its_fields(wire_type: str) -> None:
    fields = set(schema_files.schema(KINDS[wire_type], wire_type)["properties"])
    if KINDS[wire_type] == "event":
        shown = set(re.findall(r"`(\w+)`: ", section(wire_type)))
        assert shown == fields - (EVERY_EVENT - {"revision"} if wire_type == "BEACON" else EVERY_EVENT)
    else:
        shown = set(re.findall(r"^\| `(\w+)`", section(wire_type), re.MULTILINE))
        assert shown == fields - (ENVELOPE if KINDS[wire_type] == "request" else {"type", "id"})


@pytest.mark.parametrize("wire_type", sorted(schema_files.MESSAGES["request"]))
def test_optional_fields_are_marked(wire_type: str) -> None:
    schema = schema_files.schema("request", wire_type)
    optional = set(re.findall(r"^\| `(\w+)` \(optional\)", section(wire_type), re.MULTILINE))
    assert optional == set(schema["properties"]) - set(schema["required"]) - ENVELOPE


@pytest.mark.parametrize("wire_type", sorted(name for name in KINDS if KINDS[name] != "event"))
def test_every_field_of_requests_replies_and_their_records_is_described(wire_type: str) -> None:
    schema = schema_files.schema(KINDS[wire_type], wire_type)
    for name, record in {wire_type: schema, **schema.get("$defs", {})}.items():
        for field, said in record.get("properties", {}).items():
            assert field == "type" or said.get("description"), f"{name}.{field}"
