"""`messagehub schemas export|import`: a registry moved to another hub, and documents checked there."""

import json
from collections.abc import Iterator

import pytest

from messagehub import MessageHub
from registry.commands import ConfigureSchemas, DeleteSchema, RegisterSchema, SetSchemaMode
from registry.records import Reference, SchemaConfig
from tests.cli.program import Program

BASE = {"$id": "base.json", "type": "integer"}
USER = {"type": "object", "properties": {"n": {"$ref": "base.json"}}, "additionalProperties": False}


@pytest.fixture
def other(alone: Program) -> Iterator[Program]:
    """A second hub, empty."""
    alone.configure()
    with alone.serve() as broker:
        yield alone
        assert broker.end() == 0, broker.err


@pytest.fixture(scope="module")
def filled(hub: Program) -> Program:
    """`a.user` refers to the second version of `z.base`, whose first is gone; `m.turns` was once free to change."""
    with MessageHub(dir=hub.dir) as connected:
        connected.register_schema("z.base", {"type": "string"})
        connected.ask(ConfigureSchemas(subject="z.base", config=SchemaConfig(compatibility="NONE")))
        connected.register_schema("z.base", BASE)
        for permanent in (False, True):
            connected.ask(DeleteSchema(subject="z.base", version=1, permanent=permanent))
        references = [Reference(name="base.json", subject="z.base", version=2)]
        metadata = {"properties": {"owner": "lab"}}
        connected.ask(RegisterSchema(subject="a.user", schema=USER, references=references, metadata=metadata))
        connected.ask(ConfigureSchemas(subject="m.turns", config=SchemaConfig(compatibility="NONE")))
        for kind in ("string", "integer", "boolean"):
            connected.register_schema("m.turns", {"type": kind})
        connected.ask(ConfigureSchemas(subject="m.turns", config=SchemaConfig(compatibility="FULL")))
        connected.ask(SetSchemaMode(subject="m.turns", mode="READONLY"))
    return hub


def test_a_registry_moves_whole_and_importing_again_changes_nothing(filled: Program, other: Program) -> None:
    file = other.place / "all.jsonl"
    told = filled.run("schemas", "export", str(file))
    assert told.stderr == "exported 5 schemas of 3 subjects\n"
    assert filled.call("schemas", "export").stdout == file.read_text()

    first = other.json("schemas", "import", str(file))
    assert (len(first["imported"]), first["skipped"], first["refused"]) == (5, [], [])
    again = other.call_json("schemas", "import", "-", stdin=file.read_text())
    assert (again["imported"], len(again["skipped"]), again["refused"]) == ([], 5, [])
    assert "imported 0, skipped 5, refused 0" in other.call("schemas", "import", str(file)).stdout

    user = other.call_json("schemas", "get", "a.user")
    was = filled.call_json("schemas", "get", "a.user")
    assert user == was, "with the same id, number, GUID and references"
    assert [one["version"] for one in other.call_json("schemas", "z.base")] == [2]
    assert [one["schema_id"] for one in other.call_json("schemas", "m.turns")] == [
        one["schema_id"] for one in filled.call_json("schemas", "m.turns")
    ]
    assert user["metadata"] == {"properties": {"owner": "lab"}}
    assert [one["version"] for one in other.call_json("schemas", "m.turns")] == [1, 2, 3]
    settings = other.call_json("schemas", "config", "m.turns")
    assert (settings["compatibility"], settings["mode"]) == ("FULL", "READONLY")
    assert other.call_json("schemas", "config", "a.user")["mode"] == "READWRITE"


def test_a_subject_that_was_there_keeps_its_rules(filled: Program, other: Program) -> None:
    other.call("schemas", "register", "m.turns", "-", stdin='{"type": "array"}')
    lines = filled.call("schemas", "export", "--prefix", "m.").stdout
    found = other.call_json("schemas", "import", "-", stdin=lines, code=1)
    assert {one["code"] for one in found["refused"]} == {"SCHEMA_INCOMPATIBLE"}
    assert len(found["refused"]) == 3


