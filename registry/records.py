"""What the registry knows: nouns only, no rules.

These records are what the store keeps, what events carry and what a watcher's view holds, so each is
a plain value that survives encoding unchanged.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from registry import fields
from registry.decoding import decodable

Priority = Literal["high", "normal", "low"]
Access = Literal["exclusive", "shared"]
SchemaType = Literal["JSON", "AVRO", "PROTOBUF", "ARROW"]
MemberStatus = Literal["active", "pending", "stalled"]
Level = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "LAYOUT",
]
Mode = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"]
decodable(Mode)
ChannelStatus = Literal["active", "pending", "stalled", "conflict"]
Verification = Literal["verified", "unverified"]
PayloadKind = Literal["bytes", "json", "arrow_batch", "arrow_table"]
Strategy = Literal["round_robin", "random", "least_busy"]

Text = Annotated[str, Meta(max_length=1024)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class Block(Struct, kw_only=True, frozen=True):
    """Where one piece of a channel's data lives."""

    shm_name: fields.ShmName[Label]
    host: Annotated[Text | None, Meta(description="in whose memory it is")] = None
    format: Annotated[Text | None, Meta(description="what its items are")] = None


class Producer(Struct, kw_only=True, gc=False):
    producer_id: fields.ProducerId[str]
    lease: fields.LeaseName[str]
    shm_name: fields.ShmName[str]
    schema_hash: fields.SchemaHash[str]
    schema_version: fields.VersionName[str] = ""
    schema_type: fields.SchemaFormat[SchemaType | None] = None
    schema_id: fields.SchemaId[int | None] = None
    schema: fields.Verified[Verification] = "unverified"
    ready: Annotated[bool, Meta(description="false: known, but not ready yet")] = True
    status: fields.StatusOfMember[MemberStatus] = "active"
    access: fields.AccessRule[Access] = "exclusive"
    host: fields.Host[str | None] = None
    pid: fields.Pid[int | None] = None
    start_time: fields.StartTime[int | None] = None
    boot_id: fields.BootId[str | None] = None
    blocks: Annotated[list[Block], Meta(description="where its data is")] = field(default_factory=list)
    config: Annotated[
        dict[str, Any],
        Meta(description="what the producer says of its ring; `policy` is the same for all producers of a channel"),
    ] = field(default_factory=dict)
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    registered_at: fields.RegisteredAt[float] = 0.0
    revision: fields.OwnRevision[int] = 0


class Consumer(Struct, kw_only=True, gc=False):
    consumer_id: fields.ConsumerId[str]
    lease: fields.LeaseName[str]
    expected_schema_hash: Annotated[str | None, Meta(description="the hash of the schema that it reads")] = None
    group: Annotated[str | None, Meta(description="the group with which it shares the channel")] = None
    status: fields.StatusOfMember[MemberStatus] = "active"
    host: fields.Host[str | None] = None
    pid: fields.Pid[int | None] = None
    start_time: fields.StartTime[int | None] = None
    boot_id: fields.BootId[str | None] = None
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    registered_at: fields.RegisteredAt[float] = 0.0
    revision: fields.OwnRevision[int] = 0


class Table(Struct, kw_only=True, frozen=True):
    """The newest committed generation of a channel's table; it belongs to nobody and needs nobody alive.

    `shm_name` is its manifest, in the memory of `host`; `hosts` says how many of its parts are in the memory of which
    host. `user`, `application` and `pid` say who wrote it.
    """

    generation: Annotated[int, Meta(description="the number of the commit: it only grows")]
    shm_name: Annotated[str, Meta(description="its manifest")]
    schema_hash: fields.SchemaHash[str] = ""
    schema_version: Annotated[str, Meta(description="the registry's version when the schema was registered")] = ""
    schema_type: fields.SchemaFormat[SchemaType | None] = None
    schema_id: fields.SchemaId[int | None] = None
    schema: fields.Verified[Verification] = "unverified"
    rows: fields.Rows[int] = 0
    size_bytes: fields.SizeBytes[int] = 0
    parts: fields.Parts[int] = 0
    hosts: Annotated[dict[str, int], Meta(description="how many parts are in the memory of which host")] = field(
        default_factory=dict
    )
    host: Annotated[str | None, Meta(description="where the manifest is")] = None
    boot_id: Annotated[str | None, Meta(description="of that host: generations begin anew with it")] = None
    user: Annotated[str | None, Meta(description="who wrote it")] = None
    application: Annotated[str | None, Meta(description="Spark's application id")] = None
    pid: Annotated[int | None, Meta(description="the process that committed it")] = None
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    committed_at: fields.CommittedAt[float] = 0.0
    registered_at: fields.RegisteredAt[float] = 0.0


