"""Publishing over HTTP, and what is published as it comes."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.security.credentials import AccessFile, allow_token
from tests.admin.conftest import Web
from tests.integration.harness import eventually


@pytest.fixture
def hub(web: Web) -> Iterator[MessageHub]:
    with MessageHub(dir=web.directory) as connected:
        yield connected


def shown(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The messages of a stream."""
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line[6:])


def stream(web: Web, pattern: str, token: str = "") -> Any:
    headers = {"authorization": f"Bearer {token or web.token}"}
    return httpx.stream("GET", f"{web.url}/api/v1/topic-stream?pattern={pattern}", headers=headers, timeout=30)


def test_messages_are_published_over_http_and_come_to_subscribers(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/topics/http.said/messages"
    with hub.subscribe("http.said") as subscription:
        sent = web.ask("POST", path, {"json": {"a": [1, None]}, "headers": {"from": "test"}}).json()
        assert (sent["topic"], sent["offset"]) == ("http.said", None)
        message = subscription.receive(30.0)
        assert (message.payload, message.headers) == ({"a": [1, None]}, {"from": "test"})
        web.ask("POST", path, {"text": "hé"})
        assert subscription.receive(30.0).payload == "hé".encode()
        web.ask("POST", path, {"base64": "/wA="})
        assert subscription.receive(30.0).payload == b"\xff\x00"
    hub.topic("http.kept", keep=10)
    first, second = (web.ask("POST", "/api/v1/topics/http.kept/messages", {"json": None}).json() for _ in range(2))
    assert second["offset"] == first["offset"] + 1


def test_a_wrong_message_is_refused(web: Web) -> None:
    path = "/api/v1/topics/http.said/messages"
    for body in ({}, {"json": 1, "text": "1"}, {"base64": "?"}, {"txt": "x"}, {"text": 1}):
        assert web.ask("POST", path, body).status_code == 422, body
    assert web.ask("POST", "/api/v1/topics/a..b/messages", {"text": "x"}).json()["error_code"] == 42208
    assert web.ask("GET", "/api/v1/topic-stream?pattern=a..b").json()["error_code"] == 42208


def test_what_is_published_is_streamed_as_it_comes(web: Web, hub: MessageHub) -> None:
    with stream(web, "live.>") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": connected"
        messages = shown(lines)
        hub.publish("dead.x", "not this")
        hub.publish("live.a", {"n": 1}, headers={"h": "1"})
        found = next(messages)
        assert (found["topic"], found["kind"], found["payload"], found["headers"]) == (
            "live.a",
            "json",
            {"n": 1},
            {"h": "1"},
        )
        hub.publish("live.b", b"text")
        assert (found := next(messages))["kind"] == "text", found
        hub.publish("live.b", b"\xff")
        assert next(messages)["payload"] == "/w=="
        hub.publish("live.b", np.arange(3))
        found = next(messages)
        assert (found["kind"], found["payload"]["rows"]) == ("numpy", [[0], [1], [2]])
        hub.publish("live.big", b"x" * 100_000)
        assert next(messages)["truncated"]


def test_a_flood_is_cut_to_what_a_person_can_read_and_counted(web: Web, hub: MessageHub) -> None:
    with stream(web, "flood.x") as answer:
        lines = answer.iter_lines()
        assert next(lines) == ": connected"
        for number in range(2000):
            hub.publish("flood.x", number)
        seen, left_out = 0, 0
        for found in shown(lines):
            left_out += found.get("count", 0)
            seen += "topic" in found
            if found.get("payload") == 1999:
                break
        assert seen + left_out == 2000
        assert left_out > 0


def test_publishing_and_the_stream_take_their_rights(web: Web) -> None:
    token = allow_token(AccessFile(web.directory / "access.json"), "talker", ["produce:may.>", "consume:may.>"])
    headers = {"authorization": f"Bearer {token}"}
    assert web.ask("POST", "/api/v1/topics/may.x/messages", {"text": "x"}, headers=headers).status_code == 200
    assert web.ask("POST", "/api/v1/topics/other.x/messages", {"text": "x"}, headers=headers).status_code == 403
    with stream(web, "may.>", token) as answer:
        assert answer.status_code == 200
    assert web.ask("GET", "/api/v1/topic-stream?pattern=>", headers=headers).status_code == 403
    eventually(lambda: '"TOPIC_PUBLISH"' in (web.directory / "audit-http.log").read_text())
