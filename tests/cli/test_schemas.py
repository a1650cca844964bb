"""`messagehub schemas` against a real broker."""

import json

from tests.cli.program import Program

FIRST = {"type": "object", "properties": {"t": {"type": "number"}}, "additionalProperties": False}
SECOND = {**FIRST, "properties": {"t": {"type": "number"}, "u": {"type": "string"}}}
THIRD = {**FIRST, "properties": {"t": {"type": "string"}}}


def test_a_schema_is_registered_listed_and_found_by_subject_version_id_and_hash(hub: Program) -> None:
    file = hub.place / "first.json"
    file.write_text(json.dumps(FIRST))
    first = hub.json("schemas", "register", "readings", str(file))
    assert hub.call_json("schemas", "register", "readings", str(file)) == first
    assert "readings version 2" in hub.call("schemas", "register", "readings", "-", stdin=json.dumps(SECOND)).stdout

    refused = hub.call("schemas", "register", "readings", "-", "--json", stdin=json.dumps(THIRD), code=1)
    assert json.loads(refused.stdout)["error"]["code"] == "SCHEMA_INCOMPATIBLE"
    assert "`messagehub schemas get SUBJECT`" in refused.stderr

    assert "readings" in hub.json("schemas")
    assert ["readings", "2", "2", "JSON"] in [line.split()[:4] for line in hub.run("schemas").stdout.splitlines()]
    assert [one["version"] for one in hub.call_json("schemas", "readings")] == [1, 2]
    assert hub.run("schemas", "readings").stdout.splitlines()[1].split()[:2] == ["readings", "1"]

    newest = hub.json("schemas", "get", "readings")
    assert (newest["version"], json.loads(newest["schema"])) == (2, SECOND)
    assert json.loads(hub.call("schemas", "get", "readings", "--version", "1", "--raw").stdout) == FIRST
    assert hub.call_json("schemas", "get", "--id", str(first["schema_id"]))["schema_hash"] == first["schema_hash"]
    text = hub.call("schemas", "get", "--hash", first["schema_hash"]).stdout
    assert '"type": "number"' in text
    assert "readings version 1" in text


def test_an_unknown_schema_is_refused_with_1(hub: Program) -> None:
    for question, code in ((["nobody"], "SUBJECT_NOT_FOUND"), (["--id", "4711"], "SCHEMA_NOT_FOUND")):
        assert hub.call_json("schemas", "get", *question, code=1)["error"]["code"] == code
    assert "`messagehub schemas` lists" in hub.call("schemas", "nobody", code=1).stderr


def test_what_is_not_a_schema_is_refused(hub: Program) -> None:
    for text, says in (("{", "is not JSON"), ("7", "not a schema")):
        assert says in hub.call("schemas", "register", "bad", "-", stdin=text, code=2).stderr
    assert hub.call_json("schemas", "register", "bad", "-", stdin="[]", code=1)["error"]["code"] == "INVALID_SCHEMA"