class Group(Struct, kw_only=True, frozen=True):
    """Who shares a channel, in the order that decides who reads what (groups.py)."""

    epoch: Annotated[int, Meta(description="only grows")]
    members: Annotated[list[str], Meta(description="in the order that decides who reads what")]
    blocks: Annotated[list[str], Meta(description="what is shared")]


class Channel(Struct, kw_only=True):
    """A channel and its members.

    A declared channel (CHANNEL_CREATE) stays until it is destroyed; any other lives as long as it has members,
    a table, or a conflict to show.
    The schema and access are those of its producers, unless its declaration binds them.
    `revision` is that of the newest event about the channel.
    """

    name: fields.ChannelName[str]
    declared: Annotated[bool, Meta(description="whether it stays without members")] = False
    binds_schema: Annotated[bool, Meta(description="whether producers must have the schema of the declaration")] = False
    binds_access: Annotated[bool, Meta(description="whether producers must have the access of the declaration")] = False
    schema_hash: fields.SchemaHash[str | None] = None
    schema_version: fields.VersionName[str | None] = None
    schema_type: fields.SchemaFormat[SchemaType | None] = None
    schema_id: fields.SchemaId[int | None] = None
    schema: fields.Verified[Verification] = "unverified"
    access: fields.AccessRule[Access | None] = None
    priority: fields.PriorityRule[Priority] = "normal"
    config: Annotated[
        dict[str, Any],
        Meta(description="what its declaration or its first producer says; `policy` is the same for all producers"),
    ] = field(default_factory=dict)
    metadata: fields.Metadata[dict[str, Any]] = field(default_factory=dict)
    generation: Annotated[int, Meta(description="of the newest committed table")] = 0
    table: Annotated[Table | None, Meta(description="the newest committed table")] = None
    conflict: Annotated[str | None, Meta(description="why the status is `conflict`")] = None
    groups: Annotated[dict[str, Group], Meta(description="who shares it, by group")] = field(default_factory=dict)
    created_at: fields.CreatedAt[float] = 0.0
    revision: fields.OwnRevision[int] = 0
    producers: Annotated[dict[str, Producer], Meta(description="by id")] = field(default_factory=dict)
    consumers: Annotated[dict[str, Consumer], Meta(description="by id")] = field(default_factory=dict)

    def status(self) -> ChannelStatus:
        if self.conflict is not None:
            return "conflict"
        statuses = {producer.status for producer in self.producers.values()}
        if "active" in statuses or (self.table is not None and not statuses):
            return "active"
        return "stalled" if "stalled" in statuses else "pending"

    def is_empty(self) -> bool:
        """Nothing is left that would keep it."""
        kept = self.declared or self.producers or self.consumers
        return not kept and self.table is None and self.conflict is None

    def lead(self) -> Producer | None:
        """The producer that discovery names first: the longest registered of the most alive."""
        rank = {"active": 0, "stalled": 1, "pending": 2}
        return min(self.producers.values(), key=lambda producer: rank[producer.status], default=None)


class Keep(Struct, kw_only=True, frozen=True):
    """How much of a topic is retained: what breaks any of these bounds is removed, the oldest first."""

    messages: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)] | None, Meta(description="how many at most; null: any number")
    ] = None
    size_bytes: Annotated[
        int,
        Meta(
            ge=1, le=2**53, description="payloads and headers; default 64 MiB. All topics together: `kept_limit_bytes`"
        ),
    ] = 64 * 2**20
    seconds: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="how old at most; null: any age")] = None


class RetainedTopic(Struct, kw_only=True):
    """A topic whose messages are stored. Offsets begin with 1 and have no holes.

    `incarnation` tells a topic from one of the same name that was deleted before, `total_bytes` is all that was ever
    stored, and `revision` is that of its definition.
    """

    name: fields.TopicName[str]
    keep: Annotated[Keep, Meta(description="how much of it is retained")]
    incarnation: Annotated[int, Meta(description="tells it from one of the same name that was deleted before")]
    created_at: fields.CreatedAt[float] = 0.0
    next_offset: Annotated[
        int,
        Meta(description="what will be published next; 0 where it is not known, since the home host does not answer"),
    ] = 1
    total_bytes: Annotated[int, Meta(description="all that was ever stored")] = 0
    revision: Annotated[int, Meta(description="of its definition")] = 0
    home: Annotated[
        str | None, Meta(description="the host of a site that has its messages; null in a hub that is on its own")
    ] = None


