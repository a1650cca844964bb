"""What may be asked. The wire message is the command: the tag is its `type`, the fields are its JSON members.

Lengths are checked here, by the decoder; names are checked once, by the registry.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from registry import fields
from registry.records import (
    Access,
    Block,
    ConfigField,
    Count,
    DeadLetter,
    Keep,
    Label,
    Level,
    MailboxState,
    MessageFate,
    Mode,
    Priority,
    PublisherProcess,
    Reference,
    RetainedMessage,
    SchemaConfig,
    SchemaType,
    SchemaVersion,
    Strategy,
    SubscriptionState,
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

    id: Annotated[Text | None, Meta(description="echoed in the reply; the correlation id of traces")] = None
    protocol: Annotated[
        Text, Meta(description="the version that the peer speaks; another major version is refused")
    ] = "1.0"
    priority: fields.PriorityRule[Priority] = "normal"


class Hello(Command, tag="HELLO"):
    versions: Annotated[list[Text], Meta(description="what the peer speaks, best first")] = field(
        default_factory=lambda: ["1.0"]
    )
    client: Annotated[Text, Meta(description="free text for logs")] = ""
    features: Annotated[list[Text], Meta(description="reserved")] = field(default_factory=list)


class RegisterProducer(Command, tag="PRODUCER_REGISTER"):
    writes = True

    channel: Annotated[Text, Meta(description="must be a channel name")]
    schema_hash: Annotated[Label, Meta(description="opaque; when `schema` is given it must be that schema's hash")]
    schema_version: Annotated[Text, Meta(description="the producer's own name for the version of its schema")] = ""
    config: Annotated[
        dict[str, Any], Meta(description="free; `policy` must be the same for all producers of the channel")
    ] = field(default_factory=dict)
    producer_id: Annotated[Text | None, Meta(description="`<channel>/default` when left out")] = None
    lease: Annotated[Label | None, Meta(description="the producer id when left out")] = None
    shm_name: Annotated[
        Label | None,
        Meta(
            description="`/pylabhub_<channel>`, for a shared producer with an id of its own "
            "`/pylabhub_<channel>@<producer_id>`, when left out"
        ),
    ] = None
    schema: Annotated[
        Schema | None,
        Meta(
            description="the schema itself: registered under the subject of the channel's name, and the channel "
            "becomes `verified`"
        ),
    ] = None
    schema_type: Annotated[SchemaType | None, Meta(description="`JSON` when `schema` comes without it")] = None
    ready: Annotated[bool, Meta(description="false: known, but not ready yet (`pending`)")] = True
    access: fields.AccessRule[Access] = "exclusive"
    host: Annotated[Text | None, Meta(description="with `pid`, `start_time`, `boot_id`: which process this is")] = None
    pid: fields.Pid[Count | None] = None
    start_time: fields.StartTime[Count | None] = None
    boot_id: fields.BootId[Text | None] = None
    blocks: Annotated[list[Block], Meta(description="one block named `shm_name` when empty")] = field(
        default_factory=list
    )
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)


class UnregisterProducer(Command, tag="PRODUCER_UNREGISTER"):
    writes = True

    channel: fields.ChannelName[Text]
    producer_id: Annotated[Text | None, Meta(description="`<channel>/default` when left out")] = None
    lease: Annotated[Label | None, Meta(description="the producer id when left out")] = None


class RegisterConsumer(Command, tag="CONSUMER_REGISTER"):
    """`required` asks for a refusal, instead of waiting, when the channel has no active producer."""

    writes = True

    channel: fields.ChannelName[Text]
    consumer_id: fields.ConsumerId[Text]
    expected_schema_hash: Annotated[
        Label | None,
        Meta(
            description="refused with `SCHEMA_MISMATCH` when the channel has another, unless both are registered and a "
            "reader of this one can read what is written with that"
        ),
    ] = None
    lease: Annotated[Label | None, Meta(description="`<channel>/consumer/<consumer_id>` when left out")] = None
    group: Annotated[
        Text | None,
        Meta(
            description="share the channel with the other members of this group; unless `required`, a channel that has "
            "ended, or never was, is made for it"
        ),
    ] = None
    required: Annotated[bool, Meta(description="true: `CHANNEL_NOT_READY` unless the channel is `active`")] = False
    host: fields.Host[Text | None] = None
    pid: fields.Pid[Count | None] = None
    start_time: fields.StartTime[Count | None] = None
    boot_id: fields.BootId[Text | None] = None
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)


class UnregisterConsumer(Command, tag="CONSUMER_UNREGISTER"):
    writes = True

    channel: fields.ChannelName[Text]
    consumer_id: fields.ConsumerId[Text]
    lease: Annotated[Label | None, Meta(description="`<channel>/consumer/<consumer_id>` when left out")] = None


class EvictMember(Command, tag="MEMBER_EVICT"):
    """End the registration of a producer or consumer, whoever owns it. Its process is told."""

    writes = True

    channel: fields.ChannelName[Text]
    member_id: Annotated[Text, Meta(description="the producer's or consumer's id")]
    role: Annotated[
        Literal["producer", "consumer"] | None,
        Meta(description="which of the two is meant; needed only where both have this id (`INVALID_REQUEST`)"),
    ] = None


class Heartbeat(Command, tag="HEARTBEAT"):
    lease: Annotated[Label, Meta(description="the lease to renew, with all that is registered under it")]
    mailboxes: Annotated[
        dict[Text, MailboxState],
        Meta(max_length=1000, description="of the workers under the lease, by their ids, for whoever lists services"),
    ] = field(default_factory=dict)


class Discover(Command, tag="DISCOVERY_REQUEST"):
    """With an expected hash the answer says whether a reader of that schema can read the channel."""

    channel: Annotated[
        Text, Meta(description="the channel's name; a display name (`x | pid:1-0`) finds its logical name")
    ]
    blocks_offset: Annotated[Count, Meta(description="which block to start with, for channels of more than 100")] = 0
    expected_schema_hash: Annotated[
        Label | None,
        Meta(
            description="have the reply say whether a reader of this schema can read the channel, by the rule of "
            "CONSUMER_REGISTER"
        ),
    ] = None


class CreateChannel(Command, tag="CHANNEL_CREATE"):
    writes = True

    channel: fields.ChannelName[Text]
    schema_hash: Annotated[Label | None, Meta(description="binds the schema")] = None
    schema_version: Annotated[Text | None, Meta(description="refused without a hash or schema")] = None
    schema: Annotated[Schema | None, Meta(description="registered, and binds")] = None
    schema_type: Annotated[SchemaType | None, Meta(description="refused without a hash or schema")] = None
    access: Annotated[Access | None, Meta(description="binds the access")] = None
    config: Annotated[dict[str, Any], Meta(description="`policy` binds producers that name one")] = field(
        default_factory=dict
    )
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)


class DestroyChannel(Command, tag="CHANNEL_DESTROY"):
    """With `data` the channel's table is dropped too: whoever asks removes it from the memory of `host`."""

    writes = True

    channel: fields.ChannelName[Text]
    data: Annotated[bool, Meta(description="the table ends too; whoever asks removes its files")] = False
    host: Annotated[
        Text | None, Meta(description="where the asker runs: `TABLE_ON_OTHER_HOST` when the table is elsewhere")
    ] = None


