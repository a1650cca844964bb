"""The broker as the HTTP routes see it: ask and get a reply, without holding up the event loop.

Answers that are asked for again and again are kept. Rule: what is kept was true when no schema event had come since it
was asked for; a write through this process ends it before the write is answered, anybody else's with its event. A
beacon ends it only when it tells of an event that did not come.
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
from messagehub.admin.metrics.channels import ChannelItems
from messagehub.errors import BrokerTimeout
from messagehub.hub import MessageHub
from messagehub.protocol import Beacon
from messagehub.shm.location import directory_of
from registry import commands, replies

T = TypeVar("T")
R = TypeVar("R", bound=replies.Reply)
MAX_KEPT = 100_000
MAX_KEPT_BYTES = 64 << 20
BELIEVED_SECONDS = 1.0
"""How long a newest version or a lookup is believed without asking, should its end not be heard of."""
VERDICT_SECONDS = 15.0
"""More than one schema may take to be checked, so that the answer to too much of it names the budget."""
MAX_PROBES = 8
LookUp = tuple[str, bytes, bytes]
"""Path, query and body: all that the answer depends on."""


class BrokerClient:
    def __init__(self, hub: MessageHub, callers: HttpAuthentication, *, is_draining: bool = False) -> None:
        self.hub = hub
        self.callers = callers
        self.is_draining = is_draining
        self.generation = 0
        self.channel_items = ChannelItems(directory_of(hub.settings))
        self._by_id = CachedResponses(max_entries=MAX_KEPT, max_bytes=MAX_KEPT_BYTES)
        self._latest = CachedResponses(max_entries=MAX_KEPT, max_bytes=MAX_KEPT_BYTES)
        self._looked_up = CachedResponses(max_entries=MAX_KEPT, max_bytes=MAX_KEPT_BYTES)
        self._monitoring = anyio.CapacityLimiter(MAX_PROBES)
        self._changing = threading.Lock()
        self._heard = ("", 0)
        hub.tap(b"schema/", self._on_schema_event)

    async def ask(self, command: commands.Command, kind: type[R]) -> R:
        self.callers.check(command)
        try:
            reply = await run_in_threadpool(self.hub.ask, command, timeout=self._patience(command))
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
        """Run it in one of the threads that only monitors use: all others may be waiting for the broker."""
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=self._monitoring)

    async def change(self, command: commands.Command, made_by: Callable[[MessageHub], R]) -> R:
        """What takes more than a request, because memory is freed here too; `command` says what rights it takes."""
        self.callers.check(command)
        reply = await run_in_threadpool(made_by, self.hub)
        self.callers.check_answer(command, reply)  # type: ignore[arg-type]  # any reply is one of AnyReply
        return reply

    def _patience(self, command: commands.Command) -> float | None:
        if not isinstance(command, commands.SchemaText | commands.CreateChannel):
            return None
        return max(VERDICT_SECONDS, self.hub.settings.request_timeout_seconds)

    async def subjects(self, prefix: str, deleted: commands.Deleted) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            command = commands.ListSchemas(prefix=prefix, deleted=deleted, after=after, limit=10_000)
            page = await self.ask(command, replies.SchemaList)
            found += page.subjects
            after = page.next
        return found

    def kept(self, path: str) -> CachedResponse | None:
        return self._by_id.get(path) or self._latest.get(path)

    def kept_look_up(self, asked: LookUp) -> CachedResponse | None:
        return self._looked_up.get(asked)

    def keep_id(self, path: str, answer: Response, generation: int) -> None:
        """A schema by id never changes; a permanent delete ends it."""
        self._keep(self._by_id, path, CachedResponse.of(answer, float("inf"), len(path)), generation)

    def keep_latest(self, path: str, answer: Response, generation: int) -> None:
        self._keep(self._latest, path, CachedResponse.of(answer, BELIEVED_SECONDS, len(path)), generation)

    def keep_look_up(self, asked: LookUp, answer: Response, generation: int) -> None:
        self._keep(
            self._looked_up, asked, CachedResponse.of(answer, BELIEVED_SECONDS, sum(map(len, asked))), generation
        )

    def _keep(self, answers: CachedResponses, key: Hashable, kept: CachedResponse, generation: int) -> None:
        with self._changing:
            if generation == self.generation:
                answers.put(key, kept)

    def _change(self, *, permanent: bool) -> None:
        with self._changing:
            self.generation += 1
            self._latest.clear()
            self._looked_up.clear()
            if permanent:
                self._by_id.clear()

    def _on_schema_event(self, payload: bytes | None) -> None:
        """On the hub's I/O thread; None means that events may have been missed."""
        said = _SchemaNews(type="") if payload is None else _news_of(payload)
        broker_id, newest = self._heard
        if said.type != _BEACON:
            self._heard = (broker_id, max(newest, said.revision))
            self._change(permanent=payload is None or said.permanent)
        elif said.broker_id != broker_id or said.revision > newest:
            self._heard = (said.broker_id, said.revision)
            self._change(permanent=True)


_REMOVING = (commands.DeleteSchema, commands.SetSchemaMode)
"""What may remove schemas for good: mode IMPORT takes the place of softly deleted ones."""


_BEACON = Beacon.__struct_config__.tag


class _SchemaNews(msgspec.Struct):
    """All that the caches need of a schema event or a beacon."""

    type: str
    revision: int = 0
    broker_id: str = ""
    permanent: bool = False


_news_of = msgspec.json.Decoder(_SchemaNews).decode
