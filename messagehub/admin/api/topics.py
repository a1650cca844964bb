"""Topics: retained ones and their durable positions under /api/v1/topics, publishing, and a live tail."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends
from msgspec import UNSET, UnsetType

from messagehub.admin.api.events import KEEP_ALIVE_SECONDS, LOOK_SECONDS, EventStream, open_stream, wait_until
from messagehub.admin.api.listing import listed
from messagehub.admin.api.parameters import Limit, Name, NotGiven, Offset, Seconds
from messagehub.admin.authentication import Caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.errors import HttpError
from messagehub.admin.routes import JsonBody, Operations
from messagehub.admin.topic_feeds import ENDED
from messagehub.errors import TopicNotFound
from registry import commands, replies
from registry.records import Keep, PlainTopic, RetainedTopic
from registry.topics.patterns import Pattern, check_topic

operations = Operations()


class Bounds(Keep, frozen=True, forbid_unknown_fields=True):
    """The bounds of a retained topic. An unknown one is refused, since it would bind nothing."""


class KeepBody(msgspec.Struct, forbid_unknown_fields=True):
    """What TOPIC_KEEP takes."""

    keep: Bounds = msgspec.field(default_factory=Bounds)
    replace: bool = False
    home: str | None = None


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a position goes on: at an offset, at a time (seconds since the epoch), or at one end of the topic."""

    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    since: float | None = None
    place: Literal["oldest", "newest"] | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.offset, self.since, self.place)) != 1:
            raise ValueError("give one of offset, since and place")


class MessageBody(msgspec.Struct, forbid_unknown_fields=True):
    """One of a JSON value, a text and bytes in base64; and headers."""

    json: Any = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    headers: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if sum(value is not UNSET for value in (self.json, self.text, self.base64)) != 1:
            raise ValueError("give one of json, text and base64")

    def payload(self) -> Any:
        if isinstance(self.text, str):
            return self.text.encode(errors="replace")
        if isinstance(self.base64, str):
            try:
                return b64decode(self.base64, validate=True)
            except ValueError:
                raise HttpError(422, 422, "base64 holds something else") from None
        return self.json


class PublishedAnswer(msgspec.Struct):
    """`offset` is that of a retained topic; `publisher` and `number` name a message of a plain one. `subscribers` is
    how many subscriptions the broker knew a moment after."""

    topic: str
    number: int
    publisher: str | None
    offset: int | None
    subscribers: int


class SubscriptionsAnswer(msgspec.Struct):
    """As their processes told the broker in the last seconds; counts are of all topics that a subscription matches.
    `total` counts also those beyond the limit."""

    topic: str | None
    total: int
    subscriptions: list[replies.ReportedSubscription]


class MessagePage(msgspec.Struct, kw_only=True):
    """Messages that follow each other. The next page begins at `next_offset`; `end_offset` is what will be published
    next, so that there is no more when both are the same."""

    topic: str
    incarnation: int
    first_offset: int
    next_offset: int
    end_offset: int
    messages: list[replies.StoredMessage]


@operations.add("GET", "/api/v1/topics", "observe", codes=(42202, 42208))
async def topics(
    backend: BrokerClient, pattern: str = ">", after: str = "", limit: Limit | NotGiven = None
) -> HandlerResult[list[RetainedTopic]]:
    """The retained topics that match a pattern."""

    async def ask(after: str, limit: int) -> tuple[list[RetainedTopic], str | None]:
        command = commands.ListTopics(pattern=pattern, after=after, limit=limit)
        page = await backend.ask(command, replies.TopicList)
        return page.topics, page.next

    return await listed(ask, lambda one: one.name, after, limit)


@operations.add("GET", "/api/v1/plain-topics", "observe", codes=(42208,))
async def plain_topics(backend: BrokerClient, pattern: str = ">") -> list[PlainTopic]:
    """The topics that match, are not retained, and were published to in the last ten minutes; at most 1,000."""
    command = commands.ListTopics(pattern=pattern, limit=1, plain=True)
    page = await backend.ask(command, replies.TopicList)
    return page.plain or []


@operations.add("GET", "/api/v1/topics/{topic}", "observe", codes=(404, 42208))
async def topic(backend: BrokerClient, topic: Name) -> replies.TopicDescription:
    """A retained topic, and how much of it is stored."""
    return await backend.ask(commands.DescribeTopic(topic=topic), replies.TopicDescription)