class PlainTopic(Struct, kw_only=True, frozen=True):
    """A topic that is not retained, and that somebody published to lately."""

    name: fields.TopicName[str]
    publishers: Annotated[int, Meta(description="how many published to it in the last ten seconds, at most 100")]
    asked_at: Annotated[
        float,
        Meta(
            description="when a publisher last asked whether it is retained, seconds since the epoch; one that "
            "publishes asks every five seconds"
        ),
    ]


class RetainedMessage(Struct, kw_only=True, frozen=True):
    """A message as it is published to a retained topic; of an Arrow payload, an IPC stream."""

    payload: Annotated[bytes, Meta(description="base64; of `json` the JSON text, of Arrow kinds an IPC stream")]
    kind: fields.KindOfPayload[PayloadKind] = "bytes"
    headers: fields.Headers[dict[str, Any]] = field(default_factory=dict)


# Their names before 2026-11-18.
KeptTopic = RetainedTopic
KeptMessage = RetainedMessage


class LastBatch(Struct, kw_only=True, frozen=True):
    """What a publisher sent last, to know it when it comes again."""

    number: int
    count: int
    offset: int


class TopicPosition(Struct, kw_only=True, frozen=True):
    """A named position of a retained topic, shared by all who read under that name.

    Messages from `next_offset` on were never handed out. `max_deliveries` of null is any number, and `revision` is that
    of its definition: it changes when the position is reset.
    """

    topic: fields.TopicName[str]
    name: fields.PositionName[str]
    incarnation: Annotated[int, Meta(description="of the topic")]
    next_offset: Annotated[int, Meta(description="from here on nothing was handed out")]
    ack_wait_seconds: Annotated[
        float, Meta(description="after so long a message that was not acknowledged is handed out again")
    ]
    max_unacked: Annotated[int, Meta(description="how many may be handed out and not acknowledged")]
    max_deliveries: Annotated[int | None, Meta(description="null: any number")] = None
    created_at: fields.CreatedAt[float] = 0.0
    revision: Annotated[int, Meta(description="of its definition, or of its last reset")] = 0
    start_offset: Annotated[int, Meta(description="where it began, or was reset to; 0: not known")] = 0


class Subscriber(Struct, kw_only=True, frozen=True):
    """A member of a group of subscribers, or one who reads under the name of a position."""

    member_id: str
    kind: Literal["group", "position"]
    name: str
    patterns: list[str]
    lease: str
    status: MemberStatus = "active"
    host: str | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    registered_at: float = 0.0


class PublisherProcess(Struct, kw_only=True, frozen=True):
    """Which process publishes under a publisher's id."""

    program: Annotated[Text | None, Meta(description="what it runs, for people")] = None
    host: fields.Host[Text | None] = None
    pid: fields.Pid[Count | None] = None


class AskedMessage(Struct, kw_only=True, frozen=True):
    """A message of a topic that somebody looks for."""

    topic: fields.TopicName[Text]
    publisher: Annotated[
        Label,
        Meta(description="who numbered it, in hexadecimal; of a retained topic, which life of the topic it is of"),
    ]
    number: Annotated[Count, Meta(description="the publisher's number; of a retained topic the offset")]
    retained: Annotated[bool, Meta(description="it is of a retained topic")] = False


MessageOutcome = Literal["delivered", "waiting", "lost", "earlier", "other_member", "not_heard", "unknown"]


class MessageFate(Struct, kw_only=True, frozen=True):
    """What became of a message at one subscription, as its process sees it."""

    message: Annotated[AskedMessage, Meta(description="which one")]
    subscription: Annotated[Count, Meta(description="its place in the report's `subscriptions`")]
    outcome: Annotated[
        MessageOutcome,
        Meta(
            description="its program has taken it (`delivered`), it is `waiting` to be taken, is `lost`, was published "
            "`earlier` than the subscription began, went to an `other_member` of the group, has not come "
            "(`not_heard`), or nobody knows any more (`unknown`)"
        ),
    ]
    reason: Annotated[Text | None, Meta(description="more about it, for people")] = None


