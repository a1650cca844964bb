"""Our own API: channels, schemas, documents, events, health, metrics; and the process that serves it."""

import json
import os
import signal
import stat
import subprocess

import pytest

from messagehub import MessageHub
from tests.admin.conftest import Web
from tests.integration.harness import eventually


@pytest.fixture
def hub(web: Web) -> MessageHub:
    connected = MessageHub(dir=web.directory)
    yield connected
    connected.close()


def test_channels_can_be_created_described_listed_and_destroyed(web: Web, hub: MessageHub) -> None:
    created = web.ask("POST", "/api/v1/channels/api.made", {"access": "shared", "metadata": {"unit": "V"}})
    assert created.status_code == 200, created.text
    assert web.ask("GET", "/api/v1/channels/api.made").json()["channel"]["metadata"] == {"unit": "V"}
    assert "api.made" in {c["channel"] for c in web.ask("GET", "/api/v1/channels?prefix=api.").json()}
    with hub.register_producer("api.made", schema_hash="abc", access="shared"):
        found = web.ask("GET", "/api/v1/channels/api.made/discovery").json()
        assert (found["status"], found["schema_hash"]) == ("active", "abc")
        with hub.register_consumer("api.made", consumer_id="reader"):
            consumers = web.ask("GET", "/api/v1/channels/api.made/consumers").json()
            assert [c["consumer_id"] for c in consumers] == ["reader"]
        assert len(web.ask("GET", "/api/v1/channels/api.made/producers").json()) == 1
    assert web.ask("DELETE", "/api/v1/channels/api.made").status_code == 200
    assert web.ask("GET", "/api/v1/channels/api.made").json()["code"] == "CHANNEL_NOT_FOUND"


def test_a_check_says_who_is_attached_now_and_a_used_schema_is_not_deleted(web: Web, hub: MessageHub) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    registered = hub.register_schema("live.data", schema)
    with hub.register_producer("live.data", schema_hash=registered.schema_hash, schema=schema):
        body = {"schemaType": "JSON", "schema": json.dumps(schema | {"required": ["a"]})}
        checked = web.ask("POST", "/api/v1/schemas/live.data/check", body).json()
        assert checked["is_compatible"] is False
        assert [(t["role"], t["pid"]) for t in checked["touched"]] == [("producer", os.getpid())]
        refused = web.ask("DELETE", "/subjects/live.data/versions/1")
        assert refused.json()["code"] == "SCHEMA_IN_USE"
        assert web.ask("DELETE", "/subjects/live.data/versions/1?force=true").json() == 1


def test_diff_between_versions_in_both_directions(web: Web, hub: MessageHub) -> None:
    hub.register_schema("diff.a", {"type": "integer"})
    hub.register_schema("diff.a", {"type": "number"})
    found = web.ask("GET", "/api/v1/schemas/diff.a/diff?from=1&to=2").json()
    assert found["backward"] == []
    assert found["forward"][0]["kind"]


def test_documents_are_validated(web: Web, hub: MessageHub) -> None:
    hub.register_schema("doc.a", {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert web.ask("POST", "/api/v1/validate/doc.a", {"a": 1}).json()["valid"] is True
    answer = web.ask("POST", "/api/v1/validate/doc.a", {"a": "x"}).json()
    assert (answer["valid"], answer["problems"][0]["path"]) == (False, "/a")


def test_events_are_streamed(web: Web, hub: MessageHub) -> None:
    with web.client.stream("GET", "/api/v1/events?prefix=channel/sse.a/") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        registration = hub.register_producer("sse.a", schema_hash="x")
        seen = ""
        for line in lines:
            if line.startswith("data: {"):
                seen = json.loads(line[6:])["type"]
                break
            if not registration:
                registration = hub.register_producer("sse.a", schema_hash="x")
        assert seen in ("CHANNEL_CREATED", "PRODUCER_REGISTERED")
        registration.close()


def test_health_readiness_metrics_stats_traces_and_docs(web: Web) -> None:
    assert web.ask("GET", "/healthz").json() == {"status": "healthy"}
    assert web.ask("GET", "/readyz").json()["status"] == "ready"
    assert 'messagehub_request_seconds_bucket{type="PING"' in web.ask("GET", "/metrics").text
    assert web.ask("GET", "/api/v1/stats").json()["pid"] == web.process.pid
    assert web.ask("GET", "/api/v1/traces?limit=1").json()[0]["side"] == "broker"
    assert "/subjects/{subject}/versions" in web.ask("GET", "/openapi.json").json()["paths"]
    assert web.client.get("/docs").status_code == 200


def test_the_token_is_private_and_the_status_names_no_secret(web: Web) -> None:
    token = web.directory / "http.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert web.token not in (web.directory / "broker.json").read_text()


def test_a_killed_http_process_comes_back_on_the_same_address(web: Web) -> None:
    pids = subprocess.run(
        ["pgrep", "-P", str(web.process.pid), "-f", "messagehub.admin"], capture_output=True, text=True, check=True
    )
    os.kill(int(pids.stdout.split()[0]), signal.SIGKILL)

    def is_back() -> bool:
        return web._answers()

    eventually(is_back, timeout=60)
    assert web.ask("GET", "/readyz").status_code == 200
