"""What is answered. `id` echoes the request's and is left out when it had none."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from registry.formats.differences import Difference
from registry.records import (
    Access,
    Block,
    Channel,
    ChannelStatus,
    Consumer,
    DeadLetter,
    KeptTopic,
    Level,
    MemberStatus,
    Mode,
    PayloadKind,
    Priority,
    Producer,
    SchemaConfig,
    SchemaType,
    SchemaVersion,
    Service,
    Strategy,
    Table,
    TopicPosition,
    Verification,
)


class Reply(Struct, kw_only=True, tag_field="type"):
    id: str | UnsetType = UNSET


class Error(Reply, tag="ERROR"):
    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    retryable: bool = False


class HelloAck(Reply, tag="HELLO_ACK"):
    version: str
    broker_id: str
    revision: int
    heartbeat_seconds: float
    lease_seconds: float
    beacon_seconds: float
    endpoints: dict[str, str]
    server: str
    warning: str | UnsetType = UNSET
    access: str | UnsetType = UNSET


class ProducerRegistered(Reply, tag="PRODUCER_REGISTER_ACK"):
    channel: str
    producer_id: str
    shm_name: str
    schema_id: int | None
    lease: str
    lease_seconds: float
    revision: int


class ProducerUnregistered(Reply, tag="PRODUCER_UNREGISTER_ACK"):
    channel: str
    producer_id: str
    revision: int


class Share(Struct, kw_only=True, frozen=True):
    """A member reads the sequences s of a block with s % count == index; none where count is 0."""

    shm_name: str
    index: int
    count: int


class Assignment(Struct, kw_only=True, frozen=True):
    """A group member's part of a channel; a block that `shares` does not name is shared by index and count."""

    group: str
    epoch: int
    index: int
    count: int
    shares: list[Share] = field(default_factory=list)


class ConsumerRegistered(Reply, tag="CONSUMER_REGISTER_ACK"):
    channel: str
    consumer_id: str
    status: ChannelStatus
    shm_name: str | None
    schema_hash: str | None
    schema_version: str | None
    blocks: list[Block]
    assignment: Assignment | None
    lease: str
    lease_seconds: float
    revision: int


class ConsumerUnregistered(Reply, tag="CONSUMER_UNREGISTER_ACK"):
    channel: str
    consumer_id: str
    revision: int


class Place(Struct, kw_only=True, frozen=True):
    subject: str
    version: int
    is_deleted: bool


class SchemaVersionSummary(Struct, kw_only=True, frozen=True):
    version: int
    schema_id: int
    schema_type: SchemaType
    schema_hash: str
    is_deleted: bool


class VersionDifferences(Struct, kw_only=True, frozen=True):
    """Why a schema does not go with one version of a subject."""

    version: int
    differences: list[Difference]


class TouchedMember(Struct, kw_only=True, frozen=True):
    """`would_break` is said by a check, of members whose schema is registered."""

    role: str
    member_id: str
    host: str | None
    pid: int | None
    schema_hash: str | None
    would_break: bool | None = None


class Notice(Struct, kw_only=True, frozen=True):
    """Something a member of a channel should hear of at its next heartbeat."""

    event: str
    channel: str
    member: str | None
    reason: str | None
    revision: int


class HeartbeatAck(Reply, tag="HEARTBEAT_ACK"):
    """`known` is false when nothing is registered under the lease: register again."""

    known: bool
    notices: list[Notice]
    broker_id: str | UnsetType = UNSET
    access: str | UnsetType = UNSET


class Discovered(Reply, tag="DISCOVERY_RESPONSE"):
    """Only the draft's six fields are required of a sender; this registry always says all of them but the last two.

    `compatible` and `differences` are about the expected schema, where one was named.
    """

    channel: str
    shm_name: str | None
    schema_hash: str | None
    schema_version: str | None
    status: ChannelStatus
    conflict: str | None = None
    schema: Verification | None = None
    schema_type: SchemaType | None = None
    schema_id: int | None = None
    access: Access | None = None
    priority: Priority = "normal"
    generation: int = 0
    table: Table | None = None
    consumer_count: int = 0
    producers: list[Producer] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    blocks_total: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    compatible: bool | UnsetType = UNSET
    differences: list[VersionDifferences] | UnsetType = UNSET


class ChannelCreated(Reply, tag="CHANNEL_CREATE_ACK"):
    channel: str
    schema_id: int | None
    revision: int


class ChannelDestroyed(Reply, tag="CHANNEL_DESTROY_ACK"):
    channel: str
    revision: int


class TableChecked(Reply, tag="TABLE_CHECK_RESPONSE"):
    """`schema_id` and `schema_version` are null where registering the table would make a new version."""

    channel: str
    schema_id: int | None
    schema_version: str | None
    revision: int


class TableRegistered(Reply, tag="TABLE_REGISTER_ACK"):
    """What the registry has now; a generation later than the one that was registered supersedes it."""

    channel: str
    table: Table
    revision: int


class TableDropped(Reply, tag="TABLE_DROP_ACK"):
    channel: str
    table: Table
    revision: int


