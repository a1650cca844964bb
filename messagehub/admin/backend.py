"""The broker as the HTTP routes see it: ask and get a reply, without holding up the event loop."""

from typing import TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool

from messagehub.hub import MessageHub
from registry import commands, replies

R = TypeVar("R", bound=replies.Reply)
MAX_CACHED = 100_000


class Backend:
    def __init__(self, hub: MessageHub) -> None:
        self.hub = hub
        self.is_draining = False
        self.cached_ids: dict[bytes, bytes] = {}
        hub.tap(b"schema/", self._on_schema_event)

    async def ask(self, command: commands.Command, kind: type[R]) -> R:
        reply = await run_in_threadpool(self.hub.ask, command)
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

    def cache(self, schema_id: bytes, payload: bytes) -> None:
        """Schemas by id never change; a permanent delete empties the cache."""
        if len(self.cached_ids) >= MAX_CACHED:
            self.cached_ids.clear()
        self.cached_ids[schema_id] = payload

    def _on_schema_event(self, payload: bytes | None) -> None:
        """On the hub's I/O thread; None means that events may have been missed."""
        if payload is None or msgspec.json.decode(payload, type=_Deleted).permanent:
            self.cached_ids.clear()


class _Deleted(msgspec.Struct):
    permanent: bool = False
