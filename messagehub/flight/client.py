"""A hub's way to the gateways of other hosts: one connection a host, with a token of the own hub for each channel.

Rule 1: the own hub says where a gateway is and gives the token; it has checked the right to consume the channel then.
Rule 2: whatever keeps a host's data from being read is a BlockOnOtherHost that names both hosts and says why. What the
gateway itself refuses is raised as it would be on its host.
Rule 3: every call has a deadline, but for streams of rings: those have somebody who watches them (`remote_ring`).
"""

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from messagehub.errors import Forbidden, GatewayUnavailable, HubError, Unauthorized, UnknownType, is_unable
from messagehub.flight.messages import (
    DROP_TABLE,
    GROUP_RINGS,
    MANIFESTS,
    PARTS_IN_USE,
    PID_HEADER,
    RELEASE,
    RINGS,
    FlightTicket,
    GroupQuery,
    GroupRing,
    PartsAsked,
    PartsInUse,
    RingRelease,
    RingsAsked,
    RingsListed,
    error_from,
)
from messagehub.shm.errors import BlockOnOtherHost, PayloadDamaged
from messagehub.shm.identity import host as this_host
from messagehub.shm.tables.manifests import Manifest
from registry import commands, replies

if TYPE_CHECKING:
    from pyarrow import flight

CALL_SECONDS = 5.0
"""How long a gateway may take to answer, where no data is sent."""
LEAST_BYTES_PER_SECOND = 1 << 20
"""A table that comes more slowly is given up."""
_RENEW_SHARE = 0.5
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100)]
"""A connection that failed must not make the next one wait."""
T = TypeVar("T")

AskGateway = Callable[[commands.RequestGateway, float], replies.GatewayFound]
"""Ask the own hub for the gateway of a host, within so many seconds."""


class GatewayCall(NamedTuple):
    """A connection, and what to send with a call of it."""

    client: "flight.FlightClient"
    location: str
    token: str
    renew_at: float

    def options(self, seconds: float | None) -> "flight.FlightCallOptions":
        from pyarrow import flight

        headers = [(b"authorization", f"Bearer {self.token}".encode()), (PID_HEADER, str(os.getpid()).encode())]
        return flight.FlightCallOptions(timeout=seconds, headers=headers)


class _About(NamedTuple):
    """What a token is for."""

    host: str
    channel: str
    changes: bool


