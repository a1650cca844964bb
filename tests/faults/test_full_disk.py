"""A really full disk: what waits is refused as retryable, reads and leases go on, and writes come back."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from typer.testing import CliRunner

from messagehub import embedded_broker
from messagehub.cli import app
from messagehub.errors import StoreReadOnly
from messagehub.store import Saved
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore
from messagehub.topics.topic import Topic
from registry.topics.subscriber_groups import VALID_SECONDS
from tests.integration.harness import Listener, Message, Peer, Served, eventually, hub_of, producer, refused

pytestmark = pytest.mark.usefixtures("no_leaks")

SIZE_BYTES = 1 << 20
TERMS = {"heartbeat_seconds": 0.2, "stall_seconds": 2.0, "lease_seconds": 4.0, "beacon_seconds": 0.1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    place = tmp_path / "disk"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=0700", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Leave no byte."""
    with (place / "filler").open("ab", buffering=0) as filler:
        for size in (65536, 4096, 1):
            while True:
                try:
                    filler.write(b"x" * size)
                except OSError:
                    break


def free(place: Path) -> None:
    (place / "filler").unlink()


def schema(number: int) -> Message:
    return {
        "type": "SCHEMA_REGISTER",
        "subject": f"subject-{number}",
        "schema": {"title": f"t{number}", "description": "x" * 2000},
    }


def write_until_refused(peer: Peer, acknowledged: list[int], first: int) -> int:
    for number in range(first, first + 5000):
        reply = peer.ask(schema(number))
        if reply["type"] == "ERROR":
            assert reply["code"] == "STORE_READ_ONLY"
            assert reply["retryable"] is True
            return number
        acknowledged.append(number)
    pytest.fail("the disk was never full")


def known(peer: Peer) -> list[int]:
    subjects = peer.ask({"type": "SCHEMA_LIST_REQUEST", "limit": 10_000})["subjects"]
    return sorted(int(name.removeprefix("subject-")) for name in subjects)


def test_a_full_disk_stops_writes_only_and_loses_nothing_acknowledged(
    small_disk: Path, served: Callable[..., Served]
) -> None:
    server = served(dir=small_disk, **TERMS)
    with Peer(server.endpoint) as peer, hub_of(server) as hub, Listener(server.endpoint, b"schema/") as listener:
        assert hub.register_producer("alive", schema_hash="h", required=True)
        acknowledged: list[int] = []
        fill(small_disk)
        for round_number in range(3):
            first = 10_000 * round_number
            lost = write_until_refused(peer, acknowledged, first)
            assert peer.ask({"type": "PING"})["read_only"] is True
            assert peer.ask(producer("refused"))["code"] == "STORE_READ_ONLY"
            assert hub.health(timeout=30.0)["read_only"] is True
            shown = CliRunner().invoke(app, ["status", "--dir", str(small_disk)]).stdout
            assert "read-only: its disk" in shown
            assert "healthy" not in shown
            eventually(is_active, peer, "alive")
            assert known(peer) == sorted(acknowledged)
            assert lost not in known(peer)
            eventually(lambda wanted: beats(peer) >= wanted, beats(peer) + 12)
            eventually(is_active, peer, "alive")
            free(small_disk)
            eventually(lambda: peer.ask({"type": "PING"})["read_only"] is False)
            reply = eventually(lambda number: accepted(peer.ask(schema(number))), lost)
            acknowledged.append(lost)
            assert reply["version"] == 1
            assert known(peer) == sorted(acknowledged)
            fill(small_disk)
        free(small_disk)
        eventually(lambda: accepted(peer.ask(schema(99_999))))
        acknowledged.append(99_999)
        heard = [listener.event()[1] for _ in acknowledged]
        revisions = [event["revision"] for event in heard]
        assert revisions == sorted(set(revisions))
        assert [int(event["schema"]["subject"].removeprefix("subject-")) for event in heard] == acknowledged
        server.kill()
        server.start()
        assert known_after_restart(server) == sorted(acknowledged)


def is_active(peer: Peer, channel: str) -> bool:
    return peer.ask({"type": "DISCOVERY_REQUEST", "channel": channel})["status"] == "active"


def beats(peer: Peer) -> int:
    return int(peer.stats()["requests"].get("HEARTBEAT", {"count": 0})["count"])


def accepted(reply: Message) -> Message | None:
    return reply if reply["type"] != "ERROR" else None


def known_after_restart(server: Served) -> list[int]:
    with Peer(server.endpoint) as peer:
        return known(peer)


def test_what_was_in_flight_when_the_disk_filled_is_acknowledged_or_refused_never_both(
    small_disk: Path, served: Callable[..., Served]
) -> None:
    server = served(dir=small_disk, **TERMS)
    with Peer(server.endpoint, zmq.DEALER, SNDHWM=0, RCVHWM=0) as peer, Peer(server.endpoint) as reader:
        count = 1500
        for number in range(count):
            peer.send(schema(number) | {"id": str(number)})
        replies = [peer.receive() for _ in range(count)]
        assert sorted(int(reply["id"]) for reply in replies) == list(range(count))
        acknowledged = [int(reply["id"]) for reply in replies if reply["type"] != "ERROR"]
        assert {reply.get("code") for reply in replies} == {None, "STORE_READ_ONLY"}
        assert known(reader) == sorted(acknowledged)
        assert reader.counter("store_failures") >= 1
        assert server.stop() == 0
    store = SQLiteStore(small_disk / "registry.db")
    saved = store.load()
    store.close()
    assert sorted(int(it.subject.removeprefix("subject-")) for it in saved.schemas) == sorted(acknowledged)