class TableSchema(Command, kw_only=True):
    """What is checked of a table before it is registered."""

    channel: fields.ChannelName[Text]
    schema_hash: Annotated[Label | None, Meta(description="must be that of the schema, where both are given")] = None
    schema_version: Annotated[
        Text,
        Meta(
            description="the writer's own name for it; the registry's version takes its place when the schema itself "
            "is given"
        ),
    ] = ""
    schema: Annotated[
        Schema | None, Meta(description="goes under the subject of the channel's name, at its compatibility level")
    ] = None
    schema_type: fields.SchemaFormat[SchemaType | None] = None


class CheckTable(TableSchema, tag="TABLE_CHECK"):
    """Whether a table with this schema could be registered now. Nothing is registered."""


class RegisterTable(TableSchema, kw_only=True, tag="TABLE_REGISTER"):
    """A committed generation. It has no lease: it stays until it is superseded, retired or dropped."""

    writes = True

    generation: Annotated[Count, Meta(description="the number of the commit on its host: it only grows")]
    shm_name: Annotated[Label, Meta(description="of the manifest")]
    rows: fields.Rows[Count] = 0
    size_bytes: fields.SizeBytes[Count] = 0
    parts: fields.Parts[Count] = 0
    hosts: Annotated[dict[Text, Count], Meta(description="how many parts are in the memory of which host")] = field(
        default_factory=dict
    )
    host: Annotated[Text | None, Meta(description="where the manifest is")] = None
    boot_id: Annotated[Text | None, Meta(description="of that host: generations begin anew with it")] = None
    user: Annotated[Text | None, Meta(description="who wrote it")] = None
    application: Annotated[Text | None, Meta(description="Spark's application id")] = None
    pid: Annotated[Count | None, Meta(description="the process that committed it")] = None
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    committed_at: fields.CommittedAt[Annotated[float, Meta(ge=0, le=1e15)]] = 0.0