@operations.add("POST", "/api/v1/topics/{topic}", "admin", writes=True, codes=(409, 42208, 422))
async def keep_topic(
    backend: BrokerClient, topic: Name, body: Annotated[KeepBody, Depends(JsonBody(KeepBody))]
) -> replies.TopicRetained:
    """Store what is published to a topic from now on, within bounds."""
    command = commands.KeepTopic(topic=topic, keep=body.keep, replace=body.replace, home=body.home)
    return await backend.ask(command, replies.TopicRetained)


@operations.add("DELETE", "/api/v1/topics/{topic}", "admin", writes=True, codes=(404, 42208))
async def delete_topic(backend: BrokerClient, topic: Name) -> replies.TopicDeleted:
    """Make a retained topic a plain one, and delete what is stored."""
    return await backend.ask(commands.DeleteTopic(topic=topic), replies.TopicDeleted)


@operations.add("GET", "/api/v1/topics/{topic}/messages", "consume", codes=(404, 42202, 42208))
async def messages(
    backend: BrokerClient, topic: Name, offset: Offset = 0, since: Seconds | NotGiven = None, limit: Limit = 100
) -> HandlerResult[MessagePage]:
    """A page of what a retained topic holds; payloads in base64."""
    command = commands.ReadTopic(topic=topic, offset=offset, since=since, limit=limit)
    page = await backend.ask(command, replies.TopicPage)
    following = page.messages[-1].offset + 1 if page.messages else page.next_offset
    found = MessagePage(
        topic=page.topic,
        incarnation=page.incarnation,
        first_offset=page.first_offset,
        next_offset=following,
        end_offset=page.next_offset,
        messages=page.messages,
    )
    has_more = following < page.next_offset
    return HandlerResult(found, following=str(following) if has_more else None, following_by="offset")


@operations.add("POST", "/api/v1/topics/{topic}/messages", "produce", writes=True, codes=(422, 42208, 42209))
async def publish(
    backend: BrokerClient, topic: Name, body: Annotated[MessageBody, Depends(JsonBody(MessageBody))]
) -> PublishedAnswer:
    """Publish a message to all who subscribe now; of a retained topic it is stored."""
    backend.callers.check(_publication(topic))
    check_topic(topic)
    payload = body.payload()
    try:
        await backend.ask(commands.DescribeTopic(topic=topic), replies.TopicDescription)
        is_retained = True
    except TopicNotFound:
        is_retained = False
    number = await backend.hub.publish_async(topic, payload, headers=body.headers)
    backend.callers.note_change("TOPIC_PUBLISH", topic)
    known = await backend.hub.ask_async(commands.ListSubscriptions(topic=topic, limit=1))
    assert isinstance(known, replies.SubscriptionList)
    publisher, offset = (None, number) if is_retained else (backend.hub.publisher_id, None)
    return PublishedAnswer(topic, number, publisher, offset, known.total)


@operations.add("GET", "/api/v1/topic-stream", "consume", media="text/event-stream", codes=(42208,))
async def topic_stream(backend: BrokerClient, pattern: str = ">") -> EventStream:
    """Server-sent events: what is published to the topics that match a pattern, plain and retained, as it comes."""
    Pattern(pattern)  # refuses one that is none
    backend.callers.check(_subscription(pattern))
    return open_stream(lambda who, end: _stream(backend, pattern, who, end))


