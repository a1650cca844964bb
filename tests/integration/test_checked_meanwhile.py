"""What a schema was checked against changes while the process that checks it is stopped."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from tests.conftest import QUICK
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import Message, Peer, Served, eventually, producer
from tests.registry.driving import digest_of

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}
EITHER = {"type": ["integer", "string"]}


@contextmanager
def stopped_judge(server: Served) -> Iterator[None]:
    (worker,) = eventually(lambda: [pid for pid in descendants(server.pid) if "schema_worker" in command_line(pid)])
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.fixture
def server(served: Callable[..., Served]) -> Served:
    server = served(**QUICK)
    with Peer(server.endpoint) as peer:
        for subject, schema in [("r", EITHER), ("a", STRING), ("a", INTEGER), ("b", INTEGER), ("c", BOOLEAN)]:
            level = {"type": "SCHEMA_CONFIG_SET", "subject": subject, "config": {"compatibility": "NONE"}}
            assert peer.ask(level)["type"] == "SCHEMA_CONFIG_RESPONSE"
            asked = {"type": "SCHEMA_REGISTER", "subject": subject, "schema": schema}
            assert peer.ask(asked)["type"] == "SCHEMA_REGISTER_ACK"
        peer.ask({"type": "SCHEMA_CONFIG_SET", "subject": "b", "config": {"compatibility": "BACKWARD"}})
        assert peer.ask(producer("c", schema_hash=digest_of(INTEGER)))["type"] == "PRODUCER_REGISTER_ACK"
    return server


@pytest.mark.parametrize("case", ["reader", "references"])
def test_verdict_about_what_is_no_more_does_not_count(server: Served, case: str) -> None:
    reads: Message = {"type": "CONSUMER_REGISTER", "channel": "c", "consumer_id": "r"}
    newest = [{"name": "a.json", "subject": "a", "version": -1}]
    refers: Message = {"type": "SCHEMA_REGISTER", "subject": "b", "schema": {"$ref": "a.json"}, "references": newest}
    asked, change, code = {
        "reader": (
            reads | {"expected_schema_hash": digest_of(EITHER)},
            producer("c", schema_hash=digest_of(BOOLEAN)),
            "SCHEMA_MISMATCH",
        ),
        "references": (refers, {"type": "SCHEMA_DELETE", "subject": "a", "version": 2}, "SCHEMA_INCOMPATIBLE"),
    }[case]
    with Peer(server.endpoint, zmq.DEALER) as peer:
        with stopped_judge(server):
            peer.send(asked | {"id": "asked"})
            peer.send(change | {"id": "change"})
            changed = peer.receive()
            assert (changed["id"], changed["type"] == "ERROR") == ("change", False), changed
        answered = peer.receive()
        assert (answered["id"], answered.get("code")) == ("asked", code), answered