class DropTable(Command, tag="TABLE_DROP"):
    """Whoever asks removes the table from the memory of `host`; without a host only its record ends."""

    writes = True

    channel: fields.ChannelName[Text]
    host: Annotated[
        Text | None,
        Meta(
            description="where the asker runs: `TABLE_ON_OTHER_HOST` when the table is elsewhere; left out: only the "
            "record ends"
        ),
    ] = None


class ListTables(Command, tag="TABLE_LIST_REQUEST"):
    """`limit` bounds the channels that are looked at, so a page may hold fewer tables."""

    prefix: fields.Prefix[Text] = ""
    after: fields.After[Text] = ""
    limit: Annotated[Limit, Meta(description="how many channels are looked at: a page may hold fewer tables")] = 1000


class ListChannels(Command, tag="CHANNEL_LIST_REQUEST"):
    prefix: fields.Prefix[Text] = ""
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 1000


class DescribeChannel(Command, tag="CHANNEL_DESCRIBE_REQUEST"):
    channel: fields.ChannelName[Text]


class ListConsumers(Command, tag="CONSUMER_LIST_REQUEST"):
    channel: fields.ChannelName[Text]


class SchemaText(Command):
    """A schema that arrives with its text: the broker has it checked before the registry decides."""

    subject: fields.SubjectName[Label]
    schema: Annotated[Schema, Meta(description="the value, or its text")]
    schema_type: fields.SchemaFormat[SchemaType] = "JSON"
    references: Annotated[
        list[Reference], Meta(description="other schemas that this one refers to by name; version -1 is the newest")
    ] = field(default_factory=list)
    normalize: Annotated[bool, Meta(description="also drop what has no meaning, such as the order of keys")] = False


class RegisterSchema(SchemaText, tag="SCHEMA_REGISTER"):
    """`schema_id` and any `version` are for mode IMPORT; elsewhere the version is one more than the newest."""

    writes = True

    schema_hash: Annotated[
        Label | None, Meta(description="refused with `SCHEMA_HASH_MISMATCH` when the schema has another")
    ] = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="kept, and part of identity")] = None
    rule_set: Annotated[
        dict[str, Any] | None,
        Meta(
            description="kept, and part of identity; not executed, but refused with `INVALID_RULE_SET` where no client "
            "could execute it"
        ),
    ] = None
    schema_id: Annotated[
        Positive | None,
        Meta(
            description="needed in mode `IMPORT`, refused elsewhere; `ID_MISMATCH` when the subject has the schema "
            "under another"
        ),
    ] = None
    version: Annotated[
        Positive | None, Meta(description="in mode `IMPORT` any that is free, elsewhere one more than the newest")
    ] = None


