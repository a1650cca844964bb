"""Exhaustive: a writer and a reader with the core in C die after each single instruction of it.

`make test` takes every seventh instruction, beginning with another one each time; `thorough` takes all.
"""

import os
import random
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from messagehub.shm import errors
from messagehub.shm.layout import Checksum, WhenFull
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.rings.writer import RingWriter
from tests.faults.shm.stepping import Stepped, entry_of_finalizer, entry_of_method, require_stepping, stop_here
from tests.levels import IS_QUICK
from tests.shm.rings import checked, number_of, payload, writer

BYTES = np.dtype("u1")
STEP = 7 if IS_QUICK else 1
FEWEST = 60  # instructions that a test must have stepped through, else it did not step through what it should


def ring(root: str, when_full: WhenFull) -> RingWriter:
    """Its items go through the core alone: no checksum of the ring, and views instead of copies."""
    return writer(root, BYTES, checksum=Checksum.NONE, when_full=when_full, slot_count=4)


def content(number: int) -> np.ndarray:
    return np.frombuffer(payload(number, 100 + 40 * (number % 5)), BYTES)  # a length that is another item's is noticed


def put(made: RingWriter, count: int = 1) -> None:
    for _ in range(count):
        made.write(content(made.head + 1), 10)


def instructions() -> Iterator[int]:
    return count(random.randrange(STEP), STEP)


def unread(reader: RingReader) -> list[int]:
    """The numbers of what is left until the writer's death. A stall fails by its timeout."""
    numbers = []
    while True:
        try:
            found = reader.read(10)
        except errors.WriterGone:
            return numbers
        assert found is not None, "STALL"
        if isinstance(found, Gap):
            numbers += range(-found.first, -found.last - 1, -1)
        else:
            numbers.append(checked(found))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("when_full", [WhenFull.OVERWRITE, WhenFull.BLOCK], ids=["overwrite", "block"])
def test_a_writer_killed_after_any_instruction_of_a_write(root: str, when_full: WhenFull, is_held: bool) -> None:
    """Its readers get every number once and in order, and a view that is held stays; a lossless reader gets the items.

    A slot that is held is passed over, or makes the core ask whether its reader lives. One that is free is written by
    `put`, which takes no mutex.
    """
    require_stepping()
    path = os.path.join(root, "ring")
    with ring(root, when_full) as made:
        # private: the address of the core's method is needed
        entry = entry_of_method(made._core.write if is_held else made._core.put)
        put(made)
    holder = open_reader(path, start="oldest", lossless=False, copy="never")
    held = holder.read(0) if is_held else None
    reader = open_reader(path, start="oldest")
    seen: list[int] = []

    def write_one() -> None:
        made = ring(root, when_full)
        sleeper = open_reader(path, start="latest", lossless=False)
        for _ in range(2):  # the first opens the FIFO of the sleeper
            assert sleeper.arm() is None
            put(made)
            assert sleeper.take() is not None
        assert sleeper.arm() is None
        value = content(made.head + 1)
        stop_here()
        assert is_held or made.put(value)
        assert not is_held or made.write_plain(value, may_wait=False) >= 0
        os._exit(0)

    for number in instructions():
        was_killed = Stepped(write_one).killed_after(number, entry)
        seen += unread(reader)
        with open_reader(path, start="oldest", lossless=False) as fresh:
            assert min(unread(fresh)) > 0, "what is left in the ring is not whole"
        assert held is None or (isinstance(held, Item) and number_of(held.value) == 1), "BAD READ"
        if not was_killed:
            break
    print(f"{number} instructions")
    assert number > FEWEST
    assert [abs(each) for each in seen] == list(range(1, len(seen) + 1))
    assert when_full == WhenFull.OVERWRITE or min(seen) > 0, "a lossless reader lost an item"
    with ring(root, when_full) as made:
        put(made)
        assert checked(reader.read(0)) == made.head
    del held
    reader.close()
    holder.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["take", "release"])
def test_a_reader_killed_after_any_instruction(root: str, part: str) -> None:
    """What it held and what it had not read is free at once; another lossless reader loses nothing."""
    require_stepping()
    made = ring(root, WhenFull.BLOCK)
    other = open_reader(made.path, start="oldest")
    put(made)
    item = other.read(0)
    assert isinstance(item, Item)
    # private: the addresses of the core's method and of its view's finalizer are needed
    entry = entry_of_method(other._core.take) if part == "take" else entry_of_finalizer(type(item.buffer))
    del item

    def read_one() -> None:
        reader = open_reader(made.path, start="oldest", copy="never")
        kept = [reader.read(0)]
        if part == "take":
            stop_here()
            kept.append(reader.read(0))
        else:
            kept.append(reader.read(0))
            stop_here()
            kept.pop()
        os._exit(0)

    for number in instructions():
        put(made, 2)
        was_killed = Stepped(read_one).killed_after(number, entry)
        assert [checked(other.read(0)) for _ in range(2)] == [made.head - 1, made.head]
        for _ in range(5):  # all slots, and more
            put(made)
            assert checked(other.read(0)) == made.head
        if not was_killed:
            break
    print(f"{number} instructions")
    assert number > FEWEST // 3
    other.close()
    made.close()
    readers_path = os.path.join(root, made.header.readers_path)
    assert [name for name in os.listdir(readers_path) if name.endswith(".reader")] == []
