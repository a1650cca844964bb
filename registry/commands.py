"""What may be asked. The wire message is the command: the tag is its `type`, the fields are its JSON members.

Lengths are checked here, by the decoder; names are checked once, by the registry.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from registry.records import (
    Access,
    Block,
    ConfigField,
    Count,
    DeadLetter,
    Keep,
    KeptMessage,
    Label,
    Level,
    Mode,
    Priority,
    Reference,
    SchemaConfig,
    SchemaType,
    SchemaVersion,
    Strategy,
    Text,
)

Schema = dict[str, Any] | list[Any] | str | bool
Version = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Deleted = Literal["without", "with", "only"]
Limit = Annotated[int, Meta(ge=1, le=10_000)]
AckWait = Annotated[float, Meta(ge=0.1, le=86_400.0)]
Unacked = Annotated[int, Meta(ge=1, le=10_000)]
Offsets = Annotated[list[Count], Meta(min_length=1, max_length=1000)]


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
    """With an expected hash the answer says whether a reader of that schema can read the channel."""

    channel: Text
    blocks_offset: Count = 0
    expected_schema_hash: Label | None = None


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
    """With `data` the channel's table is dropped too: whoever asks removes it from the memory of `host`."""

    writes = True

    channel: Text
    data: bool = False
    host: Text | None = None


class TableSchema(Command, kw_only=True):
    """What is checked of a table before it is registered."""

    channel: Text
    schema_hash: Label | None = None
    schema_version: Text = ""
    schema: Schema | None = None
    schema_type: SchemaType | None = None


class CheckTable(TableSchema, tag="TABLE_CHECK"):
    """Whether a table with this schema could be registered now. Nothing is registered."""


class RegisterTable(TableSchema, kw_only=True, tag="TABLE_REGISTER"):
    """A committed generation. It has no lease: it stays until it is superseded, retired or dropped."""

    writes = True

    generation: Count
    shm_name: Label
    rows: Count = 0
    size_bytes: Count = 0
    parts: Count = 0
    hosts: dict[Text, Count] = field(default_factory=dict)
    host: Text | None = None
    boot_id: Text | None = None
    user: Text | None = None
    application: Text | None = None
    pid: Count | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    committed_at: Annotated[float, Meta(ge=0, le=1e15)] = 0.0


class DropTable(Command, tag="TABLE_DROP"):
    """Whoever asks removes the table from the memory of `host`; without a host only its record ends."""

    writes = True

    channel: Text
    host: Text | None = None


class ListTables(Command, tag="TABLE_LIST_REQUEST"):
    """`limit` bounds the channels that are looked at, so a page may hold fewer tables."""

    prefix: Text = ""
    after: Text = ""
    limit: Limit = 1000


class ListChannels(Command, tag="CHANNEL_LIST_REQUEST"):
    prefix: Text = ""
    after: Text = ""
    limit: Limit = 1000


class DescribeChannel(Command, tag="CHANNEL_DESCRIBE_REQUEST"):
    channel: Text


class ListConsumers(Command, tag="CONSUMER_LIST_REQUEST"):
    channel: Text


class SchemaText(Command):
    """A schema that arrives with its text: the broker has it checked before the registry decides."""

    subject: Label
    schema: Schema
    schema_type: SchemaType = "JSON"
    references: list[Reference] = field(default_factory=list)
    normalize: bool = False


class RegisterSchema(SchemaText, tag="SCHEMA_REGISTER"):
    """`schema_id` and any `version` are for mode IMPORT; elsewhere the version is one more than the newest."""

    writes = True

    schema_hash: Label | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    schema_id: Positive | None = None
    version: Positive | None = None


class LookUpSchema(SchemaText, tag="SCHEMA_LOOKUP_REQUEST"):
    """Which version of the subject has this content; with metadata or rules, which has these too."""

    deleted: bool = False
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


class CheckSchema(SchemaText, tag="SCHEMA_CHECK"):
    """Whether a schema could be registered now; against one version (-1: the newest) when one is named."""

    version: Version | None = None
    level: Level | None = None

    @classmethod
    def of(cls, schema: SchemaVersion, *, version: int, level: Level) -> "CheckSchema":
        """Whether one registered version goes with another one of its subject."""
        return cls(
            subject=schema.subject,
            schema=schema.schema,
            schema_type=schema.schema_type,
            references=schema.references,
            version=version,
            level=level,
        )


class RequestSchema(Command, tag="SCHEMA_REQUEST"):
    """By id, GUID, hash, or subject and version (-1 or none: the newest).

    `resolve` adds the texts of what it refers to, `referrers` the ids of what refers to it; softly deleted referrers
    are among them with `deleted_referrers`.
    """

    schema_id: Count | None = None
    guid: Label | None = None
    schema_hash: Label | None = None
    subject: Label | None = None
    version: Version | None = None
    deleted: bool = False
    resolve: bool = False
    referrers: bool = False
    deleted_referrers: bool = False


