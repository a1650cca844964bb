"""Blocks with a broker that comes, goes and watches: real brokers, real processes."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub.channels.payload_schema import hash_of
from messagehub.errors import ProducerAlreadyRegistered, SchemaMismatch
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.ring import open_reader
from registry import events
from tests.integration.block_processes import Place, Process, place_in
from tests.integration.harness import Peer, Served, eventually

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
QUICK = {"heartbeat_seconds": 0.5, "stall_seconds": 20.0, "lease_seconds": 40.0, "beacon_seconds": 0.1}
LEASE_SECONDS = 2.0

PRODUCE = """
producer = hub.producer(channel, schema=SCHEMA, capacity=64, **options)
say(source=producer.source)
for line in sys.stdin:
    producer.write(batch(int(line)), timeout=30)
"""
CONSUME = """
consumer = hub.consumer(channel, start="oldest", **options)
say(source=consumer.source)
while True:
    found = consumer.read(timeout=60)
    if found is None:
        break
    say(n=found["n"].to_pylist(), source=consumer.source)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"b{os.getpid()}") as made:
        yield made


@pytest.fixture
def serve(place: Place) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(**settings: float) -> Served:
        server = Served(place.dir, **QUICK | settings)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def test_producers_born_without_a_broker_appear_in_it_within_a_second_of_its_start(
    place: Place, serve: Callable[[], Served]
) -> None:
    producer = place.process(PRODUCE, channel="early", options={})
    assert producer.hear() == {"source": "files"}
    producer.signal(signal.SIGSTOP)  # so that only the broker's own look can have found it
    server = serve()
    started = time.monotonic()
    with Peer(server.endpoint) as peer:
        found = eventually(lambda: _found(peer, "early"))
        assert time.monotonic() - started < 15.0  # a loaded machine; the broker looks before it serves
        assert found["producers"][0]["pid"] == producer.pid
        assert found["schema"] == "verified"
    producer.signal(signal.SIGCONT)


def test_tables_appear_in_the_broker_and_stay(place: Place, serve: Callable[[], Served]) -> None:
    hub = place.hub()
    hub.publish_table("report", pa.table({"x": [1]}))
    server = serve()
    with Peer(server.endpoint) as peer:
        assert eventually(lambda: _found(peer, "report"))["generation"] == 1
        hub.publish_table("report", pa.table({"x": [2]}))
        eventually(lambda: (_found(peer, "report") or {}).get("generation") == 2)
        # while the broker takes its time, `discover` says what is in the directory
        found = eventually(lambda: (it := hub.discover("report")) is not None and it.source == "broker" and it)
        assert found.status == "active"
        server.kill()
        server.start()
    with Peer(server.endpoint) as peer:
        assert eventually(lambda: _found(peer, "report"))["generation"] == 2


def test_death_of_a_member_is_told_at_once(place: Place, serve: Callable[[], Served]) -> None:
    serve()
    hub = place.hub()
    producer = hub.producer("watched", schema=SCHEMA)
    consumer = place.process(CONSUME, channel="watched", options={})
    assert consumer.hear() == {"source": "broker"}
    with hub.watch("watched") as watch:
        assert watch.wait_current(30.0)
        eventually(lambda: len(hub.consumers("watched")) == 1)
        consumer.kill()
        # Seen, not expired; how soon is measured by the benchmarks (shared_memory/death-told).
        assert _next(watch, events.ConsumerUnregistered).reason == "died"
        eventually(lambda: any(notice.event == "CONSUMER_UNREGISTERED" for notice in hub.notices()))
    producer.close()


def test_death_of_a_producer_is_told_and_its_place_is_free(place: Place, serve: Callable[[], Served]) -> None:
    serve()
    first = place.process(PRODUCE, channel="handed_on", options={})
    assert first.hear() == {"source": "broker"}
    hub = place.hub()
    with pytest.raises(ProducerAlreadyRegistered):
        hub.producer("handed_on", schema=SCHEMA)
    first.kill()
    eventually(lambda: hub.discover("handed_on") is None)
    with hub.producer("handed_on", schema=SCHEMA):
        assert hub.discover("handed_on").producers[0].pid == os.getpid()


