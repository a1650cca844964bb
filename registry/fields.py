"""Fields that many messages have: each is a type with the sentence that schemas, OpenAPI and the protocol page show.

`ChannelName[Text]` is a Text that is described as a channel's name. A description checks nothing, and costs nothing
when a message is decoded.
"""

from typing import Annotated, TypeVar

from msgspec import Meta

T = TypeVar("T")

ChannelName = Annotated[T, Meta(description="the channel's name")]
TopicName = Annotated[T, Meta(description="the topic's name")]
SubjectName = Annotated[T, Meta(description="the subject's name")]
PositionName = Annotated[T, Meta(description="the name of the position")]
ProducerId = Annotated[T, Meta(description="the id of the producer, one of its kind on the channel")]
ConsumerId = Annotated[T, Meta(description="the id of the consumer, one of its kind on the channel")]
MemberId = Annotated[T, Meta(description="the id of the subscriber")]
WorkerId = Annotated[T, Meta(description="the id of the worker")]
Address = Annotated[T, Meta(description="`id:`, `name:`, `service:` or `pool:` and a name")]
LeaseName = Annotated[T, Meta(description="the lease that keeps it registered")]
LeaseSeconds = Annotated[T, Meta(description="silence for so long ends what is registered under the lease")]
Host = Annotated[T, Meta(description="the host of the process")]
Pid = Annotated[T, Meta(description="the id of the process on its host")]
StartTime = Annotated[
    T, Meta(description="when the process started, as the kernel counts: tells it from a later one with the same `pid`")
]
BootId = Annotated[T, Meta(description="the kernel's id of the boot that the process belongs to")]
TcpEndpoint = Annotated[
    T, Meta(description="of a worker in a site: where callers of other hosts reach it, by ZeroMQ with CURVE")
]
TcpKey = Annotated[T, Meta(description="the public key that the worker proves to have there")]
Metadata = Annotated[T, Meta(description="free: whatever its owner wants others to see")]
Headers = Annotated[T, Meta(description="free: what was published with the payload")]
Prefix = Annotated[T, Meta(description="only names that begin so")]
After = Annotated[T, Meta(description="the `next` of the page before")]
Next = Annotated[T, Meta(description="the `after` of the next page; null at the end")]
PageLimit = Annotated[T, Meta(description="how many a page has at most")]
Revision = Annotated[T, Meta(description="the registry's revision: it grows with every change")]
OwnRevision = Annotated[T, Meta(description="the revision of the newest event about it")]
BrokerId = Annotated[T, Meta(description="another one means another run of the broker")]
SchemaHash = Annotated[T, Meta(description="the hash of the schema")]
SchemaId = Annotated[T, Meta(description="the id of the schema in the registry; equal schemas have one")]
SchemaFormat = Annotated[T, Meta(description="the format of the schema")]
VersionName = Annotated[
    T, Meta(description="the registry's version when the schema was registered, else what the producer calls it")
]
VersionNumber = Annotated[T, Meta(description="the number of the version within its subject")]
Verified = Annotated[T, Meta(description="`verified` when the schema itself was registered")]
IsDeleted = Annotated[T, Meta(description="whether it was deleted softly")]
StatusOfChannel = Annotated[
    T, Meta(description="`active`, `pending` (known, not ready yet), `stalled` (silent) or `conflict`")
]
StatusOfMember = Annotated[T, Meta(description="`active`, `pending` (not ready yet) or `stalled` (silent)")]
AccessRule = Annotated[T, Meta(description="one producer, or several, each with an id and a ring of its own")]
PriorityRule = Annotated[T, Meta(description="under backlog, what is higher is served first")]
RegisteredAt = Annotated[T, Meta(description="seconds since the epoch, when it was registered")]
CreatedAt = Annotated[T, Meta(description="seconds since the epoch, when it was made")]
CommittedAt = Annotated[T, Meta(description="seconds since the epoch, when it was committed")]
ShmName = Annotated[T, Meta(description="the name of its block in shared memory")]
Rows = Annotated[T, Meta(description="how many rows it has")]
SizeBytes = Annotated[T, Meta(description="how many bytes it takes")]
Parts = Annotated[T, Meta(description="how many parts it has")]
KindOfPayload = Annotated[T, Meta(description="what the payload is")]
Offset = Annotated[T, Meta(description="the number of the message in its topic: from 1, without holes")]
Concurrency = Annotated[T, Meta(description="how many handlers run at once")]
StrategyRule = Annotated[T, Meta(description="how a caller chooses among the workers of a pool")]