class ListSchemas(Command, tag="SCHEMA_LIST_REQUEST"):
    """The versions of one subject, or the names of all."""

    subject: Label | None = None
    prefix: Text = ""
    deleted: Deleted = "without"
    after: Text = ""
    limit: Limit = 1000


class ExportSchemas(Command, tag="SCHEMA_EXPORT_REQUEST"):
    """Whole versions, subject by subject: at most `limit` subjects a page."""

    prefix: Text = ""
    deleted: Deleted = "without"
    after: Text = ""
    limit: Limit = 100


class DeleteSchema(Command, tag="SCHEMA_DELETE"):
    """One version (-1: the newest), or without a version the whole subject.

    Softly unless `permanent`, which takes a soft delete first. `force` deletes what a live channel uses.
    """

    writes = True

    subject: Label
    version: Version | None = None
    permanent: bool = False
    force: bool = False


class RequestSchemaConfig(Command, tag="SCHEMA_CONFIG_REQUEST"):
    """Of a subject, or of the whole registry; `default_to_global` fills in what the subject does not say."""

    subject: Label | None = None
    default_to_global: bool = False


class ConfigureSchemas(Command, tag="SCHEMA_CONFIG_SET"):
    """Fields that are not given stay, those of `unset` are removed; no config at all removes the setting."""

    writes = True

    subject: Label | None = None
    config: SchemaConfig | None = None
    unset: list[ConfigField] = field(default_factory=list)


class RequestSchemaMode(Command, tag="SCHEMA_MODE_REQUEST"):
    subject: Label | None = None
    default_to_global: bool = False


class SetSchemaMode(Command, tag="SCHEMA_MODE_SET"):
    writes = True

    subject: Label | None = None
    mode: Mode | None = None
    force: bool = False


class KeepTopic(Command, tag="TOPIC_KEEP"):
    """Store what is published to a topic from now on. `replace` changes the bounds of one that is kept already."""

    writes = True

    topic: Text
    keep: Keep = field(default_factory=Keep)
    replace: bool = False


class DeleteTopic(Command, tag="TOPIC_DELETE"):
    """Keep it no longer, and forget what was kept."""

    writes = True

    topic: Text


class ListTopics(Command, tag="TOPIC_LIST_REQUEST"):
    """The kept topics that match a pattern."""

    pattern: Text = ">"
    after: Text = ""
    limit: Limit = 1000


class DescribeTopic(Command, tag="TOPIC_DESCRIBE_REQUEST"):
    topic: Text


class PublishMessages(Command, tag="TOPIC_PUBLISH"):
    """Messages for a kept topic, stored as one. A publisher numbers its messages, so that the same may come again:

    `number` is the first one's, and the numbers of a publisher go up.
    """

    writes = True

    topic: Text
    messages: Annotated[list[KeptMessage], Meta(min_length=1, max_length=1000)]
    publisher: Label | None = None
    number: Count = 0


class ReadTopic(Command, tag="TOPIC_READ_REQUEST"):
    """What a topic keeps, from an offset or, with `since`, from a time (seconds since the epoch)."""

    topic: Text
    offset: Count = 0
    since: float | None = None
    limit: Limit = 1000


class OpenPosition(Command, tag="POSITION_OPEN"):
    """Make a named position of a retained topic, or find it as it is.

    `start` counts only where it is made. A setting that is given must be the position's own.
    """

    writes = True

    topic: Text
    position: Text
    start: Count = 0
    ack_wait_seconds: AckWait | None = None
    max_unacked: Unacked | None = None
    max_deliveries: Positive | None = None


class PositionCommand(Command):
    """About a position of one incarnation of a topic."""

    topic: Text
    position: Text
    incarnation: Count


class FetchMessages(PositionCommand, tag="POSITION_FETCH"):
    """Hand out messages to a member, who holds them until it acknowledges them or `ack_wait_seconds` have passed.

    `renew` are messages whose time begins anew, `first_offset` the oldest that the member found in the store: what is
    older is passed over.
    """

    writes = True

    member_id: Text
    lease: Label
    limit: Annotated[int, Meta(ge=0, le=1000)] = 100
    first_offset: Count = 0
    renew: Annotated[list[Count], Meta(max_length=10_000)] = field(default_factory=list)


class AcknowledgeMessages(PositionCommand, tag="POSITION_ACKNOWLEDGE"):
    """These are done, whoever holds them now."""

    writes = True

    offsets: Offsets


class ReturnMessages(PositionCommand, tag="POSITION_RETURN"):
    """Give back what a member holds, for anybody to have at once. What was `unseen` does not count as delivered."""

    member_id: Text
    lease: Label
    offsets: Offsets
    unseen: bool = False


