"""Exhaustive: the writer of a ring dies after each single store, and mid-payload; no bad read, no stall.

The writer has the core in Python, whose stores can be counted; its readers and successors have the one that is used
here. `test_core_killed_at_every_instruction` does the same with the core in C.
"""

import os
from collections.abc import Callable
from itertools import count

import pytest

from messagehub.shm import core, errors
from messagehub.shm.layout import Checksum, Kind, WhenFull
from messagehub.shm.rings import ring
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader
from tests.faults.shm.suicide import (
    Fuse,
    count_system_calls,
    counting_reader,
    counting_segment,
    counting_writer,
    died_after,
)
from tests.shm.rings import checked, number_of, payload, writer

SHAPES = [
    pytest.param({"slot_count": 3}, id="ring"),
    pytest.param({"slot_count": 3, "checksum": Checksum.NONE}, id="plain"),  # the core alone writes it
    pytest.param({"kind": Kind.DOUBLE_BUFFER}, id="double"),
    pytest.param({"kind": Kind.SINGLE}, id="single"),
    pytest.param({"slot_count": 3, "when_full": WhenFull.BLOCK}, id="blocking"),
]
WRITES = 4


def write_some(root: str, shape: dict[str, object]) -> Callable[[Fuse], None]:
    def body(fuse: Fuse) -> None:
        ring.Segment = counting_segment(fuse)  # type: ignore[misc]  in the child only
        core.Writer = counting_writer(fuse)  # type: ignore[misc]
        with writer(root, **shape) as made:
            for _ in range(WRITES):
                made.write(payload(made.head + 1), timeout_seconds=5)

    return body


def read_everything(reader: RingReader) -> tuple[list[int], list[Gap]]:
    """What is there, up to the death of the writer. Any stall fails by its timeout."""
    numbers, gaps = [], []
    while True:
        try:
            found = reader.read(5)
        except errors.WriterGone:
            return numbers, gaps
        assert found is not None, "STALL"
        if isinstance(found, Gap):
            gaps.append(found)
        else:
            numbers.append(checked(found))


def account_for(numbers: list[int], gaps: list[Gap], first: int, head: int) -> None:
    """Every sequence up to the head was read or reported lost, once, in order."""
    told = sorted([*numbers, *(number for gap in gaps for number in range(gap.first, gap.last + 1))])
    assert told == list(range(first, head + 1))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_writer_that_dies_creating_or_filling_a_new_ring(root: str, shape: dict[str, object]) -> None:
    for length in count(1):
        died = died_after(write_some(root, shape), length)
        path = os.path.join(root, "ring")
        if os.path.exists(path):
            with open_reader(path, start="oldest") as reader:
                numbers, gaps = read_everything(reader)
                assert gaps == []
                assert not numbers or numbers[-1] <= reader.head
                assert died or numbers[-1] == WRITES
        with writer(root, **shape) as made:
            for _ in range(4):
                made.write(payload(made.head + 1), timeout_seconds=5)
            with open_reader(path, start="oldest") as reader:
                assert checked(reader.latest()) == made.head
        os.unlink(path)
        if not died:
            break
    assert length > WRITES * 10  # the stores of the core were counted too


@pytest.mark.parametrize("shape", SHAPES)
def test_readers_survive_a_successor_that_dies_anywhere(root: str, shape: dict[str, object]) -> None:
    """One reader follows through all deaths; another holds a view through all of them."""
    path = os.path.join(root, "ring")
    held_slots = 0 if shape.get("kind") == Kind.SINGLE else 1
    with writer(root, **shape) as made:
        made.write(payload(1))
    holder = open_reader(path, start="oldest", lossless=False, copy="never")
    held = [memoryview(holder.read(0).buffer)][:held_slots]
    epoch, expected = 1, 2
    is_blocking = shape.get("when_full") == WhenFull.BLOCK
    for length in count(1):
        with open_reader(path, start="latest", lossless=False) as reader:
            expected = reader.head + 1
            died = died_after(write_some(root, shape), length)
            numbers, gaps = read_everything(reader)
            account_for(numbers, gaps, expected, reader.head)
            with writer(root, **shape) as made:
                assert made.epoch > epoch
                epoch = made.epoch
                assert made.head >= reader.head
                for _ in range(3):
                    made.write(payload(made.head + 1), timeout_seconds=5)
                numbers, gaps = read_everything_now(reader)
                assert numbers[-1] == made.head
            assert all(number_of(view) == 1 for view in held)
        assert is_blocking or not gaps or held_slots or numbers
        if not died:
            break
    held.clear()
    holder.close()


def read_everything_now(reader: RingReader) -> tuple[list[int], list[Gap]]:
    numbers, gaps = [], []
    while (found := reader.read(0)) is not None:
        if isinstance(found, Gap):
            gaps.append(found)
        else:
            numbers.append(checked(found))
    return numbers, gaps


def test_a_lossless_reader_loses_nothing_over_all_deaths(root: str) -> None:
    """Blocking mode, a reader that sleeps over restarts: not one sequence is missing."""
    shape: dict[str, object] = {"slot_count": 8, "when_full": WhenFull.BLOCK}
    path = os.path.join(root, "ring")
    writer(root, **shape).close()
    with writer(root, **shape) as made:
        made.write(payload(1))
    with open_reader(path, start="oldest") as reader:
        seen: list[int] = []
        for length in count(1):
            died = died_after(write_some(root, shape), length)
            numbers, gaps = read_everything(reader)
            assert gaps == []
            seen += numbers
            if not died:
                break
        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 30


def test_a_writer_that_dies_at_any_change_of_a_file_leaves_a_ring_or_nothing(root: str) -> None:
    """The same for system calls: creation, reader files, wake-ups, replacing a ring of another shape."""
    path = os.path.join(root, "ring")
    for length in count(1):
        with writer(root, slot_count=2) as made:
            made.write(payload(1))

        def body(fuse: Fuse) -> None:
            count_system_calls(fuse)
            with writer(root, slot_count=5) as made:
                made.write(payload(made.head + 1))

        died = died_after(body, length)
        with writer(root, slot_count=5) as made:
            made.write(payload(made.head + 1))
            with open_reader(path, start="oldest") as reader:
                numbers, _ = read_everything_now(reader)
                assert numbers[-1] == made.head
        os.unlink(path)
        if not died:
            return


def test_a_reader_that_dies_anywhere_holds_nothing_back(root: str) -> None:
    """What it pinned and what it had not read is free at once; another lossless reader loses nothing."""
    made = writer(root, slot_count=4, when_full=WhenFull.BLOCK)
    other = open_reader(made.path, start="oldest")

    def read_some(fuse: Fuse) -> None:
        core.Reader = counting_reader(fuse)  # type: ignore[misc]  in the child only
        reader = open_reader(made.path, start="oldest", copy="never")
        held = []
        while (found := reader.take()) is not None:
            held.append(found)
        del held[0], found
        assert reader.arm() is None
        reader.disarm()
        held.clear()
        reader.close()

    made.write(payload(1))
    made.write(payload(2))
    for length in count(1):
        died = died_after(read_some, length)
        for _ in range(4):  # all slots
            assert checked(other.read(0)) == made.head - 1
            assert checked(other.read(0)) == made.head
            for _ in range(2):
                made.write(payload(made.head + 1), timeout_seconds=5)
        if not died:
            break
    assert length > 10
    other.close()
    made.close()
