"""Rates and lag as somebody outside sees them: from what rings and readers have in shared memory."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from messagehub import MessageHub
from messagehub.channels.flow import FlowSampler, RingFlow
from messagehub.shm.channel_directory.location import directory_of
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served, eventually

AT_ONCE = {"max_age_seconds": 0.0}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"f{os.getpid()}") as made:
        yield made


@pytest.fixture
def hub(place: Place) -> Iterator[MessageHub]:
    with place.hub() as made:
        yield made


@pytest.fixture
def sampler(hub: MessageHub) -> Iterator[FlowSampler]:
    made = FlowSampler(directory_of(hub.settings))
    yield made
    made.close()


def ring(sampler: FlowSampler, channel: str) -> RingFlow:
    (found,) = sampler.sample(**AT_ONCE).rings[channel]
    return found


def opened() -> list[str]:
    """What this process has open in shared memory."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that they were listed by
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(name for name in found if name.startswith("/dev/shm/"))


def test_a_ring_and_its_readers_are_seen_with_their_lag(hub: MessageHub, sampler: FlowSampler) -> None:
    with (
        hub.producer("flow.lag", schema=np.dtype("f8"), capacity=8, page_size=800) as producer,
        hub.consumer("flow.lag", start="oldest", consumer_id="slow") as slow,
        hub.consumer("flow.lag", start="oldest", consumer_id="quick"),
    ):
        for _ in range(5):
            producer.write(np.zeros(10))
        slow.read(timeout=10)
        found = ring(sampler, "flow.lag")
        assert (found.head, found.slots, found.mean_item_bytes, found.pid) == (5, 8, 80.0, os.getpid())
        assert found.producer_id == "flow.lag/default"
        assert found.written_at == pytest.approx(time.time(), abs=60)
        by_name = {reader.consumer_id: reader for reader in found.readers}
        assert {name: (one.lag_items, one.lag_bytes) for name, one in by_name.items()} == {
            "slow": (4, 320),
            "quick": (5, 400),
        }
        assert by_name["quick"].lag_seconds > 0
        assert found.fill == 5 / 8
        summary = sampler.sample(**AT_ONCE).channels["flow.lag"]
        assert (summary.slowest, summary.lag_items, summary.readers) == ("quick", 5, 2)


def test_the_age_of_the_oldest_unread_item_grows_although_nobody_writes(hub: MessageHub, sampler: FlowSampler) -> None:
    with hub.producer("flow.age") as producer, hub.consumer("flow.age") as consumer:
        producer.write(b"x")
        first = ring(sampler, "flow.age").readers[0].lag_seconds
        eventually(lambda: ring(sampler, "flow.age").readers[0].lag_seconds > first)
        consumer.read(timeout=10)
        assert ring(sampler, "flow.age").readers[0].lag_seconds == 0


def test_a_rate_is_what_was_written_since_the_sample_before(hub: MessageHub, sampler: FlowSampler) -> None:
    with hub.producer("flow.rate") as producer:
        producer.write(bytes(100))
        first = sampler.sample()
        assert (first.interval_seconds, first.totals.items_per_second) == (0.0, 0.0)
        for _ in range(50):
            producer.write(bytes(100))
        second = eventually(lambda: (made := sampler.sample()).interval_seconds > 0 and made)
        flow = second.channels["flow.rate"]
        assert flow.items_per_second == pytest.approx(50 / second.interval_seconds, rel=0.01)
        assert flow.bytes_per_second == pytest.approx(100 * flow.items_per_second, rel=0.01)
        assert second.totals.items_per_second == flow.items_per_second


def test_rings_that_come_go_and_are_made_again_are_followed(hub: MessageHub, sampler: FlowSampler) -> None:
    assert sampler.sample(**AT_ONCE).rings == {}
    with hub.producer("flow.new", capacity=4) as producer:
        producer.write(b"1")
        assert ring(sampler, "flow.new").is_live
    assert not ring(sampler, "flow.new").is_live
    with hub.producer("flow.new", capacity=32) as producer:  # another shape: the ring is replaced
        producer.write(b"2")
        assert (ring(sampler, "flow.new").slots, ring(sampler, "flow.new").head) == (32, 2)
    with (
        hub.producer("flow.both", access="shared", producer_id="one"),
        hub.producer("flow.both", access="shared", producer_id="two"),
    ):
        found = sampler.sample(**AT_ONCE).rings["flow.both"]
        assert sorted(one.producer_id for one in found) == ["one", "two"]


