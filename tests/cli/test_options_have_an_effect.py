"""An option that would have no effect is wrong usage, not silence."""

from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--no-http", "--http", "127.0.0.1:0"], "--no-http"),
        (["serve", "--no-http", "--http-open"], "--no-http"),
        (["serve", "--no-http", "--http-cert", "a.pem"], "--no-http"),
        (["channels", "create", "x", "--schema-type", "AVRO"], "--schema-type goes with --schema"),
        (["register", "x", "--schema-hash", "h", "--schema-type", "AVRO"], "--schema-type goes with --schema"),
        (["schemas", "config", "s", "--force"], "--force goes with --mode IMPORT"),
        (["schemas", "config", "s", "--mode", "READONLY", "--force"], "--force goes with --mode IMPORT"),
    ],
)
def test_option_without_effect_is_refused(alone: Program, arguments: list[str], said: str) -> None:
    assert said in alone.call(*arguments, code=2).stderr


def test_schema_type_is_json_unless_said(hub: Program, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text('{"type": "string"}')
    assert hub.json("channels", "create", "typed.json", "--schema", str(tmp_path / "schema"))["schema_id"] == 1
    for name in ("typed.json", "typed.avro"):
        given = [] if name == "typed.json" else ["--schema-type", "AVRO"]
        hub.run("register", name, "--schema", str(tmp_path / "schema"), "--once", *given)
    described = hub.json("channels", "describe", "typed.avro")
    assert (described["schema_type"], described["schema"]) == ("AVRO", "verified")
