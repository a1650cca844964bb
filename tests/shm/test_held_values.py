"""Values that a reader keeps never stop an overwriting writer; who holds a writer back is told."""

import contextlib
import logging
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.layout import Kind, WhenFull
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import describe, open_reader
from messagehub.shm.rings.writer import RingWriter
from tests import preloaded
from tests.integration.harness import ROOT, eventually
from tests.shm.children import kill, parked
from tests.shm.rings import drain, number_of, payload, writer


def held_slots(made: RingWriter) -> int:
    found: int = describe(made.path)[1]["held"]
    return found


def keep(reader: RingReader) -> object:
    """The next value, held as an array: small raw values are bytes of their own."""
    return np.frombuffer(reader.read(0).buffer, np.uint8)


@pytest.mark.parametrize(("slots", "most"), [(1, 0), (2, 0), (3, 1), (4, 2), (16, 4)])
def test_a_reader_that_keeps_everything_holds_its_share_of_the_slots(root: str, slots: int, most: int) -> None:
    with writer(root, slot_count=slots) as made, open_reader(made.path, start="oldest") as reader:
        kept = []
        for number in range(1, 101):
            assert made.write(payload(number)).last == number
            kept.append(keep(reader))
        assert held_slots(made) == most
        assert made.skipped == 0
        assert [number_of(value) for value in kept] == list(range(1, 101))
        assert not any(value.flags.writeable for value in kept)
        kept.clear()
        assert held_slots(made) == 0


def test_readers_of_one_process_share_one_share(root: str) -> None:
    """A program that opens a reader for every value, and keeps the values, holds no more than one reader would."""
    with writer(root, slot_count=16) as made:
        kept = []
        for number in range(1, 41):
            made.write(payload(number))
            with open_reader(made.path, start="oldest") as reader:
                kept.append(np.frombuffer(reader.latest().buffer, np.uint8))
        assert held_slots(made) == 4
        assert [number_of(value) for value in kept] == list(range(1, 41))


KEEPER = """
import sys
import numpy as np
from messagehub.shm.rings.ring import open_reader
with open_reader(sys.argv[1], start="oldest") as reader:
    kept = []
    for _ in sys.stdin:
        kept.append(np.frombuffer(reader.latest().buffer, np.uint8))
        print(len(kept), flush=True)
"""