class TableSummary(Struct, kw_only=True, frozen=True):
    channel: str
    table: Table


class TableList(Reply, tag="TABLE_LIST_RESPONSE"):
    tables: list[TableSummary]
    next: str | None
    revision: int


class ChannelSummary(Struct, kw_only=True, frozen=True):
    channel: str
    status: ChannelStatus
    declared: bool
    schema_hash: str | None
    schema_version: str | None
    producer_count: int
    consumer_count: int
    revision: int


class ChannelList(Reply, tag="CHANNEL_LIST_RESPONSE"):
    """`next` is the `after` of the following page, or null at the end."""

    channels: list[ChannelSummary]
    next: str | None
    revision: int


class ChannelDescription(Reply, tag="CHANNEL_DESCRIBE_RESPONSE"):
    channel: Channel
    status: ChannelStatus
    revision: int


class ConsumerList(Reply, tag="CONSUMER_LIST_RESPONSE"):
    channel: str
    consumers: list[Consumer]
    revision: int


class SchemaRegistered(Reply, tag="SCHEMA_REGISTER_ACK"):
    subject: str
    version: int
    schema_id: int
    schema_hash: str
    guid: str
    revision: int


class SchemaFound(Reply, tag="SCHEMA_RESPONSE"):
    """Asked by id, GUID or hash, subject and version are of the first place that holds it; `places` has all."""

    schema: SchemaVersion
    places: list[Place]
    max_id: int
    reference_texts: dict[str, str] = field(default_factory=dict)
    referrers: list[int] = field(default_factory=list)


class SchemaList(Reply, tag="SCHEMA_LIST_RESPONSE"):
    subject: str | None
    subjects: list[str]
    versions: list[SchemaVersionSummary]
    next: str | None
    revision: int


class SchemaExport(Reply, tag="SCHEMA_EXPORT_RESPONSE"):
    schemas: list[SchemaVersion]
    next: str | None
    revision: int


class SchemaChecked(Reply, tag="SCHEMA_CHECK_RESPONSE"):
    """`touched` are the live members of the subject's channel."""

    is_compatible: bool
    level: Level
    differences: list[VersionDifferences]
    touched: list[TouchedMember]
    revision: int


class SchemaDeleted(Reply, tag="SCHEMA_DELETE_ACK"):
    """`touched` are live members that work with what was deleted, by force."""

    subject: str
    versions: list[int]
    revision: int
    touched: list[TouchedMember] = field(default_factory=list)


class SchemaConfigFound(Reply, tag="SCHEMA_CONFIG_RESPONSE"):
    """`touched` are the live members of the subject's channel, when its settings changed."""

    subject: str | None
    config: SchemaConfig
    revision: int
    touched: list[TouchedMember] = field(default_factory=list)


class SchemaModeFound(Reply, tag="SCHEMA_MODE_RESPONSE"):
    subject: str | None
    mode: Mode
    revision: int


class TopicKept(Reply, tag="TOPIC_KEEP_ACK"):
    topic: KeptTopic
    revision: int
    settles_in_seconds: float = 0.0


class TopicDeleted(Reply, tag="TOPIC_DELETE_ACK"):
    topic: str
    revision: int


class TopicList(Reply, tag="TOPIC_LIST_RESPONSE"):
    topics: list[KeptTopic]
    next: str | None
    revision: int


class TopicDescription(Reply, tag="TOPIC_DESCRIBE_RESPONSE"):
    """`first_offset` is the oldest that is kept, or the next where nothing is."""

    topic: KeptTopic
    first_offset: int
    messages: int
    size_bytes: int
    oldest_at: float | None


class MessagesKept(Reply, tag="TOPIC_PUBLISH_ACK"):
    """`offset` is the first one's; they follow each other. `duplicate`: they had been stored before."""

    topic: str
    offset: int
    count: int
    duplicate: bool


class StoredMessage(Struct, kw_only=True, frozen=True, gc=False):
    offset: int
    at: float
    kind: PayloadKind
    payload: bytes
    headers: dict[str, Any] = field(default_factory=dict)


class TopicPage(Reply, tag="TOPIC_READ_RESPONSE"):
    """Messages that follow each other, as many as were asked for or as fit; `next_offset` is that of the topic."""

    topic: str
    incarnation: int
    first_offset: int
    next_offset: int
    messages: list[StoredMessage]


class PositionOpened(Reply, tag="POSITION_OPEN_ACK"):
    position: TopicPosition
    created: bool


class Delivery(Struct, kw_only=True, frozen=True, gc=False):
    """`deliveries` counts this one; `dead`: there were as many as there may be, and it goes to the dead letters."""

    offset: int
    deliveries: int
    dead: bool = False


class MessagesFetched(Reply, tag="POSITION_FETCH_RESPONSE"):
    """What the member holds from now on; the messages themselves are read with TOPIC_READ_REQUEST.

    `passed` were no longer in the store. Where there may be more in `wait_seconds`, others hold messages until then.
    """

    topic: str
    position: str
    messages: list[Delivery]
    passed: int
    wait_seconds: float | None
    revision: int


