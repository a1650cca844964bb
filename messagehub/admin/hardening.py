"""What every answer carries and every connection is held to."""

import asyncio
import os
import re
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagehub.admin.callers import counters
from messagehub.admin.errors import error_answer

HEADER_SECONDS = 10.0
READ_SECONDS = 10.0
READ_BYTES = 10_000
"""So much of its answer a caller takes in that time, or is cut off."""
MAX_CONNECTIONS = 1000
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z")
Headers = list[tuple[bytes, bytes]]
_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_CLOSED = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_FOR_DOCS = (
    b"content-security-policy",
    b"default-src 'self'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; style-src https://cdn.jsdelivr.net;"
    b" img-src data: https://fastapi.tiangolo.com; frame-ancestors 'none'",
)
_NO_STORE = (b"cache-control", b"no-store")
_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


class Hardened:
    """Request ids and security headers, around everything. Answers that say nothing of caches are not to be kept."""

    def __init__(self, app: ASGIApp, *, is_tls: bool) -> None:
        self._app = app
        self._headers = [*_HEADERS, *([_TRANSPORT] if is_tls else [])]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["request_id"] = request_id.decode()
        policy = _FOR_DOCS if scope["path"] == "/docs" else _CLOSED

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = _hardened([*message["headers"], *self._headers], policy, request_id)
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, hardened)


def _hardened(given: Headers, policy: tuple[bytes, bytes], request_id: bytes) -> Headers:
    is_kept = any(name == b"cache-control" for name, _ in given)
    return [*given, policy, (b"x-request-id", request_id), *(() if is_kept else (_NO_STORE,))]


def _request_id(scope: Scope) -> bytes:
    """The caller's own, if it is one that may stand in a log; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return bytes(value)
    return _new_id()


def _new_id() -> bytes:
    return os.urandom(8).hex().encode()


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    counters["http_connections"] += 1
    said = f"more than {MAX_CONNECTIONS} connections are open: try again in a moment"
    await error_answer(503, 503, said, {"connection": "close"})(scope, receive, send)


class PatientProtocol(H11Protocol):
    """Bounds what a connection takes: headers have a deadline, as bodies have (parameters.body), and an answer that is
    not read is not kept. What is answered here, before there is a request, is hardened too."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = Hardened(_busy, is_tls=self.scheme == "https")
        self._expect_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        counters["http_malformed"] += 1
        answer = error_answer(400, 400, msg, {"connection": "close"})
        headers = _hardened([*answer.raw_headers, *_HEADERS], _CLOSED, _new_id())
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._deadline is None:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._stop_looking()
        super().connection_lost(exc)

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_SECONDS, self._look_at_reading, unread)

    def _look_at_reading(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - READ_BYTES:
            counters["http_slow_readers"] += 1
            self.transport.abort()
        else:
            self._expect_reading()

    def _stop_looking(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            counters["http_slow_headers"] += 1
            self.transport.close()
