"""`messagehub keys` and `messagehub tokens`, and a hub that follows them."""

import json
import stat
from pathlib import Path

import pytest
import zmq

from messagehub.security.credentials import KeyPair
from tests.cli.program import Program


def test_a_key_is_made_listed_given_other_rights_and_revoked(alone: Program) -> None:
    made = alone.call_json("keys", "new", "camera7", "--role", "produce:cameras.*")
    assert stat.S_IMODE(Path(made["file"]).stat().st_mode) == 0o600
    listed = alone.call_json("keys")
    assert listed["keys"][0]["public"] == made["public"]
    assert json.loads(Path(made["file"]).read_text())["server_key"] == listed["server_key"]
    alone.call("keys", "allow", "camera7", "--role", "observe")
    assert alone.call_json("keys", "list")["keys"][0]["roles"] == ["observe"]
    alone.call("keys", "revoke", "camera7")
    assert alone.call_json("keys", "list")["keys"] == []
    assert "no key 'camera7'" in alone.call("keys", "revoke", "camera7", code=1).stderr


def test_a_revoked_name_can_be_given_a_new_key(alone: Program) -> None:
    first = alone.call_json("keys", "new", "camera7", "--role", "observe")
    assert alone.call_json("keys", "revoke", "camera7")["removed"] == first["file"]
    second = alone.call_json("keys", "new", "camera7", "--role", "observe")
    assert second["file"] == first["file"]
    assert second["public"] != first["public"]
    assert [key["public"] for key in alone.call_json("keys")["keys"]] == [second["public"]]


def test_revoking_a_key_leaves_a_file_with_another_key_alone(alone: Program, tmp_path: Path) -> None:
    own = alone.call_json("keys", "new", "me")  # not listed
    theirs = alone.call_json("keys", "new", "theirs", "--out", str(tmp_path / "theirs.key"))
    alone.call("keys", "allow", "me", theirs["public"], "--role", "observe")
    assert alone.call_json("keys", "revoke", "me")["removed"] is None
    assert Path(own["file"]).exists()


def test_lists_make_nothing(alone: Program) -> None:
    alone.dir.mkdir(mode=0o700)
    assert alone.call_json("keys") == {"server_key": None, "keys": []}
    assert alone.call_json("tokens") == {"tokens": []}
    assert list(alone.dir.iterdir()) == []


def test_a_key_with_rights_to_some_names_can_ask_for_the_status(alone: Program) -> None:
    alone.configure()
    key = alone.call_json("keys", "new", "camera7", "--role", "produce:cameras.*")["file"]
    with alone.serve("--endpoint", "tcp://127.0.0.1:0", "--curve") as hub:
        endpoint = hub.out.split("endpoint=")[1].split()[0]
        elsewhere = str(alone.place / "elsewhere")
        status = alone.json("status", "--endpoint", endpoint, "--dir", elsewhere, MESSAGEHUB_KEY=key)
        assert status["health"] == "healthy"
        assert status["version"]
        assert status["counts"] is None
        text = alone.run("status", "--endpoint", endpoint, "--dir", elsewhere, MESSAGEHUB_KEY=key).stdout
        assert "observe on everything" in text
        assert hub.end() == 0


def test_a_key_with_rights_to_some_names_lists_them(alone: Program) -> None:
    alone.configure()
    key = alone.call_json("keys", "new", "camera7", "--role", "produce:cameras.*")["file"]
    with alone.serve("--endpoint", "tcp://127.0.0.1:0", "--curve") as hub:
        endpoint = hub.out.split("endpoint=")[1].split()[0]
        for channel in ("cameras.a", "other"):
            alone.call("channels", "create", channel)
        narrow = ("--endpoint", endpoint, "--dir", str(alone.place / "elsewhere"))
        listed = alone.json("channels", "list", "cameras.", *narrow, MESSAGEHUB_KEY=key)
        assert [channel["channel"] for channel in listed] == ["cameras.a"]
        refused = alone.run("channels", "list", *narrow, code=1, MESSAGEHUB_KEY=key)
        assert "list one of these prefixes: cameras." in refused.stderr
        assert hub.end() == 0


