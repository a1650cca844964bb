"""Rings of other hosts of the site, as a streaming query lists, holds and reads them through the gateways there.

Rule 1: which hosts have rings of a channel, the registry says, and the offsets of the query: a ring whose producer has
ended is read to its end too.
Rule 2: a ring is held by a stream that gives no items, so what is held is what the query has not committed, and items
come once: to the tasks that read them. While its gateway is being started again nobody holds it.
Rule 3: a gateway that was reached before may be away for a moment: it is asked again for AGAIN_SECONDS.
"""

import logging
import select
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from messagehub.channels.hosts import places_of
from messagehub.errors import DataLost, HubError, NotRegistered
from messagehub.flight.client import CALL_SECONDS, Gateways, open_stream
from messagehub.flight.messages import (
    RING_KEY,
    FlightTicket,
    ListedRing,
    RemoteRingState,
    RingInfo,
    RingRelease,
    RingsAsked,
    RingsListed,
)
from messagehub.flight.remote_ring import SILENT_SECONDS, RemoteRing
from messagehub.runtime.supervision import Supervisor
from messagehub.shm.errors import BlockOnOtherHost, NothingThere, PositionUnknown
from messagehub.shm.identity import host as this_host
from messagehub.shm.rings.read_results import Gap, Item, Position, Start
from messagehub.spark.elsewhere import discovered, gateways_of
from messagehub.spark.held_rings import PATIENCE_SECONDS
from messagehub.spark.options import Options
from messagehub.spark.rings import rows_of, schema_of_ring

log = logging.getLogger("messagehub")

AGAIN_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.2
T = TypeVar("T")


class RingOnOtherHost:
    """A ring as its host has listed it."""

    def __init__(self, gateways: Gateways, channel: str, host: str, listed: ListedRing) -> None:
        self.channel, self.host, self.path, self.block_id = channel, host, listed.block, listed.block_id
        self.listed = listed
        self._gateways = gateways

    def state(self) -> dict[str, Any]:
        return {"head": self.listed.head, "epoch": self.listed.epoch, "has_writer": self.listed.has_writer}

    def schema(self) -> pa.Schema:
        return schema_of_ring(self.listed.payload_format, self.listed.description, self.path)

    def since(self, at_ns: int) -> Start:
        """Return the position before the first item that is there and was not written before that time."""
        try:
            ring = RemoteRing(self._gateways, self.host, _ticket(self.channel, self.path, "oldest"))
        except NothingThere:
            return "latest"
        with closing(ring):
            for found in _until(ring, self.listed.head):
                if isinstance(found, Item) and found.written_ns >= at_ns:
                    return Position(self.block_id, found.epoch, found.sequence - 1)
        return "latest"

    def hold(self, start: Start) -> "RingHeldElsewhere | None":
        """Return None where the ring was removed or replaced meanwhile."""
        try:
            held = RingHeldElsewhere(self, self._gateways, start)
        except (NothingThere, PositionUnknown):
            return None
        if held.position.block_id == self.block_id:
            return held
        held.close()
        return None