class SubscriptionState(Struct, kw_only=True, frozen=True, gc=False):
    """A subscription as its process counts it, since it began and over all topics that it matches."""

    patterns: Annotated[
        list[Text], Meta(min_length=1, max_length=100, description="the topics, or patterns, that it subscribes to")
    ]
    kind: Annotated[
        Literal["all", "group", "retained", "durable"],
        Meta(
            description="it gets `all` that is published, shares it with a `group`, reads `retained` topics at its own "
            "pace, or under a `durable` name"
        ),
    ] = "all"
    name: Annotated[Text | None, Meta(description="of the group, or the durable name")] = None
    received: Annotated[Count, Meta(description="messages that its program has taken")] = 0
    buffered: Annotated[Count, Meta(description="messages that have come and wait to be taken")] = 0
    lost: Annotated[Count, Meta(description="messages that did not reach its program")] = 0
    began_at: Annotated[float, Meta(description="seconds since the epoch, when it began")] = 0.0
    received_at: Annotated[
        float | None, Meta(description="seconds since the epoch, when it was last seen to have taken some; null: never")
    ] = None
    ended_by: Annotated[
        Label | None,
        Meta(description="it has ended: the code of the error that ended it, or `closed`; null: it goes on"),
    ] = None


@decodable
class Reference(Struct, kw_only=True, frozen=True):
    """Another schema that this one refers to by `name`. Version -1 is the newest at registration."""

    name: Annotated[Label, Meta(description="how the schema refers to it")]
    subject: fields.SubjectName[Label]
    version: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="-1: the newest at registration")]


class SchemaVersion(Struct, kw_only=True, frozen=True):
    """One version of a subject. Equal content has one `schema_id` and `guid` across subjects."""

    subject: fields.SubjectName[str]
    version: fields.VersionNumber[int]
    schema_id: fields.SchemaId[int]
    schema_type: fields.SchemaFormat[SchemaType]
    schema_hash: fields.SchemaHash[str]
    schema: Annotated[str, Meta(description="its text")]
    guid: Annotated[str, Meta(description="an id that follows from the content of the schema")] = ""
    references: Annotated[list[Reference], Meta(description="other schemas that it refers to by name")] = field(
        default_factory=list
    )
    metadata: Annotated[dict[str, Any] | None, Meta(description="as registered, and part of its identity")] = None
    rule_set: Annotated[dict[str, Any] | None, Meta(description="as registered, and part of its identity")] = None
    is_deleted: fields.IsDeleted[bool] = False


ConfigField = Literal[
    "compatibility",
    "normalize",
    "alias",
    "compatibility_group",
    "default_metadata",
    "override_metadata",
    "default_rule_set",
    "override_rule_set",
]


@decodable
class SchemaConfig(Struct, kw_only=True, frozen=True):
    """What a subject, or the registry as a whole, asks of new versions; None is not set."""

    compatibility: Annotated[Level | None, Meta(description="what a new version must be able to read")] = None
    normalize: Annotated[bool | None, Meta(description="drop what has no meaning, such as the order of keys")] = None
    alias: Annotated[Text | None, Meta(description="not built: refused with `INVALID_REQUEST`")] = None
    compatibility_group: Annotated[Text | None, Meta(description="not built: refused with `INVALID_REQUEST`")] = None
    default_metadata: Annotated[dict[str, Any] | None, Meta(description="for versions that bring none")] = None
    override_metadata: Annotated[dict[str, Any] | None, Meta(description="takes the place of what versions bring")] = (
        None
    )
    default_rule_set: Annotated[dict[str, Any] | None, Meta(description="for versions that bring none")] = None
    override_rule_set: Annotated[dict[str, Any] | None, Meta(description="takes the place of what versions bring")] = (
        None
    )


class Worker(Struct, kw_only=True, frozen=True):
    """Who serves an address: where to reach it, and the key that it asks of whoever calls."""

    worker_id: fields.WorkerId[str]
    address: fields.Address[str]
    endpoint: Annotated[str, Meta(description="where its process listens")]
    key: Annotated[str, Meta(description="what callers must show there")]
    lease: fields.LeaseName[str]
    concurrency: fields.Concurrency[int] = 1
    status: fields.StatusOfMember[MemberStatus] = "active"
    host: fields.Host[str | None] = None
    pid: fields.Pid[int | None] = None
    start_time: fields.StartTime[int | None] = None
    boot_id: fields.BootId[str | None] = None
    tcp_endpoint: fields.TcpEndpoint[str | None] = None
    tcp_key: fields.TcpKey[str | None] = None
    registered_at: fields.RegisteredAt[float] = 0.0