def test_a_broker_cannot_start_on_a_full_disk_and_says_so(small_disk: Path) -> None:
    fill(small_disk)
    code, complaint = refused(small_disk)
    assert code == 1
    assert "the disk is full" in complaint or "is full (No space left on device)" in complaint
    assert "Traceback" not in complaint


def test_a_start_on_a_full_disk_blames_the_disk_and_not_the_database(
    small_disk: Path, served: Callable[..., Served]
) -> None:
    server = served(dir=small_disk, **TERMS)
    with Peer(server.endpoint) as peer:
        assert peer.ask(schema(1))["version"] == 1
    assert server.stop() == 0
    before = (small_disk / "registry.db").read_bytes()
    fill(small_disk)
    code, complaint = refused(small_disk)
    assert code == 1
    assert f"the disk that holds {small_disk / 'registry.db'} is full" in complaint
    assert "move it away" not in complaint
    assert (small_disk / "registry.db").read_bytes() == before
    free(small_disk)
    server.start()
    assert known_after_restart(server) == [1]


def test_a_start_after_a_crash_on_a_full_disk_blames_the_disk_too(
    small_disk: Path, served: Callable[..., Served]
) -> None:
    server = served(dir=small_disk, **TERMS)
    with Peer(server.endpoint) as peer:
        assert peer.ask(schema(1))["version"] == 1
    server.kill()
    (small_disk / "registry.db-shm").unlink()
    fill(small_disk)
    code, complaint = refused(small_disk)
    assert (code, "is full" in complaint, "move it away" in complaint) == (1, True, False), complaint
    free(small_disk)
    server.start()
    assert known_after_restart(server) == [1]


def publish_until_refused(topic: Topic, acknowledged: dict[int, int], first: int) -> int:
    for number in range(first, first + 5000):
        try:
            acknowledged[topic.publish({"n": number, "filler": "x" * 2000})] = number
        except StoreReadOnly:
            return number
    pytest.fail("the disk was never full")


def test_retained_topics_on_a_full_disk_lose_nothing_acknowledged_and_double_nothing(
    small_disk: Path, served: Callable[..., Served]
) -> None:
    server = served(dir=small_disk, **TERMS)
    with hub_of(server) as hub:
        topic = hub.topic("orders", keep=10_000)
        live = topic.subscribe(since=0, buffer=5)
        acknowledged: dict[int, int] = {}  # numbers by their offsets
        number = 0
        for _ in range(2):
            fill(small_disk)
            refused_number = publish_until_refused(topic, acknowledged, number)
            assert topic.describe().messages == len(acknowledged), "reads go on"
            free(small_disk)
            eventually(lambda: hub.health(timeout=30.0)["read_only"] is False)
            acknowledged[topic.publish({"n": refused_number})] = refused_number
            number = refused_number + 1
        assert list(acknowledged) == list(range(1, len(acknowledged) + 1)), (
            "offsets of what was refused are given again"
        )
        heard = [live.receive(30.0) for _ in acknowledged]
        assert {message.offset: message.payload["n"] for message in heard} == acknowledged
        server.kill()
        server.start()
        eventually(lambda: hub.connect(timeout=1.0))
        again = topic.subscribe(since=0)
        assert {m.offset: m.payload["n"] for m in (again.receive(30.0) for _ in acknowledged)} == acknowledged
        assert live.lost == again.lost == 0


def test_members_of_a_group_go_on_sharing_while_the_disk_is_full(
    served: Callable[..., Served], small_disk: Path
) -> None:
    server = served(dir=small_disk / "hub", **TERMS)
    with hub_of(server) as one, hub_of(server) as two, Peer(server.endpoint) as peer:
        members = [hub.subscribe("orders", group="workers") for hub in (one, two)]
        fill(small_disk)
        write_until_refused(peer, [], 0)
        deadline = time.monotonic() + 2 * VALID_SECONDS
        number = 0
        while time.monotonic() < deadline:  # longer than a share holds without an answer
            one.publish("orders", number)
            number += 1
            time.sleep(0.02)
        eventually(lambda: sum(member.buffered for member in members) == number)
        assert [member.lost for member in members] == [0, 0]
        free(small_disk)


class Unreadable:
    """A store whose disk can be neither written nor read now and then."""

    def __init__(self) -> None:
        self._store = store = MemoryStore()
        self.rows, self.trim, self.topic_reader, self.close = store.rows, store.trim, store.topic_reader, store.close
        self.is_broken = False

    def load(self) -> Saved:
        self.probe()
        return self._store.load()

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        self.probe()
        self._store.write(rows, revision=revision, durable=durable)

    def probe(self) -> None:
        if self.is_broken:
            raise OSError(5, "Input/output error")


def test_a_disk_that_can_be_neither_written_nor_read_ends_no_broker() -> None:
    """What may or may not be on disk is not shown until the disk can be read, and then it is what the disk has."""
    store = Unreadable()
    with embedded_broker(store) as endpoint:
        peer = Peer(endpoint)
        assert peer.ask(producer("before"))["type"] == "PRODUCER_REGISTER_ACK"
        store.is_broken = True
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "lost"})["code"] == "STORE_READ_ONLY"
        for unsure in ({"type": "DISCOVERY_REQUEST", "channel": "lost"}, {"type": "CHANNEL_LIST_REQUEST"}):
            assert peer.ask(unsure)["code"] == "STORE_READ_ONLY"
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "before"})["status"] == "active"
        store.is_broken = False
        found = eventually(lambda: peer.ask({"type": "CHANNEL_LIST_REQUEST"}).get("channels"))
        assert [channel["channel"] for channel in found] == ["before"]
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "after"})["type"] != "ERROR"
        peer.close()
