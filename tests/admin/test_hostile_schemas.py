"""Schemas that would like to fetch, read or stall: refused or checked, and everybody else is served meanwhile."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.admin.conftest import Web
from tests.admin.test_registry_api import refused
from tests.integration.harness import eventually

LONGEST_SECONDS = 5.0
"""Far below what checking these takes, far above what discovery takes on a loaded machine."""
EXPLODING = [
    "^(a+)+$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(a?){60}a{60}",
    "^(?:(?:a|b|ab)*c){30}$",
    "(x+x+)+y",
    "[ab]*a[ab]{40}",
    "^(?=(a|aa)+$)(?!.*b)",
]


@pytest.fixture
def listening() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        yield server


@pytest.mark.parametrize("keyword", ["$ref", "$schema", "$dynamicRef"])
def test_a_url_is_never_fetched(web: Web, listening: socket.socket, keyword: str) -> None:
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
    refused(web.register("fetch-a", {keyword: url}), 422, 42201)
    with pytest.raises(TimeoutError):
        listening.accept()


def test_an_id_that_is_a_url_is_only_a_name(web: Web, listening: socket.socket) -> None:
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    schema = {"$id": f"{url}here.json", "$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}
    assert web.register("fetch-b", schema).status_code == 200
    assert web.ask("POST", "/api/v1/validate/fetch-b", {"a": "x"}).json()["valid"] is False
    refused(web.register("fetch-b", {"$id": f"{url}here.json", "$ref": "there.json"}), 422, 42201)
    with pytest.raises(TimeoutError):
        listening.accept()


def test_a_file_is_never_read(web: Web, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "the-secret"}')
    for schema in (
        {"$ref": f"file://{secret}"},
        {"$ref": str(secret)},
        {"$id": f"file://{tmp_path}/", "$ref": secret.name},
    ):
        answer = web.register("read-a", schema)
        refused(answer, 422, 42201)
        assert "the-secret" not in answer.text
    text = f'syntax = "proto3"; import "{secret}"; message M {{ Other o = 1; }}'
    answer = web.register("read-p", text, "PROTOBUF")
    refused(answer, 422, 42201)
    assert "the-secret" not in answer.text


def test_exploding_patterns_end_with_an_answer_while_discovery_goes_on(web: Web) -> None:
    longest = 0.0
    is_done = threading.Event()
    with MessageHub(dir=web.directory) as hub, hub.register_producer("hostile.live", schema_hash="x"):

        def discover() -> None:
            nonlocal longest
            while not is_done.is_set():
                began = time.monotonic()
                assert hub.describe("hostile.live") is not None
                longest = max(longest, time.monotonic() - began)
                is_done.wait(0.01)

        asking = threading.Thread(target=discover)
        asking.start()
        try:
            for number, pattern in enumerate(EXPLODING):
                subject = f"hostile-{number}"
                for schema in ({"pattern": pattern}, {"pattern": pattern + "|^b*$"}, {"not": {"pattern": pattern}}):
                    assert web.register(subject, schema).status_code in (200, 409, 422)
        finally:
            is_done.set()
            asking.join(60)
    assert longest < LONGEST_SECONDS
    answer = web.ask("POST", "/api/v1/validate/hostile-0", "a" * 10_000 + "!")
    assert answer.status_code in (200, 404)


def test_schemas_of_many_shapes_are_checked_or_refused(web: Web) -> None:
    ring = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    wide = {"anyOf": [{"properties": {f"p{n}": {"type": "integer"}}, "required": [f"p{n}"]} for n in range(400)]}
    doubling: dict[str, object] = {"type": "integer"}
    for _ in range(12):
        doubling = {"oneOf": [doubling, {"not": doubling}]}
    for number, schema in enumerate((ring, wide, doubling, {"multipleOf": 1e-300}, {"minLength": 10**15})):
        for text in (json.dumps(schema), json.dumps({"allOf": [schema, {"title": "again"}]})):
            status = web.register(f"shape-{number}", text).status_code
            assert status in (200, 409, 422), (number, status)
    eventually(lambda: web.ask("GET", "/readyz").status_code == 200)


def test_a_schema_that_takes_too_long_is_told_the_budget(web: Web) -> None:
    """The process that checks is stopped, as if its schema had no end."""
    assert web.register("endless-a", {"title": "starts it"}).status_code == 200
    found = subprocess.run(
        ["pgrep", "-P", str(web.process.pid), "-f", "schema_worker"], capture_output=True, text=True, check=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGSTOP)
    message = refused(web.register("endless-a", {"title": "too much"}), 422, 42209)
    assert "exceeds the budget seconds of checking" in message
    assert web.register("endless-a", {"title": "after"}).status_code == 200