class RingHeldElsewhere:
    """A stream without items, which a thread takes, so that its end is noticed."""

    def __init__(self, ring: RingOnOtherHost, gateways: Gateways, start: Start) -> None:
        self.channel, self.host, self.path, self.block_id = ring.channel, ring.host, ring.path, ring.block_id
        self.capacity, self.overwrites = ring.listed.capacity, ring.listed.overwrites
        self._listed = ring.listed
        self._gateways = gateways
        self._name = uuid.uuid4().hex
        self._ticket = msgspec.structs.replace(_ticket(self.channel, self.path, start), hold=self._name, lossless=True)
        self._opened = threading.Event()
        self._is_over = False
        self._failure: HubError | None = None
        self._info: RingInfo | None = None
        self._stream: Any = None
        self._heard_at = time.monotonic()
        Supervisor().start("messagehub-spark-hold", self._run)
        self._position = self._opened_at()

    def _opened_at(self) -> Position:
        self._opened.wait(CALL_SECONDS)
        info = self._info
        if info is None:
            self.close()
            why = f"its gateway does not answer within {CALL_SECONDS:g} s"
            raise self._failure or BlockOnOtherHost(self.path, self.host, this_host(), why)
        return Position(*info.position)

    @property
    def position(self) -> Position:
        return self._position

    @property
    def head(self) -> int:
        return max(self._listed.head, self._position.sequence)

    def seen(self, listed: ListedRing) -> None:
        """Take what its host has listed since."""
        self._listed = listed

    def is_writer_alive(self) -> bool:
        return self._listed.has_writer

    def is_replaced(self) -> bool:
        """Whether it has to be held anew."""
        return self._is_over or time.monotonic() - self._heard_at > SILENT_SECONDS

    def release(self, sequence: int) -> None:
        """Let go of the items up to one. A gateway that is away has let go of all; the ring is held anew then."""
        if sequence <= self._position.sequence:
            return
        try:
            asked = RingRelease(channel=self.channel, hold=self._name, sequence=sequence)
            reached = self._gateways.release(asked, self.host)
        except (NotRegistered, BlockOnOtherHost):
            self._is_over = True
        else:
            self._position = Position(self.block_id, self._listed.epoch, reached)

    def behind(self) -> dict[str, float]:
        """Only payloads: rows and bytes are not counted across hosts."""
        return {"payloads": self.head - self._position.sequence}

    def close(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.cancel()

    def _run(self) -> None:
        try:
            self._stream = stream = self._gateways.call(
                self.channel, self.host, self.path, lambda call: open_stream(call, self._ticket, seconds=None)
            )
            self._info = msgspec.json.decode((stream.schema.metadata or {}).get(RING_KEY, b""), type=RingInfo)
            self._opened.set()
            while not self._is_over:
                state = msgspec.json.decode(stream.read_chunk().app_metadata, type=RemoteRingState)
                self._heard_at = time.monotonic()
                self._is_over |= state.is_replaced
        except HubError as error:
            self._failure = error
        except (pa.ArrowException, OSError, StopIteration, msgspec.DecodeError) as error:
            log.debug("ring %s of host %s is not held any more: %s", self.path, self.host, error)
        finally:
            self._is_over = True
            self._opened.set()
            if self._stream is not None:
                self._stream.cancel()


class RingsElsewhere:
    """The rings of a query's channels on other hosts; for the process that plans it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._gateways = gateways_of(options)
        self._producing: dict[str, frozenset[str]] = {}
        """By channel: the hosts of its producers, as they were known last."""
        self._reached: set[str] = set()
        self.unreachable: set[str] = set()
        """Hosts where only ended producers were, and which could not be asked now."""

    def rings(self, channels: list[str], offset: Mapping[str, Mapping[str, Any]]) -> list[RingOnOtherHost]:
        """Return the rings of these channels; `offset` is where the query has come to."""
        found: list[RingOnOtherHost] = []
        self.unreachable = set()
        remembered = {(place.get("channel"), place.get("host")) for place in offset.values()}
        for channel in sorted({*channels, *(str(name) for name, _ in remembered if name)}):
            producing = self._hosts_of(channel)
            others = {str(at) for name, at in remembered if name == channel and at not in (None, this_host())}
            for host in sorted(producing | others):
                listed = self._listed(RingsAsked(channel=channel), host, is_producing=host in producing)
                found += [RingOnOtherHost(self._gateways, channel, host, one) for one in listed.rings]
        return found

    def last_sequence(self, channel: str, host: str, block_id: str) -> int | None:
        """Return the last sequence of a ring that was removed there; None where nothing is known of it."""
        asked = RingsAsked(channel=channel, removed=[block_id])
        return self._again(host, lambda: self._gateways.rings(asked, host)).removed.get(block_id)

    def close(self) -> None:
        self._gateways.close()

    def _hosts_of(self, channel: str) -> frozenset[str]:
        found = discovered(self._options, channel)
        if found is not None:
            places = places_of(found, self._options.directory())
            self._producing[channel] = frozenset(ring.host for ring in places.rings)
        return self._producing.get(channel, frozenset())

    def _listed(self, asked: RingsAsked, host: str, *, is_producing: bool) -> RingsListed:
        try:
            return self._again(host, lambda: self._gateways.rings(asked, host))
        except BlockOnOtherHost as error:
            if is_producing or self._options.fail_on_data_loss:
                raise
            self.unreachable.add(host)
            log.warning("channel %r: what ended producers left on host %s is not read: %s", asked.channel, host, error)
            return RingsListed(rings=[], removed={})

    def _again(self, host: str, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + AGAIN_SECONDS
        while True:
            try:
                found = ask()
            except BlockOnOtherHost:
                if host not in self._reached or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
            else:
                self._reached.add(host)
                return found


def items_elsewhere(
    gateways: Gateways, channel: str, host: str, path: str, start: Position, last: int
) -> Iterator[pa.RecordBatch | Gap]:
    """Give what is there of a ring of another host after a position, up to an item, and what is not."""
    try:
        ring = RemoteRing(gateways, host, _ticket(channel, path, start))
    except (NothingThere, PositionUnknown):
        yield Gap(start.sequence + 1, last)
        return
    with closing(ring):
        if ring.header.block_id != start.block_id:
            yield Gap(start.sequence + 1, last)
            return
        for found in _until(ring, last):
            if isinstance(found, Gap):
                yield found
            elif found.sequence <= last:
                yield rows_of(found.value)


def _until(ring: RemoteRing, last: int) -> Iterator[Item | Gap]:
    while ring.position.sequence < last:
        found = _next(ring)
        if found is None:
            raise DataLost(f"{ring.path} does not give sequence {ring.position.sequence + 1}")
        yield found


def _next(ring: RemoteRing) -> Item | Gap | None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := ring.arm()) is None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        poll = select.poll()
        for fd in ring.wake_fds():
            poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(remaining * 1000):
            ring.woken(fd)
    return found


def _ticket(channel: str, block: str, start: Start) -> FlightTicket:
    begin: Any = list(start) if isinstance(start, Position) else start
    return FlightTicket(channel=channel, kind="ring", block=block, start=begin, lossless=False)