class LookUpSchema(SchemaText, tag="SCHEMA_LOOKUP_REQUEST"):
    """Which version of the subject has this content; with metadata or rules, which has these too."""

    deleted: Annotated[bool, Meta(description="also look among softly deleted ones")] = False
    metadata: Annotated[dict[str, Any] | None, Meta(description="only a version with just this")] = None
    rule_set: Annotated[dict[str, Any] | None, Meta(description="only a version with just this")] = None


class CheckSchema(SchemaText, tag="SCHEMA_CHECK"):
    """Whether a schema could be registered now; against one version (-1: the newest) when one is named."""

    version: Annotated[Version | None, Meta(description="compare with this one only (-1: the newest)")] = None
    level: Annotated[Level | None, Meta(description="the subject's when left out")] = None

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

    schema_id: Annotated[Count | None, Meta(description="ask by the id of the schema")] = None
    guid: Annotated[Label | None, Meta(description="ask by the id that follows from the content of the schema")] = None
    schema_hash: Annotated[Label | None, Meta(description="ask by the hash of the schema")] = None
    subject: Annotated[Label | None, Meta(description="ask by subject, with `version`")] = None
    version: Annotated[Version | None, Meta(description="of the subject; -1 or left out: the newest")] = None
    deleted: Annotated[bool, Meta(description="with `subject`: also softly deleted ones")] = False
    resolve: Annotated[bool, Meta(description="also the texts of all that it refers to, directly or not")] = False
    referrers: Annotated[bool, Meta(description="also the ids of what refers to it")] = False
    deleted_referrers: Annotated[bool, Meta(description="with `referrers`: also those that are softly deleted")] = False


class ListSchemas(Command, tag="SCHEMA_LIST_REQUEST"):
    """The versions of one subject, or the names of all."""

    subject: Annotated[Label | None, Meta(description="list its versions; left out: list the subjects")] = None
    prefix: Annotated[Text, Meta(description="only subjects that begin so")] = ""
    deleted: Annotated[Deleted, Meta(description="softly deleted ones")] = "without"
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 1000


class ExportSchemas(Command, tag="SCHEMA_EXPORT_REQUEST"):
    """Whole versions, subject by subject: at most `limit` subjects a page."""

    prefix: fields.Prefix[Text] = ""
    deleted: Annotated[Deleted, Meta(description="softly deleted ones")] = "without"
    after: fields.After[Text] = ""
    limit: Annotated[Limit, Meta(description="how many subjects a page has at most")] = 100


class DeleteSchema(Command, tag="SCHEMA_DELETE"):
    """One version (-1: the newest), or without a version the whole subject.

    Softly unless `permanent`, which takes a soft delete first. `force` deletes what a live channel uses.
    """

    writes = True

    subject: fields.SubjectName[Label]
    version: Annotated[Version | None, Meta(description="-1: the newest; left out: the whole subject")] = None
    permanent: Annotated[bool, Meta(description="needs a soft delete before")] = False
    force: Annotated[bool, Meta(description="also what a live channel uses")] = False


class RequestSchemaConfig(Command, tag="SCHEMA_CONFIG_REQUEST"):
    """Of a subject, or of the whole registry; `default_to_global` fills in what the subject does not say."""

    subject: Annotated[Label | None, Meta(description="left out: the whole registry")] = None
    default_to_global: Annotated[bool, Meta(description="fill in what the subject does not say")] = False


class ConfigureSchemas(Command, tag="SCHEMA_CONFIG_SET"):
    """Fields that are not given stay, those of `unset` are removed; no config at all removes the setting."""

    writes = True

    subject: Annotated[Label | None, Meta(description="left out: the whole registry")] = None
    config: Annotated[SchemaConfig | None, Meta(description="left out: remove the setting")] = None
    unset: Annotated[list[ConfigField], Meta(description="fields to remove")] = field(default_factory=list)


