"""The blocks that a consumer reads: found, attached, let go of; by the directory alone, so a broker may come and go.

Rule 1: a ring that was there before the consumer is read from where the consumer asked, `latest` being its head at that
moment; one that came later is read from its first item, and what is gone of it by then is reported.
Rule 2: a ring that its producer ended and that was read to the end is let go of, and taken up again where it was left
when somebody writes it again. A ring whose producer died is kept for the linger time: a successor goes on in it.
Rule 3: nothing is polled for: the kernel tells of changes in the channel's directory or, until there is one, in the
directory of all channels. Only while an entry's ring is about to be there is it looked for again, and at the end of a
stream until a group has done all of it.
Rule 4: a stream that was over before the consumer came is not the stream whose end it waits for.
Rule 5: a stream ends for a member of a group when the whole group is done with it: what another member leaves undone,
because it dies or leaves, needs somebody who takes it over. Until then its rings stay attached, and so stay there.
"""

import logging
import os
import time
from collections.abc import Iterable, Set
from typing import Any, Literal, NamedTuple

from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.consumer.directory_watch import DirectoryWatch
from messagehub.channels.consumer.elsewhere import Elsewhere, share_of
from messagehub.channels.consumer.group_mates import GroupMate
from messagehub.channels.consumer.start import Positions
from messagehub.channels.items import AnyRing
from messagehub.errors import HubError
from messagehub.shm.channel_directory.cleaning import LINGER_SECONDS
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import block_path
from messagehub.shm.errors import BlockOnOtherHost, DataBlockError, NothingThere, PositionUnknown
from messagehub.shm.layout import Header
from messagehub.shm.locks import open_files_limited
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import LastItems, Position, Start
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import left_by_group, open_reader, peek
from registry import replies

log = logging.getLogger("messagehub")

SOON_SECONDS = 0.005
MOST_SECONDS = 0.25
UNWATCHED_SECONDS = 0.25
TELL_SECONDS = 5.0  # so long a member waits for its group before it says so


class _Noted(NamedTuple):
    """A ring as it was before its consumer."""

    position: Position
    is_over: bool


