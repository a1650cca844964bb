"""What happened. An event carries what changed, so that state can be rebuilt from events alone.

Rule 1: `revision` increases by one with every event of a registry.
Rule 2: `previous` is the revision of the event before it on the same topic, so a watcher of one topic can tell a gap.
It is 0 for the first, and a channel that ended and is made again starts anew with 0.
Events that are not `published` are stored, and never sent.
Rule 3: `durable` events must be on disk before anybody hears of them; the others are only written through.
"""

from typing import ClassVar, Literal

from msgspec import Struct

from registry.records import (
    Channel,
    Consumer,
    Group,
    Mode,
    Producer,
    RetainedMessage,
    RetainedTopic,
    SchemaConfig,
    SchemaVersion,
    Service,
    Table,
    TopicPosition,
)

Reason = Literal["released", "expired", "replaced", "died", "evicted", "host_lost"]


class Event(Struct, kw_only=True, tag_field="type"):
    durable: ClassVar[bool] = False
    published: ClassVar[bool] = True

    revision: int = 0
    previous: int = 0
    at: float = 0.0


class ChannelEvent(Event, kw_only=True):
    channel: str

    @property
    def topic(self) -> str:
        return channel_topic(self.channel)


class ChannelCreated(ChannelEvent, tag="CHANNEL_CREATED"):
    """A first member made the channel. The record has no members in it."""

    record: Channel


class ChannelDeclared(ChannelEvent, tag="CHANNEL_DECLARED"):
    """CHANNEL_CREATE made the channel, or made one that had members already a declared one.

    The record has no members in it: those that are there stay.
    """

    durable = True

    record: Channel


class ChannelDestroyed(ChannelEvent, tag="CHANNEL_DESTROYED"):
    durable = True


class ChannelEnded(ChannelEvent, tag="CHANNEL_ENDED"):
    """The last member of an undeclared channel is gone, and the channel with it."""


class ProducerRegistered(ChannelEvent, tag="PRODUCER_REGISTERED"):
    producer: Producer


class ProducerUnregistered(ChannelEvent, tag="PRODUCER_UNREGISTERED"):
    producer_id: str
    reason: Reason


class ProducerStalled(ChannelEvent, tag="PRODUCER_STALLED"):
    producer_id: str


class ProducerRecovered(ChannelEvent, tag="PRODUCER_RECOVERED"):
    producer_id: str


class ConsumerRegistered(ChannelEvent, tag="CONSUMER_REGISTERED"):
    consumer: Consumer


class ConsumerUnregistered(ChannelEvent, tag="CONSUMER_UNREGISTERED"):
    consumer_id: str
    reason: Reason


class ConsumerStalled(ChannelEvent, tag="CONSUMER_STALLED"):
    consumer_id: str


class ConsumerRecovered(ChannelEvent, tag="CONSUMER_RECOVERED"):
    consumer_id: str


class ChannelConflicted(ChannelEvent, tag="CHANNEL_CONFLICTED"):
    """What lives on this host clashes with what the registry knows, and why; null when it no longer does."""

    reason: str | None


class TableCommitted(ChannelEvent, tag="TABLE_COMMITTED"):
    """A generation of the channel's table is registered; null when the last one was retired or dropped."""

    table: Table | None


class GroupAssigned(ChannelEvent, tag="GROUP_ASSIGNED"):
    """Members share the channel anew, under a new epoch; no members: the group is gone."""

    group: str
    assigned: Group


class SchemaRegistered(Event, tag="SCHEMA_REGISTERED"):
    durable = True

    schema: SchemaVersion

    @property
    def subject(self) -> str:
        return self.schema.subject

    @property
    def topic(self) -> str:
        return schema_topic(self.schema.subject)


class SubjectEvent(Event, kw_only=True):
    """About one subject; an empty one is the registry as a whole."""

    durable = True

    subject: str

    @property
    def topic(self) -> str:
        return schema_topic(self.subject)


