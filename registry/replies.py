"""What is answered. `id` echoes the request's and is left out when it had none."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from registry import fields
from registry.formats.differences import Difference
from registry.records import (
    Access,
    AskedMessage,
    Block,
    Channel,
    ChannelStatus,
    Consumer,
    DeadLetter,
    Level,
    MailboxState,
    MemberStatus,
    MessageOutcome,
    Mode,
    PayloadKind,
    PlainTopic,
    Priority,
    Producer,
    PublisherProcess,
    RetainedTopic,
    SchemaConfig,
    SchemaType,
    SchemaVersion,
    Service,
    SiteHost,
    Strategy,
    SubscriptionState,
    Table,
    TopicPosition,
    Verification,
)


class Reply(Struct, kw_only=True, tag_field="type"):
    id: Annotated[str | UnsetType, Meta(description="the request's; left out when it had none")] = UNSET


class Error(Reply, tag="ERROR"):
    code: Annotated[str, Meta(description="stable")]
    message: Annotated[str, Meta(description="for people; may change")]
    details: Annotated[dict[str, Any], Meta(description="what the code's class says")] = field(default_factory=dict)
    retryable: Annotated[bool, Meta(description="the same request may succeed later")] = False


class HelloAck(Reply, tag="HELLO_ACK"):
    version: Annotated[str, Meta(description="to be spoken")]
    broker_id: fields.BrokerId[str]
    revision: fields.Revision[int]
    heartbeat_seconds: Annotated[float, Meta(description="how often a client should say that it lives")]
    lease_seconds: fields.LeaseSeconds[float]
    beacon_seconds: Annotated[float, Meta(description="how often the newest revision is published")]
    endpoints: Annotated[
        dict[str, str],
        Meta(
            description="`control`, `events`, and `topics_in` for publishers (PUSH), `topics_out` and "
            "`topics_retained` for subscribers (SUB): what was pushed, and what the broker has stored; in a site also "
            "`topics_site` and `topics_site_retained`: the same of other hosts, and `services_site`: the address of "
            "this host on which workers listen for callers of other hosts, each process at a port of its own"
        ),
    ]
    server: Annotated[str, Meta(description="name and version of the broker")]
    warning: Annotated[str | UnsetType, Meta(description="when the peer's version is a newer minor one")] = UNSET
    site: Annotated[str | UnsetType, Meta(description="of a hub that is a member of a site: its name")] = UNSET
    access: Annotated[
        str | UnsetType,
        Meta(
            description="of a shared hub: changes whenever the rights of any peer do; workers of services then "
            "register new keys"
        ),
    ] = UNSET


class ProducerRegistered(Reply, tag="PRODUCER_REGISTER_ACK"):
    channel: fields.ChannelName[str]
    producer_id: fields.ProducerId[str]
    shm_name: fields.ShmName[str]
    schema_id: fields.SchemaId[int | None]
    lease: Annotated[str, Meta(description="what heartbeats and unregistering name")]
    lease_seconds: fields.LeaseSeconds[float]
    revision: Annotated[int, Meta(description="of the registration")]


class ProducerUnregistered(Reply, tag="PRODUCER_UNREGISTER_ACK"):
    channel: fields.ChannelName[str]
    producer_id: fields.ProducerId[str]
    revision: fields.Revision[int]


class Share(Struct, kw_only=True, frozen=True):
    """A member reads the sequences s of a block with s % count == index; none where count is 0."""

    shm_name: fields.ShmName[str]
    index: Annotated[int, Meta(description="the member reads the sequences s with s % count == index")]
    count: Annotated[int, Meta(description="among how many the block is shared; 0: the member reads nothing of it")]


class Assignment(Struct, kw_only=True, frozen=True):
    """A group member's part of a channel; a block that `shares` does not name is shared by index and count."""

    group: Annotated[str, Meta(description="the group's name")]
    epoch: Annotated[int, Meta(description="only grows: a higher one replaces this assignment")]
    index: Annotated[int, Meta(description="as in Share, for blocks that `shares` does not name")]
    count: Annotated[int, Meta(description="as in Share, for blocks that `shares` does not name")]
    shares: Annotated[list[Share], Meta(description="blocks that are shared otherwise")] = field(default_factory=list)