class RequestSchemaMode(Command, tag="SCHEMA_MODE_REQUEST"):
    subject: Annotated[Label | None, Meta(description="left out: the whole registry")] = None
    default_to_global: Annotated[bool, Meta(description="the registry's when the subject has none")] = False


class SetSchemaMode(Command, tag="SCHEMA_MODE_SET"):
    writes = True

    subject: Annotated[Label | None, Meta(description="left out: the whole registry")] = None
    mode: Annotated[Mode | None, Meta(description="left out: remove the setting")] = None
    force: Annotated[bool, Meta(description="`IMPORT` also where there are versions already")] = False


class KeepTopic(Command, tag="TOPIC_KEEP"):
    """Store what is published to a topic from now on. `replace` changes the bounds of one that is retained already."""

    writes = True

    topic: Annotated[Text, Meta(description="components of letters, digits, `_`, `-`, joined by dots")]
    keep: Annotated[Keep, Meta(description="how much of it is retained")] = field(default_factory=Keep)
    replace: Annotated[bool, Meta(description="take over other bounds; what is within them stays")] = False
    home: Annotated[
        Text | None,
        Meta(
            description="the host of the site that is to have its messages; by default that of the hub that is asked,"
            " and of a topic that is retained already the one that it has"
        ),
    ] = None


class DeleteTopic(Command, tag="TOPIC_DELETE"):
    """Make it a plain topic, and delete what is stored; in a site also while its home host is away."""

    writes = True

    topic: fields.TopicName[Text]


class ListTopics(Command, tag="TOPIC_LIST_REQUEST"):
    """The retained topics that match a pattern. A publisher asks so before it publishes, and names itself."""

    pattern: Annotated[Text, Meta(description="`*` is any one component, a last `>` one or more; default `>`: all")] = (
        ">"
    )
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 1000
    publisher: Annotated[
        Label | None, Meta(description="who is about to publish to the topic that `pattern` names; left out by others")
    ] = None
    process: Annotated[
        PublisherProcess | None, Meta(description="of the publisher, so that people see who published a message")
    ] = None
    plain: Annotated[bool, Meta(description="name the plain topics that match too")] = False


class DescribeTopic(Command, tag="TOPIC_DESCRIBE_REQUEST"):
    topic: fields.TopicName[Text]


class PublishMessages(Command, tag="TOPIC_PUBLISH"):
    """Messages for a retained topic, stored as one. A publisher numbers its messages, so that the same may come again:

    `number` is the first one's, and the numbers of a publisher go up.
    """

    writes = True

    topic: fields.TopicName[Text]
    messages: Annotated[
        list[RetainedMessage], Meta(min_length=1, max_length=1000, description="all are stored, in this order, or none")
    ]
    publisher: Annotated[
        Label | None,
        Meta(description="who numbers; known again for an hour after its last message. Null: every request is new"),
    ] = None
    number: Annotated[
        Count, Meta(description="of the first message; the next request's is at least this plus the number of messages")
    ] = 0


class ReadTopic(Command, tag="TOPIC_READ_REQUEST"):
    """What a topic keeps, from an offset or, with `since`, from a time (seconds since the epoch)."""

    topic: fields.TopicName[Text]
    offset: Annotated[Count, Meta(description="the first one wanted; what is no longer stored is passed over")] = 0
    since: Annotated[
        float | None, Meta(description="only what was stored at this time (seconds since the epoch) or later")
    ] = None
    limit: fields.PageLimit[Limit] = 1000


class OpenPosition(Command, tag="POSITION_OPEN"):
    """Make a named position of a retained topic, or find it as it is.

    `start` counts only where it is made. A setting that is given must be the position's own.
    """

    writes = True

    topic: fields.TopicName[Text]
    position: fields.PositionName[Text]
    start: Annotated[
        Count,
        Meta(
            description="the first message of a new position; 0 is the first of all. Beyond the end: `INVALID_REQUEST`"
        ),
    ] = 0
    ack_wait_seconds: Annotated[AckWait | None, Meta(description="default 30")] = None
    max_unacked: Annotated[Unacked | None, Meta(description="default 1,000")] = None
    max_deliveries: Annotated[Positive | None, Meta(description="null: any number")] = None