async def _stream(backend: BrokerClient, pattern: str, who: Caller, end: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield messages until the server ends, or the caller's token is revoked or has other rights."""
    loop = asyncio.get_running_loop()
    async with backend.topic_feeds.follow(pattern) as batches:
        yield b": connected\n\n"
        alive_at = loop.time() + KEEP_ALIVE_SECONDS
        while not end.is_set() and backend.callers.is_current(who):
            batch = await wait_until(batches.get(), end, LOOK_SECONDS)
            if batch == ENDED:
                return
            if batch is not None or loop.time() >= alive_at:
                yield batch or b": alive\n\n"
                alive_at = loop.time() + KEEP_ALIVE_SECONDS


def _publication(topic: str) -> commands.Command:
    """Return the command whose right publishing takes, also to a plain topic."""
    return commands.PublishMessages(topic=topic, messages=[])


def _subscription(pattern: str) -> commands.Command:
    return commands.RegisterSubscriber(kind="group", name="tail", member_id="tail", lease="tail", patterns=[pattern])


@operations.add("GET", "/api/v1/subscriptions", "observe", codes=(42202,))
async def subscriptions(backend: BrokerClient, limit: Limit = 1000) -> SubscriptionsAnswer:
    """Who subscribes to any topic now, and how many messages each got and lost."""
    return await _subscriptions(backend, None, limit)


@operations.add("GET", "/api/v1/topics/{topic}/subscribers", "observe", codes=(42202, 42208))
async def subscribers(backend: BrokerClient, topic: Name, limit: Limit = 1000) -> SubscriptionsAnswer:
    """Who gets what is published to a topic, plain or retained, by its name or a pattern, and how many got there."""
    return await _subscriptions(backend, topic, limit)


@operations.add("GET", "/api/v1/topics/{topic}/trace", "observe", codes=(404, 42202, 42208, 422))
async def trace_message(
    backend: BrokerClient,
    topic: Name,
    offset: Offset | NotGiven = None,
    publisher: str = "",
    number: Offset | NotGiven = None,
) -> replies.MessageTrace:
    """What became of one message, by its offset or its publisher and number, at each subscription that matches.

    Processes answer with their next report: ask again until `is_complete`.
    """
    command = commands.TraceMessage(topic=topic, offset=offset, publisher=publisher or None, number=number)
    return await backend.ask(command, replies.MessageTrace)


async def _subscriptions(backend: BrokerClient, topic: str | None, limit: int) -> SubscriptionsAnswer:
    found = await backend.ask(commands.ListSubscriptions(topic=topic, limit=limit), replies.SubscriptionList)
    return SubscriptionsAnswer(topic, found.total, found.subscriptions)


@operations.add("GET", "/api/v1/topics/{topic}/positions", "observe", codes=(404, 42202, 42208))
async def positions(
    backend: BrokerClient, topic: Name, after: str = "", limit: Limit | NotGiven = None
) -> HandlerResult[list[replies.PositionSummary]]:
    """The durable names under which a topic is read, and how far each is."""

    async def ask(after: str, limit: int) -> tuple[list[replies.PositionSummary], str | None]:
        command = commands.ListPositions(topic=topic, after=after, limit=limit)
        page = await backend.ask(command, replies.PositionList)
        return page.positions, page.next

    return await listed(ask, lambda one: one.position.name, after, limit)


@operations.add("GET", "/api/v1/topics/{topic}/positions/{position}", "observe", codes=(404, 42208))
async def position(backend: BrokerClient, topic: Name, position: Name) -> replies.PositionDescription:
    """How far a durable name has read, and who reads under it."""
    command = commands.DescribePosition(topic=topic, position=position)
    return await backend.ask(command, replies.PositionDescription)


@operations.add("POST", "/api/v1/topics/{topic}/positions/{position}", "admin", writes=True, codes=(404, 42208, 422))
async def reset_position(
    backend: BrokerClient, topic: Name, position: Name, body: Annotated[ResetBody, Depends(JsonBody(ResetBody))]
) -> replies.PositionReset:
    """Have a position go on from elsewhere, whatever was acknowledged."""
    offset = body.offset
    if offset is None:
        described = await backend.ask(commands.DescribeTopic(topic=topic), replies.TopicDescription)
        offset = described.first_offset if body.place == "oldest" else described.topic.next_offset
    if body.since is not None:
        command = commands.ReadTopic(topic=topic, since=body.since, limit=1)
        page = await backend.ask(command, replies.TopicPage)
        offset = page.messages[0].offset if page.messages else page.next_offset
    reset = commands.ResetPosition(topic=topic, position=position, offset=offset)
    return await backend.ask(reset, replies.PositionReset)


@operations.add("DELETE", "/api/v1/topics/{topic}/positions/{position}", "admin", writes=True, codes=(404, 42208))
async def delete_position(backend: BrokerClient, topic: Name, position: Name) -> replies.PositionDeleted:
    """Delete a durable name. Its readers are told."""
    command = commands.DeletePosition(topic=topic, position=position)
    return await backend.ask(command, replies.PositionDeleted)