class ConsumerRegistered(Reply, tag="CONSUMER_REGISTER_ACK"):
    channel: fields.ChannelName[str]
    consumer_id: fields.ConsumerId[str]
    status: fields.StatusOfChannel[ChannelStatus]
    shm_name: fields.ShmName[str | None]
    schema_hash: fields.SchemaHash[str | None]
    schema_version: fields.VersionName[str | None]
    blocks: Annotated[list[Block], Meta(description="where the channel's data is")]
    assignment: Annotated[Assignment | None, Meta(description="a group member's part; null without a group")]
    lease: fields.LeaseName[str]
    lease_seconds: fields.LeaseSeconds[float]
    revision: fields.Revision[int]


class ConsumerUnregistered(Reply, tag="CONSUMER_UNREGISTER_ACK"):
    channel: fields.ChannelName[str]
    consumer_id: fields.ConsumerId[str]
    revision: fields.Revision[int]


class MemberEvicted(Reply, tag="MEMBER_EVICT_ACK"):
    channel: fields.ChannelName[str]
    member_id: Annotated[str, Meta(description="the producer's or consumer's id")]
    role: Annotated[Literal["producer", "consumer"], Meta(description="what it was")]
    host: fields.Host[str | None]
    pid: fields.Pid[int | None]
    revision: fields.Revision[int]


class Place(Struct, kw_only=True, frozen=True):
    subject: fields.SubjectName[str]
    version: fields.VersionNumber[int]
    is_deleted: fields.IsDeleted[bool]


class SchemaVersionSummary(Struct, kw_only=True, frozen=True):
    version: fields.VersionNumber[int]
    schema_id: fields.SchemaId[int]
    schema_type: fields.SchemaFormat[SchemaType]
    schema_hash: fields.SchemaHash[str]
    is_deleted: fields.IsDeleted[bool]


class VersionDifferences(Struct, kw_only=True, frozen=True):
    """Why a schema does not go with one version of a subject."""

    version: fields.VersionNumber[int]
    differences: Annotated[list[Difference], Meta(description="what is in the way")]


class TouchedMember(Struct, kw_only=True, frozen=True):
    """`would_break` is said by a check, of members whose schema is registered."""

    role: Annotated[str, Meta(description="`producer`, `consumer` or `table`")]
    member_id: Annotated[str, Meta(description="of a table, its generation")]
    host: fields.Host[str | None]
    pid: fields.Pid[int | None]
    schema_hash: Annotated[str | None, Meta(description="the hash of the schema that it works with")]
    would_break: Annotated[
        bool | None,
        Meta(
            description="said by `SCHEMA_CHECK` of members whose schema is registered: a consumer breaks by documents "
            "that its own schema refuses, a producer's data by being refused"
        ),
    ] = None


class Notice(Struct, kw_only=True, frozen=True):
    """Something a member of a channel should hear of at its next heartbeat."""

    event: Annotated[str, Meta(description="the type of the event")]
    channel: fields.ChannelName[str]
    member: Annotated[str | None, Meta(description="whom it is about; null: the channel")]
    reason: Annotated[str | None, Meta(description="why, where there is a reason")]
    revision: Annotated[int, Meta(description="the revision of the event")]


class HeartbeatAck(Reply, tag="HEARTBEAT_ACK"):
    """`known` is false when nothing is registered under the lease: register again."""

    known: Annotated[bool, Meta(description="false: nothing is registered under the lease, register again")]
    notices: Annotated[
        list[Notice],
        Meta(
            description="what happened on the lease's channels since the last heartbeat: at most the newest 100, each "
            "once"
        ),
    ]
    broker_id: fields.BrokerId[str | UnsetType] = UNSET
    access: Annotated[
        str | UnsetType, Meta(description="as in HELLO_ACK: changes whenever the rights of any peer do")
    ] = UNSET