class Attachments:
    def __init__(
        self, directory: Directory, options: ConsumerOptions, readable: Set[str], elsewhere: Elsewhere
    ) -> None:
        """What is in the directory now counts as having been there before the consumer.

        `readable` are the hashes of schemas that the consumer can read, and grows; while it is empty, any can be read.
        """
        self.readers: list[AnyRing] = []
        self.has_met_any = False
        self.has_tables = False
        self.schema: Any = None  # of the ring that was attached last
        self.is_listed = False
        self.look_at: float | None = None
        self.mate: GroupMate | None = None  # of a member of a group, once its consumer is made
        self._directory = directory
        self._channel = channel = options.channel
        self._options = options
        self._readable = readable
        self._elsewhere = elsewhere
        self._is_waited_for = options.lossless
        self._left: dict[str, Position] = {}
        self._gone_at: dict[str, float] = {}
        self._noted: dict[str, _Noted] = {}
        self._peeked: dict[str, tuple[Header, dict[str, Any]]] = {}  # for the first look, which needs it at once
        self._has_looked = False
        self._has_seen_end = False
        self._is_producing = False
        self._is_group_done = options.group is None
        self._spent: dict[str, RingReader] = {}  # read to the end, by path, while the group is not done
        self._awaits_group_since: float | None = None
        self._has_told_of_wait = False
        self._wait_seconds = SOON_SECONDS
        self._assignment: replies.Assignment | None = None
        self._watch = DirectoryWatch(directory, channel)
        try:
            alive, dead = self._directory_rings()
            for path in dict.fromkeys([*alive, *dead, directory.exclusive_block(channel)]):
                self._note(path)
        except BaseException:
            self._watch.close()
            raise

    def has_ended(self, *, follow: bool) -> bool:
        """Everything was read and nobody produces. Who follows waits for a stream to end while it is attached."""
        if self._is_producing or not self._is_group_done:
            return False
        if follow:
            return self._has_seen_end and not self.readers
        return all(reader.is_spent() for reader in self.readers)

    @property
    def positions(self) -> Positions:
        """Where to go on, by block."""
        left = {position.block_id: position for position in self._left.values()}
        return left | {reader.header.block_id: reader.position for reader in self.readers}

    @property
    def sources(self) -> dict[str, Literal["shm", "flight"]]:
        return {
            reader.header.block_id: "shm" if isinstance(reader, RingReader) else "flight" for reader in self.readers
        }

    def has_news(self) -> bool:
        """Whether what the kernel told is about producers or tables; everything told so far is forgotten."""
        return self._watch.has_news()

    def news_fds(self) -> list[int]:
        return self._watch.fds()

    def is_left_to_group(self) -> bool:
        """Whether rings of a channel that has ended hold what this member's group has not done."""
        alive, dead = self._directory_rings()
        paths = dict.fromkeys([*alive, *dead, self._directory.exclusive_block(self._channel)])
        group = self._options.group
        if group is None:
            return False
        is_here = any(left_by_group(path, self._channel, group) for path in paths)
        return is_here or self._elsewhere.is_left_to_group()

    def member_share(self, path: str) -> MemberShare | None:
        """What this member reads of a ring, as it was dealt; None: nothing."""
        share = self._share(path)
        if self._assignment is None or share is None or share.count == 0:
            return None
        return MemberShare(self._assignment.epoch, share.index, share.count)

    def deal(self, assignment: replies.Assignment) -> None:
        """Read as this member of a group from the next `look` on. What was not acknowledged will come again, here or
        elsewhere."""
        self._assignment = assignment
        self._is_group_done = False
        self._close_readers()
        self._elsewhere.deal(assignment)
        self._left = {}

    def set_waited_for(self, is_waited_for: bool) -> None:
        """Whether blocking producers wait for this consumer from now on, if it was made lossless."""
        if self._options.lossless and self._is_waited_for != is_waited_for:
            self._is_waited_for = is_waited_for
            for reader in list(self.readers):
                reader.set_lossless(is_waited_for)

    def end_waiting(self) -> None:
        """Have no blocking producer wait for this consumer any more. Any thread may call this."""
        self.set_waited_for(False)
        self._options = self._options._replace(lossless=False)

    @open_files_limited()
    def look(self, told: Iterable[str]) -> None:
        """Attach to what is there and not yet attached: the directory's rings and those that others `told` of.

        Another thread may ask whether the stream has ended meanwhile, and gets the answer of the look before.
        """
        try:
            self._look(told)
        except BaseException:
            self._is_group_done = self._options.group is None  # it is not known
            raise

    def _look(self, told: Iterable[str]) -> None:
        if self.look_at is not None:
            self.look_at = time.monotonic() + MOST_SECONDS  # also if attaching is refused: nobody looks without a pause
        self._watch.look()
        alive, waiting = self._directory_rings()
        namesakes = self._elsewhere.namesakes
        listed = [*alive, *waiting, self._directory.exclusive_block(self._channel)]
        listed = [path for path in listed if path not in namesakes]
        told = [path for path in told if path not in listed]
        is_first = not self._has_looked
        if is_first:
            self._has_looked = True
            for path in told:
                self._note(path)
        paths = dict.fromkeys([*listed, *told])
        held = {reader.path for reader in self.readers}
        missing = [path for path in paths if path not in held and not self._attach(path)]
        if len(self.readers) > len(held) and not (alive or waiting):  # a producer is listed before its ring is there
            alive, waiting = self._directory_rings()
        self._attach_elsewhere(is_first=is_first)
        self._let_go_of_the_dead()
        if is_first:
            self._tell_of_lost_position()
        self._is_producing = bool(alive) or self._elsewhere.is_producing()
        awaited = 0 if self._is_producing else self._awaited(paths)
        self._is_group_done = self._options.group is None or not (self._is_producing or awaited)
        if self._is_group_done:
            self._close_spent()
        self._tell_of_wait(awaited)
        self.is_listed |= bool(alive or waiting)
        here = os.path.isdir(self._directory.tables_path(self._channel))
        self.has_tables = here or self._elsewhere.has_tables()
        self._schedule(is_waiting=awaited > 0 or any(path in alive for path in missing))

    def failed(self, reader: AnyRing) -> None:
        """It is on another host, and nothing more comes from there."""
        if not isinstance(reader, RingReader) and reader in self.readers:
            self.readers.remove(reader)
            self._elsewhere.failed(reader)
            self._left[reader.path] = reader.position

    def ended(self, reader: AnyRing) -> None:
        """Its producer ended it and everything was read."""
        position = reader.position
        if reader.is_replaced():  # for a group too, whose members have not read all of its numbers
            position = position._replace(sequence=reader.head)
        self._left[reader.path] = position
        self._has_seen_end |= not self._was_over(position.block_id, position.epoch)
        self.readers.remove(reader)
        if not isinstance(reader, RingReader):
            self._elsewhere.ended(reader)
        elif self._options.group is None:
            reader.close()
        else:
            self._spent[reader.path] = reader

    def skips(self, error: HubError) -> bool:
        """Whether reading goes on without a host that could be read until now."""
        missing = self._elsewhere.missing
        return isinstance(error, BlockOnOtherHost) and missing.skips(
            error, is_served=bool(self.readers or self.has_tables)
        )

    def miss_table(self, error: BlockOnOtherHost) -> None:
        """Note that the newest table cannot be read now."""
        self._elsewhere.missing.skips(error, is_served=bool(self.readers))

    def close(self) -> None:
        self._close_readers()
        self._elsewhere.close()
        self._watch.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _directory_rings(self) -> tuple[list[str], list[str]]:
        """Rings of the living, and of the dead that have lingered less than their time."""
        namesakes = self._elsewhere.namesakes
        alive: list[str] = []
        dead: list[str] = []
        for listed in self._directory.producers(self._channel):
            if listed.entry is not None:
                paths = [os.path.join(self._directory.root, name) for name in listed.entry.blocks]
                paths = [path for path in paths if path not in namesakes]
                (alive if listed.is_alive else dead).extend(paths)
        return alive, dead

    def _attach(self, path: str) -> bool:
        """Whether nothing is left to do about this ring now."""
        if self._options.group is not None and self._assignment is None:
            return False
        share = self._share(path)
        try:
            header, state = self._peeked.pop(path) if path in self._peeked else peek(path)
            if header.channel != self._channel:
                return True  # somebody registered a block of another channel as one of this
            if share is not None and share.count == 0:
                self.has_met_any = True  # another member of the group reads it
                self._has_seen_end |= not self._was_over(header.block_id, state["epoch"])
                return True
            if self._is_still_over(path, header, state):
                return False
            if path in self._spent:
                self._spent.pop(path).close()  # it is written again, and this member's share is taken once
            reader = self._open(path, self._start(path, header), share)
        except NothingThere:
            return False
        except PositionUnknown as error:
            if path not in self._left:  # or a ring that was read before was replaced, and its numbers go on
                log.warning("channel %r: %s Reading begins with the oldest item that is there", self._channel, error)
            reader = self._open(path, "oldest", share)
        if reader.header.block_id != header.block_id:  # replaced since we looked
            reader.close()
            return self._attach(path)
        if not reader.is_known:
            log.warning("the directory of channel %r is gone: its ring is read by name alone", self._channel)
        self.readers.append(reader)
        self.schema = reader.schema
        self._left.pop(path, None)
        self.has_met_any = True
        return True

    def _attach_elsewhere(self, *, is_first: bool) -> None:
        """Read too what was opened on other hosts."""
        for ring in self._elsewhere.take(self._readable):
            header = ring.header
            if is_first:
                self._noted[header.block_id] = _Noted(Position(*header.position), header.was_over)
            self.readers.append(ring)
            self.schema = ring.schema
            self._left.pop(ring.path, None)
            self.has_met_any = self.is_listed = True
        if self._elsewhere.has_met:
            self.has_met_any = self.is_listed = self._has_seen_end = True

    def _awaited(self, paths: Iterable[str]) -> int:
        """How many items are left, of rings that nobody writes, to others of the group or to nobody."""
        group = self._options.group
        if group is None:
            return 0
        unread = [] if self.mate is None else self.mate.others_unread()

        def shares_of(path: str) -> list[MemberShare]:
            shares = [share_in(path) for share_in in unread]
            return [share for share in shares if share is not None]

        awaited = sum(left_by_group(path, self._channel, group, shares_of(path)) for path in paths)
        return awaited + self._elsewhere.awaited(lambda shm_name: shares_of(block_path(self._directory, shm_name)))

    def _tell_of_wait(self, awaited: int) -> None:
        if not awaited or self.readers:
            self._awaits_group_since, self._has_told_of_wait = None, False
            return
        now = time.monotonic()
        if self._awaits_group_since is None:
            self._awaits_group_since = now
        if now - self._awaits_group_since >= TELL_SECONDS and not self._has_told_of_wait:
            self._has_told_of_wait = True
            here = [] if self.mate is None else self.mate.others_read_by()
            log.warning(
                "channel %r: nobody produces it, and this member of group %r has done its share; it waits for %d items"
                " that %s not done yet, and takes over from a member that leaves or dies",
                self._channel,
                self._options.group,
                awaited,
                f"others of the group ({', '.join(here)} of this process) have" if here else "other processes have",
            )

    def _close_readers(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers = []
        self._close_spent()

    def _close_spent(self) -> None:
        for reader in self._spent.values():
            reader.close()
        self._spent = {}
        self._elsewhere.close_spent()

    def _is_still_over(self, path: str, header: Header, state: dict[str, Any]) -> bool:
        """Whether this is a ring that was read to its end, and nobody has written it since."""
        left = self._left.get(path)
        if left is None:
            return False
        is_same = header.block_id == left.block_id and state["epoch"] == left.epoch
        return is_same and (state["has_ended"] or not state["has_writer"])

    def _open(self, path: str, start: Start, share: replies.Share | None) -> RingReader:
        options, dealt = self._options, self._assignment
        return open_reader(
            path,
            expected_schema_hashes=self._readable,
            start=start,
            lossless=self._is_waited_for,
            group=dealt.group if dealt else None,
            assignment=MemberShare(dealt.epoch, share.index, share.count) if dealt and share else None,
            wait_for_writer=True,
            verify=options.verify,
            copy=options.copy,
            spin_us=options.spin_us,
            consumer_id=options.consumer_id,
        )

    def _start(self, path: str, header: Header) -> Start:
        left = self._left.get(path)
        if left is not None:
            return left
        start = self._options.start
        noted = self._noted.get(header.block_id)
        if isinstance(start, dict) and header.block_id in start:
            return start[header.block_id]
        if noted is None:
            return "first"
        if isinstance(start, int):
            return LastItems(-start, noted.position)
        return noted.position if start == "latest" else "oldest"

    def _note(self, path: str) -> None:
        """Remember how a ring is before anybody is asked about the channel."""
        try:
            header, state = peek(path)
        except DataBlockError:
            return  # nothing there, or nothing that could be read: whoever attaches to it hears why
        self._peeked[path] = header, state
        position = Position(header.block_id, state["epoch"], state["head"])
        self._noted[header.block_id] = _Noted(position, state["has_ended"] or not state["has_writer"])

    def _tell_of_lost_position(self) -> None:
        """What was written to a ring that is gone can be neither read nor counted."""
        start = self._options.start
        if isinstance(start, dict) and start and not start.keys() & self._noted.keys():
            log.warning(
                "channel %r: no ring that `start` names is there any more; what was written to them after that is lost,"
                " and not counted. Reading begins with the oldest item that is there",
                self._channel,
            )

    def _was_over(self, block_id: str, epoch: int) -> bool:
        """Whether this epoch of a ring was over before the consumer."""
        noted = self._noted.get(block_id)
        return noted is not None and noted.is_over and noted.position.epoch == epoch

    def _share(self, path: str) -> replies.Share | None:
        """What of this ring is ours in a group; a ring that was not dealt out is shared by all members."""
        dealt = self._assignment
        if dealt is None:
            return None
        return share_of(dealt, "/" + self._directory.relative(path))

    def _let_go_of_the_dead(self) -> None:
        now = time.monotonic()
        for reader in list(self.readers):
            if reader.is_writer_alive():
                self._gone_at.pop(reader.path, None)
            elif now - self._gone_at.setdefault(reader.path, now) > LINGER_SECONDS and reader.is_spent():
                del self._gone_at[reader.path]
                self._left[reader.path] = reader.position
                self.readers.remove(reader)
                if isinstance(reader, RingReader):
                    reader.close()
                else:
                    self._elsewhere.ended(reader)

    def _schedule(self, *, is_waiting: bool) -> None:
        """Return when to look again although nothing was reported."""
        if is_waiting:
            self.look_at = time.monotonic() + self._wait_seconds
            self._wait_seconds = min(2 * self._wait_seconds, MOST_SECONDS)
            return
        self._wait_seconds = SOON_SECONDS
        if not self._watch.is_open:
            self.look_at = time.monotonic() + UNWATCHED_SECONDS
        else:
            self.look_at = min(self._gone_at.values()) + LINGER_SECONDS if self._gone_at else None
