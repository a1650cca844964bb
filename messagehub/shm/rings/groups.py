"""Group cursors: how far a consumer group has come, kept while its members come and go.

An assignment {epoch, index, count} gives member `index` the sequences s with s % count == index. Each epoch
has one file with a word per member: "all my sequences up to here are done". The writer honours the lowest.

Rule 1: a member's word has one writer: the holder of that member's lock. It outlives the member.
Rule 2: a new epoch begins where the slowest member of the old one stood, and remembers what each old member
had done beyond that: nothing is lost, and items that were acknowledged in the last epoch do not come again. Items that
were acknowledged in an earlier epoch, beyond a slower member, may come again (at least once).
Rule 3: of several files of a group only the highest epoch counts. The member that makes it removes the others; if it
dies before that, the next one does.
"""

import contextlib
import math
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from messagehub.shm.errors import (
    AssignmentChanged,
    DamagedBlock,
    GroupInUse,
    HeaderInconsistent,
    MemberTaken,
    NameRefused,
    NothingThere,
)
from messagehub.shm.locks import OWNER, exclusive, exclusively_locked, lock_within, try_lock
from messagehub.shm.mapped_file import Segment, open_trusted, remove_file

_SUPERSEDED: Final = 0
_COUNT: Final = 1
_PREVIOUS: Final = 2  # the number of members in the epoch before
_LINE: Final = 8
_NAME: Final = re.compile(r"(?P<group>[^@/.][^@/]{0,199})@(?P<epoch>\d{1,18})\.group")
_LOCK_SECONDS: Final = 5.0
_MOST_MEMBERS: Final = 4096
_ATTEMPTS: Final = 3
_MOST: Final = 1 << 62  # items of a stream: more than a century of writing


@dataclass(frozen=True)
class MemberShare:
    epoch: int
    index: int
    count: int

    def __post_init__(self) -> None:
        if not (self.epoch >= 0 and 0 <= self.index < self.count <= 4096):
            raise ValueError(f"{self} is not a share: 0 <= index < count <= 4096")


def group_files(names: Iterable[str]) -> set[str]:
    """Return the file of the highest epoch of each group."""
    best: dict[str, tuple[int, str]] = {}
    for name in names:
        found = _NAME.fullmatch(name)
        if found:
            candidate = (int(found["epoch"]), name)
            best[found["group"]] = max(candidate, best.get(found["group"], candidate))
    return {name for _, name in best.values()}


def group_name(file_name: str) -> str:
    """Return the name of the group whose cursors are in the file."""
    return file_name.rpartition("@")[0]