class MessagesAcknowledged(Reply, tag="POSITION_ACKNOWLEDGE_ACK"):
    """`acknowledged` were not before."""

    topic: str
    position: str
    acknowledged: int


class MessagesReturned(Reply, tag="POSITION_RETURN_ACK"):
    """`returned` were held by the member."""

    topic: str
    position: str
    returned: int


class PositionSummary(Struct, kw_only=True, frozen=True):
    """`acknowledged_to`: everything before it is done. `unacked` were handed out and not acknowledged, `lag` are all
    that are not done.
    """

    position: TopicPosition
    acknowledged_to: int
    unacked: int
    lag: int


class PositionList(Reply, tag="POSITION_LIST_RESPONSE"):
    topic: str
    positions: list[PositionSummary]
    next: str | None


class SubscriberSummary(Struct, kw_only=True, frozen=True):
    member_id: str
    status: MemberStatus
    host: str | None
    pid: int | None
    registered_at: float
    unacked: int


class PositionDescription(Reply, tag="POSITION_DESCRIBE_RESPONSE"):
    summary: PositionSummary
    members: list[SubscriberSummary]


class PositionReset(Reply, tag="POSITION_RESET_ACK"):
    position: TopicPosition


class PositionDeleted(Reply, tag="POSITION_DELETE_ACK"):
    topic: str
    position: str
    revision: int


class SubscriberRegistered(Reply, tag="SUBSCRIBER_REGISTER_ACK"):
    kind: Literal["group", "position"]
    name: str
    member_id: str
    lease: str
    lease_seconds: float
    epoch: int = 0
    proposed: int = 0
    valid_seconds: float = 0.0
    """Of a group: the share in force, the one that is to begin when all are ready, and for how long the member may go
    on by its share from when it asked."""


class SubscriberUnregistered(Reply, tag="SUBSCRIBER_UNREGISTER_ACK"):
    member_id: str


class SnapshotPage(Reply, tag="SNAPSHOT_RESPONSE"):
    channels: list[Channel]
    next: str | None
    revision: int
    broker_id: str | UnsetType = UNSET


class WorkerRegistered(Reply, tag="SERVICE_REGISTER_ACK"):
    address: str
    worker_id: str
    lease: str
    lease_seconds: float
    revision: int


class WorkerUnregistered(Reply, tag="SERVICE_UNREGISTER_ACK"):
    address: str
    worker_id: str
    revision: int


class ServiceResolved(Reply, tag="SERVICE_RESOLVE_RESPONSE"):
    """`turn` counts who resolved the address before, so that callers of a pool do not all begin with one worker."""

    service: Service
    turn: int


class WorkerSummary(Struct, kw_only=True, frozen=True):
    """A worker without the key that opens it."""

    worker_id: str
    status: MemberStatus
    concurrency: int
    host: str | None
    pid: int | None
    registered_at: float


class ServiceSummary(Struct, kw_only=True, frozen=True):
    address: str
    strategy: Strategy
    workers: list[WorkerSummary]
    revision: int


class ServiceList(Reply, tag="SERVICE_LIST_RESPONSE"):
    services: list[ServiceSummary]
    next: str | None
    revision: int


class PoolRemoved(Reply, tag="POOL_REMOVE_ACK"):
    address: str
    revision: int


class DeadLetterReported(Reply, tag="DEAD_LETTER_REPORT_ACK"):
    kept: int


class DeadLetterList(Reply, tag="DEAD_LETTER_LIST_RESPONSE"):
    """`dropped` counts those that made room for newer ones."""

    letters: list[DeadLetter]
    kept: int
    dropped: int


class DeadLettersRemoved(Reply, tag="DEAD_LETTER_REMOVE_ACK"):
    """`removed` were still there; `kept` are left."""

    removed: int
    kept: int


class Pong(Reply, tag="PONG"):
    broker_id: str
    revision: int
    read_only: bool
    problems: list[str] | UnsetType = UNSET
    """What is wrong with parts of the hub that the broker goes on without, such as HTTP."""


class StatsReport(Reply, tag="STATS_RESPONSE"):
    broker_id: str
    version: str
    pid: int
    uptime_seconds: float
    revision: int
    read_only: bool
    channels: int
    producers: int
    consumers: int
    leases: int
    schemas: int
    requests: dict[str, Any]
    counters: dict[str, int]
    store: dict[str, Any]
    gauges: dict[str, int] = field(default_factory=dict)


class TraceReport(Reply, tag="TRACE_RESPONSE"):
    exchanges: list[dict[str, Any]]


AnyReply = (
    Error
    | HelloAck
    | ProducerRegistered
    | ProducerUnregistered
    | ConsumerRegistered
    | ConsumerUnregistered
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
    | TopicKept
    | TopicDeleted
    | TopicList
    | TopicDescription
    | MessagesKept
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
    | SnapshotPage
    | WorkerRegistered
    | WorkerUnregistered
    | ServiceResolved
    | ServiceList
    | PoolRemoved
    | DeadLetterReported
    | DeadLetterList
    | DeadLettersRemoved
    | Pong
    | StatsReport
    | TraceReport
)
