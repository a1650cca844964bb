"""What every answer carries and every connection is held to."""

import asyncio
import os
import re
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagehub.admin import docs_page
from messagehub.admin.callers import counters

HEADER_SECONDS = 10.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z")
_HEADERS: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_CLOSED = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_FOR_DOCS = (b"content-security-policy", docs_page.POLICY.encode())
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
                given = message["headers"]
                headers = [*given, *self._headers, policy, (b"x-request-id", request_id)]
                if not any(name == b"cache-control" for name, _ in given):
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, hardened)


def _request_id(scope: Scope) -> bytes:
    """The caller's own, if it is one that may stand in a log; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return bytes(value)
    return os.urandom(8).hex().encode()


class PatientProtocol(H11Protocol):
    """Ends a connection whose request does not arrive: headers have a deadline, as bodies have (parameters.body)."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._deadline is None:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

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
