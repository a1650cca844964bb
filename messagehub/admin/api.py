"""Our own API under /api/v1, health, readiness and metrics."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from messagehub.admin import parameters
from messagehub.admin.backend import Backend
from messagehub.admin.confluent import schema_fields
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import HttpError, answer
from messagehub.admin.parameters import SchemaBody
from messagehub.admin.prometheus import exposition
from messagehub.admin.validation import validate
from registry import commands, replies
from registry.schema_catalog import LATEST

MAX_EVENTS_WAITING = 10_000
KEEP_ALIVE_SECONDS = 15.0


class ChannelBody(msgspec.Struct):
    """What CHANNEL_CREATE takes."""

    schema_hash: str | None = None
    schema_version: str | None = None
    schema: dict[str, Any] | str | bool | None = None
    schema_type: str | None = None
    access: str | None = None
    priority: str = "normal"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class Api:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    # -- health --------------------------------------------------------------------------------------------

    async def health(self, _: Request) -> Response:
        """This process lives."""
        return answer(200, {"status": "healthy"})

    async def ready(self, _: Request) -> Response:
        """The broker answers, and can be written."""
        pong = await self._backend.ask(commands.Ping(), replies.Pong)
        status = "read_only" if pong.read_only else "ready"
        return answer(503 if pong.read_only else 200, {"status": status, "revision": pong.revision})

    async def metrics(self, _: Request) -> Response:
        report = await self._backend.ask(commands.Stats(), replies.StatsReport)
        return Response(exposition(report), 200, None, "text/plain; version=0.0.4")

    async def stats(self, _: Request) -> Response:
        return answer(200, await self._backend.ask(commands.Stats(), replies.StatsReport))

    async def traces(self, request: Request) -> Response:
        limit = _bounded(request, "limit", 100, 10_000)
        command = commands.Trace(correlation_id=request.query_params.get("id"), limit=limit)
        return answer(200, (await self._backend.ask(command, replies.TraceReport)).exchanges)

    # -- channels ------------------------------------------------------------------------------------------

    async def channels(self, request: Request) -> Response:
        found: list[replies.ChannelSummary] = []
        after: str | None = ""
        while after is not None:
            command = commands.ListChannels(prefix=request.query_params.get("prefix", "")[:200], after=after)
            page = await self._backend.ask(command, replies.ChannelList)
            found += page.channels
            after = page.next
        return answer(200, found)

    async def channel(self, request: Request) -> Response:
        command = commands.DescribeChannel(channel=_channel(request))
        return answer(200, await self._backend.ask(command, replies.ChannelDescription))

    async def discover(self, request: Request) -> Response:
        return answer(200, await self._backend.ask(commands.Discover(channel=_channel(request)), replies.Discovered))

    async def producers(self, request: Request) -> Response:
        found = await self._backend.ask(commands.Discover(channel=_channel(request)), replies.Discovered)
        return answer(200, found.producers)

    async def consumers(self, request: Request) -> Response:
        found = await self._backend.ask(commands.ListConsumers(channel=_channel(request)), replies.ConsumerList)
        return answer(200, found.consumers)

    async def create_channel(self, request: Request) -> Response:
        fields = msgspec.structs.asdict(await parameters.body(request, ChannelBody))
        try:
            fields |= {"type": "CHANNEL_CREATE", "channel": _channel(request)}
            command = msgspec.convert(fields, commands.CreateChannel)
        except msgspec.ValidationError as error:
            raise HttpError(422, 422, f"the body does not fit: {error}") from None
        return answer(200, await self._backend.ask(command, replies.ChannelCreated))

    async def destroy_channel(self, request: Request) -> Response:
        command = commands.DestroyChannel(channel=_channel(request))
        return answer(200, await self._backend.ask(command, replies.ChannelDestroyed))

    # -- schemas -------------------------------------------------------------------------------------------

    async def check(self, request: Request) -> Response:
        """Whether a schema could be registered, every difference with its counterexample, and who is attached now."""
        body = await parameters.body(request, SchemaBody)
        command = commands.CheckSchema(**schema_fields(request, body))
        return answer(200, await self._backend.ask(command, replies.SchemaChecked))

    async def diff(self, request: Request) -> Response:
        """What changes from one version to another, in both directions."""
        subject = parameters.subject(request)
        old = await self._version(subject, _bounded(request, "from", 1, parameters.MAX_VERSION))
        new = await self._version(subject, _bounded(request, "to", LATEST, parameters.MAX_VERSION))
        found: dict[str, Any] = {"subject": subject, "from": old.version, "to": new.version}
        for name, level in (("backward", "BACKWARD"), ("forward", "FORWARD")):
            command = commands.CheckSchema(
                subject=subject,
                schema=new.schema,
                schema_type=new.schema_type,
                references=new.references,
                version=old.version,
                level=level,  # type: ignore[arg-type]  # one of two literals
            )
            checked = await self._backend.ask(command, replies.SchemaChecked)
            found[name] = [difference for entry in checked.differences for difference in entry.differences]
        return answer(200, found)

    async def validate(self, request: Request) -> Response:
        """Whether a JSON document is valid under a version of a JSON subject."""
        version = await self._version(
            parameters.subject(request), _bounded(request, "version", LATEST, parameters.MAX_VERSION)
        )
        if version.schema_type != "JSON":
            raise HttpError(422, 42201, f"documents are validated against JSON schemas; this is {version.schema_type}")
        document = await parameters.body(request, object)
        problems = validate(version.schema, document)
        return answer(200, {"valid": not problems, "problems": problems, "version": version.version})

    async def _version(self, subject: str, number: int) -> Any:
        command = commands.RequestSchema(subject=subject, version=number)
        return (await self._backend.ask(command, replies.SchemaFound)).schema

    # -- events --------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Server-sent events: everything the broker publishes, as it happens."""
        prefix = request.query_params.get("prefix", "channel/")[:300].encode()
        return StreamingResponse(self._stream(prefix), media_type="text/event-stream")

    async def _stream(self, prefix: bytes) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_EVENTS_WAITING)

        def put(payload: bytes | None) -> None:
            if not waiting.full():
                waiting.put_nowait(payload)

        def on_event(payload: bytes | None) -> None:
            loop.call_soon_threadsafe(put, payload)

        end = self._backend.hub.tap(prefix, on_event)
        try:
            yield b": connected\n\n"
            while True:
                try:
                    payload = await asyncio.wait_for(waiting.get(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                if payload is None:
                    yield b"event: gap\ndata: {}\n\n"
                elif not payload.startswith(b'{"type":"BEACON"'):
                    yield b"data: " + payload + b"\n\n"
        finally:
            end()


def _channel(request: Request) -> str:
    return unquote(request.path_params["channel"], errors="replace")[:300]


def _bounded(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name)
    if text is None or text == "latest":
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= most):
        raise HttpError(422, 42202, f"{name} is a number from 1 to {most}, not {text[:40]!r}")
    return int(text)


ENDPOINTS = (
    Endpoint("GET", "/healthz", Api.health),
    Endpoint("GET", "/readyz", Api.ready),
    Endpoint("GET", "/metrics", Api.metrics),
    Endpoint("GET", "/api/v1/stats", Api.stats),
    Endpoint("GET", "/api/v1/channels", Api.channels, query=("prefix",)),
    Endpoint("GET", "/api/v1/channels/{channel}", Api.channel),
    Endpoint("POST", "/api/v1/channels/{channel}", Api.create_channel, writes=True, body=ChannelBody),
    Endpoint("DELETE", "/api/v1/channels/{channel}", Api.destroy_channel, writes=True),
    Endpoint("GET", "/api/v1/channels/{channel}/discovery", Api.discover),
    Endpoint("GET", "/api/v1/channels/{channel}/producers", Api.producers),
    Endpoint("GET", "/api/v1/channels/{channel}/consumers", Api.consumers),
    Endpoint("GET", "/api/v1/schemas/{subject}/diff", Api.diff, query=("from", "to")),
    Endpoint("POST", "/api/v1/schemas/{subject}/check", Api.check, query=("normalize",), body=SchemaBody),
    Endpoint("POST", "/api/v1/validate/{subject}", Api.validate, query=("version",)),
    Endpoint("GET", "/api/v1/traces", Api.traces, query=("id", "limit")),
    Endpoint("GET", "/api/v1/events", Api.events, query=("prefix",)),
)
