"""What may be asked. The wire message is the command: the tag is its `type`, the fields are its JSON members.

Lengths are checked here, by the decoder; names are checked once, by the registry.
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, field

from registry.records import Access, Block, Count, Label, Priority, SchemaType, Text

Schema = dict[str, Any] | list[Any] | str | bool
Limit = Annotated[int, Meta(ge=1, le=10_000)]


class Command(Struct, kw_only=True, tag_field="type", gc=False):
    """The envelope. `writes` says whether the command may change what the store keeps."""

    writes: ClassVar[bool] = False

    id: Text | None = None
    protocol: Text = "1.0"
    priority: Priority = "normal"


class Hello(Command, tag="HELLO"):
    versions: list[Text] = field(default_factory=lambda: ["1.0"])
    client: Text = ""
    features: list[Text] = field(default_factory=list)


class RegisterProducer(Command, tag="PRODUCER_REGISTER"):
    writes = True

    channel: Text
    schema_hash: Label
    schema_version: Text = ""
    config: dict[str, Any] = field(default_factory=dict)
    producer_id: Text | None = None
    lease: Label | None = None
    shm_name: Label | None = None
    schema: Schema | None = None
    schema_type: SchemaType | None = None
    ready: bool = True
    access: Access = "exclusive"
    host: Text | None = None
    pid: Count | None = None
    start_time: Count | None = None
    boot_id: Text | None = None
    blocks: list[Block] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


class UnregisterProducer(Command, tag="PRODUCER_UNREGISTER"):
    writes = True

    channel: Text
    producer_id: Text | None = None
    lease: Label | None = None


class RegisterConsumer(Command, tag="CONSUMER_REGISTER"):
    """`required` asks for a refusal, instead of waiting, when the channel has no active producer."""

    writes = True

    channel: Text
    consumer_id: Text
    expected_schema_hash: Label | None = None
    lease: Label | None = None
    group: Text | None = None
    required: bool = False
    host: Text | None = None
    pid: Count | None = None
    start_time: Count | None = None
    boot_id: Text | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class UnregisterConsumer(Command, tag="CONSUMER_UNREGISTER"):
    writes = True

    channel: Text
    consumer_id: Text
    lease: Label | None = None


class Heartbeat(Command, tag="HEARTBEAT"):
    lease: Label


class Discover(Command, tag="DISCOVERY_REQUEST"):
    channel: Text
    blocks_offset: Count = 0


class CreateChannel(Command, tag="CHANNEL_CREATE"):
    writes = True

    channel: Text
    schema_hash: Label | None = None
    schema_version: Text | None = None
    schema: Schema | None = None
    schema_type: SchemaType | None = None
    access: Access | None = None
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class DestroyChannel(Command, tag="CHANNEL_DESTROY"):
    writes = True

    channel: Text


class ListChannels(Command, tag="CHANNEL_LIST_REQUEST"):
    prefix: Text = ""
    after: Text = ""
    limit: Limit = 1000


class DescribeChannel(Command, tag="CHANNEL_DESCRIBE_REQUEST"):
    channel: Text


class ListConsumers(Command, tag="CONSUMER_LIST_REQUEST"):
    channel: Text


class RegisterSchema(Command, tag="SCHEMA_REGISTER"):
    writes = True

    subject: Label
    schema: Schema
    schema_type: SchemaType = "JSON"
    schema_hash: Label | None = None


class RequestSchema(Command, tag="SCHEMA_REQUEST"):
    """By id, by hash, or by subject and version (the newest when no version is given)."""

    schema_id: Count | None = None
    schema_hash: Label | None = None
    subject: Label | None = None
    version: Count | None = None


class ListSchemas(Command, tag="SCHEMA_LIST_REQUEST"):
    """The versions of one subject, or the names of all."""

    subject: Label | None = None
    after: Text = ""
    limit: Limit = 1000


class Snapshot(Command, tag="SNAPSHOT_REQUEST"):
    """Whole channel records, in pages by name, or of one channel.

    Each record carries its own revision, so pages need not be of one instant.
    """

    channel: Text | None = None
    after: Text = ""
    limit: Limit = 500


class Ping(Command, tag="PING"):
    pass


class Stats(Command, tag="STATS_REQUEST"):
    pass


class Trace(Command, tag="TRACE_REQUEST"):
    """The newest exchanges the broker remembers, or those with one correlation id."""

    correlation_id: Text | None = None
    limit: Limit = 100


AnyCommand = (
    Hello
    | RegisterProducer
    | UnregisterProducer
    | RegisterConsumer
    | UnregisterConsumer
    | Heartbeat
    | Discover
    | CreateChannel
    | DestroyChannel
    | ListChannels
    | DescribeChannel
    | ListConsumers
    | RegisterSchema
    | RequestSchema
    | ListSchemas
    | Snapshot
    | Ping
    | Stats
    | Trace
)
