"""What is answered. `id` echoes the request's and is left out when it had none."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from registry.records import (
    Access,
    Block,
    Channel,
    ChannelStatus,
    Consumer,
    Priority,
    Producer,
    SchemaType,
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


class ConsumerRegistered(Reply, tag="CONSUMER_REGISTER_ACK"):
    channel: str
    consumer_id: str
    status: ChannelStatus
    shm_name: str | None
    schema_hash: str | None
    schema_version: str | None
    blocks: list[Block]
    assignment: dict[str, Any] | None
    lease: str
    lease_seconds: float
    revision: int


class ConsumerUnregistered(Reply, tag="CONSUMER_UNREGISTER_ACK"):
    channel: str
    consumer_id: str
    revision: int


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


class Discovered(Reply, tag="DISCOVERY_RESPONSE"):
    channel: str
    shm_name: str | None
    schema_hash: str | None
    schema_version: str | None
    status: ChannelStatus
    schema: Verification | None
    schema_type: SchemaType | None
    schema_id: int | None
    access: Access | None
    priority: Priority
    generation: int
    consumer_count: int
    producers: list[Producer]
    blocks: list[Block]
    blocks_total: int
    metadata: dict[str, Any]
    revision: int


class ChannelCreated(Reply, tag="CHANNEL_CREATE_ACK"):
    channel: str
    schema_id: int | None
    revision: int


class ChannelDestroyed(Reply, tag="CHANNEL_DESTROY_ACK"):
    channel: str
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
    revision: int


class SchemaFound(Reply, tag="SCHEMA_RESPONSE"):
    """`subject` and `version` are null when asked by id or hash: several subjects may hold the schema."""

    subject: str | None
    version: int | None
    schema_id: int
    schema_type: SchemaType
    schema_hash: str
    schema: str


class SchemaVersionSummary(Struct, kw_only=True, frozen=True):
    version: int
    schema_id: int
    schema_type: SchemaType
    schema_hash: str


class SchemaList(Reply, tag="SCHEMA_LIST_RESPONSE"):
    subject: str | None
    subjects: list[str]
    versions: list[SchemaVersionSummary]
    next: str | None
    revision: int


class SnapshotPage(Reply, tag="SNAPSHOT_RESPONSE"):
    channels: list[Channel]
    next: str | None
    revision: int
    broker_id: str | UnsetType = UNSET


class Pong(Reply, tag="PONG"):
    broker_id: str
    revision: int
    read_only: bool


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
    | ChannelList
    | ChannelDescription
    | ConsumerList
    | SchemaRegistered
    | SchemaFound
    | SchemaList
    | SnapshotPage
    | Pong
    | StatsReport
    | TraceReport
)