class Discovered(Reply, tag="DISCOVERY_RESPONSE"):
    """Only the draft's six fields are required of a sender; this registry always says all of them but the last two.

    `compatible` and `differences` are about the expected schema, where one was named.
    """

    channel: fields.ChannelName[str]
    shm_name: Annotated[str | None, Meta(description="of the longest registered of the most alive producers")]
    schema_hash: fields.SchemaHash[str | None]
    schema_version: fields.VersionName[str | None]
    status: fields.StatusOfChannel[ChannelStatus]
    conflict: Annotated[str | None, Meta(description="why the status is `conflict`")] = None
    schema: fields.Verified[Verification | None] = None
    schema_type: fields.SchemaFormat[SchemaType | None] = None
    schema_id: fields.SchemaId[int | None] = None
    access: fields.AccessRule[Access | None] = None
    priority: fields.PriorityRule[Priority] = "normal"
    generation: Annotated[int, Meta(description="of the newest committed table")] = 0
    table: Annotated[Table | None, Meta(description="the newest committed table")] = None
    consumer_count: Annotated[int, Meta(description="how many consumers are registered")] = 0
    producers: Annotated[list[Producer], Meta(description="who writes it")] = field(default_factory=list)
    blocks: Annotated[list[Block], Meta(description="the first 100 from `blocks_offset`")] = field(default_factory=list)
    blocks_total: Annotated[int, Meta(description="how many blocks there are")] = 0
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    revision: Annotated[int, Meta(description="of the channel's newest event")] = 0
    compatible: Annotated[
        bool | UnsetType,
        Meta(
            description="only with an expected schema: whether it can read the channel; true while the channel has no "
            "schema"
        ),
    ] = UNSET
    differences: Annotated[
        list[VersionDifferences] | UnsetType,
        Meta(
            description="only with an expected schema: what is in the way; of version 0 where one of both is not "
            "registered, or is too much to compare"
        ),
    ] = UNSET


class ChannelCreated(Reply, tag="CHANNEL_CREATE_ACK"):
    channel: fields.ChannelName[str]
    schema_id: fields.SchemaId[int | None]
    revision: fields.Revision[int]


class ChannelDestroyed(Reply, tag="CHANNEL_DESTROY_ACK"):
    channel: fields.ChannelName[str]
    revision: fields.Revision[int]


class TableChecked(Reply, tag="TABLE_CHECK_RESPONSE"):
    """`schema_id` and `schema_version` are null where registering the table would make a new version."""

    channel: fields.ChannelName[str]
    schema_id: Annotated[int | None, Meta(description="null: registering would make a new version")]
    schema_version: fields.VersionName[str | None]
    revision: fields.Revision[int]


class TableRegistered(Reply, tag="TABLE_REGISTER_ACK"):
    """What the registry has now; a generation later than the one that was registered supersedes it."""

    channel: fields.ChannelName[str]
    table: Annotated[Table, Meta(description="what the registry has now")]
    revision: fields.Revision[int]


class TableDropped(Reply, tag="TABLE_DROP_ACK"):
    channel: fields.ChannelName[str]
    table: Annotated[Table, Meta(description="what was dropped")]
    revision: fields.Revision[int]


class TableSummary(Struct, kw_only=True, frozen=True):
    channel: fields.ChannelName[str]
    table: Annotated[Table, Meta(description="the newest committed table")]


class TableList(Reply, tag="TABLE_LIST_RESPONSE"):
    tables: Annotated[list[TableSummary], Meta(description="by the names of their channels")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]


class ChannelSummary(Struct, kw_only=True, frozen=True):
    channel: fields.ChannelName[str]
    status: fields.StatusOfChannel[ChannelStatus]
    declared: Annotated[bool, Meta(description="whether it stays without members")]
    schema_hash: fields.SchemaHash[str | None]
    schema_version: fields.VersionName[str | None]
    producer_count: Annotated[int, Meta(description="how many producers are registered")]
    consumer_count: Annotated[int, Meta(description="how many consumers are registered")]
    revision: fields.OwnRevision[int]


class ChannelList(Reply, tag="CHANNEL_LIST_RESPONSE"):
    """`next` is the `after` of the following page, or null at the end."""

    channels: Annotated[list[ChannelSummary], Meta(description="by name")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]


class ChannelDescription(Reply, tag="CHANNEL_DESCRIBE_RESPONSE"):
    channel: Annotated[Channel, Meta(description="all that the registry knows of it")]
    status: fields.StatusOfChannel[ChannelStatus]
    revision: fields.Revision[int]


class ConsumerList(Reply, tag="CONSUMER_LIST_RESPONSE"):
    channel: fields.ChannelName[str]
    consumers: Annotated[list[Consumer], Meta(description="who reads it")]
    revision: fields.Revision[int]


class SchemaRegistered(Reply, tag="SCHEMA_REGISTER_ACK"):
    subject: fields.SubjectName[str]
    version: fields.VersionNumber[int]
    schema_id: fields.SchemaId[int]
    schema_hash: fields.SchemaHash[str]
    guid: Annotated[str, Meta(description="an id that follows from the content of the schema")]
    revision: fields.Revision[int]


