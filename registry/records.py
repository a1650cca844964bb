"""What the registry knows: nouns only, no rules.

These records are what the store keeps, what events carry and what a watcher's view holds, so each is
a plain value that survives encoding unchanged.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

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
ChannelStatus = Literal["active", "pending", "stalled", "conflict"]
Verification = Literal["verified", "unverified"]
PayloadKind = Literal["bytes", "json", "arrow_batch", "arrow_table"]
Strategy = Literal["round_robin", "random", "least_busy"]

Text = Annotated[str, Meta(max_length=1024)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class Block(Struct, kw_only=True, frozen=True):
    """Where one piece of a channel's data lives."""

    shm_name: Label
    host: Text | None = None
    format: Text | None = None


class Producer(Struct, kw_only=True, gc=False):
    producer_id: str
    lease: str
    shm_name: str
    schema_hash: str
    schema_version: str = ""
    schema_type: SchemaType | None = None
    schema_id: int | None = None
    schema: Verification = "unverified"
    ready: bool = True
    status: MemberStatus = "active"
    access: Access = "exclusive"
    host: str | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    blocks: list[Block] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    registered_at: float = 0.0
    revision: int = 0


class Consumer(Struct, kw_only=True, gc=False):
    consumer_id: str
    lease: str
    expected_schema_hash: str | None = None
    group: str | None = None
    status: MemberStatus = "active"
    host: str | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    registered_at: float = 0.0
    revision: int = 0


class Table(Struct, kw_only=True, frozen=True):
    """The newest committed generation of a channel's table; it belongs to nobody and needs nobody alive.

    `shm_name` is its manifest, in the memory of `host`; `hosts` says how many of its parts are in the memory of which
    host. `user`, `application` and `pid` say who wrote it.
    """

    generation: int
    shm_name: str
    schema_hash: str = ""
    schema_version: str = ""
    schema_type: SchemaType | None = None
    schema_id: int | None = None
    schema: Verification = "unverified"
    rows: int = 0
    size_bytes: int = 0
    parts: int = 0
    hosts: dict[str, int] = field(default_factory=dict)
    host: str | None = None
    boot_id: str | None = None
    user: str | None = None
    application: str | None = None
    pid: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    committed_at: float = 0.0
    registered_at: float = 0.0


class Group(Struct, kw_only=True, frozen=True):
    """Who shares a channel, in the order that decides who reads what (groups.py)."""

    epoch: int
    members: list[str]
    blocks: list[str]


class Channel(Struct, kw_only=True):
    """A channel and its members.

    A declared channel (CHANNEL_CREATE) stays until it is destroyed; any other lives as long as it has members,
    a table, or a conflict to show.
    The schema and access are those of its producers, unless its declaration binds them.
    `revision` is that of the newest event about the channel.
    """

    name: str
    declared: bool = False
    binds_schema: bool = False
    binds_access: bool = False
    schema_hash: str | None = None
    schema_version: str | None = None
    schema_type: SchemaType | None = None
    schema_id: int | None = None
    schema: Verification = "unverified"
    access: Access | None = None
    priority: Priority = "normal"
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    table: Table | None = None
    conflict: str | None = None
    groups: dict[str, Group] = field(default_factory=dict)
    created_at: float = 0.0
    revision: int = 0
    producers: dict[str, Producer] = field(default_factory=dict)
    consumers: dict[str, Consumer] = field(default_factory=dict)

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
    """How much of a topic is kept: what breaks any of these bounds is removed, the oldest first."""

    messages: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    size_bytes: Annotated[int, Meta(ge=1, le=2**53)] = 64 * 2**20
    seconds: Annotated[float, Meta(gt=0)] | None = None


class KeptTopic(Struct, kw_only=True):
    """A topic whose messages are stored. Offsets begin with 1 and have no holes.

    `incarnation` tells a topic from one of the same name that was deleted before, `total_bytes` is all that was ever
    stored, and `revision` is that of its definition.
    """

    name: str
    keep: Keep
    incarnation: int
    created_at: float = 0.0
    next_offset: int = 1
    total_bytes: int = 0
    revision: int = 0


class KeptMessage(Struct, kw_only=True, frozen=True):
    """A message as it is published to a kept topic; of an Arrow payload, an IPC stream."""

    payload: bytes
    kind: PayloadKind = "bytes"
    headers: dict[str, Any] = field(default_factory=dict)


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

    topic: str
    name: str
    incarnation: int
    next_offset: int
    ack_wait_seconds: float
    max_unacked: int
    max_deliveries: int | None = None
    created_at: float = 0.0
    revision: int = 0


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


class Reference(Struct, kw_only=True, frozen=True):
    """Another schema that this one refers to by `name`. Version -1 is the newest at registration."""

    name: Label
    subject: Label
    version: Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class SchemaVersion(Struct, kw_only=True, frozen=True):
    """One version of a subject. Equal content has one `schema_id` and `guid` across subjects."""

    subject: str
    version: int
    schema_id: int
    schema_type: SchemaType
    schema_hash: str
    schema: str
    guid: str = ""
    references: list[Reference] = field(default_factory=list)
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    is_deleted: bool = False


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


class SchemaConfig(Struct, kw_only=True, frozen=True):
    """What a subject, or the registry as a whole, asks of new versions; None is not set."""

    compatibility: Level | None = None
    normalize: bool | None = None
    alias: Text | None = None
    compatibility_group: Text | None = None
    default_metadata: dict[str, Any] | None = None
    override_metadata: dict[str, Any] | None = None
    default_rule_set: dict[str, Any] | None = None
    override_rule_set: dict[str, Any] | None = None


class Worker(Struct, kw_only=True, frozen=True):
    """Who serves an address: where to reach it, and the key that it asks of whoever calls."""

    worker_id: str
    address: str
    endpoint: str
    key: str
    lease: str
    concurrency: int = 1
    status: MemberStatus = "active"
    host: str | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    registered_at: float = 0.0


class Service(Struct, kw_only=True, frozen=True):
    """An address and who serves it, in the order of their registration. Only a pool can be without workers."""

    address: str
    strategy: Strategy = "round_robin"
    workers: list[Worker] = field(default_factory=list)
    revision: int = 0


class DeadLetter(Struct, kw_only=True, frozen=True):
    """A message that could not be delivered, and why. A payload beyond 64 KiB is not kept, only its size.

    Of form `topic` it is one of a retained topic that nobody acknowledged, and its address is `topic:NAME`.
    """

    address: Text
    code: Label
    reason: Text
    form: Literal["request", "send", "topic"]
    sender: Text = ""
    attempts: Count = 1
    headers: dict[str, Any] = field(default_factory=dict)
    payload_kind: Literal["bytes", "json", "arrow_batch", "arrow_table"] = "bytes"
    payload_base64: Annotated[str, Meta(max_length=2**17)] | None = None
    payload_bytes: Count = 0
    at: float = 0.0
    number: Count = 0  # given by the broker, by which it is removed