class MailboxState(Struct, kw_only=True, frozen=True, gc=False):
    """A worker's mailbox, as its process counted it when it said so."""

    queued: Annotated[Count, Meta(description="messages that wait for a handler")]
    capacity: Annotated[Count, Meta(description="how many may wait")]
    blocked: Annotated[Count, Meta(description="messages that wait for room in the mailbox")] = 0
    busy: Annotated[Count, Meta(description="handlers that run")] = 0
    handled: Annotated[Count, Meta(description="messages that were given to a handler so far")] = 0
    dropped: Annotated[Count, Meta(description="messages that a full mailbox dropped so far")] = 0
    refused: Annotated[Count, Meta(description="messages that a full or closed mailbox refused so far")] = 0
    expired: Annotated[Count, Meta(description="messages whose deadline had passed, so far")] = 0


class Service(Struct, kw_only=True, frozen=True):
    """An address and who serves it, in the order of their registration. Only a pool can be without workers."""

    address: fields.Address[str]
    strategy: fields.StrategyRule[Strategy] = "round_robin"
    workers: Annotated[list[Worker], Meta(description="in the order of their registration")] = field(
        default_factory=list
    )
    revision: Annotated[int, Meta(description="of the services, counted anew by each run of the broker")] = 0


class DeadLetter(Struct, kw_only=True, frozen=True):
    """A message that could not be delivered, and why. A payload beyond 64 KiB is not kept, only its size.

    Of form `topic` it is one of a retained topic that nobody acknowledged, and its address is `topic:NAME`.
    """

    address: Annotated[Text, Meta(description="where it was to go; `topic:NAME` for a message of a retained topic")]
    code: Annotated[Label, Meta(description="the code of the error that ended it")]
    reason: Annotated[Text, Meta(description="why, for people")]
    form: Annotated[Literal["request", "send", "topic"], Meta(description="how it was sent")]
    sender: Annotated[Text, Meta(description="who sent it")] = ""
    attempts: Annotated[Count, Meta(description="how often it was tried")] = 1
    headers: fields.Headers[dict[str, Any]] = field(default_factory=dict)
    payload_kind: fields.KindOfPayload[Literal["bytes", "json", "arrow_batch", "arrow_table"]] = "bytes"
    payload_base64: Annotated[Annotated[str, Meta(max_length=2**17)] | None, Meta(description="null beyond 64 KiB")] = (
        None
    )
    payload_bytes: Annotated[Count, Meta(description="how large the payload was")] = 0
    at: Annotated[float, Meta(description="seconds since the epoch, when it was given up")] = 0.0
    offset: Annotated[Count | None, Meta(description="of a message of a retained topic")] = None
    number: Annotated[Count, Meta(description="given by the broker; what DEAD_LETTER_REMOVE takes")] = (
        0  # given by the broker, by which it is removed
    )


HostHealth = Literal["healthy", "degraded", "left", "lost"]


class SiteHost(Struct, kw_only=True, frozen=True):
    """A host whose hub is a member of a site."""

    host: Annotated[str, Meta(description="the name of the host")]
    health: Annotated[
        HostHealth,
        Meta(
            description="`degraded`: its hub cannot reach etcd; `left`: its hub was stopped, and its lease is not over;"
            " `lost`: nothing was heard for the term of its lease"
        ),
    ]
    reason: Annotated[str, Meta(description="why it is not healthy; empty if it is")] = ""
    is_leader: Annotated[bool, Meta(description="whether its hub decides the commands of the site")] = False
    revision: Annotated[
        int | None,
        Meta(description="the revision of its copy of the registry, as it said last; null if that is not known"),
    ] = None
    lag: Annotated[
        int | None,
        Meta(
            description="how many revisions that is behind the newest one that this hub knows; null of a host whose hub"
            " does not run"
        ),
    ] = None
    endpoint: Annotated[str, Meta(description="where its hub takes what other hubs forward")] = ""
    gateway: Annotated[
        str, Meta(description="where its Arrow Flight gateway gives what is in its memory; empty without one")
    ] = ""
    topics: Annotated[str, Meta(description="where other hubs hear what is published to topics there")] = ""
    version: Annotated[str, Meta(description="the version of its hub's program")] = ""
