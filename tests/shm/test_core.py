"""What the core of a ring does where something fails or is damaged, in C and in Python.

`tests/conformance/test_ring_pairs.py` has what both do together, in processes of their own.
"""

import gc
import os
import select
import signal
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from messagehub.shm import core, errors
from messagehub.shm.core import python_ring, python_writer
from messagehub.shm.layout import (
    CLAIM,
    HEAD,
    SEQUENCE,
    WRITER_TICKET,
    Checksum,
    Geometry,
    Kind,
    WhenFull,
    scratch_bytes,
)
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.rings.reader_files import announce
from messagehub.shm.rings.ring import open_reader
from tests.shm.children import eventually, fork, kill, parked, wait
from tests.shm.conftest import leaks
from tests.shm.rings import checked, drain, number_of, payload, writer
from tests.shm.test_damage import overwrite

SLOTS = 4
GEOMETRY = Geometry(slot_bytes=64, slot_count=SLOTS, scratch_bytes=scratch_bytes(0, SLOTS))
ALL = (1 << 64) - 1


@pytest.fixture(params=["c", "python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with `Writer`, `Reader` and `fence`; rings of this process use it too."""
    if request.param == "c":
        if core.IMPLEMENTATION != "c":
            pytest.skip(f"the extension is not used here: {core.REASON}")
        return core
    for name in ("Writer", "Reader", "fence"):
        monkeypatch.setattr(core, name, getattr(python_ring, name))
    return python_ring


class Bench:
    """A core's writer and reader over memory of this process: no files, no waiting."""

    def __init__(self, implementation: Any, **changes: Any) -> None:
        self.block = bytearray(GEOMETRY.file_bytes)
        self.file = bytearray(4096)
        self.index = bytearray(8)
        self.writer = implementation.Writer(
            block=self.block,
            **GEOMETRY.places(),
            honours_readers=False,
            head=0,
            order=range(SLOTS),
            index=self.index,
            wake_unopened=lambda: None,
        )
        options: dict[str, Any] = {"look_for_room": lambda: (0, 0), "last_released": lambda: None, "most_held": SLOTS}
        self.reader = implementation.Reader(
            block=self.block,
            **GEOMETRY.places(),
            file=self.file,
            process_held=bytearray(8),
            room_most=SLOTS,
            small_bytes=0,
            writer_waits=lambda: None,
            **(options | changes),
        )
        self.writer.set_peers(0, [(self.file, -1, 0)], [])

    @property
    def words(self) -> memoryview:
        return memoryview(self.block).cast("Q")

    @property
    def pins(self) -> bytes:
        return bytes(self.file[64 : 64 + SLOTS])


def test_a_writer_that_is_told_of_a_reader_it_cannot_use_keeps_those_it_knows(implementation: Any) -> None:
    bench = Bench(implementation)
    assert bench.writer.write(b"one", None, 0) == 1
    held = bench.reader.take()
    short = bytes(64 + SLOTS - 1)
    for peers, groups in (([(short, -1, 0)], []), ([(None, -1, 0)], []), ([], [(bytes(64), 1)]), ([], [(None, 3)])):
        with pytest.raises((TypeError, ValueError)):
            bench.writer.set_peers(0, peers, groups)
    for _ in range(9):
        bench.writer.write(b"more", None, 0)
    assert bytes(held) == b"one"


def test_a_reader_closed_while_it_looks_for_room_hands_out_nothing(implementation: Any) -> None:
    """Its file is gone then, so nobody sees its pins."""
    closed = []

    def look_and_close() -> tuple[int, int]:
        bench.reader.close()
        return 0, 0

    bench = Bench(implementation, look_for_room=look_and_close, last_released=lambda: closed.append(True))
    bench.writer.write(b"one", None, 0)
    assert bench.reader.take() is None
    assert closed == [True]
    assert bench.pins == bytes(SLOTS)


def test_a_copy_that_was_changed_meanwhile_is_not_handed_out(implementation: Any) -> None:
    def overwritten() -> tuple[int, int]:
        bench.file[64 : 64 + SLOTS] = bytes(SLOTS)  # as if nobody saw the pins
        for _ in range(SLOTS):
            bench.writer.write(b"new", None, 0)
        return SLOTS, 1 << 40

    bench = Bench(implementation, look_for_room=overwritten)
    bench.writer.write(b"old", None, 0)
    assert bench.reader.take() is None


def test_the_checksum_of_a_copy_is_that_of_its_item_whatever_the_slot_holds_now(implementation: Any) -> None:
    bench = Bench(implementation, most_held=0)
    (slot,) = bench.writer.claim(1)
    bench.writer.publish(slot, 8, 77, None)
    assert bench.reader.take() == bytes(8)
    for _ in range(SLOTS):
        (slot,) = bench.writer.claim(1)
        bench.writer.publish(slot, 8, 88, None)
    assert bench.reader.checksum == 77


def test_a_copy_of_a_slot_that_is_claimed_and_given_back_is_handed_out(implementation: Any) -> None:
    def claimed() -> tuple[int, int]:
        bench.words[GEOMETRY.line(0) + SEQUENCE] |= CLAIM
        return SLOTS, 1 << 40

    bench = Bench(implementation, look_for_room=claimed)
    bench.writer.write(b"old", None, 0)
    assert bench.reader.take() == b"old"


@pytest.mark.parametrize("cursor", [ALL, CLAIM - 1, CLAIM, ALL - 1])
def test_numbers_that_no_item_has_give_no_item(implementation: Any, cursor: int) -> None:
    bench = Bench(implementation)
    bench.words[HEAD] = ALL
    for slot in range(SLOTS):
        bench.words[GEOMETRY.line(slot) + SEQUENCE] = (cursor + 1) & ALL
    bench.reader.advance(cursor)
    assert bench.reader.take() is None


@pytest.mark.parametrize("length", [65, 1 << 40, 1 << 63, ALL])
def test_a_slot_that_states_more_than_it_holds_gives_nothing_and_stays_free(implementation: Any, length: int) -> None:
    bench = Bench(implementation)
    bench.writer.write(b"one", None, 0)
    bench.words[GEOMETRY.line(0) + 1] = length
    assert bench.reader.take() is None
    assert bench.reader.pin(1, 0, True) is None
    assert bench.pins == bytes(SLOTS)


@pytest.mark.parametrize("hint", [SLOTS, 1 << 32, ALL])
def test_a_hint_to_no_slot_gives_nothing(implementation: Any, hint: int) -> None:
    bench = Bench(implementation)
    bench.writer.write(b"one", None, 0)
    bench.words[GEOMETRY.line(1) + 3] = hint
    assert bench.reader.take() is None
    assert bytes(bench.reader.pin(1, 0)) == b"one"


def test_a_forked_child_neither_stores_nor_wakes(implementation: Any) -> None:
    bench = Bench(implementation)
    ready, fifo = os.pipe2(os.O_NONBLOCK)
    bench.writer.set_peers(0, [(bench.file, fifo, 0)], [])
    bench.writer.write(b"one", None, 0)
    held = [bench.reader.take()]
    bench.reader.set_ticket(7)

    def child() -> None:
        before = bytes(bench.block), bytes(bench.file)
        bench.writer.wake()
        bench.writer.skip(3)
        assert bench.writer.write(b"two", None, 0) == 0
        bench.reader.advance(9)
        bench.reader.set_ticket(8)
        held.clear()
        assert (bytes(bench.block), bytes(bench.file)) == before

    assert wait(fork(child)) == 0
    assert select.select([ready], [], [], 0)[0] == []
    assert bytes(held[0]) == b"one"
    os.close(ready)
    os.close(fifo)


def test_put_takes_what_it_was_told_to_and_leaves_the_rest_to_others() -> None:
    if core.IMPLEMENTATION != "c":
        pytest.skip(f"the extension is not used here: {core.REASON}")
    bench = Bench(core)
    assert bench.writer.put(b"one") == 0  # nothing was accepted yet
    bench.writer.accept(bytes, None, lambda: None)
    assert bench.writer.put(b"one") == 1
    for refused in (bytearray(b"one"), "one", None, bytes(65)):
        assert bench.writer.put(refused) == 0
    for reason in ("is_taken", "has_dropped"):
        setattr(bench.writer, reason, True)
        assert bench.writer.put(b"two") == 0
        setattr(bench.writer, reason, False)
    assert bench.writer.put(b"two") == 2
    dtype = np.dtype("u2")
    bench.writer.accept(np.ndarray, dtype, lambda: None)
    for array in (np.zeros(4, "u4"), np.zeros((2, 2), dtype), np.zeros(8, dtype)[::2], np.array(1, dtype)):
        assert bench.writer.put(array) == 0
    assert bench.writer.put(np.arange(4, dtype=dtype)) == 3


def test_slots_that_were_held_are_used_again_once_they_are_free(implementation: Any) -> None:
    bench = Bench(implementation)
    held = []
    for number in range(SLOTS - 1):
        bench.writer.write(b"held %d" % number, None, 0)
        held.append(bench.reader.take())
    for _ in range(20):
        claimed = bench.writer.claim(1)
        if claimed == implementation.LOOK:
            continue
        bench.writer.publish(claimed[0], 0, 0, None)
    assert [bytes(each) for each in held] == [b"held %d" % number for number in range(SLOTS - 1)]
    assert bench.writer.lent == 0
    held.clear()
    claimed = bench.writer.claim(SLOTS)
    assert sorted(claimed if isinstance(claimed, tuple) else bench.writer.claim(SLOTS)) == list(range(SLOTS))


# --- through rings


def test_a_writer_dropped_without_closing_leaves_nothing_open(root: str, implementation: Any) -> None:
    """Its core and its readers' files refer to each other."""
    made = writer(root)
    reader = open_reader(made.path, start="oldest")
    made.write(payload(1))
    assert drain(reader) == [1]
    reader.close()
    assert leaks(root)
    del made, reader
    gc.collect()
    assert not leaks(root)


def test_a_writer_that_cannot_list_its_readers_says_so_and_goes_on_once_it_can(root: str, implementation: Any) -> None:
    made = writer(root)
    readers_path = os.path.join(root, made.header.readers_path)
    damaged = Path(readers_path, "g@1.group")
    damaged.write_bytes(bytes(8192))
    damaged.chmod(0o600)
    announce(readers_path)
    for _ in range(3):
        with pytest.raises(errors.DamagedBlock):
            made.write(payload(1))
    damaged.unlink()
    assert made.write(payload(1)).first == 1
    damaged.write_bytes(bytes(8192))
    announce(readers_path)
    made.close()
    damaged.unlink()
    writer(root).close()  # its lock is free


def reader_files(root: str, readers_path: str) -> list[str]:
    return [name for name in os.listdir(os.path.join(root, readers_path)) if name.endswith((".reader", ".fifo"))]


def test_what_a_killed_reader_held_is_free_after_plain_writes(root: str, implementation: Any) -> None:
    """Not only once no slot is left."""
    made = writer(root, np.dtype("u1"), checksum=Checksum.NONE, slot_count=32)
    value = np.arange(100, dtype=np.dtype("u1"))
    made.write(value)

    def hold() -> object:
        reader = open_reader(made.path, start="oldest", copy="never")
        return reader, reader.read(0)

    pid = parked(hold)
    for _ in range(64):
        made.write(value)
    kill(pid)
    eventually(lambda: made.write(value) and reader_files(root, made.header.readers_path) == ["writer.fifo"])
    made.close()


def test_a_reader_killed_in_its_first_sleep_is_forgotten_with_the_next_write(root: str, implementation: Any) -> None:
    """Else every write would try to open its FIFO."""
    made = writer(root)
    pid = parked(lambda: (reader := open_reader(made.path), reader.arm()))
    kill(pid)
    made.write(payload(1))
    assert reader_files(root, made.header.readers_path) == ["writer.fifo"]
    made.close()


def test_a_verifying_reader_without_a_file_gets_copies(root: str, implementation: Any) -> None:
    made = writer(root, checksum=Checksum.VERIFY)
    os.unlink(os.path.join(root, made.header.readers_path, "index"))
    with open_reader(made.path, start="oldest", copy="never") as reader:
        assert not reader.is_known
        made.write(payload(1))
        item = reader.read(0)
        for _ in range(SLOTS):
            made.write(payload(made.head + 1))
        assert checked(item) == 1
    made.close()


def test_a_ring_with_impossible_numbers_is_replaced_by_the_next_writer(root: str, implementation: Any) -> None:
    for place in ("head", "slot"):
        made = writer(root)
        made.write(payload(made.head + 1))
        word = HEAD if place == "head" else made.header.geometry.line(0)
        made.close()
        overwrite(made.path, 8 * word, struct.pack("=Q", CLAIM - 1))
        made = writer(root)
        assert made.write(payload(made.head + 1)).first == 1
        made.close()
        os.unlink(made.path)


def test_a_reader_of_a_ring_with_an_impossible_head_says_so(root: str, implementation: Any) -> None:
    made = writer(root)
    with open_reader(made.path, start="oldest") as reader:
        overwrite(made.path, 8 * HEAD, struct.pack("=Q", ALL))
        with pytest.raises(errors.HeaderInconsistent):
            reader.read(0)
    made.close()


@pytest.fixture
def left_claimed(root: str, implementation: Any) -> Callable[[], str]:
    """A ring of one slot whose writer died after it had claimed the slot."""

    def make() -> str:
        path = os.path.join(root, "ring")
        pid = parked(lambda: (made := writer(root, kind=Kind.SINGLE), made.write(payload(1))))
        kill(pid)
        line = Segment.attach(path).header().geometry.line(0)
        overwrite(path, 8 * line, struct.pack("=Q", 1 | CLAIM))
        return path

    return make


def test_what_a_dead_writer_had_claimed_is_the_latest(left_claimed: Callable[[], str]) -> None:
    with open_reader(left_claimed()) as reader:
        assert reader.newest_ns() > 0
        assert checked(reader.latest()) == 1


def test_what_a_dead_writer_had_claimed_is_verified(left_claimed: Callable[[], str]) -> None:
    path = left_claimed()
    geometry = Segment.attach(path).header().geometry
    overwrite(path, geometry.data_offset + 20, b"\xff\xfe\xfd")
    with open_reader(path, start="oldest") as reader, pytest.raises(errors.ChecksumMismatch):
        reader.read(0)


def test_no_ticket_of_a_writer_is_one_of_the_writer_before(root: str, implementation: Any) -> None:
    """A reader wakes a writer once for each ticket."""
    seen = []
    for _ in range(2):
        made = writer(root, when_full=WhenFull.BLOCK, slot_count=1)
        words = Segment.attach(made.path).words
        with open_reader(made.path, start="oldest") as reader:
            drain(reader)
            made.write(payload(made.head + 1))
            waiting = threading.Thread(target=made.write, args=(payload(made.head + 1), 20))
            waiting.start()
            eventually(lambda words=words: words[WRITER_TICKET])  # type: ignore[misc]
            seen.append(words[WRITER_TICKET])
            assert len(drain(reader)) >= 1
            waiting.join(20)
        made.close()
        del words
    assert len(set(seen)) == 2


def test_a_reader_that_saw_the_claim_of_a_loan_is_woken(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The item is lost then, and the loan may last: what comes after it must not wait for the end of the loan."""
    monkeypatch.setattr(core, "Writer", python_ring.Writer)  # whose steps can be interrupted
    made = writer(root, slot_count=2)
    made.write(payload(1))
    made.write(payload(2))
    reader = open_reader(made.path, start="oldest")
    made.write(payload(3))  # so that the writer knows of the reader
    assert reader.take() == Gap(1, 1)
    armed: list[object] = []

    def between() -> None:
        if fences.pop():
            armed.append(reader.arm())

    fences = [*[False] * 100, True]  # only the first of them is the claim's
    with monkeypatch.context() as patched:
        patched.setattr(python_writer, "fence", between)
        loan = made.loan(300)
    assert armed == [None]
    assert select.select([reader.wake_fds()[0]], [], [], 5)[0]
    assert drain(reader) == [-2, -2, 3]
    loan.abort()
    reader.close()
    made.close()


def test_a_stopped_writer_with_a_claim_loses_nothing(root: str, implementation: Any) -> None:
    """A signal may come anywhere; the readers that held views before it hold them after it."""
    made = writer(root, slot_count=8)
    made.write(payload(1))
    reader = open_reader(made.path, start="oldest", copy="never")
    view = memoryview(reader.read(0).buffer)  # type: ignore[union-attr]
    made.close()
    pid = fork(lambda: [w := writer(root, slot_count=8), *(w.write(payload(w.head + 1)) for _ in range(2000))])
    for _ in range(5):
        os.kill(pid, signal.SIGSTOP)
        assert number_of(view) == 1
        os.kill(pid, signal.SIGCONT)
    assert wait(pid) == 0
    assert number_of(view) == 1
    del view
    reader.close()