class SchemaFound(Reply, tag="SCHEMA_RESPONSE"):
    """Asked by id, GUID or hash, subject and version are of the first place that holds it; `places` has all."""

    schema: Annotated[
        SchemaVersion, Meta(description="asked by id, GUID or hash: the first by subject and version that holds it")
    ]
    places: Annotated[list[Place], Meta(description="all that hold it")]
    max_id: Annotated[int, Meta(description="the newest id of the registry")]
    reference_texts: Annotated[
        dict[str, str], Meta(description="with `resolve`: texts by the names that they are referred to by")
    ] = field(default_factory=dict)
    referrers: Annotated[
        list[int], Meta(description="with `referrers`: ids of schemas that are not deleted and refer to this one")
    ] = field(default_factory=list)


class SchemaList(Reply, tag="SCHEMA_LIST_RESPONSE"):
    subject: Annotated[str | None, Meta(description="whose versions these are; null: subjects are listed")]
    subjects: Annotated[list[str], Meta(description="by name; empty where versions are listed")]
    versions: Annotated[list[SchemaVersionSummary], Meta(description="of the subject, oldest first")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]


class SchemaExport(Reply, tag="SCHEMA_EXPORT_RESPONSE"):
    schemas: Annotated[list[SchemaVersion], Meta(description="whole versions, subject by subject")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]


class SchemaChecked(Reply, tag="SCHEMA_CHECK_RESPONSE"):
    """`touched` are the live members of the subject's channel."""

    is_compatible: Annotated[bool, Meta(description="whether it could be registered now")]
    level: Annotated[Level, Meta(description="the compatibility level that was applied")]
    differences: Annotated[list[VersionDifferences], Meta(description="per version that is in the way")]
    touched: Annotated[list[TouchedMember], Meta(description="live members of the subject's channel")]
    revision: fields.Revision[int]


class SchemaDeleted(Reply, tag="SCHEMA_DELETE_ACK"):
    """`touched` are live members that work with what was deleted, by force."""

    subject: fields.SubjectName[str]
    versions: Annotated[list[int], Meta(description="the numbers of the versions that were deleted")]
    revision: fields.Revision[int]
    touched: Annotated[
        list[TouchedMember], Meta(description="live members that work with what was deleted by force")
    ] = field(default_factory=list)


class SchemaConfigFound(Reply, tag="SCHEMA_CONFIG_RESPONSE"):
    """`touched` are the live members of the subject's channel, when its settings changed."""

    subject: Annotated[str | None, Meta(description="null: the whole registry")]
    config: Annotated[SchemaConfig, Meta(description="what is set")]
    revision: fields.Revision[int]
    touched: Annotated[
        list[TouchedMember], Meta(description="live members of the subject's channel, when the settings changed")
    ] = field(default_factory=list)


class SchemaModeFound(Reply, tag="SCHEMA_MODE_RESPONSE"):
    subject: Annotated[str | None, Meta(description="null: the whole registry")]
    mode: Annotated[Mode, Meta(description="whether new versions are taken")]
    revision: fields.Revision[int]


class TopicRetained(Reply, tag="TOPIC_KEEP_ACK"):
    topic: Annotated[RetainedTopic, Meta(description="the topic as it is retained now")]
    revision: fields.Revision[int]
    settles_in_seconds: Annotated[
        float,
        Meta(
            description="for so long publishers that were told that the topic is not retained may still publish to it "
            "plainly, which is not stored"
        ),
    ] = 0.0


class TopicDeleted(Reply, tag="TOPIC_DELETE_ACK"):
    topic: fields.TopicName[str]
    revision: fields.Revision[int]


class TopicList(Reply, tag="TOPIC_LIST_RESPONSE"):
    topics: Annotated[list[RetainedTopic], Meta(description="by name")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]
    plain: Annotated[
        list[PlainTopic] | UnsetType,
        Meta(description="if asked for: those that somebody published to in the last ten minutes, at most 1,000"),
    ] = UNSET


class TopicDescription(Reply, tag="TOPIC_DESCRIBE_RESPONSE"):
    """`first_offset` is the oldest that is stored, or the next one where nothing is."""

    topic: Annotated[RetainedTopic, Meta(description="the topic as it is retained")]
    first_offset: Annotated[int, Meta(description="of the oldest that is stored; where nothing is, the next one's")]
    messages: Annotated[int, Meta(description="how many are stored")]
    size_bytes: Annotated[int, Meta(description="how many bytes are stored")]
    oldest_at: Annotated[float | None, Meta(description="when the oldest of them was stored, seconds since the epoch")]