@pytest.mark.parametrize(("slots", "processes"), [(8, 4), (4, 6)])
def test_values_that_several_processes_keep_leave_room_for_the_writer(root: str, slots: int, processes: int) -> None:
    """Each keeps no more than its share; together these were all slots, and nothing was written any more."""
    with writer(root, slot_count=slots) as made, contextlib.ExitStack() as ending:
        keepers = [
            ending.enter_context(
                preloaded.Popen(
                    [sys.executable, "-c", KEEPER, made.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                    cwd=ROOT,
                )
            )
            for _ in range(processes)
        ]
        number = 0
        for keeper in keepers:
            assert keeper.stdin is not None
            assert keeper.stdout is not None
            for _ in range(3):
                number += 1
                made.write(payload(number))
                keeper.stdin.write("look\n")
                keeper.stdout.readline()
        assert 0 < held_slots(made) <= slots * 3 // 4
        for _ in range(20):
            number += 1
            assert made.write(payload(number), 0.0).last == number
        assert made.skipped == 0


def test_a_loop_that_keeps_one_value_reads_without_copies(root: str) -> None:
    with writer(root) as made, open_reader(made.path, start="oldest") as reader:
        for number in range(1, 10):
            made.write(payload(number))
            value = keep(reader)
            assert held_slots(made) == 1
        del value


def test_an_overwriting_writer_whose_slots_are_all_held_skips_counts_and_names_the_holder(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    with writer(root) as made, open_reader(made.path, start="oldest", copy="never") as reader:
        kept = []
        for number in range(1, 5):
            made.write(payload(number))
            kept.append(keep(reader))
        with caplog.at_level(logging.WARNING, "messagehub"):
            assert [made.write(payload(number)).last for number in range(5, 20)] == list(range(5, 20))
        assert made.skipped == 15
        assert [number_of(value) for value in kept] == [1, 2, 3, 4]
        assert [f"process {os.getpid()} holds 4 slots" in record.message for record in caplog.records] == [True]
        assert reader.read(0) == Gap(5, 19)
        kept.clear()
        made.write(payload(20))
        assert drain(reader) == [20]
        assert made.skipped == 15


def test_a_loan_of_a_writer_whose_slots_are_all_held_is_skipped(root: str) -> None:
    with writer(root, slot_count=1) as made, open_reader(made.path, start="oldest", copy="never") as reader:
        made.write(payload(1))
        kept = keep(reader)
        with made.loan(300) as loan:
            loan.buffer[:] = payload(2)
        made.loan(300).abort()
        del loan
        assert (made.head, made.skipped) == (2, 1)
        assert number_of(kept) == 1
        assert reader.read(0) == Gap(2, 2)
        del kept
        made.write(payload(3))
        assert drain(reader) == [3]


def test_slots_that_are_released_are_used_again(root: str) -> None:
    with writer(root, slot_count=8) as made, open_reader(made.path, start="oldest") as reader:
        for first in range(1, 400, 20):
            kept = []
            for number in range(first, first + 20):
                made.write(payload(number))
                kept.append(keep(reader))
            kept.clear()
        assert made.skipped == 0
        assert held_slots(made) == 0


@pytest.mark.parametrize("when_full", [WhenFull.BLOCK, WhenFull.ERROR])
def test_a_full_ring_names_who_has_not_read(root: str, when_full: WhenFull) -> None:
    with writer(root, when_full=when_full) as made:
        pid = parked(lambda: open_reader(made.path, start="oldest"))
        for number in range(1, 5):
            made.write(payload(number))
        with pytest.raises(errors.RingFull, match=f"process {pid} has not read 4 items"):
            made.write(payload(5), timeout_seconds=0.01)
        kill(pid)


def test_a_full_ring_names_who_holds_its_slots(root: str) -> None:
    with writer(root, kind=Kind.SINGLE, when_full=WhenFull.BLOCK) as made:
        with open_reader(made.path, start="oldest", copy="never") as reader:
            made.write(payload(1))
            kept = keep(reader)
            with pytest.raises(errors.RingFull, match=f"process {os.getpid()} holds 1 slot"):
                made.write(payload(2), timeout_seconds=0.01)
        # Closed, and still holding it.
        with pytest.raises(errors.RingFull, match=f"process {os.getpid()} holds 1 slot"):
            made.write(payload(2), timeout_seconds=0.01)
        del kept
        made.write(payload(2), timeout_seconds=0.01)


def test_a_writer_that_waits_says_for_whom(root: str, caplog: pytest.LogCaptureFixture) -> None:
    with writer(root, when_full=WhenFull.BLOCK) as made, open_reader(made.path, start="oldest"):
        for number in range(1, 5):
            made.write(payload(number))
        with caplog.at_level(logging.WARNING, "messagehub"), pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=5)  # it tells after one second
        assert [f"process {os.getpid()} has not read 4 items" in record.message for record in caplog.records] == [True]


def test_a_block_tells_of_its_readers(root: str) -> None:
    with (
        writer(root, when_full=WhenFull.BLOCK) as made,
        open_reader(made.path, start="oldest") as reader,
        open_reader(made.path, start="oldest", lossless=False),
    ):
        for number in range(1, 4):
            made.write(payload(number))
        kept = [keep(reader)]
        found = describe(made.path)[1]["holders"]
        assert sorted((one.pid, one.held, one.unread) for one in found if one.unread is not None) == [
            (os.getpid(), 1, 2)
        ]
        assert [(one.held, one.unread) for one in found if one.unread is None] == [(0, None)]
        kept.clear()
        assert sum(one.held for one in describe(made.path)[1]["holders"]) == 0


def test_a_forked_child_counts_for_itself(root: str) -> None:
    """It inherits views and counts of its parent, and none of them are its own."""
    with writer(root, slot_count=16) as made, open_reader(made.path, start="oldest") as reader:
        kept = []
        for number in range(1, 5):
            made.write(payload(number))
            kept.append(keep(reader))

        def child() -> object:
            kept.clear()
            own = open_reader(made.path, start="oldest")
            return own, [np.frombuffer(own.read(0).buffer, np.uint8) for _ in range(4)]

        pid = parked(child)
        assert sorted(one.held for one in describe(made.path)[1]["holders"]) == [4, 4]
        kill(pid)
        assert sorted(one.held for one in describe(made.path)[1]["holders"]) == [4]


def test_after_a_large_payload_found_no_room_the_oldest_item_is_overwritten_first(root: str) -> None:
    schema = pa.schema([("n", pa.int64())])
    rows = pa.record_batch([pa.array(range(6 * 24))], schema=schema)
    with (
        writer(root, schema, split_rows=True, slot_count=8) as made,
        open_reader(made.path, start="first") as slow,
        open_reader(made.path, start="first", copy="never") as keeper,
    ):
        for number in range(1, 9):
            made.write(pa.record_batch([[number]], schema=schema))
        kept = [keeper.read(0) for _ in range(4)]
        del kept[0]
        assert made.write(rows).last > 9, "it takes several slots"
        assert made.skipped == made.head - 8
        kept.clear()
        released_at = time.monotonic()
        eventually(lambda: time.monotonic() > released_at + 0.02)  # only then the writer looks at those slots again
        made.write(pa.record_batch([[9]], schema=schema))
        assert slow.read(0) == Gap(1, 1)
        assert [slow.read(0).sequence for _ in range(7)] == list(range(2, 9))
