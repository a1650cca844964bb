"""What a gateway is asked for, and what it says of a ring. Tickets and metadata are JSON, so that any client can write
them.

Rule: items travel as the bytes that are in their slots, several small ones to a message. So the reader decodes them
with the codec that readers on their own host use, and gets the same values.
"""

import struct
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec

from messagehub.errors import HubError, MalformedRequest, from_wire
from messagehub.shm.errors import PayloadDamaged, restored
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import LastItems, Position, Start
from registry.decoding import decodable

Kind = Literal["auto", "table", "items", "ring"]
RING_KEY = b"messagehub.ring"
"""Where the metadata of a stream's schema has the `RingInfo`."""
MANIFESTS = "manifests"
"""The action that gives the manifests of a channel's tables, oldest first."""
DROP_TABLE = "drop-table"
"""The action that removes a channel's table from the memory of the gateway's host; it gives the generations."""
PARTS_IN_USE = "parts-in-use"
"""The action by which the hub of another host hears which parts there the manifests of this host name."""
RINGS = "rings"
"""The action that lists the rings of a channel, and what is known of rings that were removed."""
RELEASE = "release"
"""The action by which whoever holds a ring lets go of the items up to one."""
PID_HEADER = b"messagehub-pid"
"""With which a client says what its process is on its host, for people who look at the ring's readers."""
ACKNOWLEDGE = "acknowledge"
"""The action by which a member of a group says how far it is done. Its body is its stream's ticket, with `done`."""
GROUP_RINGS = "group-rings"
"""The action that gives the rings of a channel that a group has read or may read, with what is left in them."""
MESSAGE_BYTES = 1 << 20
"""How many bytes of items are sent in one message, if the reader is so far behind: a message costs as much as several
items do. It is a part of what a reader takes ahead (`remote_ring.QUEUED_BYTES`)."""
MESSAGE_ITEMS = 1024
ITEM_ALIGNMENT = 16
"""Where items begin in a message: what the widest numbers of NumPy and Arrow need, to be read in place."""
ITEM = struct.Struct("=11Q8x")
"""What is known of an item: sequence, last lost sequence (of a gap, else 0), epoch, nanoseconds since 1970, shape (4),
which of the message's buffers it is in, where it begins there, and its length."""
Asked = TypeVar("Asked")
IDLE_SECONDS = 1.0
"""So often a stream of a ring says that it goes on while nothing is written."""


@decodable
class MemberTicket(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a member of a group reads of a ring, as it was dealt."""

    group: str
    epoch: int
    index: int
    count: int

    def share(self) -> MemberShare:
        try:
            return MemberShare(self.epoch, self.index, self.count)
        except ValueError as error:
            raise MalformedRequest(str(error)) from None


@decodable
class FlightTicket(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What `DoGet` gives. With the channel alone: the newest table or, without one, what is in the rings."""

    channel: str
    kind: Kind = "auto"
    generation: int | None = None
    """Of a table; the newest without one."""
    part: str | None = None
    """One part of a table, by its name; all of them without one."""
    rows: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]] | None = None
    """Of that part: the first row, and how many rows."""
    block: str | None = None
    """A ring, by its name in shared memory."""
    start: str | int | list[str | int] = "oldest"
    """Where to begin: `oldest`, `latest`, `first`, -N for the last N, or a position."""
    positions: dict[str, list[str | int]] = {}
    """Where to begin in rings of these ids, whatever `start` says."""
    follow: bool = False
    """Whether items go on as they are written."""
    lossless: bool = True
    verify: bool = False
    newest: bool = False
    """Of a ring: only its newest item."""
    hold: str = ""
    """Of a ring: give no items, only hold them from the start on, under this name (`RingRelease`)."""
    consumer_id: str = ""
    member: MemberTicket | None = None
    """Of a ring: read it as this member of a group. `start` counts only for a group that has never read the ring."""
    done: int = 0
    """Of a member: all of its share up to this item is done."""
    after: int = 0
    """Of a member: it has got everything up to this item, done or not."""

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def of(cls, content: bytes) -> "FlightTicket":
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise MalformedRequest(
                f'a ticket is JSON such as {{"channel": "NAME"}}, and GetFlightInfo gives one; this one is not: {error}'
            ) from None


@decodable
class RemoteRingState(msgspec.Struct, kw_only=True, frozen=True):
    """What changes about a ring, sent with every message."""

    head: int
    epoch: int
    is_alive: bool
    """Whether somebody writes it."""
    is_replaced: bool = False
    has_ended: bool = False
    """Whether its producer ended it, and this is the last message."""
    producers: list[tuple[int, str]] = []
    has_more: bool = False
    """Of a member of a group: whether there is more of its share than was sent."""