class SchemaDeleted(SubjectEvent, tag="SCHEMA_DELETED"):
    """Softly: hidden but kept. Permanently: gone, and its id is never used again."""

    version: int
    permanent: bool


class SchemaConfigured(SubjectEvent, tag="SCHEMA_CONFIGURED"):
    """None: the setting was removed."""

    config: SchemaConfig | None


class SchemaModeChanged(SubjectEvent, tag="SCHEMA_MODE_CHANGED"):
    mode: Mode | None


class TopicEvent(Event, kw_only=True):
    """About one retained topic."""

    durable = True

    name: str

    @property
    def topic(self) -> str:
        return f"topic/{self.name}/"


class TopicRetained(TopicEvent, tag="TOPIC_KEPT"):
    """It is retained from now on, or within other bounds."""

    record: RetainedTopic


class TopicDeleted(TopicEvent, tag="TOPIC_DELETED"):
    incarnation: int


class MessagesRetained(TopicEvent, tag="MESSAGES_KEPT"):
    """Stored, and never sent as an event: the messages themselves leave on the topic's socket."""

    published = False

    incarnation: int
    offset: int
    total_bytes: int
    messages: list[RetainedMessage]
    publisher: str | None
    number: int


class PositionEvent(TopicEvent, kw_only=True):
    """About a named position of a topic; never sent: whoever reads under its name is told when it fetches."""

    published = False

    position: str
    incarnation: int


class PositionSet(PositionEvent, tag="POSITION_SET"):
    """It was made or reset; nothing of it is handed out."""

    record: TopicPosition


class PositionDeleted(PositionEvent, tag="POSITION_DELETED"):
    pass


class MessagesDelivered(PositionEvent, tag="MESSAGES_DELIVERED"):
    """Handed out to a member: offsets, and how often each was. Messages before `first_offset` are passed over."""

    durable = False

    member_id: str
    first_offset: int
    next_offset: int
    deliveries: list[tuple[int, int]]


class MessagesAcknowledged(PositionEvent, tag="MESSAGES_ACKNOWLEDGED"):
    offsets: list[int]


class ServiceChanged(Event, tag="SERVICE_CHANGED"):
    """Who serves an address changed; null: nobody does, and it is not a pool.

    A hub on its own stores it nowhere, and counts revisions of services apart, anew by each run. In a site it is an
    event like any other, since all hubs have to hear of it.
    """

    address: str
    service: Service | None

    @property
    def topic(self) -> str:
        return service_topic(self.address)


AnyChannelEvent = (
    ChannelCreated
    | ChannelDeclared
    | ChannelDestroyed
    | ChannelEnded
    | ProducerRegistered
    | ProducerUnregistered
    | ProducerStalled
    | ProducerRecovered
    | ConsumerRegistered
    | ConsumerUnregistered
    | ConsumerStalled
    | ConsumerRecovered
    | ChannelConflicted
    | TableCommitted
    | GroupAssigned
)
AnySchemaEvent = SchemaRegistered | SchemaDeleted | SchemaConfigured | SchemaModeChanged
AnyPositionEvent = PositionSet | PositionDeleted | MessagesDelivered | MessagesAcknowledged
# Their names before 2026-11-18.
TopicKept = TopicRetained
MessagesKept = MessagesRetained
AnyTopicEvent = TopicRetained | TopicDeleted | MessagesRetained | AnyPositionEvent
AnyEvent = AnyChannelEvent | AnySchemaEvent | AnyTopicEvent | ServiceChanged


def channel_topic(channel: str) -> str:
    """Topics end with a slash, so that subscribing to one channel does not match a longer name."""
    return f"channel/{channel}/"


def schema_topic(subject: str) -> str:
    """A slash within a subject is escaped: whoever subscribes to one must not hear of those that begin so."""
    return f"schema/{subject.replace('%', '%25').replace('/', '%2F')}/"


def subject_of(escaped: str) -> str:
    return escaped.replace("%2F", "/").replace("%25", "%")


def service_topic(address: str) -> str:
    return f"service/{address}/"