def test_what_a_reader_holds_and_a_writer_that_waits_are_seen(hub: MessageHub, sampler: FlowSampler) -> None:
    with (
        hub.producer("flow.held", schema=np.dtype("f8"), capacity=4, when_full="block") as producer,
        hub.consumer("flow.held", start="oldest", consumer_id="holder") as consumer,
    ):
        producer.write(np.arange(500.0))
        value = consumer.read(timeout=10)
        found = ring(sampler, "flow.held")
        assert (found.readers[0].held_slots, found.held_slots, found.readers[0].is_waited_for) == (1, 1, True)
        del value
        assert ring(sampler, "flow.held").held_slots == 0


def test_one_sample_serves_all_who_ask_in_the_same_second(hub: MessageHub, sampler: FlowSampler) -> None:
    with hub.producer("flow.once") as producer:
        first = sampler.sample()
        producer.write(b"x")
        assert sampler.sample(max_age_seconds=60.0) is first
        assert sampler.sample("flow.once", max_age_seconds=60.0) is first


def test_closing_lets_go_of_every_file(hub: MessageHub, sampler: FlowSampler) -> None:
    with hub.producer("flow.files") as producer, hub.consumer("flow.files"):
        producer.write(b"x")
        before = opened()
        sampler.sample(**AT_ONCE)
        assert len(opened()) > len(before)
        sampler.close()
        eventually(lambda: opened() == before)


def test_what_a_reader_missed_is_counted_and_is_no_reading(hub: MessageHub, sampler: FlowSampler) -> None:
    with (
        hub.producer("flow.missed", capacity=8) as producer,
        hub.consumer("flow.missed", start="oldest", consumer_id="slow") as slow,
    ):
        producer.write(b"x")
        assert slow.read(timeout=10) == b"x"
        (before,) = ring(sampler, "flow.missed").readers
        assert (before.missed_items, before.late_since) == (0, None)
        for _ in range(100):
            producer.write(b"x")
        while slow.read(timeout=0) is not None:
            pass
        (after,) = eventually(lambda: [one for one in ring(sampler, "flow.missed").readers if one.items_per_second])
        assert after.missed_items == slow.missed > 80
        assert after.items_per_second < after.missed_per_second
        assert after.late_since == pytest.approx(time.time(), abs=60)
        summary = sampler.sample(max_age_seconds=60).channels["flow.missed"]
        assert (summary.missed_items, summary.late_since) == (slow.missed, after.late_since)
        assert summary.most_missed_by == "slow"
        sampler.close()  # as when nobody looks for a while
        (again,) = ring(sampler, "flow.missed").readers
        assert again.late_since == after.late_since
        (later,) = eventually(
            lambda: (
                [one for one in ring(sampler, "flow.missed").readers if not one.missed_per_second]
                if sampler.sample(**AT_ONCE).interval_seconds
                else None
            )
        )
        assert later.late_since is None


def test_each_member_of_a_group_has_a_rate_of_its_own(served: Callable[..., Served]) -> None:
    server = served()
    with (
        MessageHub(dir=server.dir) as hub,
        MessageHub(dir=server.dir) as other,
        contextlib.closing(FlowSampler(directory_of(hub.settings))) as sampler,
        hub.producer("flow.shared", capacity=64, when_full="block") as producer,
        hub.consumer("flow.shared", group="team", consumer_id="one") as one,
        other.consumer("flow.shared", group="team", consumer_id="two") as two,
    ):
        producer.write(b"first")

        def read(count: int) -> None:
            got = 0
            while got < count:
                for member in (one, two):
                    while member.read(timeout=0.05) is not None:
                        got += 1

        read(1)
        eventually(lambda: len(ring(sampler, "flow.shared").readers) == 2)
        sampler.close()
        ring(sampler, "flow.shared")
        for _ in range(40):
            producer.write(b"x")
        read(40)
        found = eventually(
            lambda: [each for each in ring(sampler, "flow.shared").readers if each.items_per_second], timeout=20
        )
        whole = sampler.sample(max_age_seconds=60).channels["flow.shared"].items_per_second
        assert len(found) == 2
        assert sum(each.items_per_second for each in found) == pytest.approx(whole, rel=0.1)
