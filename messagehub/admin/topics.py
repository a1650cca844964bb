"""Kept topics, and their durable positions, under /api/v1/topics."""

from typing import Annotated, Literal
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import HttpError, answer
from messagehub.admin.listing import QUERY, listed
from registry import commands, replies
from registry.records import Keep, KeptTopic

MOST = 2**53


class Bounds(Keep, frozen=True, forbid_unknown_fields=True):
    """A bound that is spelled wrong would bind nothing."""


class KeepBody(msgspec.Struct, forbid_unknown_fields=True):
    """What TOPIC_KEEP takes."""

    keep: Bounds = msgspec.field(default_factory=Bounds)
    replace: bool = False


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a position goes on: at an offset, at a time (seconds since the epoch), or at one end of the topic."""

    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    since: float | None = None
    place: Literal["oldest", "newest"] | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.offset, self.since, self.place)) != 1:
            raise ValueError("give one of offset, since and place")


class TopicPaths:
    def __init__(self, backend: BrokerClient) -> None:
        self._backend = backend

    async def topics(self, request: Request) -> Response:
        """The topics that are kept and match a pattern."""
        pattern = request.query_params.get("pattern", ">")

        async def ask(after: str, limit: int) -> tuple[list[KeptTopic], str | None]:
            command = commands.ListTopics(pattern=pattern, after=after, limit=limit)
            page = await self._backend.ask(command, replies.TopicList)
            return page.topics, page.next

        return await listed(request, ask, lambda one: one.name)

    async def topic(self, request: Request) -> Response:
        """A kept topic, and how much of it there is."""
        command = commands.DescribeTopic(topic=_topic(request))
        return answer(200, await self._backend.ask(command, replies.TopicDescription))

    async def messages(self, request: Request) -> Response:
        """A page of what a kept topic holds; payloads in base64."""
        command = commands.ReadTopic(
            topic=_topic(request),
            offset=_number(request, "offset", 0),
            since=_since(request),
            limit=parameters.bounded(request, "limit", 100, 10_000),
        )
        return answer(200, await self._backend.ask(command, replies.TopicPage))

    async def keep_topic(self, request: Request) -> Response:
        """Store what is published to a topic from now on, within bounds."""
        body = await parameters.body(request, KeepBody)
        command = commands.KeepTopic(topic=_topic(request), keep=body.keep, replace=body.replace)
        return answer(200, await self._backend.ask(command, replies.TopicKept))

    async def delete_topic(self, request: Request) -> Response:
        """Keep a topic no longer, and forget what was kept."""
        command = commands.DeleteTopic(topic=_topic(request))
        return answer(200, await self._backend.ask(command, replies.TopicDeleted))

    async def positions(self, request: Request) -> Response:
        """The durable names under which a topic is read, and how far each is."""
        topic = _topic(request)

        async def ask(after: str, limit: int) -> tuple[list[replies.PositionSummary], str | None]:
            command = commands.ListPositions(topic=topic, after=after, limit=limit)
            page = await self._backend.ask(command, replies.PositionList)
            return page.positions, page.next

        return await listed(request, ask, lambda one: one.position.name)

    async def position(self, request: Request) -> Response:
        """How far a durable name is, and who reads under it."""
        command = commands.DescribePosition(topic=_topic(request), position=_position(request))
        return answer(200, await self._backend.ask(command, replies.PositionDescription))

    async def reset_position(self, request: Request) -> Response:
        """Have a position go on from elsewhere, whatever was acknowledged."""
        body = await parameters.body(request, ResetBody)
        topic = _topic(request)
        offset = body.offset
        if offset is None:
            described = await self._backend.ask(commands.DescribeTopic(topic=topic), replies.TopicDescription)
            offset = described.first_offset if body.place == "oldest" else described.topic.next_offset
        if body.since is not None:
            command = commands.ReadTopic(topic=topic, since=body.since, limit=1)
            page = await self._backend.ask(command, replies.TopicPage)
            offset = page.messages[0].offset if page.messages else page.next_offset
        reset = commands.ResetPosition(topic=topic, position=_position(request), offset=offset)
        return answer(200, await self._backend.ask(reset, replies.PositionReset))

    async def delete_position(self, request: Request) -> Response:
        """Forget a durable name; who reads under it is told."""
        command = commands.DeletePosition(topic=_topic(request), position=_position(request))
        return answer(200, await self._backend.ask(command, replies.PositionDeleted))


def _topic(request: Request) -> str:
    return unquote(request.path_params["topic"], errors="replace")[:300]


def _position(request: Request) -> str:
    return unquote(request.path_params["position"], errors="replace")[:300]


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= MOST):
        raise HttpError(422, 42202, f"{name} is a number from 0 to {MOST}, not {text[:40]!r}")
    return int(text)


def _since(request: Request) -> float | None:
    text = request.query_params.get("since")
    try:
        return None if text is None else msgspec.json.decode(text, type=float)
    except msgspec.DecodeError:
        raise HttpError(422, 42202, f"since is seconds since the epoch, not {(text or '')[:40]!r}") from None


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/v1/topics",
        TopicPaths.topics,
        "observe",
        query=("pattern", *QUERY),
        codes=(42202, 42208),
        returns=list[KeptTopic],
    ),
    Endpoint(
        "GET",
        "/api/v1/topics/{topic}",
        TopicPaths.topic,
        "observe",
        codes=(404, 42208),
        returns=replies.TopicDescription,
    ),
    Endpoint(
        "POST",
        "/api/v1/topics/{topic}",
        TopicPaths.keep_topic,
        "admin",
        writes=True,
        body=KeepBody,
        codes=(409, 42208, 422),
        returns=replies.TopicKept,
    ),
    Endpoint(
        "DELETE",
        "/api/v1/topics/{topic}",
        TopicPaths.delete_topic,
        "admin",
        writes=True,
        codes=(404, 42208),
        returns=replies.TopicDeleted,
    ),
    Endpoint(
        "GET",
        "/api/v1/topics/{topic}/messages",
        TopicPaths.messages,
        "consume",
        query=("offset", "since", "limit"),
        codes=(404, 42202, 42208),
        returns=replies.TopicPage,
    ),
    Endpoint(
        "GET",
        "/api/v1/topics/{topic}/positions",
        TopicPaths.positions,
        "observe",
        query=QUERY,
        codes=(404, 42202, 42208),
        returns=list[replies.PositionSummary],
    ),
    Endpoint(
        "GET",
        "/api/v1/topics/{topic}/positions/{position}",
        TopicPaths.position,
        "observe",
        codes=(404, 42208),
        returns=replies.PositionDescription,
    ),
    Endpoint(
        "POST",
        "/api/v1/topics/{topic}/positions/{position}",
        TopicPaths.reset_position,
        "admin",
        writes=True,
        body=ResetBody,
        codes=(404, 42208, 422),
        returns=replies.PositionReset,
    ),
    Endpoint(
        "DELETE",
        "/api/v1/topics/{topic}/positions/{position}",
        TopicPaths.delete_position,
        "admin",
        writes=True,
        codes=(404, 42208),
        returns=replies.PositionDeleted,
    ),
)
