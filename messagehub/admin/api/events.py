"""Server-sent events under /api/v1/events."""

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from messagehub.admin.authentication import Caller, caller, counters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.errors import HttpError
from messagehub.admin.routes import Operations
from messagehub.errors import TooManySubscriptions
from messagehub.security.rate_limits import Places

MAX_EVENTS_WAITING = 10_000
KEEP_ALIVE_SECONDS = 15.0
SUBSCRIBED_SECONDS = 2.0
MAX_STREAMS = 100
MAX_PREFIX = 300
_END = b"end"
"""In place of an event, in the queue of a stream that is to end."""
_open_streams = Places(MAX_STREAMS)
operations = Operations()


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


@operations.add("GET", "/api/v1/events", "observe", media="text/event-stream")
async def events(backend: BrokerClient, prefix: str = "channel/") -> EventStream:
    """Server-sent events: everything the broker publishes, as it happens."""
    if len(prefix) > MAX_PREFIX:
        raise HttpError(422, 422, f"prefix has {len(prefix)} characters, more than {MAX_PREFIX}")
    backend.callers.check_events(prefix)
    who = caller.get()
    if not _open_streams.take(who.peer):
        counters["http_event_streams"] += 1
        of_one = _open_streams.of_one
        said = f"more than {MAX_STREAMS} event streams would be open, or {of_one} of one caller"
        raise TooManySubscriptions(said, limit=MAX_STREAMS, of_one=of_one)
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_EVENTS_WAITING)
    content = _stream(backend, prefix.encode(), who, waiting)
    return EventStream(content, stop=lambda: _end_stream(waiting), on_end=lambda: _open_streams.give_back(who.peer))


async def _stream(
    backend: BrokerClient, prefix: bytes, who: Caller, waiting: asyncio.Queue[bytes | None]
) -> AsyncIterator[bytes]:
    """Yield events until the server ends.

    It also ends when the caller's token is revoked or has other rights: the caller may ask again, and is checked anew.
    """
    loop = asyncio.get_running_loop()
    has_lost = False

    def put(payload: bytes | None) -> None:
        nonlocal has_lost
        if has_lost or waiting.full():
            has_lost = True  # said when the reader has caught up
        else:
            waiting.put_nowait(payload)

    def on_event(payload: bytes | None) -> None:
        loop.call_soon_threadsafe(put, payload)

    end = backend.hub.tap(prefix, on_event)
    try:
        # The broker says something as soon as it knows of the subscription: from then on nothing is missed.
        by = loop.time() + SUBSCRIBED_SECONDS
        while (first := await _next(waiting, by - loop.time())) is None:
            continue  # what was missed before is nobody's
        yield b": connected\n\n"
        alive_at = loop.time() + KEEP_ALIVE_SECONDS
        while True:
            if has_lost and waiting.empty():
                has_lost = False
                yield b"event: gap\ndata: {}\n\n"
            payload = first or await _next(waiting, alive_at - loop.time())
            first = b""
            if payload is _END or not backend.callers.is_current(who):
                return
            if payload is not None and payload.startswith(b'{"type":"BEACON"'):
                continue  # one a second, which nobody is sent: no sign of life
            alive_at = loop.time() + KEEP_ALIVE_SECONDS
            if payload is None:
                yield b"event: gap\ndata: {}\n\n"
            elif not payload:
                yield b": alive\n\n"
            else:
                yield b"data: " + payload + b"\n\n"
    finally:
        end()


async def _next(waiting: asyncio.Queue[bytes | None], seconds: float) -> bytes | None:
    """Return the next event; empty at the timeout."""
    try:
        return await asyncio.wait_for(waiting.get(), seconds)
    except TimeoutError:
        return b""


def _end_stream(waiting: asyncio.Queue[bytes | None]) -> None:
    """Have the stream end with what is being sent now."""
    while not waiting.empty():
        waiting.get_nowait()
    waiting.put_nowait(_END)
