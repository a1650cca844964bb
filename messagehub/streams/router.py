"""Correlated streams: many requests in flight, each gets its own messages and no others.

The router does no input or output and reads no clock: whoever owns it hands in each message with the
current time and is told what became of it.

Rule 1: a message given to `route` is in exactly one place: a request's queue (routed), the orphans, or
        gone (dropped); so `received == routed + orphans + dropped` holds after every call.
Rule 2: the messages of one request reach its queues in the order in which they were routed, those that
        came before the registration first.
Rule 3: orphans are bounded in number and age; one that is too old is never replayed, cleaned up or not.
Rule 4: no foreign code that can block runs inside the router: queues are filled with `put_nowait`.
Rule 5: a request that is dropped for inactivity is warned about in the log, and its reader gets a last message that
        says so (EXPIRED), which is not counted.

Any thread may call any method.
"""

from __future__ import annotations

import enum
import logging
import queue
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, Self

import msgspec

from messagehub.errors import ConfigurationError, HubError

log = logging.getLogger("messagehub.streams")

EXPIRED = "request_expired"
"""The kind of the message that ends a request without activity; its body is a `RequestExpired`."""
JUPYTER_CATEGORIES: Mapping[str, frozenset[str]] = {
    "status": frozenset({"status"}),
    "execution": frozenset({"execute_input", "execute_result", "execute_reply", "error", "input_request"}),
    "stream": frozenset({"stream"}),
    "display": frozenset({"display_data", "update_display_data", "clear_output"}),
    "comm": frozenset({"comm_open", "comm_msg", "comm_close"}),
}


class DuplicateRequest(HubError):
    """The request id is already registered; two readers of one stream would each get half of it."""

    code = "DUPLICATE_REQUEST"


class CategoryMismatch(HubError):
    """The queues do not name exactly the router's categories, so some message would have no place."""

    code = "CATEGORY_MISMATCH"


class AmbiguousKind(HubError):
    """A kind of message stands in two categories; each must have its one queue."""

    code = "AMBIGUOUS_KIND"


class StreamExpired(HubError):
    """Nothing came for the request for too long: it was dropped, and what still comes is an orphan."""

    code = "STREAM_EXPIRED"


class StreamMessage(msgspec.Struct, frozen=True):
    """What is routed: `request_id` names the request that caused it, `kind` its type on the wire."""

    request_id: str | None
    """The request that caused it; None for what no request caused."""
    kind: str
    """Its type on the wire, which decides in which queue it goes."""
    body: Any = None
    """The message itself; the router does not look at it."""


class Sink(Protocol):
    """A queue: `queue.SimpleQueue` or `queue.Queue`; a full one raises `queue.Full`."""

    def put_nowait(self, item: StreamMessage, /) -> object: ...


class Routed(enum.Enum):
    """What became of one message."""

    DELIVERED = "delivered"
    ORPHANED = "orphaned"
    DROPPED = "dropped"


# An enum member costs a descriptor call on every look-up.
_DELIVERED, _ORPHANED, _DROPPED = Routed.DELIVERED, Routed.ORPHANED, Routed.DROPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    orphan_limit: int = 1000
    """So many messages that nobody has asked for are kept."""
    orphan_seconds: float = 60.0
    """So long is one of them kept."""
    idle_seconds: float = 300.0
    """A request for which nothing came for so long is dropped."""
    cleanup_seconds: float = 30.0
    """So much time lies between two clean-ups."""

    def __post_init__(self) -> None:
        if self.orphan_limit < 0 or min(self.orphan_seconds, self.idle_seconds, self.cleanup_seconds) <= 0:
            raise ConfigurationError(f"stream limits must be positive: {self}")


@dataclass(frozen=True, slots=True)
class RequestExpired:
    """A request was dropped because nothing came for it for so long."""

    request_id: str
    """The request that was dropped."""
    idle_seconds: float
    """How long nothing had come for it."""

    def error(self) -> StreamExpired:
        return StreamExpired(
            f"nothing came for request {self.request_id} for {self.idle_seconds:.0f} s, and it was dropped:"
            " StreamLimits.idle_seconds sets how long one may be silent",
            request_id=self.request_id,
            idle_seconds=self.idle_seconds,
        )