class PositionCommand(Command):
    """About a position of one incarnation of a topic."""

    topic: fields.TopicName[Text]
    position: fields.PositionName[Text]
    incarnation: Annotated[Count, Meta(description="of the topic; another one is refused (`TOPIC_NOT_FOUND`)")]


class FetchMessages(PositionCommand, tag="POSITION_FETCH"):
    """Hand out messages to a member, who holds them until it acknowledges them or `ack_wait_seconds` have passed.

    `renew` are messages whose time begins anew, `first_offset` the oldest that the member found in the store: what is
    older is passed over.
    """

    writes = True

    member_id: Annotated[
        Text, Meta(description="as registered with SUBSCRIBER_REGISTER, kind `position`; otherwise `NOT_REGISTERED`")
    ]
    lease: fields.LeaseName[Label]
    limit: Annotated[int, Meta(ge=0, le=1000, description="0 only renews")] = 100
    first_offset: Annotated[
        Count, Meta(description="the oldest that the subscriber found in the store: what is older is passed over")
    ] = 0
    renew: Annotated[
        list[Count], Meta(max_length=10_000, description="held by the subscriber: their time begins anew")
    ] = field(default_factory=list)


class AcknowledgeMessages(PositionCommand, tag="POSITION_ACKNOWLEDGE"):
    """These are done, whoever holds them now."""

    writes = True

    offsets: Annotated[Offsets, Meta(description="what is done")]


class ReturnMessages(PositionCommand, tag="POSITION_RETURN"):
    """Give back what a member holds, for anybody to have at once. What was `unseen` does not count as delivered."""

    member_id: fields.MemberId[Text]
    lease: fields.LeaseName[Label]
    offsets: Annotated[Offsets, Meta(description="what is given back")]
    unseen: Annotated[
        bool,
        Meta(
            description="nobody was handed them: it does not count as a delivery, and they are free when the "
            "subscriber leaves"
        ),
    ] = False


class ListPositions(Command, tag="POSITION_LIST_REQUEST"):
    topic: fields.TopicName[Text]
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 1000


class DescribePosition(Command, tag="POSITION_DESCRIBE_REQUEST"):
    topic: fields.TopicName[Text]
    position: fields.PositionName[Text]


class ResetPosition(Command, tag="POSITION_RESET"):
    """Go on from an offset. What was handed out counts no more."""

    writes = True

    topic: fields.TopicName[Text]
    position: fields.PositionName[Text]
    offset: Annotated[Count, Meta(description="0 is the first of all; beyond the end: `INVALID_REQUEST`")]


class DeletePosition(Command, tag="POSITION_DELETE"):
    writes = True

    topic: fields.TopicName[Text]
    position: fields.PositionName[Text]


class RegisterSubscriber(Command, tag="SUBSCRIBER_REGISTER"):
    """Be a member of a group of subscribers, or one who reads under the name of a position of the topic `patterns`.

    A member of a group says this again and again; `ready` is the share that it waits for the beginning of,
    and `leaving` asks for one without it.
    """

    writes = True  # a sign of life of its process, whose channels may recover by it

    kind: Annotated[
        Literal["group", "position"],
        Meta(description="a member of a group, or one who reads under the name of a position"),
    ]
    name: Annotated[Text, Meta(description="of the group or the position")]
    patterns: Annotated[
        list[Text], Meta(min_length=1, max_length=100, description="of the group, in order; of a position the topic")
    ]
    member_id: fields.MemberId[Text]
    lease: Annotated[Label, Meta(description="renewed by HEARTBEAT; the subscriber ends with it")]
    host: Annotated[
        Text | None,
        Meta(
            description="with `pid`, `start_time` and `boot_id` the broker sees the end of a process of its own host "
            "at once"
        ),
    ] = None
    pid: fields.Pid[Count | None] = None
    start_time: fields.StartTime[Count | None] = None
    boot_id: fields.BootId[Text | None] = None
    ready: Annotated[
        Count, Meta(description="of a group: the epoch for which the member holds back what it hears; 0: none")
    ] = 0
    leaving: Annotated[bool, Meta(description="of a group: share without this member")] = False


