import glob
import os

import pytest

from messagehub.shm import errors
from messagehub.shm.layout import WhenFull
from messagehub.shm.rings import groups
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.reader_files import ReaderFiles
from messagehub.shm.rings.ring import delete_group, open_reader
from tests.shm.children import fork, kill, parked, wait
from tests.shm.rings import checked, payload, writer


def member(root: str, epoch: int, index: int, count: int) -> RingReader:
    return open_reader(
        os.path.join(root, "ring"), start="oldest", group="g", assignment=MemberShare(epoch, index, count)
    )


def take(reader: RingReader, *, acknowledge: bool = True) -> list[int]:
    numbers = []
    while isinstance(found := reader.read(0), Item):
        numbers.append(checked(found))
        if acknowledge:
            reader.acknowledge(found.sequence)
    assert found is None
    return numbers


def fill(made: object, first: int, last: int) -> None:
    for number in range(first, last + 1):
        made.write(payload(number), timeout_seconds=20)  # type: ignore[attr-defined]


def test_each_item_goes_to_one_member(root: str) -> None:
    with writer(root, slot_count=16) as made, member(root, 1, 0, 3) as a, member(root, 1, 1, 3) as b:
        fill(made, 1, 10)
        with member(root, 1, 2, 3) as c:
            assert [take(a), take(b), take(c)] == [[3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]


def test_a_member_is_taken_while_its_process_lives(root: str) -> None:
    with writer(root), member(root, 1, 0, 2):
        with pytest.raises(errors.MemberTaken):
            member(root, 1, 0, 2)
        member(root, 1, 1, 2).close()


def test_a_blocking_writer_waits_for_the_slowest_member_even_when_it_is_dead(root: str) -> None:
    with writer(root, slot_count=4, when_full=WhenFull.BLOCK) as made, member(root, 1, 0, 2) as a:
        pid = parked(lambda: member(root, 1, 1, 2))
        fill(made, 1, 4)
        assert take(a) == [2, 4]
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=0.05)
        kill(pid)
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=0.05)
        with member(root, 1, 1, 2) as again:
            assert take(again) == [1, 3]
            fill(made, 5, 8)
            assert take(again) == [5, 7]
        assert take(a) == [6, 8]


def test_what_a_dead_member_had_not_acknowledged_goes_to_another(root: str) -> None:
    with writer(root, slot_count=8, when_full=WhenFull.BLOCK) as made:
        fill(made, 1, 8)

        def die_in_the_middle() -> object:
            reader = member(root, 1, 1, 2)
            assert checked(reader.read(0)) == 1
            reader.acknowledge(1)
            return reader, reader.read(0)

        pid = parked(die_in_the_middle)
        with member(root, 1, 0, 2) as a:
            assert take(a) == [2, 4, 6, 8]
            kill(pid)
            with member(root, 2, 0, 1) as alone:
                assert take(alone) == [3, 5, 7]
                with pytest.raises(errors.AssignmentChanged):
                    a.read(0)
                with pytest.raises(errors.AssignmentChanged):
                    a.acknowledge(8)
                fill(made, 9, 16)
                assert take(alone) == list(range(9, 17))


def test_growing_and_shrinking_a_group_loses_nothing(root: str) -> None:
    with writer(root, slot_count=128, when_full=WhenFull.BLOCK) as made:
        seen: list[int] = []
        first = 1
        for epoch, count in enumerate((1, 3, 2, 5, 1), start=1):
            fill(made, first, first + 20)
            first += 21
            members = [member(root, epoch, index, count) for index in range(count)]
            for index, reader in enumerate(members):
                if index != 1:  # this one never gets to its share
                    seen += take(reader)
            for reader in members:
                reader.close()
        assert sorted(set(seen)) == list(range(1, first))  # at least once


def test_an_old_assignment_is_refused(root: str) -> None:
    with writer(root):
        member(root, 5, 0, 1).close()
        with pytest.raises(errors.AssignmentChanged):
            member(root, 4, 0, 1)
        with pytest.raises(errors.AssignmentChanged):
            member(root, 5, 0, 2)
        readers_path = os.path.join(root, "readers")
        (block,) = os.listdir(readers_path)
        assert [name for name in os.listdir(os.path.join(readers_path, block)) if name.endswith(".group")] == [
            "g@5.group"
        ]