class ListPositions(Command, tag="POSITION_LIST_REQUEST"):
    topic: Text
    after: Text = ""
    limit: Limit = 1000


class DescribePosition(Command, tag="POSITION_DESCRIBE_REQUEST"):
    topic: Text
    position: Text


class ResetPosition(Command, tag="POSITION_RESET"):
    """Go on from an offset. What was handed out counts no more."""

    writes = True

    topic: Text
    position: Text
    offset: Count


class DeletePosition(Command, tag="POSITION_DELETE"):
    writes = True

    topic: Text
    position: Text


class RegisterSubscriber(Command, tag="SUBSCRIBER_REGISTER"):
    """Be a member of a group of subscribers, or one who reads under the name of a position of the topic `patterns`.

    A member of a group says this again and again; `ready` is the share that it waits for the beginning of,
    and `leaving` asks for one without it.
    """

    writes = True  # a sign of life of its process, whose channels may recover by it

    kind: Literal["group", "position"]
    name: Text
    patterns: Annotated[list[Text], Meta(min_length=1, max_length=100)]
    member_id: Text
    lease: Label
    host: Text | None = None
    pid: Count | None = None
    start_time: Count | None = None
    boot_id: Text | None = None
    ready: Count = 0
    leaving: bool = False


class UnregisterSubscriber(Command, tag="SUBSCRIBER_UNREGISTER"):
    member_id: Text
    lease: Label


class RequestSnapshot(Command, tag="SNAPSHOT_REQUEST"):
    """Whole channel records, in pages by name, or of one channel.

    Each record carries its own revision, so pages need not be of one instant.
    """

    channel: Text | None = None
    after: Text = ""
    limit: Limit = 500


class ServiceCommand(Command):
    """About services, which live in memory alone: they end with their processes, and those register again."""


class RegisterWorker(ServiceCommand, tag="SERVICE_REGISTER"):
    """Serve `id:…`, `name:…` or `service:…` alone, or `pool:…` with others. Also reached as `id:<worker_id>`."""

    writes = True  # a sign of life of its process, whose channels may recover by it

    address: Text
    worker_id: Text
    endpoint: Label
    key: Label
    lease: Label
    strategy: Strategy | None = None
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 1
    host: Text | None = None
    pid: Count | None = None
    start_time: Count | None = None
    boot_id: Text | None = None


class UnregisterWorker(ServiceCommand, tag="SERVICE_UNREGISTER"):
    worker_id: Text
    lease: Label


class ResolveService(ServiceCommand, tag="SERVICE_RESOLVE_REQUEST"):
    """Who serves an address now."""

    address: Text


class ListServices(ServiceCommand, tag="SERVICE_LIST_REQUEST"):
    prefix: Text = ""
    after: Text = ""
    limit: Limit = 1000


class RemovePool(ServiceCommand, tag="POOL_REMOVE"):
    """A pool stays when its last worker leaves; this ends an empty one."""

    address: Text


class ReportDeadLetter(ServiceCommand, tag="DEAD_LETTER_REPORT"):
    letter: DeadLetter


class ListDeadLetters(ServiceCommand, tag="DEAD_LETTER_LIST_REQUEST"):
    """The newest, oldest of them first; of one address when one is named."""

    address: Text | None = None
    limit: Limit = 100


class RemoveDeadLetters(ServiceCommand, tag="DEAD_LETTER_REMOVE"):
    """Forget letters, by their numbers: they were sent again, or nobody wants them."""

    numbers: Annotated[list[Count], Meta(min_length=1, max_length=10_000)]


class Ping(Command, tag="PING"):
    """Health. `echo` is also sent to who subscribes to it among the topics, so that a subscriber hears that it is."""

    echo: Label | None = None


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
    | CheckTable
    | RegisterTable
    | DropTable
    | ListTables
    | ListChannels
    | DescribeChannel
    | ListConsumers
    | RegisterSchema
    | LookUpSchema
    | CheckSchema
    | RequestSchema
    | ListSchemas
    | ExportSchemas
    | DeleteSchema
    | RequestSchemaConfig
    | ConfigureSchemas
    | RequestSchemaMode
    | SetSchemaMode
    | KeepTopic
    | DeleteTopic
    | ListTopics
    | DescribeTopic
    | PublishMessages
    | ReadTopic
    | OpenPosition
    | FetchMessages
    | AcknowledgeMessages
    | ReturnMessages
    | ListPositions
    | DescribePosition
    | ResetPosition
    | DeletePosition
    | RegisterSubscriber
    | UnregisterSubscriber
    | RequestSnapshot
    | RegisterWorker
    | UnregisterWorker
    | ResolveService
    | ListServices
    | RemovePool
    | ReportDeadLetter
    | ListDeadLetters
    | RemoveDeadLetters
    | Ping
    | Stats
    | Trace
)
