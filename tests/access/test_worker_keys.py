"""A right that was taken away ends with the worker's key: workers change it, and nobody else notices."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from messagehub.services import keys as service_keys
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.frames import ANSWER, REFUSED, REPLY, REQUEST, Greeting, call, greeting, key_id
from registry.records import Worker
from tests.access.shared import SharedHub
from tests.integration.harness import eventually
from tests.messaging.service_harness import SECONDS, connected, received, welcomed, worker_of
from tests.ports import own_endpoint


def echo(message: ServiceMessage, context: ServiceContext) -> Any:
    return message.payload


def request(worker: Worker, body: bytes) -> bytes:
    return call(REQUEST, 1, 0, 1, time.monotonic() + SECONDS, worker.worker_id.encode(), b"", body)


def test_a_peer_whose_right_was_taken_away_cannot_call_a_worker_any_more(
    shared: SharedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_keys, "FORMER_SECONDS", 0.2)
    with shared.hub("writer") as writer, shared.hub("boss") as boss, writer.serve("name:echo", echo):
        before = worker_of(boss, "name:echo")
        with welcomed(before) as peer, shared.hub("reader") as reader:
            peer.sendall(request(before, b"while it may"))
            assert received(peer)[4] == REPLY
            assert reader.request("name:echo", 1, timeout=SECONDS) == 1
            shared.revoke("boss")

            def is_refused() -> bool:
                peer.sendall(request(before, b"afterwards"))
                return received(peer)[4] == REFUSED

            eventually(is_refused)
            with connected(before.endpoint) as stranger:
                stranger.sendall(greeting(Greeting(before.worker_id, key_id(before.key), "boss", "n")))
                assert received(stranger) == b""
            assert worker_of(reader, "name:echo").key != before.key
            assert reader.request("name:echo", 2, timeout=SECONDS) == 2


def test_others_go_on_while_a_worker_changes_its_key(shared: SharedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_keys, "FORMER_SECONDS", 5.0)
    gate = threading.Event()

    def wait(message: ServiceMessage, context: ServiceContext) -> Any:
        if message.payload == "slow":
            assert gate.wait(SECONDS)
        return message.payload

    with (
        shared.hub("writer") as writer,
        shared.hub("reader") as reader,
        writer.serve("pool:echo", wait, concurrency=2) as served,
    ):
        slow = reader.begin_request("pool:echo", "slow", timeout=2 * SECONDS)
        before = served.keys.current
        shared.revoke("boss")

        def has_changed() -> bool:
            assert reader.request("pool:echo", "quick", timeout=SECONDS) == "quick"
            return served.keys.current != before and not served.keys.is_valid(before)

        eventually(has_changed)
        gate.set()
        assert slow.result() == "slow"
        assert served.is_registered


def test_a_right_that_was_taken_away_while_no_broker_ran_ends_too(tmp_path: Path, no_leaks: None) -> None:
    shared, endpoint = SharedHub(tmp_path / "hub"), own_endpoint()
    with contextlib.ExitStack() as stack:
        with shared.running(endpoint=endpoint):
            writer = stack.enter_context(shared.hub("writer"))
            served = stack.enter_context(writer.serve("name:echo", echo))
            before = served.keys.current
        with shared.running(endpoint=endpoint):
            eventually(lambda: served.is_registered and writer.health()["status"] == "healthy")
            assert served.keys.current == before  # nobody has lost anything
        shared.revoke("boss")
        with shared.running(endpoint=endpoint):
            eventually(lambda: served.keys.current != before)
            served.close()


def test_the_frames_of_the_handshake_hold_no_key(shared: SharedHub) -> None:
    with shared.hub("writer") as writer, shared.hub("boss") as boss, writer.serve("name:echo", echo):
        worker = worker_of(boss, "name:echo")
        with connected(worker.endpoint) as peer:
            peer.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), "boss", "n")))
            assert worker.key.encode() not in received(peer)[ANSWER.size :]