class MessagesRetained(Reply, tag="TOPIC_PUBLISH_ACK"):
    """`offset` is the first one's; they follow each other. `duplicate`: they had been stored before."""

    topic: fields.TopicName[str]
    offset: Annotated[int, Meta(description="of the first message")]
    count: Annotated[int, Meta(description="how many were stored")]
    duplicate: Annotated[bool, Meta(description="they had been stored before, at this offset")]


# Their names before 2026-11-18.
TopicKept = TopicRetained
MessagesKept = MessagesRetained


class StoredMessage(Struct, kw_only=True, frozen=True, gc=False):
    offset: fields.Offset[int]
    at: Annotated[float, Meta(description="when the broker took it, seconds since the epoch")]
    kind: fields.KindOfPayload[PayloadKind]
    payload: Annotated[bytes, Meta(description="base64")]
    headers: fields.Headers[dict[str, Any]] = field(default_factory=dict)


class TopicPage(Reply, tag="TOPIC_READ_RESPONSE"):
    """Messages that follow each other, as many as were asked for or as fit; `next_offset` is that of the topic."""

    topic: fields.TopicName[str]
    incarnation: Annotated[int, Meta(description="tells the topic from one of the same name that was deleted before")]
    first_offset: Annotated[int, Meta(description="the oldest that is stored")]
    next_offset: Annotated[int, Meta(description="of the topic: what will be published next")]
    messages: Annotated[list[StoredMessage], Meta(description="in the order of their offsets")]


class PositionOpened(Reply, tag="POSITION_OPEN_ACK"):
    position: Annotated[TopicPosition, Meta(description="the position as it is")]
    created: Annotated[bool, Meta(description="it was not there before")]


class Delivery(Struct, kw_only=True, frozen=True, gc=False):
    """`deliveries` counts this one; `dead`: there were as many as there may be, and it goes to the dead letters."""

    offset: fields.Offset[int]
    deliveries: Annotated[int, Meta(description="how often it was handed out, this time included")]
    dead: Annotated[bool, Meta(description="there were as many as there may be: it is for the dead letters")] = False


class MessagesFetched(Reply, tag="POSITION_FETCH_RESPONSE"):
    """What the member holds from now on; the messages themselves are read with TOPIC_READ_REQUEST.

    `passed` were no longer in the store. Where there may be more in `wait_seconds`, others hold messages until then.
    """

    topic: fields.TopicName[str]
    position: fields.PositionName[str]
    messages: Annotated[list[Delivery], Meta(description="held by the subscriber from now on")]
    passed: Annotated[int, Meta(description="were not acknowledged, and are no longer in the store")]
    wait_seconds: Annotated[
        float | None, Meta(description="until something that is held may be free; null: nothing is held")
    ]
    revision: Annotated[int, Meta(description="of the position: another one says that it was reset")]


class MessagesAcknowledged(Reply, tag="POSITION_ACKNOWLEDGE_ACK"):
    """`acknowledged` were not before."""

    topic: fields.TopicName[str]
    position: fields.PositionName[str]
    acknowledged: Annotated[int, Meta(description="how many were not before")]


class MessagesReturned(Reply, tag="POSITION_RETURN_ACK"):
    """`returned` were held by the member."""

    topic: fields.TopicName[str]
    position: fields.PositionName[str]
    returned: Annotated[int, Meta(description="how many the subscriber held")]


class PositionSummary(Struct, kw_only=True, frozen=True):
    """`acknowledged_to`: everything before it is done. `unacked` were handed out and not acknowledged, `lag` are all
    that are not done.
    """

    position: Annotated[TopicPosition, Meta(description="the position as it is")]
    acknowledged_to: Annotated[int, Meta(description="everything before it is done")]
    unacked: Annotated[int, Meta(description="handed out and not acknowledged")]
    lag: Annotated[int, Meta(description="all that are not done")]


class PositionList(Reply, tag="POSITION_LIST_RESPONSE"):
    topic: fields.TopicName[str]
    positions: Annotated[list[PositionSummary], Meta(description="by name")]
    next: fields.Next[str | None]


class SubscriberSummary(Struct, kw_only=True, frozen=True):
    member_id: fields.MemberId[str]
    status: fields.StatusOfMember[MemberStatus]
    host: fields.Host[str | None]
    pid: fields.Pid[int | None]
    registered_at: fields.RegisteredAt[float]
    unacked: Annotated[int, Meta(description="how many messages it holds")]


class PositionDescription(Reply, tag="POSITION_DESCRIBE_RESPONSE"):
    summary: Annotated[PositionSummary, Meta(description="the position, and how far it is")]
    members: Annotated[list[SubscriberSummary], Meta(description="who reads under its name")]