@decodable
class GroupQuery(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the action `group_rings` is asked."""

    channel: str
    group: str
    left_out: list[tuple[str, MemberTicket]] = []
    """Shares of rings, by name, that do not count as left: nobody reads those members now."""

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)


@decodable
class GroupRing(msgspec.Struct, kw_only=True, frozen=True):
    """A ring on another host, as a group sees it."""

    block: str
    is_alive: bool
    left: int
    """How many items in it no member of the group has done."""
    position: tuple[str, int, int]
    """Where it ends now."""

    @classmethod
    def of(cls, content: bytes, name: str) -> "GroupRing":
        try:
            return msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise PayloadDamaged(name, f"its gateway tells of no ring ({error})") from None


@decodable
class RingInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What a reader of a ring on another host has to know before the first item."""

    block_id: str
    channel: str
    schema_hash: str
    payload_format: int
    description: bytes
    checks_cells: bool
    position: tuple[str, int, int]
    """Where reading begins."""
    was_over: bool
    """Whether its producer had ended it, or died, before this reader came."""
    state: RemoteRingState


def decoded(content: bytes, kind: type[Asked]) -> Asked:
    """Return what an action was asked; MalformedRequest says what is wrong with it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedRequest(f"the body of the action is not what it takes: {error}") from None


@decodable
class ListedRing(msgspec.Struct, kw_only=True, frozen=True):
    """A ring of a channel, as somebody sees it who does not read it."""

    block: str
    """Its name in shared memory."""
    block_id: str
    payload_format: int
    description: bytes
    capacity: int
    overwrites: bool
    """Whether its producer overwrites what was not read."""
    head: int
    epoch: int
    has_writer: bool


@decodable
class RingsAsked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    channel: str
    removed: list[str] = []
    """Ids of rings that may have been removed."""


@decodable
class RingsListed(msgspec.Struct, kw_only=True, frozen=True):
    rings: list[ListedRing]
    removed: dict[str, int | None]
    """The last sequence of each ring that was asked for and removed, by id; None where nothing is known of it."""


@decodable
class RingRelease(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    channel: str
    hold: str
    sequence: int
    """The last item that is not needed any more."""


@decodable
class PartsAsked(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    channel: str
    host: str
    """Where the parts are."""
    transactions: list[str] = []
    """Those that are open there."""


@decodable
class PartsInUse(msgspec.Struct, kw_only=True, frozen=True):
    """What the manifests of a host name on another one, as it is at one moment."""

    parts: list[str]
    open: list[str]
    """Of the transactions that were asked for: those whose job goes on."""
    committed: list[str]
    """Those whose parts are named, or were superseded since."""


def start_of(ticket: FlightTicket, end: Position) -> Start:
    """Return where a ring is to be read from; `end` is where it ends now."""
    start = ticket.positions.get(end.block_id, ticket.start)
    if isinstance(start, list):
        return _position(start)
    if isinstance(start, int):
        if start >= 0:
            raise MalformedRequest(f"a number as `start` is negative, for the last items: -10, not {start}")
        return LastItems(-start, end)
    if start not in ("oldest", "latest", "first"):
        raise MalformedRequest(f"a ring cannot be read from {start!r:.100}")
    return cast(Start, start)


def with_start(ticket: FlightTicket, start: Position) -> FlightTicket:
    return msgspec.structs.replace(ticket, start=list(start))


def _position(given: list[str | int]) -> Position:
    if len(given) == 3 and isinstance(given[0], str) and isinstance(given[1], int) and isinstance(given[2], int):
        return Position(given[0], given[1], given[2])
    raise MalformedRequest(f"a position is [block id, epoch, sequence], not {given!r:.100}")


@decodable
class ToldError(msgspec.Struct, kw_only=True):
    code: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}


def error_bytes(error: HubError) -> bytes:
    details = {name: value for name, value in error.details.items() if isinstance(value, str | int | float | None)}
    return msgspec.json.encode(
        ToldError(code=error.code, message=error.message, retryable=error.retryable, details=details)
    )


def error_from(extra: bytes) -> HubError | None:
    """Return the error that a gateway told, or None if it told none that can be read."""
    try:
        told = msgspec.json.decode(extra, type=ToldError)
    except msgspec.DecodeError:
        return None
    return restored(told.code, told.message) or from_wire(
        told.code, told.message, told.details, retryable=told.retryable
    )
