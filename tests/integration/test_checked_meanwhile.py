"""The process that checks schemas is stopped: nothing is checked elsewhere, and what it checks against may change."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq

from messagehub import protocol
from tests.conftest import QUICK
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import Message, Peer, Served, eventually, producer
from tests.registry.driving import digest_of

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
BOOLEAN = {"type": "boolean"}
EITHER = {"type": ["integer", "string"]}


@contextmanager
def stopped_schema_worker(server: Served) -> Iterator[None]:
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
        with stopped_schema_worker(server):
            peer.send(asked | {"id": "asked"})
            peer.send(change | {"id": "change"})
            changed = peer.receive()
            assert (changed["id"], changed["type"] == "ERROR") == ("change", False), changed
        answered = peer.receive()
        assert (answered["id"], answered.get("code")) == ("asked", code), answered


TABLE = {"schema": '{"fields":[{"name":"id","type":"int64"}]}', "schema_type": "ARROW"}
COMMITTED = {"generation": 1, "shm_name": "/t", "rows": 1, "size_bytes": 8, "parts": 1, "hosts": {"there": 1}}
COMMITTED |= {"host": "there", "pid": 1, "user": "ada", "committed_at": 20.0}
JSON = {"schema": EITHER, "schema_type": "JSON"}
READS = {"channel": "c", "expected_schema_hash": digest_of(EITHER)}
WITH_A_SCHEMA: dict[str, Message] = {
    "PRODUCER_REGISTER": producer("new", schema_hash=digest_of(EITHER)) | JSON,
    "CONSUMER_REGISTER": READS | {"consumer_id": "r"},
    "DISCOVERY_REQUEST": READS,
    "CHANNEL_CREATE": {"channel": "made"} | JSON,
    "TABLE_CHECK": {"channel": "asked"} | TABLE,
    "TABLE_REGISTER": {"channel": "committed"} | TABLE | COMMITTED,
    "SCHEMA_REGISTER": {"subject": "s"} | JSON,
    # the same schema in another text, which only a check can tell
    "SCHEMA_LOOKUP_REQUEST": {"subject": "r"} | JSON | {"schema": '{ "type" : [ "integer", "string" ] }'},
    "SCHEMA_CHECK": {"subject": "r"} | JSON,
}


def test_no_command_with_a_schema_is_checked_by_the_broker_itself(server: Served) -> None:
    """While the process that checks is stopped, none is answered, and whoever asks something else is."""
    about = {
        kind
        for kind, command in protocol.COMMANDS_BY_TYPE.items()
        if {"schema", "expected_schema_hash"} & set(command.__struct_fields__)
    }
    assert about == set(WITH_A_SCHEMA)
    with Peer(server.endpoint, zmq.DEALER) as peer, Peer(server.endpoint) as other:
        with stopped_schema_worker(server):
            for kind, asked in WITH_A_SCHEMA.items():
                peer.send(asked | {"type": kind, "id": kind})
                assert other.ask({"type": "PING"})["type"] == "PONG"
            assert peer.hears_nothing(0.3), peer.receive()
        answers = [peer.receive() for _ in WITH_A_SCHEMA]
    assert {answer["id"] for answer in answers} == about
    assert [answer for answer in answers if answer["type"] == "ERROR"] == []