class PositionReset(Reply, tag="POSITION_RESET_ACK"):
    position: Annotated[TopicPosition, Meta(description="the position as it is now")]


class PositionDeleted(Reply, tag="POSITION_DELETE_ACK"):
    topic: fields.TopicName[str]
    position: fields.PositionName[str]
    revision: fields.Revision[int]


class SubscriberRegistered(Reply, tag="SUBSCRIBER_REGISTER_ACK"):
    kind: Annotated[Literal["group", "position"], Meta(description="as registered")]
    name: Annotated[str, Meta(description="of the group or the position")]
    member_id: fields.MemberId[str]
    lease: fields.LeaseName[str]
    lease_seconds: fields.LeaseSeconds[float]
    epoch: Annotated[int, Meta(description="of a group: the share in force; 0: none yet")] = 0
    proposed: Annotated[int, Meta(description="the epoch that begins when all are ready; 0: none")] = 0
    valid_seconds: Annotated[float, Meta(description="for so long after it asked a member goes by its share")] = 0.0
    """Of a group: the share in force, the one that is to begin when all are ready, and for how long the member may go
    on by its share from when it asked."""


class SubscriberUnregistered(Reply, tag="SUBSCRIBER_UNREGISTER_ACK"):
    member_id: fields.MemberId[str]


class SubscriptionsNoted(Reply, tag="SUBSCRIPTION_REPORT_ACK"):
    subscriptions: Annotated[int, Meta(description="how many of the process are known now")]
    asked: Annotated[
        list[AskedMessage], Meta(max_length=64, description="somebody looks for these: say what became of them")
    ] = field(default_factory=list)


class ReportedSubscription(SubscriptionState, kw_only=True, frozen=True):
    """A subscription, whose process told of it a moment ago."""

    program: Annotated[str | None, Meta(description="what its process runs")] = None
    host: fields.Host[str | None] = None
    pid: fields.Pid[int | None] = None
    reported_at: Annotated[float, Meta(description="seconds since the epoch, when its process last told of it")]


class SubscriptionList(Reply, tag="SUBSCRIPTION_LIST_RESPONSE"):
    subscriptions: Annotated[list[ReportedSubscription], Meta(description="the oldest first")]
    total: Annotated[int, Meta(description="how many there are, also beyond the limit")]


class TracedSubscription(ReportedSubscription, kw_only=True, frozen=True):
    """A subscription that matches the topic of a message, and what became of the message there."""

    outcome: Annotated[
        MessageOutcome | Literal["not_reported"],
        Meta(description="as its process says; `not_reported`: it has not answered yet"),
    ]
    reason: Annotated[str | None, Meta(description="more about it, for people")] = None


class EndedSubscription(ReportedSubscription, kw_only=True, frozen=True):
    """A subscription that has ended in the last minutes. What became of one message there is not known any more."""

    ended_at: Annotated[float, Meta(description="seconds since the epoch, when the broker learned of it")]


class TracedPosition(Struct, kw_only=True, frozen=True):
    """What became of a message under a durable name."""

    position: fields.PositionName[str]
    outcome: Annotated[
        Literal["acknowledged", "handed_out", "waiting", "earlier", "dead_letter"],
        Meta(
            description="done (`acknowledged`, or passed over because the topic's bounds removed it first), handed out "
            "and not acknowledged, `waiting` to be handed out, `earlier` than where the position began or was reset "
            "to, or given up (`dead_letter`)"
        ),
    ]
    deliveries: Annotated[int, Meta(description="how often it was handed out; 0 where that is not known any more")] = 0
    member_id: Annotated[str | None, Meta(description="who holds it; null: nobody, or nobody any more")] = None
    host: fields.Host[str | None] = None
    pid: fields.Pid[int | None] = None
    again_in_seconds: Annotated[
        float | None, Meta(description="when it is handed out again unless it is acknowledged; 0: at once")
    ] = None
    dead_letter: Annotated[int | None, Meta(description="the number of its dead letter")] = None


