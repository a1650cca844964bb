"""The blocks that a consumer reads: found, attached, let go of; by the directory alone, so a broker may come and go.

Rule 1: whatever is attached before the first look ends starts where the consumer asked; what is born later is read
from its beginning, since all of it came after.
Rule 2: a ring that its producer ended and that was read to the end is let go of, and taken up again where it was left
when somebody writes it again. A ring whose producer died is kept for the linger time: a successor goes on in it.
Rule 3: nothing is polled for: the kernel tells of changes in the channel's directory. Only while something is about
to be there (an entry without its ring, no channel at all) is it looked for again.
"""

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from messagehub.datablock import inotify
from messagehub.datablock.cleaning import LINGER_SECONDS
from messagehub.datablock.directory import CHANNEL_LOCK, Directory
from messagehub.datablock.errors import NothingThere, PositionUnknown
from messagehub.datablock.groups import Assignment
from messagehub.datablock.items import Position, Start
from messagehub.datablock.reader import RingReader
from messagehub.datablock.ring import describe, open_reader
from messagehub.entries import is_about_members
from registry import replies

Positions = dict[str, Position]
"""By block id: where a consumer stands in every block it has read."""

SOON_SECONDS = 0.005
MOST_SECONDS = 0.25
UNWATCHED_SECONDS = 0.25
_NEWS = inotify.MOVED_TO | inotify.CLOSE_WRITE | inotify.CREATE | inotify.DELETE


class Choice(NamedTuple):
    """How rings are opened."""

    start: str | Positions
    expected_schema_hash: str | None
    lossless: bool
    verify: bool
    is_member: bool = False  # of a group: nothing is opened before a share is dealt


