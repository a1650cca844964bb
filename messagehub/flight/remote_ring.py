"""A ring on another host as its consumer here reads it: the same methods as those of `RingReader` that consumers use.

Rule 1: a thread takes messages from the gateway, up to QUEUED_BYTES ahead of the reader. Then it waits, and so do gRPC,
the gateway and, if this reader is lossless, a blocking producer.
Rule 2: the gateway says at least every IDLE_SECONDS that the stream goes on. One that is silent for SILENT_SECONDS, or
breaks off, is opened again where it was left, for RECONNECT_SECONDS. After that whoever reads gets an error. A second
thread sees to that, because opening a stream has no deadline of its own: it would be the stream's.
Rule 3: what the gateway refuses is an error at once: the ring is gone, or may not be read any more.
Rule 4: a member of a group is one where the ring is, as long as the stream lasts, and also after the ring's end: the
ring stays there until the group is done. A stream that is opened again goes on behind what has come already.
"""

import os
import threading
import time
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from messagehub.errors import HubError
from messagehub.flight.client import CALL_SECONDS, GatewayCall, Gateways, open_stream
from messagehub.flight.messages import (
    ACKNOWLEDGE,
    IDLE_SECONDS,
    FlightTicket,
    RingInfo,
    error_from,
    with_start,
)
from messagehub.flight.remote_acknowledgements import RemoteAcknowledgements
from messagehub.flight.ring_messages import RingMessage, ring_info, ring_message
from messagehub.runtime.supervision import Supervisor
from messagehub.shm.errors import AssignmentChanged, BlockOnOtherHost, HandleClosed, StreamEnded
from messagehub.shm.identity import host as this_host
from messagehub.shm.layout import PayloadFormat
from messagehub.shm.locks import Descriptor
from messagehub.shm.payloads import codec_of
from messagehub.shm.rings.read_results import Gap, Item, Position, Producers

if TYPE_CHECKING:
    from pyarrow import flight

QUEUED_BYTES = 4 << 20
SILENT_SECONDS = 5 * IDLE_SECONDS
RECONNECT_SECONDS = 10.0
STARTING_SECONDS = 60.0
"""So long a gateway is waited for of which its hub says that it starts."""
OPEN_SECONDS = CALL_SECONDS
PAUSE_SECONDS = 0.2
STOP_SECONDS = 1.0


@cache
def _keep_freed_memory() -> None:
    """Have the memory of messages used again. The C library of Linux gives freed memory back to the kernel beyond twice
    the largest block that the process has freed so far. Then each message takes new pages, which costs as much time as
    all else that is done with it."""
    bytearray(2 * QUEUED_BYTES)


