"""The headers that every answer carries, and the counting of answers."""

import logging
import random
import re
import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messagehub.admin.metrics.http import OTHER, answered
from messagehub.runtime.logs import one_line

Header = tuple[bytes, bytes]
access_log = logging.getLogger("messagehub.http.access")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}\Z")
_HEADERS: list[Header] = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_CLOSED = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_FOR_PAGES = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)
_PAGES = ("/docs", "/console/")
_NO_STORE = (b"cache-control", b"no-store")
_TRANSPORT = (b"strict-transport-security", b"max-age=31536000")


class SecurityHeaders:
    """The middleware around everything: request ids, security headers and the access log."""

    def __init__(self, app: ASGIApp, *, is_tls: bool, has_access_log: bool = False) -> None:
        self._app = app
        self._is_tls = is_tls
        self._has_access_log = has_access_log
        if has_access_log:  # whatever the level of the rest
            access_log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["request_id"] = request_id.decode()
        began = time.monotonic()

        def send_hardened(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                policy = _FOR_PAGES if scope["path"] in _PAGES else _CLOSED
                message["headers"] = hardened(message["headers"], request_id, policy, is_tls=self._is_tls)
                seconds = time.monotonic() - began
                answered.record(scope["method"], scope.get("route_template", OTHER), message["status"], seconds)
                if self._has_access_log:
                    _log_access(scope, message["status"], seconds)
            return send(message)

        await self._app(scope, receive, send_hardened)


def hardened(given: list[Header], request_id: bytes, policy: Header = _CLOSED, *, is_tls: bool) -> list[Header]:
    """Return the headers of an answer, hardened. An answer that says nothing of caches is not to be cached."""
    headers = [*given, *_HEADERS, policy, (b"x-request-id", request_id)]
    if is_tls:
        headers.append(_TRANSPORT)
    for name, _ in given:
        if name == b"cache-control":
            return headers
    headers.append(_NO_STORE)
    return headers


def _log_access(scope: Scope, status: int, seconds: float) -> None:
    """Never the query: somebody may have put a token there."""
    client, caller = scope.get("client"), scope.get("caller")
    asked = one_line(f"{scope['method']} {scope['path']}")
    who = one_line(caller.name) if caller is not None else "-"
    address = client[0] if client else "-"
    access_log.info('%s %s "%s" %d %.3f ms %s', address, who, asked, status, seconds * 1000, scope["request_id"])


def new_request_id() -> bytes:
    """Return an id by which logs name a request. It is no secret, so that any random number will do."""
    return b"%016x" % random.getrandbits(64)


def _request_id(scope: Scope) -> bytes:
    """Return the caller's own request id, if it may be written to a log; else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return bytes(value)
    return new_request_id()
