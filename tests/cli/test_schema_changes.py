"""`messagehub schemas check|diff|delete|config` against a real broker."""

import json

from messagehub import MessageHub
from tests.cli.program import Program

FIRST = {"type": "object", "properties": {"t": {"type": "integer"}}, "additionalProperties": False}
WIDER = {**FIRST, "properties": {"t": {"type": "number"}}}
BROKEN = {**FIRST, "properties": {"t": {"type": "string"}}}


def register(hub: Program, subject: str, *schemas: object) -> None:
    for schema in schemas:
        hub.call("schemas", "register", subject, "-", stdin=json.dumps(schema))


def test_check_says_what_would_break_with_a_document_and_ends_with_1(hub: Program) -> None:
    register(hub, "check-a", FIRST)
    assert hub.run("schemas", "check", "check-a", "-", stdin=json.dumps(WIDER)).stdout == "compatible (BACKWARD)\n"
    text = hub.call("schemas", "check", "check-a", "-", stdin=json.dumps(BROKEN), code=1).stdout
    assert text.startswith("incompatible (BACKWARD)\nversion 1: ")
    assert 'for example {"t":0}' in text
    found = hub.call_json("schemas", "check", "check-a", "-", "--version", "1", stdin=json.dumps(BROKEN), code=1)
    assert (found["is_compatible"], found["differences"][0]["version"], found["touched"]) == (False, 1, [])
    assert hub.call_json("schemas", "check", "check-a", "-", "--level", "NONE", stdin=json.dumps(BROKEN))


def test_diff_shows_both_directions(hub: Program) -> None:
    register(hub, "diff-a", FIRST, WIDER)
    found = hub.json("schemas", "diff", "diff-a")
    assert (found["from"], found["to"], found["backward"]) == (1, 2, [])
    assert found["forward"][0]["kind"]
    text = hub.call("schemas", "diff", "diff-a", "--from", "2", "--to", "1").stdout
    assert "backward, version 1 reads what version 2 has written: 1 difference\n" in text
    assert "forward, version 2 reads what version 1 has written: compatible\n" in text
    assert hub.call_json("schemas", "diff", "diff-a", "--to", "9", code=1)["error"]["code"] == "VERSION_NOT_FOUND"


def test_diff_shows_a_change_that_breaks_nobody(hub: Program) -> None:
    register(hub, "diff-b", FIRST, {**FIRST, "properties": {"t": {"title": "time", "type": "integer"}}})
    lines = hub.call("schemas", "diff", "diff-b").stdout.splitlines()
    assert lines[1] == "backward, version 2 reads what version 1 has written: compatible"
    assert lines[2] == "forward, version 1 reads what version 2 has written: compatible"
    assert [line for line in lines[3:] if line.startswith("+")] == ['+      "title": "time",']
    assert "no line differs" in hub.call("schemas", "diff", "diff-b", "--from", "2", "--to", "2").stdout


def test_delete_is_soft_first_and_asks(hub: Program) -> None:
    register(hub, "del-a", FIRST, WIDER)
    assert "Aborted" in hub.call("schemas", "delete", "del-a", stdin="n\n", code=1).stderr
    refused = hub.call("schemas", "delete", "del-a", "--permanent", "--yes", code=1)
    assert "run it without --permanent first" in refused.stderr
    assert hub.json("schemas", "delete", "del-a", "--version", "1", "--yes")["versions"] == [1]
    assert "deleted: del-a version 2\n" in hub.call("schemas", "delete", "del-a", stdin="y\n").stdout
    assert hub.call_json("schemas", "delete", "del-a", "--permanent", "-y")["versions"] == [1, 2]
    assert hub.call_json("schemas", "delete", "del-a", "-y", code=1)["error"]["code"] == "SUBJECT_NOT_FOUND"


def test_config_is_shown_set_and_unset(hub: Program) -> None:
    default = {"compatibility": "BACKWARD", "normalize": False, "mode": "READWRITE", "inherited": [], "touched": []}
    assert hub.json("schemas", "config") == {"subject": None, **default}
    options = ("--compatibility", "FULL", "--normalize", "--mode", "READONLY")
    found = hub.call_json("schemas", "config", "conf-a", *options)
    assert found == default | {"subject": "conf-a", "compatibility": "FULL", "normalize": True, "mode": "READONLY"}
    assert "READONLY" in hub.call("schemas", "config", "conf-a").stdout
    refused = hub.call_json("schemas", "register", "conf-a", "-", stdin=json.dumps(FIRST), code=1)
    assert refused["error"]["code"] == "OPERATION_NOT_PERMITTED"
    for _ in range(2):
        assert hub.call_json("schemas", "config", "conf-a", "--unset") == {
            **default,
            "subject": "conf-a",
            "inherited": ["compatibility", "normalize", "mode"],
        }
    assert "--unset goes with" in hub.call("schemas", "config", "--unset", "--mode", "READONLY", code=2).stderr


def test_changing_a_level_and_deleting_by_force_say_who_is_attached(hub: Program) -> None:
    register(hub, "live-a", FIRST)
    with MessageHub(dir=hub.dir) as connected:
        digest = connected.schema("live-a").schema.schema_hash
        connected.register_producer("live-a", schema_hash=digest, schema=FIRST, producer_id="writer")
        assert (
            "attached now: producer writer" in hub.call("schemas", "config", "live-a", "--compatibility", "FULL").stdout
        )
        refused = hub.call_json("schemas", "delete", "live-a", "--yes", code=1)
        assert refused["error"]["code"] == "SCHEMA_IN_USE"
        assert hub.call_json("schemas", "delete", "live-a", "--yes", "--force")["touched"][0]["member_id"] == "writer"
