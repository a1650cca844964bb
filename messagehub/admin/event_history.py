"""The newest events of the registry, for all event streams of this process.

Rule 1: it follows the events of all kinds while a stream is open, and for `KEPT_SECONDS` after the last one, so that a
stream that was cut can go on, and whoever looks again sees what happened in between.
Rule 2: the id of an event is BROKER.REVISION.SERVICES: the broker, and the newest revision of the registry and of its
services, which are counted apart, up to and including the event. Whoever knows an id can be told what came after it,
if everything since then is here; `complete_since` says for each kind from when on.
Rule 3: when events may have been missed (the connection was lost, a beacon names a revision that did not come) it
begins anew, and `epoch` grows: every stream tells of a gap.
Rule 4: it is bounded in number and bytes. A stream that is slower than that has missed something too.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import msgspec

from messagehub.hub import MessageHub
from messagehub.protocol import Beacon
from registry.events import channel_topic, schema_topic, service_topic

Kind = Literal["channel", "schema", "topic", "service"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_EVENTS = 10_000
MAX_BYTES = 16 << 20
KEPT_SECONDS = 3600.0
_BEACON = Beacon.__struct_config__.tag


class RecordedEvent(NamedTuple):
    number: int
    kind: Kind
    revision: int
    topic: str
    frame: bytes
    """As a stream sends it."""


class _OfSubject(msgspec.Struct):
    subject: str = ""


class _Glance(msgspec.Struct):
    """The fields of an event, or of a beacon, that say where it belongs."""

    type: str
    revision: int = 0
    broker_id: str = ""
    channel: str = ""
    subject: str = ""
    name: str = ""
    address: str = ""
    schema: _OfSubject | None = None

    def topic(self, kind: Kind) -> str:
        if kind == "channel":
            return channel_topic(self.channel)
        if kind == "service":
            return service_topic(self.address)
        if kind == "topic":
            return f"topic/{self.name}/"
        return schema_topic(self.subject or (self.schema.subject if self.schema is not None else ""))


_glance = msgspec.json.Decoder(_Glance).decode


class EventHistory:
    """Used in the event loop."""

    def __init__(self, hub: MessageHub) -> None:
        self.epoch = 0
        self.broker_id = ""
        self._hub = hub
        self._records: deque[RecordedEvent] = deque()
        self._bytes = 0
        self._number = 0  # of the newest record
        self._newest: dict[Kind, int] = {}  # the newest revision of each kind, once a beacon has said it
        self._complete_since: dict[Kind, int] = {}
        self._unsure: set[Kind] = set()
        self._streams = 0
        self._ends: list[Callable[[], None]] = []
        self._idle: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    # -- for streams ---------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A stream is open; begin to follow, if that is not done already."""
        loop = asyncio.get_running_loop()
        self._streams += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._ends:
            self._ends = [self._hub.tap(f"{kind}/".encode(), self._listener(loop, kind)) for kind in KINDS]

    def leave(self) -> None:
        self._streams -= 1
        if not self._streams:
            self._idle = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._end)

    def knows(self, kinds: tuple[Kind, ...]) -> bool:
        """Return whether nothing of these kinds is missed from now on."""
        return all(kind in self._newest and kind not in self._unsure for kind in kinds)

    @property
    def newest_id(self) -> str:
        revision = max((self._newest.get(kind, 0) for kind in KINDS if kind != "service"), default=0)
        return f"{self.broker_id}.{revision}.{self._newest.get('service', 0)}"

    @property
    def newest_number(self) -> int:
        return self._number

    def number_after(self, event_id: str, kinds: tuple[Kind, ...]) -> int | None:
        """Return the number of the last record that is not newer than the event with this id; None where something
        since then is not here."""
        broker_id, _, rest = event_id.partition(".")
        revision, _, services = rest.partition(".")
        if broker_id != self.broker_id or not (revision.isdigit() and services.isdigit() and len(rest) <= 40):
            return None
        reached = {kind: int(services if kind == "service" else revision) for kind in KINDS}
        if any(self._complete_since.get(kind, reached[kind] + 1) > reached[kind] for kind in kinds):
            return None
        if any(reached[kind] > self._newest[kind] for kind in kinds if kind == "service"):
            return None
        newer = (record.number for record in self._records if record.revision > reached[record.kind])
        return next(newer, self._number + 1) - 1

    def number_before(self, count: int, is_wanted: Callable[[RecordedEvent], bool]) -> int:
        """Return the number after which the newest `count` of those that are wanted come."""
        for record in reversed(self._records):
            count -= is_wanted(record)
            if count <= 0:
                return record.number - 1
        return self._records[0].number - 1 if self._records else self._number

    def records_after(self, number: int) -> list[RecordedEvent] | None:
        """Return what came after a record; None if some of it is not here any more."""
        if number >= self._number:
            return []
        first = self._records[0].number if self._records else self._number + 1
        if number + 1 < first:
            return None
        return [self._records[index] for index in range(number + 1 - first, len(self._records))]

    async def changed(self) -> None:
        """Wait until there is something new."""
        await self._changed.wait()

    # -- from the hub --------------------------------------------------------------------------------------

    def _listener(self, loop: asyncio.AbstractEventLoop, kind: Kind) -> Callable[[bytes | None], None]:
        def on_event(payload: bytes | None) -> None:
            loop.call_soon_threadsafe(self._take, kind, payload)

        return on_event

    def _take(self, kind: Kind, payload: bytes | None) -> None:
        if not self._ends:
            return  # it has ended meanwhile
        if payload is None:
            self._unsure.add(kind)
            return
        seen = _glance(payload)
        if seen.type == _BEACON:
            self._hear_beacon(kind, seen)
        elif kind in self._unsure or kind not in self._newest:
            self._begin_anew()  # the broker says the newest revision before any event
        else:
            self._newest[kind] = max(self._newest[kind], seen.revision)
            self._add(kind, seen, payload)

    def _hear_beacon(self, kind: Kind, seen: _Glance) -> None:
        newest = self._newest.get(kind)
        is_other = self.broker_id not in ("", seen.broker_id)
        if is_other or (newest is not None and seen.revision > newest):
            self._begin_anew()
            newest = None
        self.broker_id = seen.broker_id
        if newest is None:
            self._newest[kind] = self._complete_since[kind] = seen.revision
        if newest is None or kind in self._unsure:
            self._unsure.discard(kind)
            self._tell()

    def _add(self, kind: Kind, seen: _Glance, payload: bytes) -> None:
        self._number += 1
        frame = b"id: %s\ndata: %s\n\n" % (self.newest_id.encode(), payload)
        self._records.append(RecordedEvent(self._number, kind, seen.revision, seen.topic(kind), frame))
        self._bytes += len(frame)
        while len(self._records) > MAX_EVENTS or self._bytes > MAX_BYTES:
            dropped = self._records.popleft()
            self._bytes -= len(dropped.frame)
            self._complete_since[dropped.kind] = dropped.revision
        self._tell()

    def _begin_anew(self) -> None:
        if self._newest:
            self.epoch += 1
        self._records.clear()
        self._bytes = 0
        self._newest, self._complete_since, self._unsure = {}, {}, set()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _end(self) -> None:
        for end in self._ends:
            end()
        self._ends, self._idle = [], None
        self._begin_anew()
        self.broker_id = ""