class UnregisterSubscriber(Command, tag="SUBSCRIBER_UNREGISTER"):
    member_id: fields.MemberId[Text]
    lease: fields.LeaseName[Label]


class ReportSubscriptions(Command, tag="SUBSCRIPTION_REPORT"):
    """Tell which subscriptions a process has, and how many messages each got: nothing else counts who gets messages.

    It replaces what the process said before. Said every few seconds; one that is silent is forgotten.
    """

    lease: Annotated[Label, Meta(description="tells the processes apart that report")]
    program: Annotated[Text | None, Meta(description="what the process runs, for people")] = None
    host: fields.Host[Text | None] = None
    pid: fields.Pid[Count | None] = None
    subscriptions: Annotated[
        list[SubscriptionState], Meta(max_length=500, description="all of them; none: it has ended the last one")
    ] = field(default_factory=list)
    fates: Annotated[
        list[MessageFate],
        Meta(max_length=1000, description="what became of the messages that the last reply asked about"),
    ] = field(default_factory=list)


class ListSubscriptions(Command, tag="SUBSCRIPTION_LIST_REQUEST"):
    """Who subscribes to a topic now, directly or by a pattern; or to which topics anybody subscribes."""

    topic: Annotated[Text | None, Meta(description="only those that get what is published to it")] = None
    limit: fields.PageLimit[Limit] = 1000


class TraceMessage(Command, tag="MESSAGE_TRACE_REQUEST"):
    """What became of one message: of a retained topic by its `offset`, of a plain one by `publisher` and `number`.

    The processes that subscribe are asked when they report next. So the first answer names those that have not
    answered yet, and asking again, within 15 seconds, shows what they said meanwhile.
    """

    topic: fields.TopicName[Text]
    offset: Annotated[Count | None, Meta(description="of a retained topic")] = None
    publisher: Annotated[
        Annotated[str, Meta(pattern="^[0-9a-f]{16}$")] | None,
        Meta(description="of a plain topic: who published it, in hexadecimal"),
    ] = None
    number: Annotated[Count | None, Meta(description="of a plain topic: the publisher's number")] = None


class RequestSnapshot(Command, tag="SNAPSHOT_REQUEST"):
    """Whole channel records, in pages by name, or of one channel.

    Each record carries its own revision, so pages need not be of one instant.
    """

    channel: Annotated[Text | None, Meta(description="only this one")] = None
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 500


class ServiceCommand(Command):
    """About services, which end with their processes: those register again. Only a site stores them."""


class RegisterWorker(ServiceCommand, tag="SERVICE_REGISTER"):
    """Serve `id:…`, `name:…` or `service:…` alone, or `pool:…` with others. Also reached as `id:<worker_id>`."""

    writes = True  # a sign of life of its process, whose channels may recover by it

    address: Annotated[
        Text, Meta(description="`id:`, `name:`, `service:` or `pool:` and a name; that of `id:` is the `worker_id`")
    ]
    worker_id: Annotated[Text, Meta(description="also reached as `id:<worker_id>`")]
    endpoint: Annotated[
        Label, Meta(description="where its process listens: `unix:@NAME`, an abstract socket of this host")
    ]
    key: Annotated[Label, Meta(description="what callers must show there; told to who resolves the address")]
    lease: Annotated[Label, Meta(description="as for producers: one lease per process")]
    strategy: Annotated[
        Strategy | None,
        Meta(
            description="of the pool that it makes; must be the pool's when it is there already; refused for what is "
            "no pool"
        ),
    ] = None
    concurrency: fields.Concurrency[Annotated[int, Meta(ge=1, le=10_000)]] = 1
    host: Annotated[Text | None, Meta(description="with `pid`, `start_time`, `boot_id`: which process this is")] = None
    pid: fields.Pid[Count | None] = None
    start_time: fields.StartTime[Count | None] = None
    boot_id: fields.BootId[Text | None] = None
    tcp_endpoint: fields.TcpEndpoint[Label | None] = None
    tcp_key: fields.TcpKey[Label | None] = None