class RemoteRing:
    """One thread reads; values may be dropped in any."""

    def __init__(
        self, gateways: Gateways, host: str, ticket: FlightTicket, *, broken_since: float | None = None
    ) -> None:
        """Open the ring that the ticket names; raise why that is not possible.

        `broken_since` (`time.monotonic()`) is when an earlier reader of it was cut off, which it is opened after.
        """
        assert ticket.block is not None
        self.host = host
        self.path = f"{host}:{ticket.block}"
        self._gateways = gateways
        self._ticket = ticket
        self._opened_in = os.getpid()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._queue: deque[RingMessage] = deque()
        self._queued_bytes = 0
        self._rows: deque[tuple[int, ...]] = deque()
        self._buffers: list[Any] = []
        self._is_closed = self._has_ended = self._is_armed = False
        self._done = RemoteAcknowledgements(self._tell_done, on_refusal=self._cannot_tell)
        self._failure: HubError | None = None
        self._why: BlockOnOtherHost | str = ""
        self._away: tuple[int, float] | None = None  # the last item before the stream broke off, and for how long
        self._wake = Descriptor.eventfd()
        self._stream: flight.FlightStreamReader | None = None
        self._info: RingInfo | None = None
        self._cursor = self._received = 0
        self._producers: Producers = ()
        self._last_read: Any = None
        self.value_sequence = 0
        """The number of the value that `take_value` gave last; 0 if it gave none since `follow`."""
        self._cut_off_at = broken_since
        self._broken_since: float | None = time.monotonic()
        self._heard_at = time.monotonic()
        supervisor = Supervisor()
        _keep_freed_memory()
        self._thread = supervisor.start("messagehub-flight", self._receive)
        try:
            self._wait_for_info()
        except BaseException:
            self.close()
            raise
        supervisor.start("messagehub-flight-watch", self._watch)

    def _wait_for_info(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._info is not None or self._failure is not None, OPEN_SECONDS)
            info, failure = self._info, self._failure
        if info is None:
            why = f"its gateway does not answer within {OPEN_SECONDS:g} s"
            raise failure or BlockOnOtherHost(self.path, self.host, this_host(), why)
        self.header = info
        self._codec = codec_of(
            PayloadFormat(info.payload_format),
            info.description,
            self.path,
            checks_cells=self._ticket.verify or info.checks_cells,
        )

    # --- reading, as of a RingReader

    def take(self) -> Item | Gap | None:
        """The next item or gap if it is here already. Raises what ended the stream, once all that came was read; of a
        member whose share is another's by now, at once."""
        if isinstance(self._failure, AssignmentChanged):
            raise self._failure
        if not self._rows and not self._next_message():
            if self._failure is not None and not self._queue:
                raise self._failure
            return None
        row = self._rows.popleft()
        if row[1]:
            before, self._cursor = self._cursor, row[1]
            return Gap(row[0], row[1], self._why_lost(before))
        self._cursor = row[0]
        return self._item(row, self._buffers, self._producers)

    def arm(self) -> Item | Gap | None:
        """Ask to be woken, then look once more. None: sleep on `wake_fds`, and `disarm` or `take` afterwards. Raise
        StreamEnded when nothing can come any more."""
        if self._is_closed or self._wake.fd < 0:
            raise HandleClosed("reader")
        self._is_armed = True
        found = self.take()
        if found is not None:
            self.disarm()
        elif self._has_ended and not self._queue:
            raise StreamEnded(self.path)
        return found

    def acknowledge(self, sequence: int) -> None:
        """Of a member of a group: this share is done up to `sequence`. Its gateway is told soon, at the latest by
        `close`."""
        if isinstance(self._failure, AssignmentChanged):
            raise self._failure
        if not self._is_closed:
            self._done.put(sequence)

    def disarm(self) -> None:
        self._is_armed = False

    def wake_fds(self) -> list[int]:
        return [self._wake.fd] if self._wake.fd >= 0 else []

    def woken(self, fd: int) -> None:
        try:
            os.eventfd_read(fd)
        except BlockingIOError:
            return  # another thread was woken by the same

    def look_seconds(self) -> float | None:
        return None

    def follow(self, last_read: Any) -> bool:
        """Have `take_value` give the next item's value, and note in `last_read.origin` where it comes from. Return
        False where it never does: for groups."""
        self._last_read, self.value_sequence = last_read, 0
        return not self._is_member

    def take_value(self) -> Any:
        """Return the value of the next item, if that came with the one before; None: call `take`."""
        if not self._rows or self._rows[0][1]:
            return None
        sequence, _, _, written_ns, a, b, c, d, index, offset, length = self._rows.popleft()
        self._cursor = self.value_sequence = sequence
        self._last_read.origin = sequence, written_ns, self._producers
        return self._codec.decode(self._buffers[index].slice(offset, length), (a, b, c, d))

    def latest(self) -> Item | None:
        """Ask the gateway for the newest item, wherever this reader stands; None if there is none (yet)."""
        ticket = msgspec.structs.replace(self._ticket, newest=True, start="latest", positions={})

        def ask(call: GatewayCall) -> RingMessage:
            stream = open_stream(call, ticket, seconds=CALL_SECONDS)
            found = stream.read_chunk()
            return ring_message(found, self.path)

        if self._is_closed:
            raise HandleClosed("reader")
        message = self._gateways.call(self._ticket.channel, self.host, self.path, ask)
        if not message.rows:
            return None
        return self._item(message.rows[0], message.buffers, tuple(message.state.producers))

    def _item(self, row: tuple[int, ...], buffers: list[Any], producers: Producers) -> Item:
        sequence, _, epoch, written_ns, a, b, c, d, index, offset, length = row
        content = buffers[index].slice(offset, length)
        return Item(sequence, epoch, content, self._codec, (a, b, c, d), written_ns, producers)

    # --- what it knows

    @property
    def position(self) -> Position:
        """Resume with `start=position` to go on after the last item read."""
        return Position(self.header.block_id, self._taken_state.epoch, self._cursor)

    @property
    def head(self) -> int:
        return self._state.head

    @property
    def schema(self) -> Any:
        """An Arrow schema, a NumPy dtype, or None for raw bytes."""
        return self._codec.schema

    @property
    def lag(self) -> int:
        """How many items were written after the one read last, as far as the gateway has told; of a group's member,
        how many of its share."""
        head, member = max(self._state.head, self._cursor), self._ticket.member
        if member is None:
            return head - self._cursor
        return (head - member.index) // member.count - (self._cursor - member.index) // member.count

    @property
    def _is_member(self) -> bool:
        return self._ticket.member is not None

    @property
    def failure(self) -> HubError | None:
        """Why nothing more comes, if that is not the end of the stream."""
        return self._failure

    @property
    def broken_since(self) -> float | None:
        """When its stream broke off, if it is not open."""
        return self._broken_since

    def is_writer_alive(self) -> bool:
        return self._state.is_alive and not self._has_ended

    def is_spent(self) -> bool:
        """Nobody writes it and nothing in it is unread."""
        return not self.is_writer_alive() and not self.has_unread()

    def has_unread(self) -> bool:
        if self._rows or self._queue:
            return True
        return self._state.has_more if self._is_member else self._state.head > self._cursor

    def is_replaced(self) -> bool:
        """Whether a ring of another shape has taken its name."""
        return self._state.is_replaced

    def set_lossless(self, lossless: bool) -> None:
        """Whether a blocking writer waits for this reader from now on: the stream is opened anew."""
        if self._ticket.lossless != lossless:
            self._ticket = msgspec.structs.replace(self._ticket, lossless=lossless)
            self._cancel()

    def close(self) -> None:
        """Values that were handed out stay valid."""
        if self._is_closed or os.getpid() != self._opened_in:
            return
        self._done.close(STOP_SECONDS if self._failure is None else 0.0)
        self._is_closed = True
        self._closed.set()
        with self._changed:
            self._queue.clear()
            self._changed.notify_all()
        self._cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)
        with self._changed:
            self._wake.close()

    # --- inside: the reader

    def _why_lost(self, last: int) -> str:
        """Return what was lost by, if not by reading slowly: `last` is the item before the gap."""
        away = self._away
        if away is None or away[0] != last or self._is_member:
            return ""
        return f"the gateway of host {self.host!r} was away for {away[1]:.1f} s, and no producer waits meanwhile"

    def _next_message(self) -> bool:
        with self._changed:
            if not self._queue:
                return False
            was_full = self._is_full()
            message = self._queue.popleft()
            self._queued_bytes -= message.size_bytes
            if was_full:  # otherwise the thread waits for the gateway, not for room
                self._changed.notify_all()
        self._rows, self._buffers, self._taken_state = deque(message.rows), message.buffers, message.state
        self._producers = tuple(message.state.producers)
        return True

    # --- inside: the thread

    def _receive(self) -> None:
        while not self._is_over():
            why = self._open_again() if self._stream is None else self._receive_until_it_breaks()
            if why is not None:
                with self._changed:
                    self._stream = None
                    self._why = why
                    self._broken_since = self._broken_since or time.monotonic()
        self._cancel()
        with self._changed:
            self._changed.notify_all()
        self._notify()

    def _is_over(self) -> bool:
        has_ended = self._has_ended and not self._is_member
        return self._is_closed or has_ended or self._failure is not None

    def _watch(self) -> None:
        """Cancel a stream that is silent though there is room for what it may say; give up one that stays broken."""
        while True:
            self._closed.wait(IDLE_SECONDS)  # not `_changed`, of which each message tells
            with self._changed:
                if self._is_over():
                    return
                now = time.monotonic()
                since = self._broken_since
                if since is not None and now - since > self._patience():
                    self._failure = self._given_up()
                is_silent = since is None and now - self._heard_at > SILENT_SECONDS and not self._is_full()
            if self._failure is not None:
                self._notify()
            elif is_silent:
                self._heard_at = time.monotonic()
                self._cancel()

    def _patience(self) -> float:
        is_starting = isinstance(self._why, BlockOnOtherHost) and self._why.state == "starting"
        return STARTING_SECONDS if is_starting else RECONNECT_SECONDS

    def _given_up(self) -> BlockOnOtherHost:
        why, state = (self._why, "") if isinstance(self._why, str) else (self._why.why, self._why.state)
        said = f"the stream of its gateway broke off, and could not be opened again: {why}"
        return BlockOnOtherHost(self.path, self.host, this_host(), said, state=state)

    def _cancel(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _receive_until_it_breaks(self) -> BlockOnOtherHost | str | None:
        """Return why the stream broke off; None where it ended, was refused, or this is closed."""
        from pyarrow import ArrowException

        assert self._stream is not None
        try:
            while not self._is_over():
                self._put(ring_message(self._stream.read_chunk(), self.path))
        except StopIteration:
            return "it ended the stream"
        except (ArrowException, OSError) as error:
            told = error_from(getattr(error, "extra_info", None) or b"")
            if isinstance(told, AssignmentChanged):
                self._failure = told
                return None
            return str(error).partition(". gRPC client debug context")[0][:300]
        except HubError as error:
            self._failure = error
        return None

    def _put(self, message: RingMessage) -> None:
        with self._changed:
            self._heard_at = time.monotonic()
            self._state = message.state
            if message.rows:
                last = message.rows[-1]
                self._received = last[1] or last[0]
                self._queue.append(message)
                self._queued_bytes += message.size_bytes
            self._has_ended = message.state.has_ended
            self._wake_reader()
            while self._is_full() and not self._is_closed:
                self._changed.wait(IDLE_SECONDS)
            self._heard_at = time.monotonic()

    def _is_full(self) -> bool:
        return self._queued_bytes > QUEUED_BYTES

    def _open_again(self) -> BlockOnOtherHost | str | None:
        """Open the stream, at first or where it broke off; return why that is not possible now."""
        ticket = self._ticket
        if self._info is not None:
            start = Position(self._info.block_id, self._state.epoch, self._received)
            ticket = with_start(msgspec.structs.replace(ticket, positions={}), start)
            if self._is_member:
                ticket = msgspec.structs.replace(ticket, done=self._done.done, after=self._received)
        try:
            stream = self._gateways.call(
                ticket.channel, self.host, self.path, lambda call: open_stream(call, ticket, seconds=None)
            )
            info = ring_info(stream, self.path)
        except HubError as error:
            if self._info is None or not isinstance(error, BlockOnOtherHost):
                self._failure = error
                with self._changed:
                    self._changed.notify_all()
                return None
            with self._changed:
                self._changed.wait_for(self._is_over, PAUSE_SECONDS)
            return error
        self._done.was_told(ticket.done)
        with self._changed:
            if self._info is not None and self._broken_since is not None:
                self._away = self._received, time.monotonic() - self._broken_since
            elif self._info is None and self._cut_off_at is not None:
                self._away = info.position[2], time.monotonic() - self._cut_off_at
            self._stream, self._state, self._broken_since = stream, info.state, None
            self._heard_at = time.monotonic()
            if self._info is None:
                self._info, self._taken_state = info, info.state
                self._cursor = self._received = info.position[2]
                self._producers = tuple(info.state.producers)
            self._changed.notify_all()
        return None

    # --- inside: a member of a group

    def _tell_done(self, sequence: int) -> None:
        ticket = msgspec.structs.replace(self._ticket, done=sequence, after=0, positions={})

        def tell(call: GatewayCall) -> None:
            from pyarrow import flight

            list(call.client.do_action(flight.Action(ACKNOWLEDGE, ticket.to_bytes()), call.options(CALL_SECONDS)))

        self._gateways.call(ticket.channel, self.host, self.path, tell)

    def _cannot_tell(self, error: HubError) -> bool:
        """Take note why the gateway was not told; return whether it never will be."""
        if not isinstance(error, AssignmentChanged):
            return False
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._cancel()
        self._notify()
        return True

    def _notify(self) -> None:
        with self._changed:
            self._wake_reader()

    def _wake_reader(self) -> None:
        """Wake whoever reads, if it sleeps. The caller has the lock, with which the descriptor is closed too."""
        if self._is_armed and self._wake.fd >= 0:
            self._is_armed = False
            os.eventfd_write(self._wake.fd, 1)
