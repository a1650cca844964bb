"""Event streams that go on where they were cut, and say so when they cannot."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from messagehub import MessageHub
from messagehub.security.credentials import AccessFile, allow_token
from tests.admin.conftest import Web

EVENTS = "/api/v1/events?kinds=channel,schema,topic"


@pytest.fixture
def hub(web: Web) -> Iterator[MessageHub]:
    with MessageHub(dir=web.directory) as connected:
        yield connected


class Stream:
    """An open event stream, read by blocks of lines."""

    def __init__(self, web: Web, path: str = EVENTS, last_id: str | None = None, token: str | None = None) -> None:
        headers = {"authorization": f"Bearer {token or web.token}"}
        if last_id is not None:
            headers["last-event-id"] = last_id
        self._opened = httpx.stream("GET", f"{web.url}{path}", headers=headers, timeout=30)
        self.answer = self._opened.__enter__()
        self._lines = self.answer.iter_lines()

    def next(self) -> dict[str, str]:
        """The fields of the next block; comments are left out."""
        found: dict[str, str] = {}
        for line in self._lines:
            if not line:
                if found:
                    return found
                continue
            name, _, value = line.partition(": ")
            if name:
                found[name] = value
        raise EOFError

    def event(self) -> dict[str, Any]:
        """The next event, with its id."""
        while True:
            block = self.next()
            if "data" in block:
                return json.loads(block["data"]) | {"id": block["id"], "event": block.get("event")}

    def close(self) -> None:
        self._opened.__exit__(None, None, None)


def test_a_stream_goes_on_behind_the_event_that_was_seen_last(web: Web, hub: MessageHub) -> None:
    stream = Stream(web)
    assert "id" in stream.next()
    hub.create_channel("ids.a")
    first = stream.event()
    stream.close()
    hub.create_channel("ids.b")
    hub.register_schema("ids.schema", {"type": "object"})
    hub.create_channel("ids.c")
    again = Stream(web, last_id=first["id"])
    found = [again.event() for _ in range(3)]
    assert [one["type"] for one in found] == ["CHANNEL_DECLARED", "SCHEMA_REGISTERED", "CHANNEL_DECLARED"]
    assert [one.get("channel") for one in found] == ["ids.b", None, "ids.c"]
    again.close()


def test_the_id_of_a_quiet_stream_is_enough_to_go_on(web: Web, hub: MessageHub) -> None:
    stream = Stream(web)
    quiet = stream.next()["id"]
    stream.close()
    hub.create_channel("ids.quiet")
    again = Stream(web, last_id=quiet)
    assert again.event()["channel"] == "ids.quiet"
    again.close()


@pytest.mark.parametrize("unknown", ["other.1.0", "nonsense", "..", "a.b.c", f"x.{'9' * 400}.1"])
def test_an_id_from_elsewhere_is_answered_with_a_gap(web: Web, hub: MessageHub, unknown: str) -> None:
    stream = Stream(web, last_id=unknown)
    assert stream.event()["event"] == "gap"
    name = f"ids.gap-{len(unknown)}-{unknown[:1].replace('.', 'd')}"
    hub.create_channel(name)
    assert stream.event()["channel"] == name
    stream.close()


def test_a_caller_hears_only_of_what_it_may_see(web: Web, hub: MessageHub) -> None:
    token = allow_token(AccessFile(web.directory / "access.json"), "seer", ["observe:ids.seen.>"])
    stream = Stream(web, token=token)
    stream.next()
    hub.create_channel("ids.hidden")
    hub.create_channel("ids.seen.x")
    assert stream.event()["channel"] == "ids.seen.x"
    stream.close()


def test_what_is_asked_for_wrongly_is_refused(web: Web) -> None:
    for query in ("kinds=channels", "kinds=", "kinds=channel&prefix=channel/"):
        assert web.ask("GET", f"/api/v1/events?{query}").status_code == 422, query


def test_a_stream_begins_with_the_newest_events_that_are_asked_for(web: Web) -> None:
    first = Stream(web)
    first.next()
    for number in range(4):
        assert web.ask("POST", f"/api/v1/channels/newest.c{number}", {}).status_code == 200
        assert first.event()["channel"] == f"newest.c{number}"
    first.close()
    again = Stream(web, f"{EVENTS}&newest=2")
    found = [again.event() for _ in range(2)]
    assert [one["channel"] for one in found] == ["newest.c2", "newest.c3"]
    web.ask("DELETE", "/api/v1/channels/newest.c0")
    assert again.event()["type"] == "CHANNEL_DESTROYED"
    again.close()
    of_one = Stream(web, "/api/v1/events?prefix=channel/newest.c1/&newest=10")
    assert of_one.event()["channel"] == "newest.c1"
    of_one.close()
    goes_on = Stream(web, f"{EVENTS}&newest=2", last_id=found[0]["id"])
    assert goes_on.event()["channel"] == "newest.c3"
    goes_on.close()
    assert web.ask("GET", f"{EVENTS}&newest=many").status_code == 422