class Gateways:
    """Any thread may use it."""

    def __init__(self, ask: AskGateway) -> None:
        self._ask = ask
        self._changing = threading.Lock()
        self._clients: dict[tuple[str, str], flight.FlightClient] = {}
        self._calls: dict[_About, GatewayCall] = {}

    # -- tables --------------------------------------------------------------------------------------------

    def manifests(self, channel: str, host: str) -> list[Manifest]:
        """Return the generations of a channel's table on that host, oldest first."""

        def ask(call: GatewayCall) -> list[Manifest]:
            from pyarrow import flight

            body = FlightTicket(channel=channel).to_bytes()
            found = call.client.do_action(flight.Action(MANIFESTS, body), call.options(CALL_SECONDS))
            return [Manifest.from_json(each.body.to_pybytes(), f"{host}:{channel}") for each in found]

        return self.call(channel, host, channel, ask)

    def parts_in_use(self, asked: PartsAsked, host: str) -> PartsInUse:
        """Return which parts of another host's memory the manifests of a host name."""
        return self._acted(asked.channel, host, PARTS_IN_USE, asked, PartsInUse)

    def drop_table(self, channel: str, host: str, *, timeout: float) -> list[int]:
        """Remove a channel's table from the memory of that host; return its generations."""

        def act(call: GatewayCall) -> list[int]:
            return _action(call, DROP_TABLE, FlightTicket(channel=channel), list[int], timeout)

        return self.call(channel, host, channel, act, changes=True)

    def group_rings(self, query: GroupQuery, host: str) -> list[GroupRing]:
        """Return the rings on that host that a group of consumers has read, or may read."""

        def ask(call: GatewayCall) -> list[GroupRing]:
            from pyarrow import flight

            found = call.client.do_action(flight.Action(GROUP_RINGS, query.to_bytes()), call.options(CALL_SECONDS))
            return [GroupRing.of(each.body.to_pybytes(), f"{host}:{query.channel}") for each in found]

        return self.call(query.channel, host, query.channel, ask)

    def table(self, ticket: FlightTicket, host: str, name: str, *, rows: int, size_bytes: int) -> Any:
        """Return a table or a part of one; refuse one whose manifest says another number of rows."""
        seconds = CALL_SECONDS + size_bytes / LEAST_BYTES_PER_SECOND
        found = self.call(
            ticket.channel, host, name, lambda call: open_stream(call, ticket, seconds=seconds).read_all()
        )
        if found.num_rows != rows:
            raise PayloadDamaged(name, f"{found.num_rows} rows came, and its manifest says {rows}")
        return found

    def schema(self, ticket: FlightTicket, host: str, name: str) -> Any:
        """Return the Arrow schema of a table without its data."""

        def ask(call: GatewayCall) -> Any:
            stream = open_stream(call, ticket, seconds=CALL_SECONDS)
            found = stream.schema
            stream.cancel()
            return found

        return self.call(ticket.channel, host, name, ask)

    # -- rings ---------------------------------------------------------------------------------------------

    def rings(self, asked: RingsAsked, host: str) -> RingsListed:
        """Return the rings of a channel on that host, as they are now."""
        return self._acted(asked.channel, host, RINGS, asked, RingsListed)

    def release(self, asked: RingRelease, host: str) -> int:
        """Let go of items of a ring that is held there."""
        return self._acted(asked.channel, host, RELEASE, asked, int)

    def _acted(self, channel: str, host: str, name: str, asked: msgspec.Struct, kind: type[T]) -> T:
        return self.call(channel, host, channel, lambda call: _action(call, name, asked, kind, CALL_SECONDS))

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, channel: str, host: str, name: str, use: Callable[[GatewayCall], T], *, changes: bool = False) -> T:
        """Call the gateway of a host about a channel. `name` is what is read there, for errors.

        `changes`: the call is to remove the channel's table, which takes another token. A connection and a token that
        were used before may be of a gateway that is gone: then it is tried once more.
        """
        from pyarrow import ArrowException

        about = _About(host, channel, changes)
        was_known = about in self._calls
        try:
            return use(self._call(about))
        except (GatewayUnavailable, UnknownType) as error:
            state = str(error.details.get("state", ""))
            raise BlockOnOtherHost(name, host, this_host(), error.message, state=state) from error
        except (ArrowException, OSError) as error:
            self._forget(about)
            told = error_from(getattr(error, "extra_info", None) or b"")
            if told is not None and not isinstance(told, Unauthorized):
                raise told from None
            if was_known:
                return self.call(channel, host, name, use, changes=changes)
            why = told.message if told is not None else _reason(error)
            raise BlockOnOtherHost(name, host, this_host(), f"its gateway does not answer: {why}") from None
        except HubError as error:
            if isinstance(error, Forbidden) or not is_unable(error):
                raise
            said = f"the hub of this host does not say where its gateway is: {error.message}"
            raise BlockOnOtherHost(name, host, this_host(), said) from error

    def _forget(self, about: _About) -> None:
        """Ask the own hub again before the next call."""
        with self._changing:
            call = self._calls.pop(about, None)
            if call is not None:
                self._clients.pop((about.host, call.location), None)

    def close(self) -> None:
        with self._changing:
            clients = list(self._clients.values())
            self._clients, self._calls = {}, {}
        for client in clients:
            client.close()

    def abandon(self) -> None:
        """In a forked child: connections are the parent's, and gRPC must not even free them here."""
        _of_parent.extend(self._clients.values())
        _of_parent.extend(self._calls.values())

    def _call(self, about: _About) -> GatewayCall:
        host, channel, changes = about
        known = self._calls.get(about)
        if known is not None and time.monotonic() < known.renew_at:
            return known
        found = self._ask(commands.RequestGateway(channel=channel, host=host, changes=changes), CALL_SECONDS)
        with self._changing:
            client = self._clients.get((host, found.location))
            if client is None:
                client = self._clients[host, found.location] = _connected(found)
            renew_at = time.monotonic() + _RENEW_SHARE * found.valid_seconds
            call = self._calls[about] = GatewayCall(client, found.location, found.token, renew_at)
        return call


_of_parent: list[object] = []
_FORKED = (
    "this process was forked from one that had read data of other hosts, and gRPC does not work in such a child; read"
    " it in the parent, or start the process anew (multiprocessing's spawn)"
)


class _GrpcOwner:
    """Which process has used gRPC: its threads are not in a child that is forked later."""

    pid: int | None = None

    def enter(self) -> None:
        if self.pid not in (None, os.getpid()):
            raise GatewayUnavailable(_FORKED)
        self.pid = os.getpid()


_grpc_owner = _GrpcOwner()


def open_stream(call: GatewayCall, ticket: FlightTicket, *, seconds: float | None) -> "flight.FlightStreamReader":
    from pyarrow import flight

    return call.client.do_get(flight.Ticket(ticket.to_bytes()), call.options(seconds))


def _action(call: GatewayCall, name: str, asked: msgspec.Struct, kind: type[T], seconds: float) -> T:
    from pyarrow import flight

    results = call.client.do_action(flight.Action(name, msgspec.json.encode(asked)), call.options(seconds))
    content = b"".join(each.body.to_pybytes() for each in results)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise PayloadDamaged(name, f"the gateway at {call.location} answers something else: {error}") from None


def _connected(found: replies.GatewayFound) -> "flight.FlightClient":
    from pyarrow import flight

    _grpc_owner.enter()
    roots = {"tls_root_certs": found.certificate} if found.certificate else {}
    return flight.FlightClient(found.location, generic_options=_OPTIONS, **roots)


def _reason(error: Exception) -> str:
    """Return the first sentence of what gRPC says: the rest is for whoever debugs it."""
    said = str(error).partition(". gRPC client debug context")[0]
    return said.removeprefix("Flight returned unavailable error, with message: ")[:300]
