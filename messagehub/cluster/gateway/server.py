"""What a gateway serves: the rings and tables in the memory of this host, to whoever may consume their channels.

    ListFlights      the channels of this host that the caller may look at
    GetFlightInfo    one channel: its schema, and a ticket for its table and for each of its rings
    DoGet            a ticket: batches of a table or of a ring, or a ring as consumers elsewhere read it
    DoAction         `manifests`: the generations of a channel's table; of groups of consumers: `group_rings`, and
                     `acknowledge` of a member that reads a ring

Only the directory of this host is read: the gateway needs no broker, and never gives what another host has.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from messagehub.cluster.gateway.callers import MIDDLEWARE, GatewayCaller, as_flight_error
from messagehub.cluster.gateway.group_members import GroupMembers
from messagehub.cluster.gateway.ring_holds import RingHolds, list_rings
from messagehub.cluster.gateway.ring_streams import RingStream
from messagehub.cluster.gateway.table_actions import drop_table, manifests_of, parts_in_use
from messagehub.errors import ChannelNotFound, Forbidden, HubError, MalformedRequest
from messagehub.flight.messages import (
    ACKNOWLEDGE,
    DROP_TABLE,
    GROUP_RINGS,
    IDLE_SECONDS,
    MANIFESTS,
    PARTS_IN_USE,
    RELEASE,
    RINGS,
    FlightTicket,
    GroupQuery,
    GroupRing,
    PartsAsked,
    RingRelease,
    RingsAsked,
    decoded,
    start_of,
)
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import block_path
from messagehub.shm.errors import DataBlockError, NothingThere, StreamEnded, TableMissing
from messagehub.shm.rings.read_results import Item, Position
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import left_by_group, open_reader, peek, ring_paths
from messagehub.shm.tables.table_blocks import read_block
from messagehub.shm.tables.tables import TableStore
from registry import names
from registry.access import Role

PAYLOADS = pa.schema([("sequence", pa.uint64()), ("written_at", pa.float64()), ("value", pa.large_binary())])
"""How any client reads items that are no Arrow data."""
T = TypeVar("T")
P = ParamSpec("P")


def _told(method: Callable[P, T]) -> Callable[P, T]:
    """Have a method's refusals told as Flight tells errors."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except HubError as error:
            raise as_flight_error(error) from None

    return call


def _told_while_sent(found: Iterator[T], caller: GatewayCaller) -> Iterator[T]:
    """Give what is found as long as the caller may have it, and have refusals told as Flight tells errors."""
    checked_at = time.monotonic()
    try:
        while True:
            yield next(found)  # no name keeps it here while the peer takes it
            if time.monotonic() - checked_at > IDLE_SECONDS:
                caller.check_current()
                checked_at = time.monotonic()
    except StopIteration:
        return
    except HubError as error:
        raise as_flight_error(error) from None
    finally:
        if isinstance(found, Generator):
            found.close()  # and with it the ring


class GatewayServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, directory: Directory, location: str, **options: Any) -> None:
        """`options` are those of FlightServerBase: certificates and middleware."""
        super().__init__(location, **options)
        self._directory = directory
        self._holds = RingHolds()
        self._members = GroupMembers()

    # -- Flight's methods ----------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[Any]:
        prefix = criteria.decode(errors="replace")
        caller = _caller(context)
        for channel in sorted(self._directory.channels()):
            if channel.startswith(prefix) and caller.rights.allows("observe", channel):
                with suppress(HubError):  # it ended meanwhile, or is damaged, which `messagehub doctor` reports
                    yield self._info(channel)

    @_told
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        if descriptor.descriptor_type != flight.DescriptorType.PATH or len(descriptor.path) != 1:
            raise MalformedRequest("a flight is named by a path of one component: the channel")
        channel = _channel(descriptor.path[0].decode(errors="replace"))
        if not _caller(context).rights.allows("observe", channel):
            raise Forbidden(f"this takes the right observe on {channel!r}", role="observe", name=channel)
        return self._info(channel)

    @_told
    def do_get(self, context: Any, ticket: Any) -> Any:
        asked = FlightTicket.of(ticket.ticket)
        channel = _channel(asked.channel)
        caller = _caller(context)
        caller.check(channel)
        if asked.kind == "ring":
            if asked.block is None:
                raise MalformedRequest("a ring is named by `block`")
            stream = RingStream(self._ring_path(asked.block), asked, self._members, caller.read_for)
            if asked.hold:
                held = self._holds.messages(asked.hold, stream)
                return flight.GeneratorStream(stream.schema, _told_while_sent(held, caller))
            return flight.GeneratorStream(stream.schema, _told_while_sent(stream.messages(), caller))
        if asked.kind == "items" or (asked.kind == "auto" and not self._tables(channel).generations()):
            return self._items(channel, asked, caller)
        return flight.RecordBatchStream(self._table(channel, asked))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:  # noqa: ARG002  Flight's signature
        return [
            (MANIFESTS, 'the manifests of a channel\'s table, oldest first; the body is {"channel": NAME}'),
            (
                DROP_TABLE,
                'remove a channel\'s table, which takes the right to produce it; the body is {"channel": NAME}',
            ),
            (PARTS_IN_USE, "for hubs: which parts on another host the manifests of this one name"),
            (RINGS, 'the rings of a channel; the body is {"channel": NAME}'),
            (RELEASE, "for whoever holds a ring: let go of the items up to one"),
            (GROUP_RINGS, 'the rings that a group may read; the body is {"channel": NAME, "group": NAME}'),
            (ACKNOWLEDGE, "how far a member of a group is done; the body is the ticket of its stream, with `done`"),
        ]

    @_told
    def do_action(self, context: Any, action: Any) -> list[Any]:
        body, caller = action.body.to_pybytes(), _caller(context)
        found: Iterable[bytes]
        if action.type == MANIFESTS:
            channel = self._allowed(caller, FlightTicket.of(body).channel)
            found = manifests_of(self._directory, channel)
        elif action.type == DROP_TABLE:
            channel = self._allowed(caller, FlightTicket.of(body).channel, "produce")
            found = [drop_table(self._directory, channel)]
        elif action.type == PARTS_IN_USE:
            parts = decoded(body, PartsAsked)
            found = [parts_in_use(self._directory, self._allowed(caller, parts.channel), parts)]
        elif action.type == RINGS:
            rings = decoded(body, RingsAsked)
            found = [list_rings(self._directory, self._allowed(caller, rings.channel), rings)]
        elif action.type == RELEASE:
            release = decoded(body, RingRelease)
            self._allowed(caller, release.channel)
            found = [self._holds.release(release)]
        elif action.type == ACKNOWLEDGE:
            asked = FlightTicket.of(body)
            self._allowed(caller, asked.channel)
            if asked.block is None or asked.member is None:
                raise MalformedRequest("a member of a group names its ring by `block`, and itself by `member`")
            self._members.acknowledge(self._ring_path(asked.block), asked)
            found = []
        elif action.type == GROUP_RINGS:
            query = decoded(body, GroupQuery)
            self._allowed(caller, query.channel)
            found = [msgspec.json.encode(ring) for ring in self._group_rings(query)]
        else:
            raise MalformedRequest(f"there is no action {action.type!r:.100}")
        return [flight.Result(pa.py_buffer(one)) for one in found]

    # -- inside --------------------------------------------------------------------------------------------

    def _allowed(self, caller: GatewayCaller, name: str, role: Role = "consume") -> str:
        """Return the channel that is named, if the caller has the right to it."""
        channel = _channel(name)
        caller.check(channel, role)
        return channel

    def _tables(self, channel: str) -> TableStore:
        return TableStore(self._directory.tables_path(channel))

    def _table(self, channel: str, asked: FlightTicket) -> Any:
        if asked.part is not None:
            if "/" in asked.part or not asked.part.endswith(".arrow"):
                raise MalformedRequest(f"{asked.part!r:.200} is no name of a part")
            part = read_block(os.path.join(self._tables(channel).path, asked.part), verify=asked.verify)
            return part if asked.rows is None else part.slice(*asked.rows)
        with self._tables(channel).open(asked.generation) as snapshot:
            return snapshot.table(verify=asked.verify)

    def _ring_path(self, block: str) -> str:
        path = os.path.normpath(block_path(self._directory, block))
        if not path.startswith(os.path.join(self._directory.root, "")):
            raise NothingThere(block)
        return path

    def _rings(self, channel: str) -> list[str]:
        found = []
        for path in ring_paths(self._directory, channel):
            with suppress(DataBlockError):
                if peek(path)[0].channel == channel:
                    found.append(path)
        return found

    def _group_rings(self, query: GroupQuery) -> Iterator[GroupRing]:
        for path in self._rings(query.channel):
            block = "/" + self._directory.relative(path)
            left_out = [share.share() for name, share in query.left_out if name == block]
            with suppress(DataBlockError):  # it ended meanwhile, or is damaged, which `messagehub doctor` reports
                header, state = peek(path)
                yield GroupRing(
                    block=block,
                    position=(header.block_id, state["epoch"], state["head"]),
                    is_alive=state["has_writer"],
                    left=left_by_group(path, query.channel, query.group, left_out),
                )

    def _info(self, channel: str) -> Any:
        endpoints, schema, rows, size = [], None, -1, -1
        with suppress(TableMissing), self._tables(channel).open() as snapshot:
            manifest = snapshot.manifest
            schema, rows, size = snapshot.table().schema, manifest.rows, manifest.size_bytes
            endpoints.append(_endpoint(FlightTicket(channel=channel, kind="table", generation=manifest.generation)))
        for path in self._rings(channel):
            block = "/" + self._directory.relative(path)
            endpoints.append(_endpoint(FlightTicket(channel=channel, kind="items", block=block)))
            if schema is None:
                with open_reader(path, lossless=False) as reader:
                    schema = _stream_schema(reader)
        if schema is None:
            said = f"channel {channel!r} has neither a ring nor a table in the memory of this host"
            raise ChannelNotFound(said, channel=channel)
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_path(channel), endpoints, rows, size)

    def _items(self, channel: str, asked: FlightTicket, caller: GatewayCaller) -> Any:
        paths = [self._ring_path(asked.block)] if asked.block else self._rings(channel)
        if len(paths) != 1:
            said = "no ring and no table" if not paths else f"{len(paths)} rings: take the tickets of GetFlightInfo"
            raise ChannelNotFound(f"channel {channel!r} has {said} in the memory of this host", channel=channel)
        header, state = peek(paths[0])
        if header.channel != channel:
            raise NothingThere(paths[0])
        end = Position(header.block_id, state["epoch"], state["head"])
        reader = open_reader(
            paths[0],
            start=start_of(asked, end),
            lossless=asked.follow and asked.lossless,
            verify=asked.verify,
            wait_for_writer=True,
        )
        found = _batches(reader, None if asked.follow else state["head"])
        return flight.GeneratorStream(_stream_schema(reader), _told_while_sent(found, caller))


