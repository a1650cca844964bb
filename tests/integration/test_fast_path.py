"""What is promised of a consumer also holds while an item is one call into the core of its ring."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from messagehub.channels.consumer.consumers import Consumer
from messagehub.shm.errors import HandleClosed
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import eventually, wait_until_asleep
from tests.shm.children import fork, wait

PATIENCE = 30.0
pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"f{os.getpid()}") as made:
        yield made


def test_threads_that_share_a_consumer_get_every_item_once_and_see_its_origin(place: Place) -> None:
    count = 3000
    hub = place.hub()
    found: list[list[tuple[int, int]]] = [[] for _ in range(3)]

    def read(consumer: Consumer, seen: list[tuple[int, int]]) -> None:
        while (item := consumer.read_item(timeout=PATIENCE)) is not None:
            seen.append((int(bytes(item.value)), item.sequence))

    with hub.producer("shared", capacity=8, when_full="block") as producer, hub.consumer("shared") as consumer:
        threads = [threading.Thread(target=read, args=(consumer, seen)) for seen in found]
        for thread in threads:
            thread.start()
        for number in range(1, count + 1):
            producer.write(b"%d" % number, timeout=PATIENCE)
        eventually(lambda: sum(map(len, found)) == count)
        consumer.close()
        for thread in threads:
            thread.join(PATIENCE)
    everything = sorted(pair for seen in found for pair in seen)
    assert everything == [(number, number) for number in range(1, count + 1)]
    assert all(seen == sorted(seen) for seen in found)


def test_threads_that_share_a_producer_get_numbers_of_their_own(place: Place) -> None:
    """Also while one of them waits for room, which the others do not take."""
    hub = place.hub()
    numbers: list[list[int]] = [[] for _ in range(3)]

    def write(written: list[int]) -> None:
        for _ in range(500):
            written.append(producer.write(b"x" * 64, timeout=PATIENCE))

    with hub.producer("shared", capacity=4, when_full="block") as producer, hub.consumer("shared") as consumer:
        consumer.read(timeout=0.0)
        threads = [threading.Thread(target=write, args=(written,)) for written in numbers]
        for thread in threads:
            thread.start()
        for _ in range(1500):
            assert consumer.read(timeout=PATIENCE) == b"x" * 64
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(number for written in numbers for number in written) == list(range(1, 1501))


def when_this_thread_sleeps(call: Callable[..., object], *arguments: object) -> None:
    own = threading.get_native_id()

    def wait_and_call() -> None:
        wait_until_asleep(own)
        call(*arguments)

    threading.Thread(target=wait_and_call).start()


def test_whoever_waits_is_woken_by_close_and_by_a_signal(place: Place) -> None:
    hub = place.hub()
    with hub.producer("waiting") as producer, hub.consumer("waiting") as consumer:
        for _ in range(3):  # from the second on it waits in the core
            when_this_thread_sleeps(producer.write, b"x")
            assert consumer.read(timeout=PATIENCE) == b"x"

        def interrupt(*_: object) -> None:
            raise InterruptedError("by a signal")

        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(InterruptedError):  # noqa: PT012  a signal may come before the read begins
                when_this_thread_sleeps(os.kill, os.getpid(), signal.SIGUSR1)
                consumer.read()
        finally:
            signal.signal(signal.SIGUSR1, before)
        producer.write(b"after")
        assert consumer.read(timeout=PATIENCE) == b"after"
        when_this_thread_sleeps(consumer.close)
        assert consumer.read() is None
        with pytest.raises(HandleClosed):
            consumer.read(timeout=0.0)


def test_a_closed_consumer_gives_nothing_although_there_is_something(place: Place) -> None:
    hub = place.hub()
    with hub.producer("closed") as producer, hub.consumer("closed") as consumer:
        for _ in range(3):
            producer.write(b"x")
        assert consumer.read(timeout=PATIENCE) == b"x"
        assert consumer.read(timeout=PATIENCE) == b"x"
        consumer.close()
        with pytest.raises(HandleClosed):
            consumer.read()
        assert list(consumer) == []
        assert consumer.sequence == 2


def test_a_forked_child_reads_and_writes_nothing(place: Place) -> None:
    hub = place.hub()
    with hub.producer("forked") as producer, hub.consumer("forked") as consumer:
        for _ in range(3):
            producer.write(b"x")
        assert consumer.read(timeout=PATIENCE) == b"x"
        assert consumer.read(timeout=PATIENCE) == b"x"

        def child() -> None:
            for call in (consumer.read, lambda: producer.write(b"from the child")):
                with pytest.raises(HandleClosed):
                    call()

        assert wait(fork(child)) == 0
        assert producer.write(b"y") == 4
        assert [consumer.read(timeout=PATIENCE) for _ in range(2)] == [b"x", b"y"]


def test_a_second_producer_is_read_although_the_first_never_pauses(place: Place) -> None:
    hub = place.hub()
    with hub.producer("two", access="shared", producer_id="one") as first, hub.consumer("two") as consumer:
        first.write(b"1")
        assert consumer.read(timeout=PATIENCE) == b"1"
        with hub.producer("two", access="shared", producer_id="other") as second:
            second.write(b"2")
            seen = set()
            while seen != {"one", "other"}:
                first.write(b"1")
                item = consumer.read_item(timeout=PATIENCE)
                while item is not None:
                    seen.add(item.producer_id)
                    item = consumer.read_item(timeout=0.01)
        eventually(lambda: consumer.read(timeout=0.01) is None)
        first.write(b"3")
        assert consumer.read(timeout=PATIENCE) == b"3"
        assert consumer.producer_id == "one"


def test_arrays_keep_their_dtype_and_shape_whichever_way_they_are_written(place: Place) -> None:
    hub = place.hub()
    values = [
        np.arange(6, dtype="f8"),
        np.arange(6, dtype="f8").reshape(2, 3),
        np.arange(12, dtype="f8")[::2],
        np.asfortranarray(np.arange(6, dtype="f8").reshape(2, 3)),
        np.zeros((0, 3)),
        np.array(7.0),
        np.arange(3, dtype="f8"),
    ]
    with hub.producer("arrays", schema=np.dtype("f8")) as producer, hub.consumer("arrays") as consumer:
        for value in values:
            producer.write(value)
        for value in values:
            found = consumer.read(timeout=PATIENCE)
            assert found.shape == value.shape
            assert found.dtype == value.dtype
            assert np.array_equal(found, value)
