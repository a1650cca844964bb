"""The broker client of the HTTP handlers: they await a reply, and the event loop goes on meanwhile.

It caches responses about schemas. Rule: a response is cached only if no schema event came since the broker was asked.
A write through this process empties the cache before the write is answered, a write of anybody else when its event
comes. A beacon empties it only if it tells of an event that did not come.
"""

import asyncio
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from messagehub.admin.authentication import HttpAuthentication
from messagehub.admin.cached_responses import CachedResponse, CachedResponses
from messagehub.admin.event_history import EventHistory
from messagehub.admin.metrics.channels import ChannelItems
from messagehub.admin.metrics.flow import SharedFlow
from messagehub.admin.metrics.history import History
from messagehub.admin.topic_feeds import TopicFeeds
from messagehub.channels.flow import FlowSampler
from messagehub.errors import BrokerTimeout
from messagehub.hub import MessageHub
from messagehub.protocol import Beacon
from messagehub.shm.channel_directory.location import directory_of
from registry import commands, replies

T = TypeVar("T")
R = TypeVar("R", bound=replies.Reply)
MAX_CACHED = 100_000
MAX_CACHED_BYTES = 64 << 20
BELIEVED_SECONDS = 1.0
"""How long a newest version or a lookup is believed without asking, in case an event is lost."""
SCHEMA_CHECK_SECONDS = 15.0
"""Longer than the check of one schema may take, so that the refusal of one that is too complex names the budget."""
MAX_PROBES = 8
LookUp = tuple[str, bytes, bytes]
"""Path, query and body: all that the response depends on."""


class BrokerClient:
    def __init__(self, hub: MessageHub, callers: HttpAuthentication, *, is_draining: bool = False) -> None:
        self.hub = hub
        self.callers = callers
        self.is_draining = is_draining
        self.generation = 0
        self.channel_items = ChannelItems()
        self.flow = SharedFlow(FlowSampler(directory_of(hub.settings)), self.run_for_monitor)
        self.history = History(self)
        self.events = EventHistory(hub)
        self.topic_feeds = TopicFeeds(hub)
        self._by_id = CachedResponses(max_entries=MAX_CACHED, max_bytes=MAX_CACHED_BYTES)
        self._latest = CachedResponses(max_entries=MAX_CACHED, max_bytes=MAX_CACHED_BYTES)
        self._looked_up = CachedResponses(max_entries=MAX_CACHED, max_bytes=MAX_CACHED_BYTES)
        self._monitoring = anyio.CapacityLimiter(MAX_PROBES)
        self._changing = threading.Lock()
        self._heard = ("", 0)
        hub.tap(b"schema/", self._on_schema_event)

    async def ask(self, command: commands.Command, kind: type[R]) -> R:
        self.callers.check(command)
        try:
            reply = await self.hub.ask_async(command, timeout=self._timeout(command))
        finally:
            if command.writes:  # one that was not answered may have happened all the same
                self._change(permanent=isinstance(command, _REMOVING))
        self.callers.check_answer(command, reply)
        assert isinstance(reply, kind), reply
        return reply

    async def probe(self, command: commands.Command, kind: type[R], *, seconds: float) -> R:
        """Ask the broker for a monitor. Raise BrokerTimeout after `seconds`, also while all other threads wait."""
        self.callers.check(command)
        try:
            async with asyncio.timeout(seconds):
                reply = await self.run_for_monitor(partial(self.hub.ask, command, timeout=seconds))
        except TimeoutError:
            raise BrokerTimeout("the broker did not answer in time", endpoint=self.hub.settings.endpoint) from None
        assert isinstance(reply, kind), reply
        return reply

    async def run_for_monitor(self, function: Callable[[], T]) -> T:
        """Call it on one of the threads that only monitors use, since all others may be waiting for the broker."""
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._monitoring)

    async def change(self, command: commands.Command, made_by: Callable[[MessageHub], R]) -> R:
        """Make a change that takes more than one request, since memory is freed here too.

        `command` says which right it takes.
        """
        self.callers.check(command)
        reply = await run_in_threadpool(made_by, self.hub)
        self.callers.check_answer(command, reply)  # type: ignore[arg-type]  # any reply is one of AnyReply
        return reply

    def _timeout(self, command: commands.Command) -> float | None:
        if not isinstance(command, commands.SchemaText | commands.CreateChannel):
            return None
        return max(SCHEMA_CHECK_SECONDS, self.hub.settings.request_timeout_seconds)

    async def subjects(self, prefix: str, deleted: commands.Deleted) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            command = commands.ListSchemas(prefix=prefix, deleted=deleted, after=after, limit=10_000)
            page = await self.ask(command, replies.SchemaList)
            found += page.subjects
            after = page.next
        return found

    def cached(self, path: str) -> CachedResponse | None:
        return self._by_id.get(path) or self._latest.get(path)

    def cached_look_up(self, asked: LookUp) -> CachedResponse | None:
        return self._looked_up.get(asked)

    def cache_id(self, path: str, answer: Response, generation: int) -> None:
        """Cache a schema by its id. It never changes; a permanent delete removes it from the cache."""
        self._put(self._by_id, path, CachedResponse.of(answer, float("inf"), len(path)), generation)

    def cache_latest(self, path: str, answer: Response, generation: int) -> None:
        self._put(self._latest, path, CachedResponse.of(answer, BELIEVED_SECONDS, len(path)), generation)

    def cache_look_up(self, asked: LookUp, answer: Response, generation: int) -> None:
        self._put(self._looked_up, asked, CachedResponse.of(answer, BELIEVED_SECONDS, sum(map(len, asked))), generation)

    def _put(self, responses: CachedResponses, key: Hashable, response: CachedResponse, generation: int) -> None:
        with self._changing:
            if generation == self.generation:
                responses.put(key, response)

    def _change(self, *, permanent: bool) -> None:
        with self._changing:
            self.generation += 1
            self._latest.clear()
            self._looked_up.clear()
            if permanent:
                self._by_id.clear()

    def _on_schema_event(self, payload: bytes | None) -> None:
        """Empty the caches, on the hub's I/O thread. None means that events may have been missed."""
        said = _SchemaNews(type="") if payload is None else _news_of(payload)
        broker_id, newest = self._heard
        if said.type != _BEACON:
            self._heard = (broker_id, max(newest, said.revision))
            self._change(permanent=payload is None or said.permanent)
        elif said.broker_id != broker_id or said.revision > newest:
            self._heard = (said.broker_id, said.revision)
            self._change(permanent=True)


_REMOVING = (commands.DeleteSchema, commands.SetSchemaMode)
"""Commands that may remove schemas permanently: in mode IMPORT, new schemas replace softly deleted ones."""


_BEACON = Beacon.__struct_config__.tag


class _SchemaNews(msgspec.Struct):
    """The fields of a schema event or a beacon that the caches need."""

    type: str
    revision: int = 0
    broker_id: str = ""
    permanent: bool = False


_news_of = msgspec.json.Decoder(_SchemaNews).decode