def test_with_overwrite_a_group_is_told_of_its_loss(root: str) -> None:
    with writer(root, slot_count=4) as made, member(root, 1, 0, 1) as alone:
        fill(made, 1, 1)
        assert take(alone) == [1]
        fill(made, 2, 9)
        assert alone.read(0) == Gap(2, 5)
        assert take(alone) == [6, 7, 8, 9]


def test_bad_groups_and_shares_are_refused(root: str) -> None:
    with writer(root):
        for name in ("", "a@b", "a/b", ".x", "x" * 300):
            with pytest.raises(errors.NameRefused):
                open_reader(os.path.join(root, "ring"), group=name, assignment=MemberShare(1, 0, 1))
    for epoch, index, count in ((1, 1, 1), (-1, 0, 1), (1, 0, 0), (1, 0, 5000)):
        with pytest.raises(ValueError, match="share"):
            MemberShare(epoch, index, count)


def test_a_member_that_had_done_all_its_share_does_not_hold_up_the_writer_in_a_new_epoch(root: str) -> None:
    """The ring is full of what the other had not done; there is nothing that this one could acknowledge."""
    with writer(root, slot_count=4, when_full=WhenFull.BLOCK) as made:
        with member(root, 1, 0, 2) as slow, member(root, 1, 1, 2) as quick:
            fill(made, 1, 4)
            assert take(quick) == [1, 3]
            slow.close()
        with member(root, 2, 0, 2) as slow, member(root, 2, 1, 2) as quick:
            assert take(slow) == [2, 4]
            assert take(quick) == []
            fill(made, 5, 8)
            assert take(quick) == [5, 7]
            assert take(slow) == [6, 8]


class Told:
    """In the place of a writer's core: how many groups it must wait for."""

    groups = 0

    def set_peers(self, token: int, peers: list[object], groups: list[object]) -> None:
        self.groups = len(groups)


def test_a_writer_that_comes_while_epochs_change_finds_the_group(root: str) -> None:
    """An epoch's file may be gone a moment after it was listed: the next one took its place."""
    with writer(root, slot_count=4, when_full=WhenFull.BLOCK):
        (readers_path,) = glob.glob(os.path.join(root, "readers", "*"))
        member(root, 1, 0, 1).close()

        def change_epochs() -> None:
            for epoch in range(2, 2000):
                member(root, epoch, 0, 1).close()

        pid = fork(change_epochs)
        for _ in range(2000):
            board, told = ReaderFiles(readers_path, 4), Told()
            board.tell(told)  # type: ignore[arg-type]
            assert told.groups == 1  # never without the group, which has done nothing yet
            board.close()
        assert wait(pid, 120) == 0


def test_a_member_that_comes_while_its_group_is_deleted_reads(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is deleted between the opening of its file and the locking of the member's place in it."""
    lock, calls, deleted = groups.try_lock, [], []

    def delete_first(fd: int, request: bytes) -> bool:
        calls.append(fd)
        if len(calls) == 1:
            deleted.append(delete_group(os.path.join(root, "ring"), "g"))
        return lock(fd, request)

    with writer(root, slot_count=8, when_full=WhenFull.BLOCK) as made:
        fill(made, 1, 3)
        with monkeypatch.context() as racing:
            racing.setattr(groups, "try_lock", delete_first)
            reader = member(root, 1, 0, 1)
        with reader:
            assert deleted == [True]
            assert take(reader) == [1, 2, 3]
            for number in range(4, 30):
                made.write(payload(number), timeout_seconds=20)
                assert take(reader) == [number]


def test_a_writer_follows_a_group_that_was_deleted_and_came_again(root: str) -> None:
    with writer(root, slot_count=4, when_full=WhenFull.BLOCK) as made:
        with member(root, 1, 0, 1):
            fill(made, 1, 4)
        assert delete_group(os.path.join(root, "ring"), "g")
        with member(root, 1, 0, 1) as again:
            assert take(again) == [1, 2, 3, 4]
            made.write(payload(5), timeout_seconds=20)


def test_a_damaged_file_of_a_group_is_deleted(root: str) -> None:
    with writer(root, slot_count=4) as made:
        with member(root, 1, 0, 1):
            fill(made, 1, 2)
        (path,) = glob.glob(os.path.join(root, "**", "g@1.group"), recursive=True)
        with open(path, "r+b") as file:
            file.seek(8)
            file.write(b"\xff" * 8)
        assert delete_group(os.path.join(root, "ring"), "g")
        assert not os.path.exists(path)