def group_floor(path: str) -> int:
    """Return the sequence that the slowest member has reached. The file is read, not mapped: another process could
    shorten it."""
    descriptor = open_trusted(path, os.O_RDONLY)
    try:
        content = os.pread(descriptor.fd, _file_bytes(4096, 0), 0)
    finally:
        descriptor.close()
    words = memoryview(content[: len(content) // 8 * 8]).cast("Q")
    count = words[_COUNT] if len(words) > _COUNT else 0
    return min(words[_LINE : _LINE * (1 + min(count, 4096)) : _LINE].tolist(), default=0)


def member_count(path: str) -> int:
    """Return how many members of the group are there now."""
    descriptor = open_trusted(path, os.O_RDONLY)
    try:
        return len(exclusively_locked(descriptor.fd, OWNER + 1, _MOST_MEMBERS))
    finally:
        descriptor.close()


def members_of(directory: str, group: str) -> int:
    """Return how many members of a group read here now."""
    paths = [os.path.join(directory, name) for name in os.listdir(directory) if _is_of(name, group)]
    found = 0
    for path in paths:
        with contextlib.suppress(NothingThere):  # a new epoch has taken its place
            found += member_count(path)
    return found


def undone_items(
    directory: str, group: str, sequences: Iterable[int], left_out: Collection[MemberShare] = ()
) -> list[int]:
    """Return which of these items no member of the group has done yet; all of them, where the group has never read.

    What belongs to a share that is `left_out` is not among them, if that share is of the epoch that counts.
    """
    wanted = list(sequences)
    for _ in range(_ATTEMPTS):
        found = [name for name in group_files(os.listdir(directory)) if group_name(name) == group]
        if not found:
            return wanted
        try:
            cursors = GroupCursors(os.path.join(directory, found[0]))
        except NothingThere:
            continue  # a new epoch has taken its place
        try:
            epoch = max(_epochs(found, group))
            here = {share.index for share in left_out if (share.epoch, share.count) == (epoch, cursors.count)}
            return [each for each in wanted if not cursors.is_done(each) and each % cursors.count not in here]
        finally:
            cursors.close()
    return wanted  # it is shared out anew at this moment


def remove_group(directory: str, group: str) -> bool:
    """Forget how far a group has come; False if it was never there. Raise GroupInUse while it has a member."""
    lock_path = os.path.join(directory, "index")
    lock = open_trusted(lock_path, os.O_RDWR)
    try:
        lock_within(lock, exclusive(OWNER), lock_path, _LOCK_SECONDS)
        members = members_of(directory, group)
        if members:
            raise GroupInUse(group, members)
        paths = [os.path.join(directory, name) for name in os.listdir(directory) if _is_of(name, group)]
        for path in paths:
            try:
                cursors = GroupCursors(path, writable=True)
            except DamagedBlock:
                remove_file(path)  # no member can use a damaged file
                continue
            try:
                # All members' locks are held meanwhile: a member that comes now is refused, and later finds no file.
                if not try_lock(cursors.segment.descriptor.fd, exclusive(OWNER + 1, _MOST_MEMBERS)):
                    raise GroupInUse(group, 1)
                cursors.supersede()
                remove_file(path)
            finally:
                cursors.close()
        return bool(paths)
    finally:
        lock.close()


def _is_of(name: str, group: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["group"] == group


def _epochs(names: Iterable[str], group: str) -> list[int]:
    """Return those of a group's files, the highest last."""
    return sorted(int(found["epoch"]) for found in map(_NAME.fullmatch, names) if found and found["group"] == group)


class GroupCursors:
    """The file of one epoch, as the writer and the members use it."""

    def __init__(self, path: str, *, writable: bool = False) -> None:
        self.segment = Segment.attach(path, writable=writable)
        self.words = self.segment.words
        self.count = self.words[_COUNT]
        self.previous_count = self.words[_PREVIOUS]
        if not 1 <= self.count <= 4096 or self.segment.size < _file_bytes(self.count, self.previous_count):
            raise HeaderInconsistent(path, f"{self.count} members in {self.segment.size} bytes")
        cursors = self.words[_LINE : _LINE * (1 + self.count + self.previous_count) : _LINE].tolist()
        if max(cursors) > _MOST:
            raise HeaderInconsistent(path, f"a member that has done {max(cursors)} items")

    def floor(self) -> int:
        return min(self.done(index) for index in range(self.count))

    def done(self, index: int) -> int:
        return self.words[_LINE * (1 + index)]

    def set_done(self, index: int, sequence: int) -> None:
        self.words[_LINE * (1 + index)] = sequence

    def is_done(self, sequence: int) -> bool:
        return sequence <= self.done(sequence % self.count) or self.was_done_before(sequence)

    def was_done_before(self, sequence: int) -> bool:
        """Return whether a member of the epoch before had already acknowledged the item."""
        if not self.previous_count:
            return False
        return sequence <= self.words[_LINE * (1 + self.count + sequence % self.previous_count)]

    def first_not_done(self, sequence: int, step: int) -> int:
        """Return the first of sequence, sequence + step, … that was not done in the epoch before.

        The search is bounded, whatever the words in the file are.
        """
        if not self.was_done_before(sequence):
            return sequence
        cycle = math.lcm(step, self.previous_count)  # after so many items the same members have their turn again
        found = []
        for each in range(sequence, sequence + cycle, step):
            done = self.words[_LINE * (1 + self.count + each % self.previous_count)]
            found.append(each + max(0, -(-(done + 1 - each) // cycle)) * cycle)
        return min(found)

    def is_superseded(self) -> bool:
        return self.words[_SUPERSEDED] != 0

    def supersede(self) -> None:
        self.words[_SUPERSEDED] = 1

    def close(self) -> None:
        self.segment.descriptor.close()


class Membership:
    """The share of a block that one live member of a group reads."""

    def __init__(self, directory: str, group: str, assignment: MemberShare, start_after: int) -> None:
        """`start_after` is used only for a new group; others continue where they were."""
        name = f"{group}@{assignment.epoch}.group"
        if not _NAME.fullmatch(name):
            raise NameRefused(group, "a group has 1 to 200 characters, no '@' and no '/'")
        self.group = group
        self.assignment = assignment
        member = exclusive(OWNER + 1 + assignment.index)
        for _ in range(_ATTEMPTS):
            self._cursors = _open_epoch(directory, group, assignment, start_after)
            if not try_lock(self._cursors.segment.descriptor.fd, member):
                self._cursors.close()
                raise MemberTaken(group, assignment.index)
            if not self._cursors.is_superseded():
                break
            self._cursors.close()  # the group was deleted, or has a new epoch, between opening and locking
        else:
            raise AssignmentChanged(group, assignment.epoch)
        # What this share had already done in the epoch before counts at once: it may be all that the ring holds, and
        # a writer that waits for this member would write nothing it could acknowledge.
        self.position = self.next_after(self._cursors.done(assignment.index)) - 1
        self._cursors.set_done(assignment.index, self.position)

    def next_after(self, sequence: int) -> int:
        """Return the next sequence of this share."""
        count, index = self.assignment.count, self.assignment.index
        return self._cursors.first_not_done(sequence + 1 + (index - sequence - 1) % count, count)

    def acknowledge(self, sequence: int) -> None:
        """Note that everything of this share up to `sequence` is done and will not come again."""
        self.check()
        done = self.next_after(sequence) - 1
        if done > self._cursors.done(self.assignment.index):
            self._cursors.set_done(self.assignment.index, done)

    def check(self) -> None:
        if self._cursors.is_superseded():
            raise AssignmentChanged(self.group, self.assignment.epoch)

    def close(self) -> None:
        self._cursors.close()


def _open_epoch(directory: str, group: str, assignment: MemberShare, start_after: int) -> GroupCursors:
    lock_path = os.path.join(directory, "index")
    lock = open_trusted(lock_path, os.O_RDWR)
    try:
        lock_within(lock, exclusive(OWNER), lock_path, _LOCK_SECONDS)
        epochs = _epochs(os.listdir(directory), group)
        path = os.path.join(directory, f"{group}@{assignment.epoch}.group")
        if epochs and epochs[-1] > assignment.epoch:
            raise AssignmentChanged(group, assignment.epoch)
        if assignment.epoch not in epochs:
            before = os.path.join(directory, f"{group}@{epochs[-1]}.group") if epochs else None
            _begin_epoch(path, assignment.count, before, start_after)
        for old in epochs:
            if old != assignment.epoch:
                remove_file(os.path.join(directory, f"{group}@{old}.group"))
        cursors = GroupCursors(path, writable=True)
        if cursors.count != assignment.count:
            raise AssignmentChanged(group, assignment.epoch)
        return cursors
    finally:
        lock.close()


def _begin_epoch(path: str, count: int, before: str | None, start_after: int) -> None:
    """Make the file of a new epoch. Items that are acknowledged meanwhile may come again, or as a Gap."""
    done: list[int] = []
    if before is not None:
        old = GroupCursors(before, writable=True)
        old.supersede()
        done = [old.done(index) for index in range(old.count)]
        start_after = min(done)
        old.close()
    segment = Segment.create(path, _file_bytes(count, len(done)))
    segment.words[_COUNT] = count
    segment.words[_PREVIOUS] = len(done)
    for index in range(count):
        segment.words[_LINE * (1 + index)] = start_after
    for index, sequence in enumerate(done):
        segment.words[_LINE * (1 + count + index)] = sequence
    segment.publish()


def _file_bytes(count: int, previous_count: int) -> int:
    return -(-64 * (1 + count + previous_count) // 4096) * 4096
