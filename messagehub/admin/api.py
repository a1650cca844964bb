"""Our own API under /api/v1."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from messagehub.admin import health, parameters, services, tables, topics
from messagehub.admin.authentication import Caller, caller, counters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.confluent.handlers import registration, schema_fields
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import HttpError, answer, error_body, hub_error_body
from messagehub.admin.listing import QUERY, listed
from messagehub.admin.parameters import SchemaBody
from messagehub.errors import HubError, TooManySubscriptions
from messagehub.security.rate_limits import Places
from registry import commands, replies
from registry.channels.groups import assignment
from registry.formats.differences import Difference
from registry.formats.json_schema.documents import document_schema
from registry.records import Block, Consumer, Level, Producer
from registry.schemas.catalog import LATEST

MAX_EVENTS_WAITING = 10_000
KEEP_ALIVE_SECONDS = 15.0
SUBSCRIBED_SECONDS = 2.0
MAX_BATCH = 1000
MAX_STREAMS = 100
MAX_PREFIX = 300
_END = b"end"
"""In place of an event, in the queue of a stream that is to end."""


class ChannelBody(msgspec.Struct, forbid_unknown_fields=True):
    """What CHANNEL_CREATE takes."""

    schema_hash: str | None = None
    schema_version: str | None = None
    schema: dict[str, Any] | str | bool | None = None
    schema_type: str | None = None
    access: str | None = None
    priority: str = "normal"
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class BatchItem(SchemaBody):
    subject: str = ""


class GroupAnswer(msgspec.Struct):
    group: str
    epoch: int
    blocks: list[str]
    members: dict[str, replies.Assignment]


class BatchAnswer(msgspec.Struct, omit_defaults=True):
    """What one would have been answered alone, and its status."""

    subject: str
    status: int
    id: int | None = None
    version: int | None = None
    guid: str | None = None
    error_code: int | None = None
    message: str | None = None
    code: str | None = None
    details: dict[str, Any] | None = None


class DiffAnswer(msgspec.Struct, rename={"old": "from", "new": "to"}):
    subject: str
    old: int
    new: int
    backward: list[Difference]
    forward: list[Difference]


class ValidAnswer(msgspec.Struct):
    valid: bool
    problems: list[dict[str, str]]
    version: int


class Api(health.HealthPaths, topics.TopicPaths, services.ServicePaths, tables.TablePaths):
    def __init__(self, backend: BrokerClient) -> None:
        super().__init__(backend)
        self._streams = Places(MAX_STREAMS)

    async def traces(self, request: Request) -> Response:
        limit = parameters.bounded(request, "limit", 100, 10_000)
        command = commands.Trace(correlation_id=request.query_params.get("id"), limit=limit)
        return answer(200, (await self._backend.ask(command, replies.TraceReport)).exchanges)

    # -- channels ------------------------------------------------------------------------------------------

    async def channels(self, request: Request) -> Response:
        prefix = request.query_params.get("prefix", "")

        async def ask(after: str, limit: int) -> tuple[list[replies.ChannelSummary], str | None]:
            command = commands.ListChannels(prefix=prefix, after=after, limit=limit)
            page = await self._backend.ask(command, replies.ChannelList)
            return page.channels, page.next

        return await listed(request, ask, lambda one: one.channel)

    async def channel(self, request: Request) -> Response:
        command = commands.DescribeChannel(channel=_channel(request))
        return answer(200, await self._backend.ask(command, replies.ChannelDescription))

    async def discover(self, request: Request) -> Response:
        expected = request.query_params.get("expected_schema_hash", "")[:256] or None
        command = commands.Discover(channel=_channel(request), expected_schema_hash=expected)
        return answer(200, await self._backend.ask(command, replies.Discovered))

    async def producers(self, request: Request) -> Response:
        found = await self._backend.ask(commands.Discover(channel=_channel(request)), replies.Discovered)
        return answer(200, found.producers)

    async def consumers(self, request: Request) -> Response:
        found = await self._backend.ask(commands.ListConsumers(channel=_channel(request)), replies.ConsumerList)
        return answer(200, found.consumers)

    async def groups(self, request: Request) -> Response:
        """The consumer groups of a channel, and which part each member reads."""
        command = commands.DescribeChannel(channel=_channel(request))
        found = await self._backend.ask(command, replies.ChannelDescription)
        return answer(
            200,
            [
                GroupAnswer(
                    name,
                    group.epoch,
                    group.blocks,
                    {member: assignment(name, group, member) for member in group.members},
                )
                for name, group in sorted(found.channel.groups.items())
            ],
        )

    async def blocks(self, request: Request) -> Response:
        """Where a channel's data lies in shared memory."""
        name = _channel(request)
        found = await self._backend.ask(commands.Discover(channel=name), replies.Discovered)
        blocks = found.blocks
        while found.blocks and len(blocks) < found.blocks_total:
            command = commands.Discover(channel=name, blocks_offset=len(blocks))
            found = await self._backend.ask(command, replies.Discovered)
            blocks += found.blocks
        return answer(200, blocks)

    async def create_channel(self, request: Request) -> Response:
        fields = msgspec.structs.asdict(await parameters.body(request, ChannelBody))
        try:
            fields |= {"type": "CHANNEL_CREATE", "channel": _channel(request)}
            command = msgspec.convert(fields, commands.CreateChannel)
        except msgspec.ValidationError as error:
            raise HttpError(422, 422, f"the body does not fit: {error}") from None
        return answer(200, await self._backend.ask(command, replies.ChannelCreated))

    # -- schemas -------------------------------------------------------------------------------------------

    async def register(self, request: Request) -> Response:
        """Register several, in order, so that later ones may refer to earlier ones; each has a status of its own."""
        items = await parameters.body(request, list[BatchItem])
        if len(items) > MAX_BATCH:
            raise HttpError(422, 42209, f"{len(items)} schemas are more than the {MAX_BATCH} that one batch may have")
        return answer(200, [await self._register(request, item) for item in items])

    async def _register(self, request: Request, item: BatchItem) -> BatchAnswer:
        try:
            command = registration(request, item, parameters.checked_subject(item.subject))
            made = await self._backend.ask(command, replies.SchemaRegistered)
        except HttpError as error:
            status, said = error.status, error_body(error.error_code, error.message)
        except HubError as error:
            status, said = hub_error_body(error)
        else:
            return BatchAnswer(item.subject, 200, made.schema_id, made.version, made.guid)
        return BatchAnswer(item.subject, status, **said)

    async def check(self, request: Request) -> Response:
        """Whether a schema could be registered, every difference with its counterexample, and who is attached now."""
        body = await parameters.body(request, SchemaBody)
        command = commands.CheckSchema(**schema_fields(request, body))
        return answer(200, await self._backend.ask(command, replies.SchemaChecked))

    async def diff(self, request: Request) -> Response:
        """What changes from one version to another, in both directions."""
        subject = parameters.subject(request)
        old = (await self._version(subject, parameters.version_in_query(request, "from", 1))).schema
        new = (await self._version(subject, parameters.version_in_query(request, "to", LATEST))).schema
        levels: tuple[Level, ...] = ("BACKWARD", "FORWARD")
        found: list[list[Difference]] = []
        for level in levels:
            command = commands.CheckSchema.of(new, version=old.version, level=level)
            checked = await self._backend.ask(command, replies.SchemaChecked)
            found.append([difference for entry in checked.differences for difference in entry.differences])
        return answer(200, DiffAnswer(subject, old.version, new.version, *found))

    async def validate(self, request: Request) -> Response:
        """Whether a JSON document is valid under a version of a JSON subject."""
        number = parameters.version_in_query(request, "version", LATEST)
        found = await self._version(parameters.subject(request), number, resolve=True)
        version = found.schema
        if version.schema_type != "JSON":
            raise HttpError(422, 42201, f"documents are validated against JSON schemas; this is {version.schema_type}")
        document = await parameters.body(request, object)
        problems = await run_in_threadpool(_problems, found, document)
        return answer(200, ValidAnswer(not problems, problems, version.version))

    async def _version(self, subject: str, number: int, *, resolve: bool = False) -> replies.SchemaFound:
        command = commands.RequestSchema(subject=subject, version=number, resolve=resolve)
        return await self._backend.ask(command, replies.SchemaFound)

    # -- events --------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Server-sent events: everything the broker publishes, as it happens."""
        prefix = request.query_params.get("prefix", "channel/")
        if len(prefix) > MAX_PREFIX:
            raise HttpError(422, 422, f"prefix has {len(prefix)} characters, more than {MAX_PREFIX}")
        self._backend.callers.check_events(prefix)
        who = caller.get()
        if not self._streams.take(who.peer):
            counters["http_event_streams"] += 1
            of_one = self._streams.of_one
            said = f"more than {MAX_STREAMS} event streams would be open, or {of_one} of one caller"
            raise TooManySubscriptions(said, limit=MAX_STREAMS, of_one=of_one)
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_EVENTS_WAITING)
        request.scope["end_stream"] = partial(_end_stream, waiting)  # for the connection, when the server stops
        return EventStream(self._stream(prefix.encode(), who, waiting), lambda: self._streams.give_back(who.peer))

    async def _stream(self, prefix: bytes, who: Caller, waiting: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        """Ends with the server, and when the caller's token is revoked or has other rights: it may come again, and is
        judged anew."""
        loop = asyncio.get_running_loop()
        has_lost = False

        def put(payload: bytes | None) -> None:
            nonlocal has_lost
            if has_lost or waiting.full():
                has_lost = True  # said when the reader has caught up
            else:
                waiting.put_nowait(payload)

        def on_event(payload: bytes | None) -> None:
            loop.call_soon_threadsafe(put, payload)

        end = self._backend.hub.tap(prefix, on_event)
        try:
            # The broker says something as soon as it knows of the subscription: from then on nothing is missed.
            by = loop.time() + SUBSCRIBED_SECONDS
            while (first := await _next(waiting, by - loop.time())) is None:
                continue  # what was missed before is nobody's
            yield b": connected\n\n"
            alive_at = loop.time() + KEEP_ALIVE_SECONDS
            while True:
                if has_lost and waiting.empty():
                    has_lost = False
                    yield b"event: gap\ndata: {}\n\n"
                payload = first or await _next(waiting, alive_at - loop.time())
                first = b""
                if payload is _END or not self._backend.callers.is_current(who):
                    return
                if payload is not None and payload.startswith(b'{"type":"BEACON"'):
                    continue  # one a second, which nobody is sent: no sign of life
                alive_at = loop.time() + KEEP_ALIVE_SECONDS
                if payload is None:
                    yield b"event: gap\ndata: {}\n\n"
                elif not payload:
                    yield b": alive\n\n"
                else:
                    yield b"data: " + payload + b"\n\n"
        finally:
            end()


class EventStream(StreamingResponse):
    """Gives its place back when it is over, also when it never began."""

    def __init__(self, content: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        # nginx keeps what it gets from a server until it has some more, unless it is told not to.
        super().__init__(content, headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _next(waiting: asyncio.Queue[bytes | None], seconds: float) -> bytes | None:
    """Return what comes next; nothing at the timeout."""
    try:
        return await asyncio.wait_for(waiting.get(), seconds)
    except TimeoutError:
        return b""


def _end_stream(waiting: asyncio.Queue[bytes | None]) -> None:
    """Have the stream end with what is being sent now."""
    while not waiting.empty():
        waiting.get_nowait()
    waiting.put_nowait(_END)


def _problems(found: replies.SchemaFound, document: object) -> list[dict[str, str]]:
    return document_schema(found.schema.schema, tuple(found.reference_texts.items())).problems(document)


def _channel(request: Request) -> str:
    return unquote(request.path_params["channel"], errors="replace")[:300]


ENDPOINTS = (
    *health.ENDPOINTS,
    Endpoint(
        "GET",
        "/api/v1/channels",
        Api.channels,
        "observe",
        query=("prefix", *QUERY),
        codes=(42202,),
        returns=list[replies.ChannelSummary],
    ),
    Endpoint(
        "GET",
        "/api/v1/channels/{channel}",
        Api.channel,
        "observe",
        codes=(404, 42208),
        returns=replies.ChannelDescription,
    ),
    Endpoint(
        "POST",
        "/api/v1/channels/{channel}",
        Api.create_channel,
        "admin",
        writes=True,
        body=ChannelBody,
        codes=(409, 422, 42201, 42205, 42208, 42209),
        returns=replies.ChannelCreated,
    ),
    Endpoint(
        "GET",
        "/api/v1/channels/{channel}/discovery",
        Api.discover,
        "observe",
        query=("expected_schema_hash",),
        codes=(404, 42208),
        returns=replies.Discovered,
    ),
    Endpoint(
        "GET",
        "/api/v1/channels/{channel}/producers",
        Api.producers,
        "observe",
        codes=(404, 42208),
        returns=list[Producer],
    ),
    Endpoint(
        "GET",
        "/api/v1/channels/{channel}/consumers",
        Api.consumers,
        "observe",
        codes=(404, 42208),
        returns=list[Consumer],
    ),
    Endpoint(
        "GET", "/api/v1/channels/{channel}/groups", Api.groups, "observe", codes=(404, 42208), returns=list[GroupAnswer]
    ),
    Endpoint(
        "GET", "/api/v1/channels/{channel}/blocks", Api.blocks, "observe", codes=(404, 42208), returns=list[Block]
    ),
    *tables.ENDPOINTS,
    *topics.ENDPOINTS,
    *services.ENDPOINTS,
    Endpoint(
        "POST",
        "/api/v1/schemas",
        Api.register,
        "schema-admin",
        writes=True,
        query=("normalize",),
        body=list[BatchItem],
        codes=(42209, 422),
        returns=list[BatchAnswer],
    ),
    Endpoint(
        "GET",
        "/api/v1/schemas/{subject}/diff",
        Api.diff,
        "observe",
        query=("from", "to"),
        codes=(40401, 40402, 42202, 42208, 42209),
        returns=DiffAnswer,
    ),
    Endpoint(
        "POST",
        "/api/v1/schemas/{subject}/check",
        Api.check,
        "observe",
        query=("normalize",),
        body=SchemaBody,
        codes=(42201, 42208, 42209),
        returns=replies.SchemaChecked,
    ),
    Endpoint(
        "POST",
        "/api/v1/validate/{subject}",
        Api.validate,
        "observe",
        query=("version",),
        body=Any,
        codes=(40401, 40402, 42202, 42208, 42201),
        returns=ValidAnswer,
    ),
    Endpoint(
        "GET",
        "/api/v1/traces",
        Api.traces,
        "observe",
        query=("id", "limit"),
        codes=(42202,),
        returns=list[dict[str, Any]],
    ),
    Endpoint("GET", "/api/v1/events", Api.events, "observe", query=("prefix",), media="text/event-stream", returns=str),
)
