"""Rings of another host of the site: the same calls, values, positions and ends as of a ring of this host."""

import asyncio
import os
import signal
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from messagehub import DataLost, Gap, MessageHub
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, gateway_pid, on, process_on, producing


def values(consumer: Any, count: int) -> list[Any]:
    """The next values; fewer if the time is up before."""
    found: list[Any] = []
    while len(found) < count and (value := consumer.read(timeout=PATIENCE_SECONDS)) is not None:
        found.append(value)
    return found


def test_bytes_arrays_and_batches_come_as_they_were_written(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do("""
            small = hub.producer("s.bytes", capacity=64, page_size=1 << 17)
            arrays = hub.producer("s.arrays", schema=np.dtype("f4"), capacity=64, page_size=4096)
            schema = pa.schema([("x", pa.int64()), ("name", pa.string())])
            batches = hub.producer("s.batches", schema=schema, capacity=64, page_size=4096)
            words = pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))])
            encoded = hub.producer("s.encoded", schema=words, capacity=8, page_size=4096)
            for number in range(20):
                small.write(bytes([number]) * (number * 5000))
                arrays.write(np.full((2, number + 1), number, "f4"))
                batches.write(pa.record_batch([[number], [str(number)]], schema=schema))
            encoded.write(pa.record_batch([pa.array(["a", "b", "a"]).dictionary_encode().cast(words[0].type)], words))
        """)
        producing(here, "s.bytes", "alpha")
        with here.consumer("s.bytes", start="oldest") as consumer:
            assert [bytes(value) for value in values(consumer, 20)] == [bytes([n]) * (n * 5000) for n in range(20)]
            assert consumer.source == "broker"
            assert list(consumer.block_sources.values()) == ["flight"]
            item = consumer.latest_item()
            assert item is not None
            assert (bytes(item.value), item.sequence) == (bytes([19]) * 95_000, 20)
            assert consumer.lag == 0
        with here.consumer("s.arrays", start="oldest") as consumer:
            for number, array in enumerate(values(consumer, 20)):
                assert array.shape == (2, number + 1)
                assert array.flags.aligned
                assert np.array_equal(array, np.full((2, number + 1), number, "f4"))
            assert consumer.schema == np.dtype("f4")
        producing(here, "s.batches", "alpha")
        with here.consumer("s.batches", start=-3) as consumer:
            assert [batch.to_pylist() for batch in values(consumer, 3)] == [
                [{"x": number, "name": str(number)}] for number in (17, 18, 19)
            ]
            there.do("batches.write(pa.record_batch([[99], [None]], schema=schema))")
            [found] = values(consumer, 1)
            assert found.to_pylist() == [{"x": 99, "name": None}]
            assert consumer.sequence == 21
            assert consumer.written_at > 1.7e9
        with here.consumer("s.encoded", start="oldest") as consumer:
            [found] = values(consumer, 1)
            assert found.column(0).to_pylist() == ["a", "b", "a"]
            assert pa.types.is_dictionary(found.schema[0].type)


def test_small_and_large_items_may_come_together(hosts: Site) -> None:
    """Small ones are copied together, large ones are sent from their slots; all arrays can be read in place."""
    sizes = [0, 2, 14, 16, 18, 16_382, 16_384, 16_386, 16_392, 70_002] * 4
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f"""
            mixed = hub.producer("s.mixed", schema=np.dtype("u2"), capacity=64, page_size=1 << 17)
            for number, size in enumerate({sizes}):
                mixed.write(np.full(size // 2, number, "u2"))
        """)
        with here.consumer("s.mixed", start="oldest") as consumer:
            for number, size in enumerate(sizes):
                [array] = values(consumer, 1)
                assert np.array_equal(array, np.full(size // 2, number, "u2"))
                assert array.flags.aligned
                assert consumer.sequence == number + 1
                assert [each[2] for each in consumer.position.values()] == [number + 1]
            assert consumer.lag == 0


def test_threads_that_share_a_reader_elsewhere_get_each_item_once(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do("""
            p = hub.producer("s.threads", capacity=512, page_size=64)
            for n in range(400): p.write(b"%d" % n)
        """)
        producing(here, "s.threads", "alpha")
        with here.consumer("s.threads", start="oldest") as consumer:
            there.do("p.close()")
            found: list[list[Any]] = [[] for _ in range(4)]
            threads = [threading.Thread(target=lambda mine=mine: mine.extend(consumer)) for mine in found]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert sorted(int(value) for mine in found for value in mine) == list(range(400))


def test_a_reader_elsewhere_keeps_no_slots_of_what_it_was_sent(hosts: Site) -> None:
    """An overwriting producer skips nothing for it, though large items are sent from their slots."""
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do("""
            p = hub.producer("s.slots", capacity=4, page_size=1 << 16)
            p.write(bytes(1 << 16))
        """)
        with here.consumer("s.slots", start="oldest") as consumer:
            kept = values(consumer, 1)
            there.do("""
                import time
                from messagehub.channels.inventory import rings
                from messagehub.shm.channel_directory.location import directory_of
                directory = directory_of(hub.settings)
                def held():
                    [block] = rings(directory, "s.slots")
                    return sum(holder.held for holder in block.holders)
                deadline = time.monotonic() + 30
                while held():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                for n in range(200):
                    p.write(bytes(1 << 16))
                assert p.skipped == 0, p.skipped
            """)
            assert len(kept) == 1


def test_a_position_is_gone_on_from_and_the_latest_is_from_now_on(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.position", capacity=64)')
        there.do("for n in range(5): p.write(b'%d' % n)")
        producing(here, "s.position", "alpha")
        with here.consumer("s.position", start="oldest") as consumer, here.consumer("s.position") as latest:
            assert values(consumer, 2) == [b"0", b"1"]
            saved = {block: list(position) for block, position in consumer.position.items()}
            there.do("p.write(b'5')")
            assert values(latest, 1) == [b"5"]
        with here.consumer("s.position", start=saved) as consumer:
            assert values(consumer, 4) == [b"2", b"3", b"4", b"5"]
            assert consumer.read(timeout=0.0) is None


def test_a_producer_that_comes_later_is_read_from_its_first_item(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here, here.consumer("s.later") as consumer:
        there.do('p = hub.producer("s.later", capacity=64)\nfor n in range(5): p.write(b"%d" % n)')
        assert values(consumer, 5) == [b"%d" % n for n in range(5)]


def test_the_end_of_a_stream_ends_its_readers(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.end", capacity=64)')
        producing(here, "s.end", "alpha")
        with here.consumer("s.end", start="oldest") as consumer:
            there.do("for n in range(10): p.write(b'%d' % n)\np.close()")
            assert list(consumer) == [b"%d" % n for n in range(10)]
            assert consumer.has_ended
            assert consumer.missed == 0
            there.do('p = hub.producer("s.end", capacity=64)\np.write(b"again")')
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"again"


@pytest.mark.parametrize("on_lag", ["gap", "raise", "skip"])
def test_what_is_lost_is_told(hosts: Site, on_lag: str) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(f'p = hub.producer("s.lag.{on_lag}", capacity=4)\nfor n in range(3): p.write(b"%d" % n)')
        with here.consumer(f"s.lag.{on_lag}", start="oldest", lossless=False) as consumer:
            [first] = values(consumer, 1)
            saved = consumer.position
        there.do("for n in range(3, 30): p.write(b'%d' % n)")
        assert first == b"0"
        with here.consumer(f"s.lag.{on_lag}", start=saved, on_lag=on_lag) as consumer:  # type: ignore[arg-type]
            if on_lag == "raise":
                with pytest.raises(DataLost):
                    consumer.read(timeout=PATIENCE_SECONDS)
            else:
                [found] = values(consumer, 1)
                if on_lag == "gap":
                    assert isinstance(found, Gap)
                    assert found.first == 2
                else:
                    assert found == b"%d" % (consumer.missed + 1)
            assert consumer.missed >= 20


def test_a_blocking_producer_waits_for_a_reader_elsewhere(hosts: Site) -> None:
    """What is on its way is bounded, so a producer of more than that stands still until somebody reads."""
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.blocks", capacity=4, page_size=1 << 20, when_full="block")')
        producing(here, "s.blocks", "alpha")
        with here.consumer("s.blocks", start="oldest") as consumer:
            there.do("""
                import threading
                def write():
                    for n in range(100):
                        p.write(bytes([n]) * (1 << 20), timeout=60)
                writing = threading.Thread(target=write)
                writing.start()
            """)
            assert [value[0] for value in values(consumer, 100)] == list(range(100))
            assert consumer.missed == 0
            there.do("writing.join(30)\nassert not writing.is_alive()")


def test_producers_on_two_hosts_are_read_as_one_channel(hosts: Site) -> None:
    make = 'p = hub.producer("s.shared", access="shared", producer_id="%s", capacity=64)'
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near, on(hosts["beta"]) as here:
        near.do(make % "near")
        with here.consumer("s.shared", start="oldest") as consumer:
            near.do("p.write(b'near')")
            assert values(consumer, 1) == [b"near"]
            there.do(make % "far" + "\np.write(b'far')")
            item = consumer.read_item(timeout=PATIENCE_SECONDS)
            assert item is not None
            assert not isinstance(item, Gap)
            assert (item.value, item.producer_id) == (b"far", "far")
            assert sorted(consumer.block_sources.values()) == ["flight", "shm"]
            near.do("p.write(b'near again')")
            assert values(consumer, 1) == [b"near again"]


def test_a_ring_of_the_same_name_here_is_not_taken_for_that_of_another_host(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        with here.producer("s.namesake", capacity=4) as mine:
            mine.write(b"of this host, long ago")
        there.do('p = hub.producer("s.namesake", capacity=4)\np.write(b"there")')
        producing(here, "s.namesake", "alpha")
        with here.consumer("s.namesake", start="oldest") as consumer:
            assert list(consumer.block_sources.values()) == ["flight"]
            assert values(consumer, 1) == [b"there"]
            assert consumer.read(timeout=0.5) is None


def test_a_gateway_that_is_killed_costs_no_item(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.killed", capacity=256)\nfor n in range(10): p.write(b"%d" % n)')
        with here.consumer("s.killed", start="oldest") as consumer:
            assert values(consumer, 10) == [b"%d" % n for n in range(10)]
            os.kill(gateway_pid(hosts["alpha"]), signal.SIGKILL)
            there.do("for n in range(10, 20): p.write(b'%d' % n)")
            assert values(consumer, 10) == [b"%d" % n for n in range(10, 20)]
            assert consumer.missed == 0


def test_a_producer_that_is_killed_leaves_what_it_wrote(hosts: Site) -> None:
    with on(hosts["beta"]) as here, process_on(hosts["alpha"]) as there:
        there.do('p = hub.producer("s.dead", capacity=64)\nfor n in range(5): p.write(b"%d" % n)')
        with here.consumer("s.dead", start="oldest") as consumer:
            assert values(consumer, 1) == [b"0"]
            there.kill()
            assert values(consumer, 4) == [b"1", b"2", b"3", b"4"]
            assert consumer.read(timeout=0.2) is None
            producing(here, "s.dead")  # or else the next one is refused: nobody has seen yet that this one is dead
            with process_on(hosts["alpha"]) as next_one:
                next_one.do('p = hub.producer("s.dead", capacity=64)\np.write(b"next")')
                assert values(consumer, 1) == [b"next"]


def test_reading_in_an_event_loop_is_the_same(hosts: Site) -> None:
    async def read(here: MessageHub) -> None:
        async with here.consumer("s.async", start="oldest") as consumer:
            found = [await consumer.read_async(timeout=PATIENCE_SECONDS) for _ in range(5)]
            assert found == [b"%d" % n for n in range(5)]
            assert await consumer.read_async(timeout=0.05) is None

    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.async", capacity=64)\nfor n in range(5): p.write(b"%d" % n)')
        asyncio.run(read(here))


def test_a_reader_that_waits_is_not_told_of_a_ring_that_is_about_to_be_made(hosts: Site) -> None:
    """A producer is registered before its ring is there."""
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here, here.consumer("s.early") as consumer:
        making = threading.Thread(target=there.do, args=('p = hub.producer("s.early", capacity=16384)\np.write(b"x")',))
        making.start()
        try:
            found = eventually(lambda: consumer.read(timeout=0.02))
        finally:
            making.join()
        assert found == b"x"


def test_a_reader_elsewhere_is_shown_on_the_producers_host_as_what_it_is(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("s.shown", capacity=4, when_full="block")\np.write(b"0")')
        with here.consumer("s.shown", start="oldest", consumer_id="plotter") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"0"
            there.do(f"""
                from messagehub.channels.flow import FlowSampler
                from messagehub.channels.inventory import rings
                from messagehub.shm.channel_directory.location import directory_of
                directory = directory_of(hub.settings)
                [ring] = FlowSampler(directory).sample(focus="s.shown").rings["s.shown"]
                [reader] = ring.readers
                assert (reader.consumer_id, reader.pid, reader.host) == ("plotter", {os.getpid()}, "beta"), reader
                [block] = rings(directory, "s.shown")
                [holder] = block.holders
                assert "process {os.getpid()} on host 'beta'" in str(holder), str(holder)
            """)
