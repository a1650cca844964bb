"""Server-sent events under /api/v1/events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, TypeVar

from fastapi import Header
from pydantic import BeforeValidator, Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from messagehub.admin.api.parameters import NotGiven, whole_number
from messagehub.admin.authentication import Caller, caller, counters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.errors import HttpError
from messagehub.admin.event_history import KINDS, EventHistory, Kind, RecordedEvent
from messagehub.admin.routes import Operations
from messagehub.errors import TooManySubscriptions
from messagehub.security.rate_limits import ConcurrencyLimit
from registry import access

KEEP_ALIVE_SECONDS = 15.0
SUBSCRIBED_SECONDS = 2.0
LOOK_SECONDS = 1.0
"""So often a quiet stream looks whether its caller may still have it."""
MAX_STREAMS = 100
MAX_PREFIX = 300
MAX_AT_ONCE = 1000
_open_streams = ConcurrencyLimit(MAX_STREAMS)
operations = Operations()
T = TypeVar("T")
Newest = Annotated[int, Field(ge=0, le=MAX_AT_ONCE), BeforeValidator(whole_number(0, MAX_AT_ONCE))]


class EventStream(StreamingResponse):
    """A stream of events. It gives its place back when it is over, also if it never began."""

    def __init__(self, content: AsyncIterator[bytes], *, stop: Callable[[], None], on_end: Callable[[], None]) -> None:
        # nginx keeps what it gets from a server until it has some more, unless it is told not to.
        super().__init__(content, headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        self._stop, self._on_end = stop, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["end_stream"] = self._stop  # for the connection, when the server stops
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def open_stream(content: Callable[[Caller, asyncio.Event], AsyncIterator[bytes]]) -> EventStream:
    """Return a stream for this caller, if there is a place; `content` ends when the event is set."""
    who = caller.get()
    if not _open_streams.take(who.peer):
        counters["http_event_streams"] += 1
        of_one = _open_streams.of_one
        said = f"more than {MAX_STREAMS} event streams would be open, or {of_one} of one caller"
        raise TooManySubscriptions(said, limit=MAX_STREAMS, of_one=of_one)
    end = asyncio.Event()
    return EventStream(content(who, end), stop=end.set, on_end=lambda: _open_streams.give_back(who.peer))


@operations.add("GET", "/api/v1/events", "observe", media="text/event-stream", codes=(42202,))
async def events(
    backend: BrokerClient,
    prefix: str | NotGiven = None,
    kinds: str | NotGiven = None,
    newest: Newest = 0,
    last_event_id: Annotated[str | NotGiven, Header()] = None,
) -> EventStream:
    """Server-sent events: everything the broker publishes, as it happens, with ids to go on from.

    `newest` has it begin with so many that have happened already, as far as this process remembers them.
    """
    if kinds is not None and prefix is not None:
        raise HttpError(422, 422, "give kinds or prefix, not both")
    prefix = "channel/" if prefix is None else prefix
    if len(prefix) > MAX_PREFIX:
        raise HttpError(422, 422, f"prefix has {len(prefix)} characters, more than {MAX_PREFIX}")
    if kinds is not None:
        wanted = _named(kinds)

        def is_shown(record: RecordedEvent, who: Caller) -> bool:
            return record.kind in wanted and access.may_see(who.rights, record.topic)
    else:
        backend.callers.check_events(prefix)
        wanted = tuple(kind for kind in KINDS if f"{kind}/".startswith(prefix) or prefix.startswith(f"{kind}/"))

        def is_shown(record: RecordedEvent, who: Caller) -> bool:  # noqa: ARG001  it was checked
            return record.topic.startswith(prefix)

    return open_stream(lambda who, end: _stream(backend, wanted, is_shown, who, end, last_event_id, newest))


def _named(kinds: str) -> tuple[Kind, ...]:
    named = kinds.split(",")
    unknown = [name[:40] for name in named if name not in KINDS]
    if unknown:
        raise HttpError(422, 422, f"kinds are some of {','.join(KINDS)}, with commas between them, not {unknown[0]!r}")
    return tuple(kind for kind in KINDS if kind in named)


async def _stream(
    backend: BrokerClient,
    kinds: tuple[Kind, ...],
    is_shown: Callable[[RecordedEvent, Caller], bool],
    who: Caller,
    end: asyncio.Event,
    last_event_id: str | None,
    newest: int,
) -> AsyncIterator[bytes]:
    """Yield events until the server ends.

    It also ends when the caller's token is revoked or has other rights: the caller may ask again, and is checked anew.
    """
    loop = asyncio.get_running_loop()
    history = backend.events
    history.enter()
    try:
        by = loop.time() + SUBSCRIBED_SECONDS
        while not history.knows(kinds) and loop.time() < by and not end.is_set():
            await wait_until(history.changed(), end, by - loop.time())
        reached = None if last_event_id is None else history.number_after(last_event_id, kinds)
        is_cut = bool(last_event_id) and reached is None
        if newest and not last_event_id:
            reached = history.number_before(newest, lambda record: is_shown(record, who))
        # Before anything is sent: what comes from here on is newer than the id that is told.
        reached, epoch = history.newest_number if reached is None else reached, history.epoch
        # Where older ones follow, each has its own id: this one would have a reconnect leave them out.
        is_told = not newest or reached == history.newest_number
        yield b": connected\n" + (_gap(history) if is_cut else (_id_line(history) if is_told else b"") + b"\n")
        alive_at = loop.time() + KEEP_ALIVE_SECONDS
        while not end.is_set() and backend.callers.is_current(who):
            found = history.records_after(reached)
            if found is None or epoch != history.epoch:
                reached, epoch = history.newest_number, history.epoch
                yield _gap(history)
            elif found:
                found = found[:MAX_AT_ONCE]
                reached = found[-1].number
                shown = b"".join(record.frame for record in found if is_shown(record, who))
                if not shown:
                    continue
                yield shown
            elif loop.time() >= alive_at:
                yield b": alive\n\n"
            else:
                await wait_until(history.changed(), end, min(alive_at - loop.time(), LOOK_SECONDS))
                continue
            alive_at = loop.time() + KEEP_ALIVE_SECONDS
    finally:
        history.leave()


async def wait_until(waiting: Coroutine[None, None, T], end: asyncio.Event, seconds: float) -> T | None:
    """Return what is waited for; None when the end, or the timeout, comes first."""
    task, ended = asyncio.ensure_future(waiting), asyncio.ensure_future(end.wait())
    try:
        await asyncio.wait((task, ended), timeout=max(seconds, 0.0), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        ended.cancel()


def _id_line(history: EventHistory) -> bytes:
    return f"id: {history.newest_id}\n".encode() if history.broker_id else b""


def _gap(history: EventHistory) -> bytes:
    return b"event: gap\n" + _id_line(history) + b"data: {}\n\n"
