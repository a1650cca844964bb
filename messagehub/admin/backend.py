"""The broker as the HTTP routes see it: ask and get a reply, without holding up the event loop.

Answers that are asked for again and again are kept. Rule: what is kept was true when no schema event had come since it
was asked for; a write through this process ends it before the write is answered, anybody else's with its event.
"""

import threading
import time
from typing import NamedTuple, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from messagehub.admin.callers import Callers
from messagehub.hub import MessageHub
from registry import commands, replies

R = TypeVar("R", bound=replies.Reply)
MAX_CACHED = 100_000
LATEST_SECONDS = 1.0
"""How long a newest version is believed without asking, should its end not be heard of."""


class Kept(NamedTuple):
    payload: bytes
    headers: list[tuple[bytes, bytes]]
    until: float


class Backend:
    def __init__(self, hub: MessageHub, callers: Callers) -> None:
        self.hub = hub
        self.callers = callers
        self.is_draining = False
        self.generation = 0
        self._by_id: dict[str, Kept] = {}
        self._latest: dict[str, Kept] = {}
        self._changing = threading.Lock()
        hub.tap(b"schema/", self._on_schema_event)

    async def ask(self, command: commands.Command, kind: type[R]) -> R:
        self.callers.check(command)
        reply = await run_in_threadpool(self.hub.ask, command)
        self.callers.check_answer(command, reply)
        if command.writes:
            self._change(permanent=isinstance(command, commands.DeleteSchema))
        assert isinstance(reply, kind), reply
        return reply

    async def subjects(self, prefix: str, deleted: commands.Deleted) -> list[str]:
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            command = commands.ListSchemas(prefix=prefix, deleted=deleted, after=after, limit=10_000)
            page = await self.ask(command, replies.SchemaList)
            found += page.subjects
            after = page.next
        return found

    def kept(self, path: str) -> Kept | None:
        found = self._by_id.get(path) or self._latest.get(path)
        return found if found is not None and found.until > time.monotonic() else None

    def keep_id(self, path: str, answer: Response, generation: int) -> None:
        """A schema by id never changes; a permanent delete ends it."""
        self._keep(self._by_id, path, Kept(bytes(answer.body), answer.raw_headers, float("inf")), generation)

    def keep_latest(self, path: str, answer: Response, generation: int) -> None:
        kept = Kept(bytes(answer.body), answer.raw_headers, time.monotonic() + LATEST_SECONDS)
        self._keep(self._latest, path, kept, generation)

    def _keep(self, cache: dict[str, Kept], path: str, kept: Kept, generation: int) -> None:
        with self._changing:
            if generation != self.generation:
                return
            if len(cache) >= MAX_CACHED:
                cache.clear()
            cache[path] = kept

    def _change(self, *, permanent: bool) -> None:
        with self._changing:
            self.generation += 1
            self._latest.clear()
            if permanent:
                self._by_id.clear()

    def _on_schema_event(self, payload: bytes | None) -> None:
        """On the hub's I/O thread; None means that events may have been missed."""
        self._change(permanent=payload is None or msgspec.json.decode(payload, type=_Deleted).permanent)


class _Deleted(msgspec.Struct):
    permanent: bool = False