class Attachments:
    def __init__(self, directory: Directory, channel: str, choice: Choice) -> None:
        self.readers: list[RingReader] = []
        self.has_met_any = False
        self.has_tables = False
        self.is_listed = False
        self.look_at: float | None = None
        self._directory = directory
        self._channel = channel
        self._choice = choice
        self._left: dict[str, Position] = {}
        self._gone_at: dict[str, float] = {}
        self._is_first_look = True
        self._is_producing = False
        self._wait_seconds = SOON_SECONDS
        self._assignment: replies.Assignment | None = None
        self._news = inotify.Inotify()
        self._is_watched = False
        self._watched_tables = False

    @property
    def has_ended(self) -> bool:
        """Every ring was ended by its producer and read to the end, and nobody is about to begin another."""
        return self.has_met_any and not self.readers and not self._is_producing

    @property
    def positions(self) -> Positions:
        """Where to go on, by block."""
        left = {position.block_id: position for position in self._left.values()}
        return left | {reader.header.block_id: reader.position for reader in self.readers}

    def has_news(self) -> bool:
        """Whether what the kernel told is about producers or tables; everything told so far is forgotten."""
        happened = self._news.read()
        if any(_is_removal(news) for news in happened):
            self._is_watched = self._watched_tables = False  # the directory is gone, and may be made again
            return True
        return any(is_about_members(news.name) or not news.path for news in happened)

    def news_fds(self) -> list[int]:
        return [self._news.fileno()] if self._is_watched else []

    def deal(self, assignment: replies.Assignment) -> None:
        """Read as this member of a group from the next `look` on. What was not acknowledged will come again, here or
        elsewhere."""
        self._assignment = assignment
        for reader in self.readers:
            reader.close()
        self.readers, self._left = [], {}

    def look(self, told: Iterable[str]) -> None:
        """Attach to what is there and not yet attached: the directory's rings and those that others `told` of."""
        self._watch()
        alive, waiting = self._directory_rings()
        paths = dict.fromkeys([*alive, *waiting, *told, self._directory.exclusive_block(self._channel)])
        held = {reader.path for reader in self.readers}
        missing = [path for path in paths if path not in held and not self._attach(path)]
        self._let_go_of_the_dead()
        self._is_producing = bool(alive)
        self.is_listed |= bool(alive or waiting)
        self.has_tables = os.path.isdir(self._directory.tables_path(self._channel))
        is_waiting = any(path in alive for path in missing) or not (self.has_met_any or self.has_tables)
        self._schedule(is_waiting)
        self._is_first_look = False

    def ended(self, reader: RingReader) -> None:
        """Its producer ended it and everything was read."""
        self._left[reader.path] = reader.position
        self.readers.remove(reader)
        reader.close()

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers = []
        self._news.close()
        self._is_watched = False

    # -- inside --------------------------------------------------------------------------------------------

    def _directory_rings(self) -> tuple[list[str], list[str]]:
        """Rings of the living, and of the dead that have lingered less than their time."""
        alive: list[str] = []
        dead: list[str] = []
        for listed in self._directory.producers(self._channel):
            if listed.entry is not None:
                paths = [os.path.join(self._directory.root, name) for name in listed.entry.blocks]
                (alive if listed.is_alive else dead).extend(paths)
        return alive, dead

    def _attach(self, path: str) -> bool:
        """Whether nothing is left to do about this ring now."""
        if self._choice.is_member and self._assignment is None:
            return False
        share = self._share(path)
        if share is not None and share.count == 0:
            self.has_met_any = True  # another member of the group reads it
            return True
        try:
            if self._is_still_over(path):
                return False
            self.readers.append(self._open(path, self._start(path), share))
        except NothingThere:
            return False
        except PositionUnknown:
            self.readers.append(self._open(path, "oldest", share))
        self._left.pop(path, None)
        self.has_met_any = True
        return True

    def _is_still_over(self, path: str) -> bool:
        """Whether this is a ring that was read to its end, and nobody has written it since."""
        left = self._left.get(path)
        if left is None:
            return False
        header, state = describe(path)
        is_same = header.block_id == left.block_id and state["epoch"] == left.epoch
        return is_same and (state["has_ended"] or not state["has_writer"])

    def _open(self, path: str, start: Start, share: replies.Share | None) -> RingReader:
        choice, dealt = self._choice, self._assignment
        return open_reader(
            path,
            expected_schema_hash=choice.expected_schema_hash,
            start=start,
            lossless=choice.lossless,
            group=dealt.group if dealt else None,
            assignment=Assignment(dealt.epoch, share.index, share.count) if dealt and share else None,
            wait_for_writer=True,
            verify=choice.verify,
        )

    def _start(self, path: str) -> Start:
        left = self._left.get(path)
        if left is not None:
            return left
        start = self._choice.start
        if not isinstance(start, str):
            return start.get(describe(path)[0].block_id, "oldest")
        return "latest" if start == "latest" and self._is_first_look else "oldest"

    def _share(self, path: str) -> replies.Share | None:
        """What of this ring is ours in a group; a ring that was not dealt out is shared by all members."""
        dealt = self._assignment
        if dealt is None:
            return None
        shm_name = "/" + self._directory.relative(path)
        for share in dealt.shares:
            if share.shm_name == shm_name:
                return share
        return replies.Share(shm_name=shm_name, index=dealt.index, count=dealt.count)

    def _let_go_of_the_dead(self) -> None:
        now = time.monotonic()
        for reader in list(self.readers):
            if reader.is_writer_alive():
                self._gone_at.pop(reader.path, None)
            elif now - self._gone_at.setdefault(reader.path, now) > LINGER_SECONDS:
                del self._gone_at[reader.path]
                self._left[reader.path] = reader.position
                self.readers.remove(reader)
                reader.close()

    def _watch(self) -> None:
        if not self._is_watched:
            path = self._directory.channel_path(self._channel)
            is_whole = self._news.watch(path, _NEWS) and os.path.exists(os.path.join(path, CHANNEL_LOCK))
            self._is_watched = is_whole  # one without its lock is about to be filled, or to go
        if self._is_watched and not self._watched_tables:
            self._watched_tables = self._news.watch(self._directory.tables_path(self._channel), inotify.CREATE)

    def _schedule(self, is_waiting: bool) -> None:
        """When to look again although nobody tells."""
        if is_waiting:
            self.look_at = time.monotonic() + self._wait_seconds
            self._wait_seconds = min(2 * self._wait_seconds, MOST_SECONDS)
            return
        self._wait_seconds = SOON_SECONDS
        if not self._is_watched:
            self.look_at = time.monotonic() + UNWATCHED_SECONDS
        else:
            self.look_at = min(self._gone_at.values()) + LINGER_SECONDS if self._gone_at else None


def _is_removal(news: inotify.Happened) -> bool:
    """Whether the channel's directory goes: its lock goes just before it."""
    return bool(news.mask & inotify.IGNORED or (news.name == CHANNEL_LOCK and news.mask & inotify.DELETE))