class UnregisterWorker(ServiceCommand, tag="SERVICE_UNREGISTER"):
    worker_id: fields.WorkerId[Text]
    lease: fields.LeaseName[Label]


class ResolveService(ServiceCommand, tag="SERVICE_RESOLVE_REQUEST"):
    """Who serves an address now."""

    address: fields.Address[Text]


class ListServices(ServiceCommand, tag="SERVICE_LIST_REQUEST"):
    prefix: Annotated[Text, Meta(description="without one, ids of workers that have another address are left out")] = ""
    after: fields.After[Text] = ""
    limit: fields.PageLimit[Limit] = 1000


class RemovePool(ServiceCommand, tag="POOL_REMOVE"):
    """A pool stays when its last worker leaves; this ends an empty one."""

    address: fields.Address[Text]


class ReportDeadLetter(ServiceCommand, tag="DEAD_LETTER_REPORT"):
    letter: Annotated[DeadLetter, Meta(description="what was given up, and why")]


class ListDeadLetters(ServiceCommand, tag="DEAD_LETTER_LIST_REQUEST"):
    """The newest, oldest of them first; of one address when one is named."""

    address: Annotated[Text | None, Meta(description="only those to this address")] = None
    limit: fields.PageLimit[Limit] = 100


class RemoveDeadLetters(ServiceCommand, tag="DEAD_LETTER_REMOVE"):
    """Forget letters, by their numbers: they were sent again, or nobody wants them."""

    numbers: Annotated[
        list[Count],
        Meta(
            min_length=1,
            max_length=10_000,
            description="the `number` of each, as DEAD_LETTER_LIST_RESPONSE has it; unknown ones are ignored",
        ),
    ]


class ListHosts(Command, tag="HOST_LIST_REQUEST"):
    """The hosts of the site that the hub is a member of."""


class RequestGateway(Command, tag="GATEWAY_REQUEST"):
    """Ask for what it takes to read a channel's data in the memory of another host of the site.

    With `changes`, to remove its table there, which takes the right to produce the channel.
    """

    channel: fields.ChannelName[Text]
    host: Annotated[Label, Meta(description="the name of the host that has the data")]
    changes: Annotated[bool, Meta(description="to remove the channel's table there, not to read it")] = False


class Ping(Command, tag="PING"):
    """Check that the broker answers. Topic subscribers of the text `echo` get it too: so they know that they are."""

    echo: Annotated[
        Label | None,
        Meta(
            description="published to who subscribes to this text on the topics' sockets: so a subscriber knows that "
            "it hears"
        ),
    ] = None


class Stats(Command, tag="STATS_REQUEST"):
    pass


class Trace(Command, tag="TRACE_REQUEST"):
    """The newest exchanges the broker remembers, or those with one correlation id."""

    correlation_id: Annotated[Text | None, Meta(description="the `id` of the exchange")] = None
    limit: Annotated[Limit, Meta(description="how many exchanges at most, the newest")] = 100


AnyCommand = (
    Hello
    | RegisterProducer
    | UnregisterProducer
    | RegisterConsumer
    | UnregisterConsumer
    | EvictMember
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
    | ReportSubscriptions
    | ListSubscriptions
    | TraceMessage
    | RequestSnapshot
    | RegisterWorker
    | UnregisterWorker
    | ResolveService
    | ListServices
    | RemovePool
    | ReportDeadLetter
    | ListDeadLetters
    | RemoveDeadLetters
    | ListHosts
    | RequestGateway
    | Ping
    | Stats
    | Trace
)