@dataclass(frozen=True, slots=True)
class Cleanup:
    expired: tuple[RequestExpired, ...]
    """Requests that were dropped for inactivity."""
    orphans_dropped: int
    """Messages that nobody asked for in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """`unknown` counts messages of a kind without a category; they are among the orphans or dropped."""

    active_requests: int
    """Requests that are registered and not complete."""
    orphans: int
    """Messages that wait for their request."""
    subscribers: int
    """Taps that are open."""
    received: int
    """Messages that were given to the router."""
    routed: int
    """Messages that were put into a queue."""
    dropped: int
    """Messages that are gone: too old, too many, or their queue was full."""
    unknown: int
    """Messages of a kind without a category."""


@dataclass(slots=True)
class _Request:
    put_by_kind: dict[str, Callable[[StreamMessage], object]]
    queues: list[Sink]
    active_at: float
    is_complete: bool = False


class Tap:
    """A listener that gets every message before it is routed, in routing order.

    The router holds taps weakly: one that is closed, or that nobody holds any more, is dead and pruned.
    A tap never holds up routing: when its reader lags, the oldest message goes and `dropped` counts it.
    """

    def __init__(self, limit: int) -> None:
        self._messages: deque[StreamMessage] = deque(maxlen=limit)
        self._changed = threading.Condition()
        self.is_closed = False
        """Whether it gets no more messages."""
        self.dropped = 0
        """Messages that were lost because nobody read the tap in time."""

    def offer(self, message: StreamMessage) -> bool:
        """Take one message. Return False once closed."""
        with self._changed:
            if self.is_closed:
                return False
            self.dropped += len(self._messages) == self._messages.maxlen
            self._messages.append(message)
            self._changed.notify()
            return True

    def read(self, timeout_seconds: float | None = None) -> StreamMessage | None:
        """Return the next message; None at the timeout or, after the last one, when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self.is_closed, timeout_seconds)
            return self._messages.popleft() if self._messages else None

    def __iter__(self) -> Iterator[StreamMessage]:
        return iter(self.read, None)

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Orphans:
    """Messages of requests that are not registered, oldest first, found by request in O(1)."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._by_number: OrderedDict[int, tuple[float, StreamMessage]] = OrderedDict()
        self._numbers: dict[str | None, list[int]] = {}  # a deque would be six times the size of most
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, message: StreamMessage, now: float) -> int:
        """Add one, and return how many old ones were dropped for it."""
        self._by_number[self._next_number] = (now, message)
        self._numbers.setdefault(message.request_id, []).append(self._next_number)
        self._next_number += 1
        gone = self.expire(now)
        while len(self._by_number) > self._limits.orphan_limit:
            self._drop_oldest()
            gone += 1
        return gone

    def expire(self, now: float) -> int:
        gone = 0
        while self._by_number:
            arrived_at, _ = next(iter(self._by_number.values()))
            if now - arrived_at < self._limits.orphan_seconds:
                break
            self._drop_oldest()
            gone += 1
        return gone

    def take(self, request_id: str, kinds: Iterable[str]) -> list[StreamMessage]:
        """Remove and return those of one request that have a place now, in their order."""
        numbers = self._numbers.pop(request_id, None)
        if numbers is None:
            return []
        waiting = [(number, self._by_number[number][1]) for number in numbers]
        taken = [(number, message) for number, message in waiting if message.kind in kinds]
        for number, _ in taken:
            del self._by_number[number]
        rest = [number for number, message in waiting if message.kind not in kinds]
        if rest:
            self._numbers[request_id] = rest
        return [message for _, message in taken]

    def _drop_oldest(self) -> None:
        _, (_, message) = self._by_number.popitem(last=False)
        numbers = self._numbers[message.request_id]
        del numbers[0]  # numbers only grow, so the oldest of all is the oldest of its request
        if not numbers:
            del self._numbers[message.request_id]


class StreamRouter:
    def __init__(
        self,
        categories: Mapping[str, Iterable[str]] = JUPYTER_CATEGORIES,
        limits: StreamLimits | None = None,
    ) -> None:
        self.limits = limits or StreamLimits()
        """How much is kept, and for how long."""
        self.category_of: dict[str, str] = {}
        """The category of each kind of message."""
        for category, kinds in categories.items():
            for kind in kinds:
                if self.category_of.setdefault(kind, category) != category:
                    raise AmbiguousKind(f"{kind!r} is in {self.category_of[kind]!r} and {category!r}")
        self.categories = frozenset(categories)
        """The names of all categories: a request has a queue for each."""
        self.next_cleanup_at = -inf
        """When `cleanup` is due, on the caller's clock."""
        # Reentrant: a finalizer may run in the middle of a call, and unregister.
        self._lock = threading.RLock()
        self._requests: dict[str | None, _Request] = {}
        self._orphans = _Orphans(self.limits)
        self._taps: list[weakref.ref[Tap]] = []
        self._received = self._routed = self._dropped = self._unknown = 0

    def register(self, request_id: str, queues: Mapping[str, Sink], *, now: float) -> int:
        """Give a request its queue per category and return how many earlier messages were replayed.

        One queue may serve several categories: then it holds their messages in order of arrival.
        Register before sending the request and nothing can come too early; late registration works too.
        """
        if queues.keys() != self.categories:
            raise CategoryMismatch(f"queues for {sorted(queues)}, categories are {sorted(self.categories)}")
        put_by_kind = {kind: queues[category].put_nowait for kind, category in self.category_of.items()}
        with self._lock:
            if request_id in self._requests:
                raise DuplicateRequest(f"request {request_id!r} is already registered")
            distinct = list({id(each): each for each in queues.values()}.values())
            self._requests[request_id] = _Request(put_by_kind, distinct, now)
            self._dropped += self._orphans.expire(now)
            early = self._orphans.take(request_id, put_by_kind)
            for message in early:
                self._deliver(put_by_kind[message.kind], message)
            return len(early)

    def complete(self, request_id: str) -> None:
        """Take note that the request is done.

        Its later messages go into its queues until it is unregistered or idle.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is not None:
                request.is_complete = True

    def unregister(self, request_id: str) -> bool:
        """Forget a request. Return False if it was not known, or not any more. Its queues keep what they hold."""
        with self._lock:
            return self._requests.pop(request_id, None) is not None

    def route(self, message: StreamMessage, *, now: float) -> Routed:
        with self._lock:
            self._received += 1
            if self._taps:
                self._show(message)
            request = self._requests.get(message.request_id)
            if request is not None:
                request.active_at = now
                put = request.put_by_kind.get(message.kind)
                if put is not None:
                    return self._deliver(put, message)
            if message.kind not in self.category_of:
                self._unknown += 1
            self._dropped += self._orphans.add(message, now)
            return _ORPHANED

    def cleanup(self, *, now: float) -> Cleanup:
        """Drop idle requests, whose readers are told, old orphans and dead taps; due again at `next_cleanup_at`."""
        with self._lock:
            idle = {
                request_id: request
                for request_id, request in self._requests.copy().items()
                if request_id is not None and now - request.active_at >= self.limits.idle_seconds
            }
            expired = []
            for request_id, request in idle.items():
                self._requests.pop(request_id, None)
                if not request.is_complete:
                    expired.append(event := RequestExpired(request_id, now - request.active_at))
                    for sink in request.queues:
                        _put_last(sink, StreamMessage(request_id, EXPIRED, event))
            gone = self._orphans.expire(now)
            self._dropped += gone
            self._prune_taps()
            self.next_cleanup_at = now + self.limits.cleanup_seconds
        for event in expired:
            log.warning("request %s was dropped: nothing came for it for %.0f s", event.request_id, event.idle_seconds)
        return Cleanup(tuple(expired), gone)

    def tap(self, limit: int = 10_000) -> Tap:
        """Return a tap that gets every message. Keep it: the router holds it weakly."""
        tap = Tap(limit)
        with self._lock:
            self._taps.append(weakref.ref(tap))
        return tap

    def stats(self) -> StreamStats:
        with self._lock:
            self._prune_taps()
            return StreamStats(
                active_requests=sum(not request.is_complete for request in self._requests.values()),
                orphans=len(self._orphans),
                subscribers=len(self._taps),
                received=self._received,
                routed=self._routed,
                dropped=self._dropped,
                unknown=self._unknown,
            )

    def _deliver(self, put: Callable[[StreamMessage], object], message: StreamMessage) -> Routed:
        try:
            put(message)
        except queue.Full:
            self._dropped += 1
            return _DROPPED
        self._routed += 1
        return _DELIVERED

    def _show(self, message: StreamMessage) -> None:
        has_dead = False
        for ref in self._taps:
            tap = ref()
            if tap is None or not tap.offer(message):
                has_dead = True
        if has_dead:
            self._prune_taps()

    def _prune_taps(self) -> None:
        self._taps = [ref for ref in self._taps if (tap := ref()) is not None and not tap.is_closed]


def _put_last(sink: Sink, message: StreamMessage) -> None:
    try:
        sink.put_nowait(message)
    except queue.Full:
        log.warning("the reader of request %s is not told that it ended: its queue is full", message.request_id)
