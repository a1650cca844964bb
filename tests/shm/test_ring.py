import os
import select
import threading
import time

import pytest

from messagehub.shm import core, errors
from messagehub.shm.core import python_ring, python_writer
from messagehub.shm.layout import Checksum, Kind, WhenFull
from messagehub.shm.rings.read_results import Gap, Position
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.reader_files import CURSOR, LOSSLESS, TICKET
from messagehub.shm.rings.ring import open_reader
from tests.shm.children import eventually, fork, kill, parked, wait
from tests.shm.rings import checked, drain, payload, writer


def ring(root: str) -> str:
    return os.path.join(root, "ring")


def fill(made: object, first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert made.write(payload(number)) == (number, number)  # type: ignore[attr-defined]


def test_items_arrive_in_order_with_their_bytes(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        fill(made, 1, 3)
        assert drain(reader) == [1, 2, 3]
        assert reader.read(0) is None
        assert reader.read(0.01) is None


def test_oldest_starts_at_what_is_left_and_latest_after_the_head(root: str) -> None:
    with writer(root) as made:
        fill(made, 1, 6)
        with open_reader(ring(root), start="oldest") as oldest, open_reader(ring(root)) as latest:
            assert drain(oldest) == [3, 4, 5, 6]
            assert drain(latest) == []
            fill(made, 7, 7)
            assert drain(latest) == [7]


def test_a_reader_that_fell_behind_gets_a_gap_and_then_the_rest(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        fill(made, 1, 1)
        assert checked(reader.read(0)) == 1
        fill(made, 2, 11)
        assert reader.read(0) == Gap(2, 7)
        assert drain(reader) == [8, 9, 10, 11]


def test_latest_takes_the_newest_and_leaves_the_position(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        assert reader.latest() is None
        fill(made, 1, 3)
        assert checked(reader.latest()) == 3
        assert drain(reader) == [1, 2, 3]


@pytest.mark.parametrize(("kind", "slots"), [(Kind.SINGLE, 1), (Kind.DOUBLE_BUFFER, 2)])
def test_single_and_double_buffers_keep_the_last_one_or_two(root: str, kind: Kind, slots: int) -> None:
    with writer(root, kind=kind) as made, open_reader(ring(root), start="oldest") as reader:
        assert made.header.geometry.slot_count == slots
        fill(made, 1, 9)
        assert drain(reader)[-slots:] == list(range(10 - slots, 10))
        assert checked(reader.latest()) == 9


def test_a_held_single_slot_makes_a_blocking_writer_wait_and_then_say_so(root: str) -> None:
    with (
        writer(root, kind=Kind.SINGLE, when_full=WhenFull.BLOCK) as made,
        open_reader(ring(root), start="oldest", copy="never") as reader,
    ):
        fill(made, 1, 1)
        item = reader.read(0)
        with pytest.raises(errors.RingFull):
            made.write(payload(2), timeout_seconds=0.02)
        del item
        fill(made, 2, 2)
        assert checked(reader.latest()) == 2


def test_the_error_policy_refuses_instead_of_losing(root: str) -> None:
    with writer(root, when_full=WhenFull.ERROR) as made, open_reader(ring(root), start="oldest") as reader:
        fill(made, 1, 4)
        started = time.monotonic()
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=60)
        assert time.monotonic() - started < 30
        assert checked(reader.read(0)) == 1
        fill(made, 5, 5)
        assert drain(reader) == [2, 3, 4, 5]


def test_a_blocking_writer_goes_on_as_soon_as_the_reader_does(root: str) -> None:
    with writer(root, when_full=WhenFull.BLOCK) as made, open_reader(ring(root), start="oldest") as reader:
        fill(made, 1, 4)
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=0.02)
        thread = threading.Thread(target=fill, args=(made, 5, 200))
        thread.start()
        seen = [checked(reader.read(20)) for _ in range(200)]
        thread.join(10)
        assert seen == list(range(1, 201))


def test_a_blocking_writer_waits_for_nobody_if_nobody_must_not_lose(root: str) -> None:
    with (
        writer(root, when_full=WhenFull.BLOCK) as made,
        open_reader(ring(root), start="oldest", lossless=False) as onlooker,
    ):
        fill(made, 1, 20)
        assert drain(onlooker) == [-1, -16, 17, 18, 19, 20]


def test_a_killed_lossless_reader_does_not_block_the_writer(root: str) -> None:
    with writer(root, when_full=WhenFull.BLOCK) as made:
        pid = parked(lambda: open_reader(ring(root), start="oldest"))
        fill(made, 1, 4)
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=0.05)
        kill(pid)
        assert made.write(payload(5), timeout_seconds=20).first == 5
        readers_path = os.path.join(root, made.header.readers_path)
        assert sorted(os.listdir(readers_path)) == ["index", "writer.fifo"]


def test_a_batch_larger_than_a_slot_is_refused_with_the_size_that_would_do(root: str) -> None:
    with writer(root) as made:
        with pytest.raises(errors.PayloadLargerThanSlot, match="page_size >= 513"):
            made.write(bytes(513))
        with pytest.raises(errors.PayloadLargerThanSlot):
            made.loan(513)
        fill(made, 1, 1)


def test_a_loan_is_filled_in_place_and_published_at_its_end(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        with made.loan(300) as loan:
            loan.buffer[:] = payload(1)
            assert reader.read(0) is None
        assert loan.sequence == 1
        assert drain(reader) == [1]
        loan = made.loan(400)
        loan.buffer[:300] = payload(2)
        assert loan.commit(300) == 2
        assert loan.commit(300) == 2
        assert drain(reader) == [2]


def test_a_loan_that_fails_publishes_nothing_and_gives_its_slot_back(root: str) -> None:
    with writer(root, slot_count=2) as made, open_reader(ring(root), start="oldest") as reader:

        def fail() -> None:
            with made.loan(10):
                raise KeyError("on purpose")

        for _ in range(5):
            with pytest.raises(KeyError):
                fail()
        fill(made, 1, 2)
        assert drain(reader) == [1, 2]


def test_loans_of_every_slot_leave_no_room(root: str) -> None:
    with writer(root, slot_count=2) as made:
        loans = [made.loan(300), made.loan(300)]
        with pytest.raises(errors.RingFull):
            made.write(payload(1), timeout_seconds=0.01)
        for loan in loans:
            loan.abort()
        fill(made, 1, 1)


def test_corrupted_bytes_are_found_by_verifying_readers_only(root: str) -> None:
    for checksum, verify in ((Checksum.VERIFY, False), (Checksum.WRITE, True)):
        with writer(root, checksum=checksum) as made:
            fill(made, made.head + 1, made.head + 1)
            with open(ring(root), "r+b") as file:
                file.seek(made.header.geometry.data_offset + 20)
                file.write(b"\xff\xfe\xfd")
            with (
                open_reader(ring(root), start="oldest", verify=verify) as reader,
                pytest.raises(errors.ChecksumMismatch),
            ):
                reader.read(0)
            with open_reader(ring(root), start="oldest") as reader:
                if checksum == Checksum.WRITE:
                    assert reader.read(0) is not None
        os.unlink(ring(root))


def test_a_restarted_writer_raises_the_epoch_and_goes_on(root: str) -> None:
    pid = parked(lambda: (made := writer(root), fill(made, 1, 3)))
    with open_reader(ring(root), start="oldest") as reader:
        assert checked(reader.read(0)) == 1
        with pytest.raises(errors.NameTaken, match=str(pid)):
            writer(root)
        kill(pid)
        with writer(root) as made:
            assert (made.epoch, made.head) == (2, 3)
            fill(made, 4, 5)
            assert drain(reader) == [2, 3, 4, 5]
            assert reader.position == Position(made.header.block_id, 2, 5)


def test_a_position_resumes_and_a_foreign_one_is_refused(root: str) -> None:
    with writer(root) as made:
        fill(made, 1, 4)
        with open_reader(ring(root), start="oldest") as reader:
            assert [checked(reader.read(0)), checked(reader.read(0))] == [1, 2]
            position = reader.position
        with open_reader(ring(root), start=position) as reader:
            assert drain(reader) == [3, 4]
        fill(made, 5, 9)
        with open_reader(ring(root), start=position) as reader:
            assert reader.read(0) == Gap(3, 5)
        for wrong in (
            position._replace(block_id="other"),
            position._replace(sequence=99),
            position._replace(epoch=9),
        ):
            with pytest.raises(errors.PositionUnknown):
                open_reader(ring(root), start=wrong)


def test_a_ring_of_another_shape_ends_the_old_stream_and_replaces_it(root: str) -> None:
    pid = parked(lambda: (made := writer(root), fill(made, 1, 2)))
    with open_reader(ring(root), start="oldest", wait_for_writer=True) as old:
        kill(pid)
        assert drain(old) == [1, 2]
        with writer(root, slot_count=8) as made:
            assert made.head == 2
            with pytest.raises(errors.StreamEnded):
                old.read(5)
            fill(made, 3, 3)
            with open_reader(ring(root), start="oldest") as new:
                assert drain(new) == [3]
    assert len(os.listdir(os.path.join(root, "readers"))) == 1


def test_iteration_ends_with_the_stream(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        fill(made, 1, 3)
        made.close()
        made.close()
        assert [checked(item) for item in reader] == [1, 2, 3]
        with pytest.raises(errors.HandleClosed):
            made.write(b"x")
    reader.close()
    with pytest.raises(errors.HandleClosed):
        reader.read(0)


def test_a_wrong_schema_hash_is_refused_before_reading(root: str) -> None:
    with writer(root, schema_hash="abc"):
        with pytest.raises(errors.PayloadSchemaMismatch, match="abc"):
            open_reader(ring(root), expected_schema_hashes=["abd"])
        open_reader(ring(root), expected_schema_hashes=["abc"]).close()


def test_two_processes_racing_for_a_name_get_one_writer(root: str) -> None:
    def race() -> None:
        try:
            made = writer(root)
        except errors.NameTaken:
            os._exit(3)
        eventually(lambda: os.path.exists(os.path.join(root, "over")))
        made.close()

    children = [fork(race) for _ in range(6)]
    eventually(lambda: os.path.exists(ring(root)))
    losers = 0
    while losers < 5:
        pid, status = os.waitpid(-1, 0)
        assert os.waitstatus_to_exitcode(status) == 3
        children.remove(pid)
        losers += 1
    with open(os.path.join(root, "over"), "wb"):
        pass
    assert wait(children[0]) == 0


def test_threads_share_a_writer(root: str) -> None:
    with (
        writer(root, slot_count=64, when_full=WhenFull.BLOCK) as made,
        open_reader(ring(root), start="oldest") as reader,
    ):
        threads = [threading.Thread(target=lambda: [made.write(b"x" * 100) for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        seen = [reader.read(20).sequence for _ in range(400)]
        for thread in threads:
            thread.join(10)
        assert seen == list(range(1, 401))


def test_oldest_begins_after_an_item_that_only_a_view_keeps(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as holder:
        fill(made, 1, 1)
        view = holder.read(0)
        fill(made, 2, 9)
        with open_reader(ring(root), start="oldest") as reader:
            assert drain(reader) == [7, 8, 9]
        del view


def test_a_lossless_reader_that_attaches_during_a_write_loses_nothing_it_was_promised(root: str) -> None:
    """The writer has taken the slot of item 1 (a loan) when the reader comes: its run begins at item 2."""
    with writer(root, when_full=WhenFull.BLOCK) as made:
        fill(made, 1, 4)
        loan = made.loan(300)
        with open_reader(ring(root), start="oldest") as reader:
            loan.buffer[:] = payload(5)
            loan.commit()
            with pytest.raises(errors.RingFull):
                made.write(payload(6), timeout_seconds=0.01)
            assert drain(reader) == [2, 3, 4, 5]
            fill(made, 6, 9)
            assert drain(reader) == [6, 7, 8, 9]


def test_the_slowest_reader_counts_however_the_others_move_meanwhile(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer paused between two looks at a cursor must not take the second for the lowest of all."""

    class Advancing:
        def __init__(self) -> None:
            self.cursor = 1

        def __getitem__(self, index: int) -> int:
            if index == LOSSLESS:
                return 1
            if index == TICKET:
                return 0
            self.cursor += 100
            return self.cursor - 100

    monkeypatch.setattr(core, "Writer", python_ring.Writer)
    made = writer(root, when_full=WhenFull.BLOCK, slot_count=2)
    slow, quick = open_reader(made.path, start="oldest"), open_reader(made.path, start="oldest")
    made.write(payload(1))
    made.write(payload(2))
    assert checked(slow.read(0)) == 1
    assert drain(quick) == [1, 2]
    # private: nothing public moves a cursor between two looks at it
    ahead = max(made._core._peers, key=lambda peer: peer.words[CURSOR])
    ahead.words = Advancing()  # type: ignore[assignment]
    assert made.write(payload(3), timeout_seconds=0).last == 3
    with pytest.raises(errors.RingFull):
        made.write(payload(4), timeout_seconds=0)
    for handle in (slow, quick, made):
        handle.close()


def test_a_reader_that_met_a_claimed_slot_is_woken_when_the_writer_gives_it_back(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would wait: the writer for the reader, the reader for the next publication."""
    monkeypatch.setattr(core, "Writer", python_ring.Writer)  # whose steps can be interrupted
    made = writer(root, when_full=WhenFull.BLOCK, slot_count=2)
    first = open_reader(made.path, start="oldest")
    made.write(payload(1))
    made.write(payload(2))
    assert first.take() is not None  # lets the writer try the first slot
    came: list[RingReader] = []
    armed = []

    def between() -> None:
        """Right after the claim: a reader comes that needs the slot, and finds it claimed."""
        if fences.pop():
            came.append(open_reader(made.path, start="first"))
            armed.append(came[0].arm())

    fences = [*[False] * 100, True]  # only the first of them is the claim's
    with monkeypatch.context() as patched:
        patched.setattr(python_writer, "fence", between)
        with pytest.raises(errors.RingFull):
            made.write(payload(3), timeout_seconds=0)
    (second,) = came
    assert armed == [None]
    assert select.select([second.wake_fds()[0]], [], [], 5)[0]
    assert checked(second.take()) == 1
    for handle in (first, second, made):
        handle.close()


def test_a_reader_that_was_woken_sleeps_until_it_is_woken_again(root: str) -> None:
    """As `waiting.Sleeper` uses a reader: a FIFO that stays readable is a busy loop."""
    made = writer(root)
    reader = open_reader(made.path)
    fifo = reader.wake_fds()[0]
    for number in (1, 2, 3):
        assert reader.arm() is None
        assert not select.select([fifo], [], [], 0)[0]
        made.write(payload(number))
        assert select.select([fifo], [], [], 5)[0] == [fifo]
        reader.woken(fifo)
        assert checked(reader.take()) == number
    reader.close()
    made.close()