def test_a_paused_producer_is_stalled_and_never_robbed(place: Place, serve: Callable[..., Served]) -> None:
    server = serve(stall_seconds=1.0, lease_seconds=LEASE_SECONDS)
    producer = place.process(PRODUCE, channel="paused", options={})
    producer.hear()
    producer.signal(signal.SIGSTOP)
    hub = place.hub()
    with Peer(server.endpoint) as peer:
        eventually(lambda: (_found(peer, "paused") or {}).get("status") == "stalled")
        deadline = time.monotonic() + 2 * LEASE_SECONDS
        while time.monotonic() < deadline:
            assert (_found(peer, "paused") or {}).get("status") == "stalled"
            time.sleep(0.1)
        with pytest.raises(ProducerAlreadyRegistered):
            hub.producer("paused", schema=SCHEMA)
        producer.signal(signal.SIGCONT)
        eventually(lambda: (_found(peer, "paused") or {}).get("status") == "active")


def test_two_who_claim_an_exclusive_channel_are_a_conflict(place: Place, serve: Callable[[], Served]) -> None:
    producer = place.process(PRODUCE, channel="clash", options={})
    producer.hear()
    producer.signal(signal.SIGSTOP)
    hidden = os.path.join(os.path.dirname(place.directory.path), "hidden")
    os.rename(place.directory.channel_path("clash"), hidden)
    server = serve()
    with Peer(server.endpoint) as peer:
        claim = {"type": "PRODUCER_REGISTER", "channel": "clash", "schema_hash": "other", "lease": "remote"}
        assert peer.ask(claim)["type"] == "PRODUCER_REGISTER_ACK"
        os.rename(hidden, place.directory.channel_path("clash"))
        found = eventually(lambda: _with_status(peer, "clash", "conflict"))
        assert str(producer.pid) in found["conflict"]
        unclaim = {"type": "PRODUCER_UNREGISTER", "channel": "clash", "lease": "remote"}
        assert peer.ask(unclaim)["type"] == "PRODUCER_UNREGISTER_ACK"
        assert eventually(lambda: _with_status(peer, "clash", "active"))["producers"][0]["pid"] == producer.pid


def test_a_destroyed_channel_that_still_lives_is_a_conflict(place: Place, serve: Callable[[], Served]) -> None:
    server = serve()
    producer = place.process(PRODUCE, channel="doomed", options={})
    producer.hear()
    hub = place.hub()
    hub.destroy_channel("doomed")
    with Peer(server.endpoint) as peer:
        found = eventually(lambda: _with_status(peer, "doomed", "conflict"))
        assert "destroyed" in found["conflict"]
        producer.kill()
        eventually(lambda: _found(peer, "doomed") is None)


def test_a_wrong_schema_is_refused_by_the_broker_before_anything_is_touched(
    place: Place, serve: Callable[[], Served]
) -> None:
    serve()
    hub = place.hub()
    hub.create_channel("declared", schema_hash="agreed")
    with pytest.raises(SchemaMismatch) as refused:
        hub.producer("declared", schema=SCHEMA)
    assert (refused.value.details["expected"], refused.value.details["actual"]) == ("agreed", hash_of(SCHEMA))
    assert place.blocks() == []
    with hub.producer("declared", schema_hash="agreed") as producer:
        assert producer.source == "broker"
        with pytest.raises(SchemaMismatch) as refused:
            hub.consumer("declared", expected_schema="another")
        assert (refused.value.details["expected"], refused.value.details["actual"]) == ("another", "agreed")


def test_the_stream_goes_on_whatever_happens_to_the_broker(place: Place, serve: Callable[[], Served]) -> None:
    producer = place.process(PRODUCE, channel="stream", options={"when_full": "block"})
    producer.hear()
    consumers = [place.process(CONSUME, channel="stream", options={}) for _ in range(3)]
    for consumer in consumers:
        assert consumer.hear() == {"source": "files"}
    hub = place.hub()
    sent = 0

    def stream() -> None:
        nonlocal sent
        for _ in range(20):
            producer.tell(str(sent))
            for consumer in consumers:
                assert consumer.hear()["n"] == [sent]
            assert hub.discover("stream") is not None
            sent += 1

    stream()
    server = serve()
    stream()
    eventually(lambda: hub.discover("stream").source == "broker")
    server.kill()
    stream()
    server.start()
    stream()
    server.signal(signal.SIGSTOP)
    for _ in range(20):  # without asking where it is: that would wait for the paused broker
        producer.tell(str(sent))
        for consumer in consumers:
            assert consumer.hear()["n"] == [sent]
        sent += 1
    server.signal(signal.SIGCONT)
    server.stop()
    stream()
    assert hub.discover("stream").source == "files"