def test_where_an_id_is_taken_the_schema_gets_another_and_says_so(filled: Program, other: Program) -> None:
    taken = filled.call_json("schemas", "get", "z.base")["schema_id"]
    for number in range(taken):
        other.call("schemas", "register", "here", "-", stdin=json.dumps({"description": str(number)}))
    lines = filled.call("schemas", "export").stdout
    found = other.call_json("schemas", "import", "-", stdin=lines)
    assert found["refused"] == []
    base = next(one for one in found["imported"] if one["subject"] == "z.base")
    assert (base["was"], base["id"] != base["was"], base["version"]) == (taken, True, 1)
    user = other.call_json("schemas", "get", "a.user")
    assert user["references"] == [{"name": "base.json", "subject": "z.base", "version": 1}]
    assert other.call_json("schemas", "config", "z.base") == filled.call_json("schemas", "config", "z.base")
    assert other.call_json("schemas", "import", "-", stdin=lines)["imported"] == []


def test_what_is_no_export_is_wrong_usage(hub: Program) -> None:
    assert "line 2" in hub.call("schemas", "import", "-", stdin='{"line":"settings"}\n{"line":"x"}\n', code=2).stderr
    assert "cannot open" in hub.call("schemas", "import", "/does/not/exist", code=2).stderr
    assert "cannot open" in hub.call("schemas", "export", "/does/not/exist", code=2).stderr
    kept = hub.place / "kept.jsonl"
    kept.write_text("mine")
    assert "exists already" in hub.call("schemas", "export", str(kept), code=2).stderr
    assert kept.read_text() == "mine"
    inherited = hub.call("schemas", "config", "nosuch").stdout
    assert inherited.count("what holds for all") == 3
    ring = [
        {"line": "schema", "schema": _version(subject, [{"name": "x", "subject": to, "version": 1}])}
        for subject, to in (("r.a", "r.b"), ("r.b", "r.a"))
    ]
    assert "in a circle" in hub.call("schemas", "import", "-", stdin="\n".join(map(json.dumps, ring)), code=2).stderr


def _version(subject: str, references: list[dict[str, object]]) -> dict[str, object]:
    place = {"subject": subject, "version": 1, "schema_id": 1, "schema_type": "JSON", "schema_hash": "x"}
    return {**place, "schema": "{}", "references": references}


def test_one_document_is_validated_with_what_its_schema_refers_to(filled: Program) -> None:
    assert filled.run("validate", "a.user", stdin='{"n": 1}').stdout == "valid under version 1\n"
    refused = filled.run("validate", "a.user", stdin='{"n": "x"}', code=1)
    assert refused.stdout.startswith("/n: ")
    found = filled.call_json("validate", "a.user", "-", stdin="{", code=1)
    assert (found["valid"], found["documents"], "not JSON" in found["problems"][0]["message"]) == (False, 1, True)


def test_lines_are_validated_each_with_its_number(filled: Program) -> None:
    file = filled.place / "documents.jsonl"
    file.write_text('{"n": 1}\n\n{"n": "x"}\n{\n{"n": 2}\n')
    text = filled.run("validate", "a.user", str(file), code=1).stdout.splitlines()
    assert text[0].startswith("line 3: /n: ")
    assert text[1].startswith("line 4: /: not JSON")
    assert text[-1] == "4 documents, 2 of them not valid under version 1"
    found = filled.call_json("validate", "a.user", "--lines", stdin='{"n": 1}\n{"n": 2}\n')
    assert found == {"valid": True, "version": 1, "documents": 2, "invalid": 0, "problems": []}


def test_documents_need_a_json_schema_and_a_file(filled: Program) -> None:
    hub = filled
    hub.call("schemas", "register", "v.avro", "-", "--schema-type", "AVRO", stdin='"int"')
    assert hub.call_json("validate", "v.avro", stdin="1", code=1)["error"]["code"] == "INVALID_SCHEMA"
    assert hub.call_json("validate", "v.nobody", stdin="1", code=1)["error"]["code"] == "SUBJECT_NOT_FOUND"
    assert "cannot open" in hub.call("validate", "a.user", "/does/not/exist", code=2).stderr
