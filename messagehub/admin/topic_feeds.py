"""What is published to topics, for the streams of this process.

Rule 1: all streams of one pattern share a subscription and its encoded messages; it ends with the last of them.
Rule 2: a feed shows at most `SHOWN_AT_ONCE` messages every `TURN_SECONDS`, the newest ones, and tells how many it left
out. So what a console costs does not depend on how much is published.
"""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from messagehub.admin.item_rows import shown_rows
from messagehub.errors import HubError, ReceiveTimeout
from messagehub.hub import MessageHub
from messagehub.topics.messages import Message
from messagehub.topics.subscriptions import Subscription

log = logging.getLogger("messagehub.http")

TURN_SECONDS = 0.2
SHOWN_AT_ONCE = 20
BUFFER = 1000
MAX_WAITING = 50
MAX_PAYLOAD_BYTES = 64 << 10
SHOWN_ROWS = 20

ENDED = b"ended"
"""In place of a batch: the feed has ended."""
Batches = asyncio.Queue[bytes]
"""What a stream sends next."""


class TopicFeeds:
    """Used in the event loop."""

    def __init__(self, hub: MessageHub) -> None:
        self._hub = hub
        self._feeds: dict[str, _Feed] = {}

    @asynccontextmanager
    async def follow(self, pattern: str) -> AsyncIterator[Batches]:
        """Give a queue of what is published to topics that match, from now on."""
        feed = self._feeds.get(pattern)
        if feed is None:
            feed = self._feeds[pattern] = _Feed(
                asyncio.ensure_future(self._hub.subscribe_async(pattern, buffer=BUFFER))
            )
        batches: Batches = asyncio.Queue(MAX_WAITING)
        feed.listeners.append(batches)
        try:
            await asyncio.shield(feed.subscribing)
            feed.begin()
            yield batches
        finally:
            feed.listeners.remove(batches)
            if not feed.listeners and self._feeds.get(pattern) is feed:
                del self._feeds[pattern]
                await feed.end()


class _Feed:
    def __init__(self, subscribing: "asyncio.Future[Subscription]") -> None:
        self.subscribing = subscribing
        self.listeners: list[Batches] = []
        self._turning: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._turning is None:
            self._turning = asyncio.get_running_loop().create_task(self._turn(self.subscribing.result()))

    async def end(self) -> None:
        if self._turning is not None:
            self._turning.cancel()
        self.subscribing.add_done_callback(_close)

    async def _turn(self, subscription: Subscription) -> None:
        lost = subscription.lost
        try:
            while True:
                messages = [await subscription.receive_async()]
                while subscription.buffered and len(messages) < BUFFER:
                    try:
                        messages.append(await subscription.receive_async(0.0))
                    except ReceiveTimeout:
                        break
                left_out = max(len(messages) - SHOWN_AT_ONCE, 0) + subscription.lost - lost
                lost = subscription.lost
                self._send(messages[-SHOWN_AT_ONCE:], left_out)
                await asyncio.sleep(TURN_SECONDS)
        except HubError as error:
            log.info("the live tail of topics ends: %s", error.message)
        finally:
            for batches in self.listeners:
                _put(batches, ENDED)

    def _send(self, messages: list[Message], left_out: int) -> None:
        said = b'event: skipped\ndata: {"count":%d}\n\n' % left_out if left_out else b""
        batch = said + b"".join(b"data: " + _encoded(message) + b"\n\n" for message in messages)
        for batches in self.listeners:
            _put(batches, batch)


def _put(batches: Batches, batch: bytes) -> None:
    """Queue a batch. A stream that does not keep up loses its oldest one, and is told so."""
    if batches.full():
        batches.get_nowait()
        batch = batch if batch is ENDED else b"event: skipped\ndata: {}\n\n" + batch
    batches.put_nowait(batch)


def _close(subscribing: "asyncio.Future[Subscription]") -> None:
    """Close a subscription that nobody wants any more, in a thread: it may wait for the one that receives."""
    if not subscribing.cancelled() and subscribing.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, subscribing.result().close)


def _encoded(message: Message) -> bytes:
    fields: dict[str, Any] = {
        "topic": message.topic,
        "number": message.number,
        "offset": message.offset,
        "publisher": message.publisher.hex(),
        "sent_at": message.sent_at,
        "headers": message.headers,
        "size_bytes": message.size_bytes,
    }
    if message.size_bytes > MAX_PAYLOAD_BYTES:
        return msgspec.json.encode(fields | {"kind": "large", "payload": None, "truncated": True})
    try:
        kind, payload = _shown(message.payload)
    except HubError as error:
        kind, payload = "lost", error.message
    return msgspec.json.encode(fields | {"kind": kind, "payload": payload, "truncated": False}, enc_hook=str)


def _shown(payload: Any) -> tuple[str, Any]:
    if isinstance(payload, bytes | bytearray | memoryview):
        data = bytes(payload)
        try:
            return "text", data.decode()
        except UnicodeDecodeError:
            return "bytes", base64.b64encode(data).decode()
    if hasattr(payload, "schema"):
        return "arrow", shown_rows(payload, SHOWN_ROWS)
    if hasattr(payload, "dtype"):
        return "numpy", shown_rows(payload, SHOWN_ROWS)
    return "json", payload