class MessageTrace(Reply, tag="MESSAGE_TRACE_RESPONSE"):
    """What is known of one message now. Nothing of it is collected while nobody asks."""

    topic: fields.TopicName[str]
    publisher: Annotated[
        str, Meta(description="who numbered it, in hexadecimal; of a retained topic, which life of the topic it is of")
    ]
    number: Annotated[int, Meta(description="the publisher's number, or the offset")]
    offset: Annotated[int | None, Meta(description="of a retained topic; null: it is a plain one")]
    published_by: Annotated[
        PublisherProcess | None, Meta(description="null: not known, or not any more: the broker remembers the newest")
    ]
    published_at: Annotated[
        float | None, Meta(description="seconds since the epoch, when it was stored; null: not known to the broker")
    ]
    correlation_id: Annotated[str | None, Meta(description="of the request that stored it")]
    subscriptions: Annotated[
        list[TracedSubscription], Meta(description="those that match now; durable ones are in `positions`")
    ]
    positions: Annotated[list[TracedPosition], Meta(description="the durable names of a retained topic")]
    ended: Annotated[
        list[EndedSubscription], Meta(description="matching subscriptions that ended in the last ten minutes")
    ]
    is_complete: Annotated[bool, Meta(description="whether every subscription has answered")]
    home: Annotated[
        str | None,
        Meta(
            description="the host that has the messages of the topic, where that is another one of the site: the hub"
            " there knows who published this one, whether it is there, and its `positions`"
        ),
    ] = None


class SnapshotPage(Reply, tag="SNAPSHOT_RESPONSE"):
    channels: Annotated[list[Channel], Meta(description="by name")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]
    broker_id: Annotated[str | UnsetType, Meta(description="left out by a registry without a broker")] = UNSET


class WorkerRegistered(Reply, tag="SERVICE_REGISTER_ACK"):
    address: fields.Address[str]
    worker_id: fields.WorkerId[str]
    lease: fields.LeaseName[str]
    lease_seconds: fields.LeaseSeconds[float]
    revision: fields.Revision[int]


class WorkerUnregistered(Reply, tag="SERVICE_UNREGISTER_ACK"):
    address: fields.Address[str]
    worker_id: fields.WorkerId[str]
    revision: fields.Revision[int]


class ServiceResolved(Reply, tag="SERVICE_RESOLVE_RESPONSE"):
    """`turn` counts who resolved the address before, so that callers of a pool do not all begin with one worker."""

    service: Annotated[Service, Meta(description="the address and who serves it")]
    turn: Annotated[int, Meta(description="how often it was resolved before: where a round robin may begin")]


class WorkerSummary(Struct, kw_only=True, frozen=True):
    """A worker without the key that opens it."""

    worker_id: fields.WorkerId[str]
    status: fields.StatusOfMember[MemberStatus]
    concurrency: fields.Concurrency[int]
    host: fields.Host[str | None]
    pid: fields.Pid[int | None]
    tcp_endpoint: fields.TcpEndpoint[str | None]
    registered_at: fields.RegisteredAt[float]
    mailbox: Annotated[
        MailboxState | None, Meta(description="as of its process's last heartbeat; null before the first")
    ] = None


class ServiceSummary(Struct, kw_only=True, frozen=True):
    address: fields.Address[str]
    strategy: fields.StrategyRule[Strategy]
    workers: Annotated[list[WorkerSummary], Meta(description="in the order of their registration")]
    revision: Annotated[int, Meta(description="of the services, counted anew by each run of the broker")]


class ServiceList(Reply, tag="SERVICE_LIST_RESPONSE"):
    services: Annotated[list[ServiceSummary], Meta(description="by address")]
    next: fields.Next[str | None]
    revision: fields.Revision[int]


class PoolRemoved(Reply, tag="POOL_REMOVE_ACK"):
    address: fields.Address[str]
    revision: fields.Revision[int]


class DeadLetterReported(Reply, tag="DEAD_LETTER_REPORT_ACK"):
    kept: Annotated[int, Meta(description="how many the broker has now")]


class DeadLetterList(Reply, tag="DEAD_LETTER_LIST_RESPONSE"):
    """`dropped` counts those that made room for newer ones."""

    letters: Annotated[list[DeadLetter], Meta(description="oldest first")]
    kept: Annotated[int, Meta(description="how many the broker has now")]
    dropped: Annotated[int, Meta(description="those that made room for newer ones")]

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.letters)


class DeadLettersRemoved(Reply, tag="DEAD_LETTER_REMOVE_ACK"):
    """`removed` were still there; `kept` are left."""

    removed: Annotated[int, Meta(description="how many of them were still there")]
    kept: Annotated[int, Meta(description="how many the broker has now")]