def _batches(reader: RingReader, until: int | None) -> Iterator[Any]:
    """Give what is in a ring, up to that item or until its stream ends."""
    schema = _stream_schema(reader)
    is_arrow = schema is not PAYLOADS
    idle = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    with reader:
        while until is None or reader.position.sequence < until:
            try:
                found = reader.read(IDLE_SECONDS if until is None else 0.0)
            except StreamEnded:
                return
            if isinstance(found, Item):
                row = [found.sequence], [found.written_ns / 1e9], [bytes(memoryview(found.buffer))]
                yield found.value if is_arrow else pa.RecordBatch.from_arrays(list(map(pa.array, row)), schema=schema)
            elif until is None:
                yield idle  # also notices a peer that left
            elif found is None:
                return


def _stream_schema(reader: RingReader) -> Any:
    return reader.schema if isinstance(reader.schema, pa.Schema) else PAYLOADS


def _endpoint(ticket: FlightTicket) -> Any:
    """Return where to get it: without a location, which means here."""
    return flight.FlightEndpoint(ticket.to_bytes(), [])


def _caller(context: Any) -> GatewayCaller:
    found = context.get_middleware(MIDDLEWARE)
    assert isinstance(found, GatewayCaller)
    return found


def _channel(name: str) -> str:
    return names.check_channel(names.logical(name))