MEMBER = """
import select
consumer = hub.consumer("work", start="oldest", group="crew")
say(ready=True)
while True:
    found = consumer.read(timeout=0.2)
    if found is not None:
        say(n=found["n"][0].as_py())
    elif select.select([sys.stdin], [], [], 0)[0]:
        break
consumer.close()
say(done=True)
"""


def test_a_member_whose_share_is_over_before_it_was_taken_waits_for_the_next(
    place: Place, serve: Callable[[], Served]
) -> None:
    serve()
    hub = place.hub()
    with hub.producer("work", schema=SCHEMA, when_full="block") as producer:
        ring = directory_of(hub.settings).exclusive_block("work")
        with (
            open_reader(ring, group="crew", assignment=MemberShare(10**17, 0, 1)),  # of a share-out to come
            hub.consumer("work", start="oldest", group="crew") as member,
        ):
            producer.write(_batch(1), timeout=30.0)
            assert member.read(timeout=0.1) is None


def test_members_of_a_group_share_and_a_dead_ones_part_is_handed_on(place: Place, serve: Callable[[], Served]) -> None:
    serve()
    hub = place.hub()
    with hub.producer("work", schema=SCHEMA, capacity=128, when_full="block") as producer:
        members = [place.process(MEMBER) for _ in range(3)]
        for each in members:
            each.hear()
        eventually(lambda: len(hub.describe("work").channel.groups["crew"].members) == 3)
        for n in range(30):
            producer.write(_batch(n), timeout=30.0)
        victim, *others = members
        victim.kill()
        seen: list[set[int]] = [set() for _ in members]
        with ThreadPoolExecutor() as threads:
            for each, numbers in zip(members, seen, strict=True):
                threads.submit(_hear_all, each, numbers)
            try:
                for n in range(30, 60):
                    producer.write(_batch(n), timeout=30.0)
                # the victim's part is handed on by then; a member that is told before that ends without it
                eventually(lambda: set().union(*seen) == set(range(60)))
            finally:
                for each in others:
                    each.tell()
    assert all(seen[1:]), "each survivor has a share"


def test_each_item_goes_to_one_member_and_shares_stay_while_no_broker_runs(
    place: Place, serve: Callable[[], Served]
) -> None:
    server = serve()
    hub = place.hub()
    with hub.producer("work", schema=SCHEMA, capacity=128, when_full="block") as producer:
        members = [place.process(MEMBER) for _ in range(2)]
        for each in members:
            each.hear()
        eventually(lambda: len(hub.describe("work").channel.groups["crew"].members) == 2)
        for n in range(8):
            producer.write(_batch(n), timeout=30.0)
        first = [each.hear()["n"] for each in members]  # each has its share; who has none waits for a broker
        server.kill()
        for n in range(8, 40):
            producer.write(_batch(n), timeout=30.0)
        for each in members:
            each.tell()
        shares = [{n, *_said(each)} for n, each in zip(first, members, strict=True)]
    assert set().union(*shares) == set(range(40))
    assert all(shares)
    assert sum(map(len, shares)) <= 42, "hardly anything comes twice"


def _said(member: Process) -> set[int]:
    """All items that a member told of until it ended, well or killed."""
    numbers: set[int] = set()
    _hear_all(member, numbers)
    return numbers


def _hear_all(member: Process, numbers: set[int]) -> None:
    assert member.popen.stdout is not None
    for line in member.popen.stdout:
        heard = json.loads(line)
        if "n" in heard:
            numbers.add(heard["n"])


def _batch(n: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([n], pa.int64()), pa.array([str(n)])], schema=SCHEMA)


def _found(peer: Peer, channel: str) -> dict | None:
    reply = peer.ask({"type": "DISCOVERY_REQUEST", "channel": channel})
    return reply if reply["type"] == "DISCOVERY_RESPONSE" else None


def _with_status(peer: Peer, channel: str, status: str) -> dict | None:
    found = _found(peer, channel)
    return found if found is not None and found["status"] == status else None


def _next(watch: object, kind: type) -> object:
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        event = watch.get(1.0)  # type: ignore[attr-defined]
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")