class HostList(Reply, tag="HOST_LIST_RESPONSE"):
    """Without a site, `site` is null and there are no hosts."""

    site: Annotated[str | None, Meta(description="the name of the site; null if the hub is a member of none")]
    host: Annotated[str | None, Meta(description="the host of the hub that answers")]
    role: Annotated[
        Literal["single", "leader", "follower"], Meta(description="whether the hub that answers decides commands")
    ]
    hosts: Annotated[list[SiteHost], Meta(description="by name")]
    age_seconds: Annotated[
        float, Meta(description="for how long etcd has not confirmed that the copy of the hub that answers is complete")
    ]
    revision: fields.Revision[int]


class GatewayFound(Reply, tag="GATEWAY_RESPONSE"):
    """How to read a channel's data through the Arrow Flight gateway of its host."""

    host: Annotated[str, Meta(description="the name of the host that has the data")]
    location: Annotated[str, Meta(description="where its gateway serves: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`")]
    token: Annotated[str, Meta(description="to be sent as Bearer token; lets its bearer read this channel alone")]
    valid_seconds: Annotated[float, Meta(description="for how long the gateway takes the token")]
    certificate: Annotated[
        str, Meta(description="the certificate chain that the gateway shows, in PEM form; empty without encryption")
    ] = ""


class Pong(Reply, tag="PONG"):
    broker_id: fields.BrokerId[str]
    revision: fields.Revision[int]
    read_only: Annotated[bool, Meta(description="whether changes cannot be stored now")]
    problems: Annotated[
        list[str] | UnsetType,
        Meta(description="what is wrong with parts of the hub that the broker goes on without, such as HTTP"),
    ] = UNSET
    """What is wrong with parts of the hub that the broker goes on without, such as HTTP."""


class StatsReport(Reply, tag="STATS_RESPONSE"):
    broker_id: fields.BrokerId[str]
    version: Annotated[str, Meta(description="the version of the broker's program")]
    pid: Annotated[int, Meta(description="the id of the broker's process")]
    uptime_seconds: Annotated[float, Meta(description="since the broker started")]
    revision: fields.Revision[int]
    read_only: Annotated[bool, Meta(description="whether changes cannot be stored now")]
    channels: Annotated[int, Meta(description="how many are registered")]
    producers: Annotated[int, Meta(description="how many are registered")]
    consumers: Annotated[int, Meta(description="how many are registered")]
    leases: Annotated[int, Meta(description="how many processes hold registrations")]
    schemas: Annotated[int, Meta(description="how many versions are registered")]
    requests: Annotated[dict[str, Any], Meta(description="per type: count, errors, latencies")]
    counters: Annotated[dict[str, int], Meta(description="malformed, unknown types, dropped frames and the like")]
    store: Annotated[
        dict[str, Any], Meta(description="the newest revision that is on disk, and how many transactions it took")
    ]
    gauges: Annotated[
        dict[str, int],
        Meta(
            description="what is there now: watched processes and directories of this host, event subscriptions, "
            "leases that belong to a peer"
        ),
    ] = field(default_factory=dict)


class TraceReport(Reply, tag="TRACE_RESPONSE"):
    exchanges: Annotated[
        list[dict[str, Any]],
        Meta(description="the newest last: what was asked, what was answered, and how long it took"),
    ]


AnyReply = (
    Error
    | HelloAck
    | ProducerRegistered
    | ProducerUnregistered
    | ConsumerRegistered
    | ConsumerUnregistered
    | MemberEvicted
    | HeartbeatAck
    | Discovered
    | ChannelCreated
    | ChannelDestroyed
    | TableChecked
    | TableRegistered
    | TableDropped
    | TableList
    | ChannelList
    | ChannelDescription
    | ConsumerList
    | SchemaRegistered
    | SchemaFound
    | SchemaList
    | SchemaExport
    | SchemaChecked
    | SchemaDeleted
    | SchemaConfigFound
    | SchemaModeFound
    | TopicRetained
    | TopicDeleted
    | TopicList
    | TopicDescription
    | MessagesRetained
    | TopicPage
    | PositionOpened
    | MessagesFetched
    | MessagesAcknowledged
    | MessagesReturned
    | PositionList
    | PositionDescription
    | PositionReset
    | PositionDeleted
    | SubscriberRegistered
    | SubscriberUnregistered
    | SubscriptionsNoted
    | SubscriptionList
    | MessageTrace
    | SnapshotPage
    | WorkerRegistered
    | WorkerUnregistered
    | ServiceResolved
    | ServiceList
    | PoolRemoved
    | DeadLetterReported
    | DeadLetterList
    | DeadLettersRemoved
    | HostList
    | GatewayFound
    | Pong
    | StatsReport
    | TraceReport
)