def test_a_key_that_a_peer_made_is_listed_by_its_public_half(alone: Program, tmp_path: Path) -> None:
    made = alone.call_json("keys", "new", "me", "--out", str(tmp_path / "me.key"))
    assert alone.call_json("keys")["keys"] == []
    alone.call("keys", "allow", "me", made["public"], "--role", "admin")
    assert alone.call_json("keys")["keys"][0]["name"] == "me"
    refused = alone.call("keys", "allow", "other", made["public"], "--role", "admin", code=1)
    assert "listed already, as 'me'" in refused.stderr
    assert "exists already" in alone.call("keys", "new", "me", "--out", str(tmp_path / "me.key"), code=1).stderr


def test_a_token_is_shown_once(alone: Program) -> None:
    token = alone.call("tokens", "new", "ci", "--role", "schema-admin:orders.>").stdout.strip()
    listed = alone.call_json("tokens")
    assert listed["tokens"][0]["roles"] == ["schema-admin:orders.>"]
    assert token not in (alone.dir / "access.json").read_text()
    assert "already" in alone.call("tokens", "new", "ci", "--role", "admin", code=1).stderr
    alone.call("tokens", "revoke", "ci")
    assert alone.call_json("tokens") == {"tokens": []}


@pytest.mark.parametrize("kind", ["keys", "tokens"])
def test_what_makes_no_sense_is_refused_and_lists_nothing(alone: Program, kind: str) -> None:
    assert "no right" in alone.call(kind, "new", "a", "--role", "root", code=1).stderr
    assert "breaks the rule" in alone.call(kind, "new", "../a", "--role", "admin", code=1).stderr
    assert alone.call_json(kind)[kind] == []
    assert not list(alone.dir.glob("keys/a*"))


def test_a_client_with_a_key_talks_to_a_hub_that_asks_for_one(alone: Program) -> None:
    alone.configure()
    key = alone.call_json("keys", "new", "boss", "--role", "admin")["file"]
    with alone.serve("--endpoint", "tcp://127.0.0.1:0", "--curve") as hub:
        endpoint = hub.out.split("endpoint=")[1].split()[0]
        refused = alone.run("channels", "--endpoint", endpoint, code=1)
        assert "only peers with keys" in refused.stderr
        assert alone.json("channels", "--endpoint", endpoint, MESSAGEHUB_KEY=key) == []
        assert alone.json("status")["endpoint"].startswith("ipc://")
        assert hub.end() == 0


def test_a_public_key_never_looks_like_an_option() -> None:
    """One of 85 keys begins with a dash, which `keys allow NAME KEY` would take for an option."""
    assert not [pair for pair in (KeyPair.new() for _ in range(800)) if pair.public.startswith("-")]


def test_a_public_key_of_another_tool_that_begins_with_a_dash_is_allowed_behind_two_dashes(alone: Program) -> None:
    public = "x"
    while not public.startswith("-"):
        public = zmq.curve_keypair()[0].decode()
    assert "Write -- before a key" in " ".join(alone.call("keys", "allow", "--help").stdout.split())
    alone.call("keys", "allow", "--role", "observe", "--", "theirs", public)
    assert alone.call_json("keys")["keys"][0]["public"] == public


@pytest.mark.parametrize("options", [["--no-http"], ["--http", "127.0.0.1:0"]])
def test_serve_refuses_damaged_access_rights_in_one_line_before_anything_starts(
    alone: Program, options: list[str]
) -> None:
    alone.dir.mkdir(mode=0o700)
    (alone.dir / "access.json").write_text("{broken")
    (alone.dir / "access.json").chmod(0o600)
    said = alone.run("serve", *options, code=1).stderr
    assert len(said.strip().splitlines()) == 1
    assert "access.json is damaged" in said
    assert [path.name for path in alone.dir.iterdir()] == ["access.json"]
