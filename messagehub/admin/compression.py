"""Compression of answers with gzip, for callers that take it, where it is worth the time.

Small answers, which are most of them, are left as they are, and so are event streams, which must not wait.
"""

import gzip
from functools import partial

import anyio
import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_BYTES = 4096
AT_ONCE_BYTES = 64 << 10
"""More than this is compressed by a thread, so that others are served meanwhile."""
_threads = anyio.CapacityLimiter(4)
"""Compression has threads of its own: those of requests may all be waiting for the broker."""
_LEVEL = 1  # JSON becomes a tenth of its size at any level, and this one takes a fifth of the time of the default


class Compressed:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not takes_gzip(scope):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def send_compressed(message: Message) -> None:
            """Hold the head back until the body shows whether it is whole, and large enough."""
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                head, start = start, None
                if not message.get("more_body") and len(message.get("body", b"")) >= LEAST_BYTES:
                    head, message = await compressed(head, message)
                await send(head)
            await send(message)

        await self._app(scope, receive, send_compressed)


def takes_gzip(scope: Scope) -> bool:
    """Return whether `Accept-Encoding` names gzip, or anything, with a weight that is not 0."""
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for part in value.decode("latin-1").lower().split(","):
                coding, _, weight = (text.strip() for text in part.partition(";"))
                if coding in ("gzip", "*"):
                    return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


async def compressed(head: Message, message: Message) -> tuple[Message, Message]:
    """Return head and body of an answer, compressed."""
    body = message["body"]
    if len(body) > AT_ONCE_BYTES:
        packed = await anyio.to_thread.run_sync(partial(gzip.compress, body, _LEVEL, mtime=0), limiter=_threads)
    else:
        packed = gzip.compress(body, _LEVEL, mtime=0)
    headers = [_weak(name, value) for name, value in head["headers"] if name != b"content-length"]
    length = str(len(packed)).encode()
    headers += [(b"content-encoding", b"gzip"), (b"content-length", length)]
    return {**head, "headers": headers}, {**message, "body": packed}


def _weak(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the weak form of an ETag, for the same content in other bytes."""
    return (name, b"W/" + value) if name == b"etag" and not value.startswith(b"W/") else (name, value)
