"""What of a channel is in the memory of other hosts, for one consumer: rings and tables, read through their gateways.

Rule 1: where something is, is known from the registry alone. What cannot be read from there is a BlockOnOtherHost that
names both hosts; a block of the same name on this host is not that data.
Rule 2: streams are opened where waiting is allowed (`prepare`), and read by whoever has the turn.
Rule 3: a ring that was there before the consumer is read from where the consumer asked, one that came later from its
first item; one that ended, or that could not be reached any more, from where it was left.
"""

import logging
import threading
import time
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.hosts import Places, RingElsewhere, places_of
from messagehub.discovery import Discovery
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import BlockOnOtherHost, NothingThere, PositionUnknown, UnexpectedSchema
from messagehub.shm.identity import host as this_host
from messagehub.shm.rings.read_results import Position
from messagehub.shm.tables.manifests import Manifest

if TYPE_CHECKING:
    from messagehub.flight.messages import FlightTicket
    from messagehub.flight.remote_ring import RemoteRing
    from messagehub.flight.remote_tables import RemoteTables

log = logging.getLogger("messagehub")

APPEAR_SECONDS = 2.0
AGAIN_SECONDS = 0.05
_OF_GROUP = "a group shares what is on one host, and does not reach other hosts yet; read without a group"


class Elsewhere:
    def __init__(self, options: ConsumerOptions, directory: Directory, gateways: GatewayAccess) -> None:
        self.tables: RemoteTables | None = None
        """Once a table of the channel was on another host."""
        self._options = options
        self._directory = directory
        self._gateways = gateways
        self._changing = threading.Lock()
        self._told: dict[str, RingElsewhere] = {}
        self._opened: list[RemoteRing] = []  # and not yet taken
        self._held: set[str] = set()
        self._ended: dict[str, float] = {}  # when the producer was registered that ended the ring
        self._left: dict[str, Position] = {}
        self._here: Set[str | None] = {this_host(), None}
        self.is_also_here = True
        """Whether something of the channel is on this host: if not, what has its name here is something else."""
        self._is_first = True
        self._is_closed = False
        self._has_told_of_hosts = False

    # -- where waiting is allowed --------------------------------------------------------------------------

    def prepare(self, found: Discovery) -> None:
        """Open what is new on other hosts; raise why it cannot be read."""
        places = places_of(found, self._directory)
        self._here, self.is_also_here = places.here, places.is_here
        if places.hosts:
            self._check(found, places)
        if not self._gateways.is_in_site:
            return
        if places.table is not None or self.tables is not None:
            self._look_at_tables(places.table)
        self._open_rings(places.rings)

    def clear(self) -> None:
        """Take note that nobody produces the channel any more, anywhere."""
        with self._changing:
            self._told, self._ended = {}, {}
        self.is_also_here, self._is_first = True, False

    def _check(self, found: Discovery, places: Places) -> None:
        name = found.shm_name or found.channel
        if not self._gateways.is_in_site:
            if not places.is_here:
                raise BlockOnOtherHost(name, places.hosts[0], this_host())
            if not self._has_told_of_hosts:
                self._has_told_of_hosts = True
                said = "channel %r is also produced on %s; what is here is read, that is not"
                log.warning(said, self._options.channel, ", ".join(places.hosts))
        elif self._options.group is not None and places.rings:
            raise BlockOnOtherHost(name, places.rings[0].host, this_host(), _OF_GROUP)

    def _look_at_tables(self, host: str | None) -> None:
        if self.tables is None:
            from messagehub.flight.remote_tables import RemoteTables

            channel = self._options.channel
            tables = RemoteTables(channel, self._directory.tables_path(channel), self._gateways.get())
            tables.look(host)
            self.tables = tables
        else:
            self.tables.look(host)

    def _open_rings(self, rings: tuple[RingElsewhere, ...]) -> None:
        told = {f"{ring.host}:{ring.shm_name}": ring for ring in rings}
        with self._changing:
            self._told = told
            still = {path: at for path, at in self._ended.items() if path in told}
            self._ended = {path: at for path, at in still.items() if told[path].registered_at == at}
            known = {*self._held, *self._ended, *(ring.path for ring in self._opened)}
        is_first, self._is_first = self._is_first, False
        for path, ring in told.items():
            if path not in known:
                try:
                    opened = self._open_soon(path, ring, is_first=is_first)
                except BaseException:
                    self._is_first = is_first  # it is as if nobody had looked
                    raise
                with self._changing:
                    if not self._is_closed:
                        self._opened.append(opened)
                        continue
                opened.close()

    def _open_soon(self, path: str, ring: RingElsewhere, *, is_first: bool) -> "RemoteRing":
        """Open a ring that may not be there yet: a producer is registered a moment before it makes its ring."""
        deadline = time.monotonic() + APPEAR_SECONDS
        while True:
            try:
                return self._open(path, ring, is_first=is_first)
            except NothingThere:
                if self._is_closed or time.monotonic() >= deadline:
                    raise
            time.sleep(AGAIN_SECONDS)

    def _open(self, path: str, ring: RingElsewhere, *, is_first: bool) -> "RemoteRing":
        from messagehub.flight.remote_ring import RemoteRing

        gateways = self._gateways.get()
        try:
            return RemoteRing(gateways, ring.host, self._ticket(path, ring, is_first=is_first))
        except PositionUnknown as error:
            if path not in self._left:  # or a ring that was read before was replaced, and its numbers go on
                log.warning(
                    "channel %r: %s Reading begins with the oldest item that is there", self._options.channel, error
                )
            self._left.pop(path, None)
            ticket = self._ticket(path, ring, is_first=is_first)
            ticket.positions.clear()
            return RemoteRing(gateways, ring.host, ticket)

    def _ticket(self, path: str, ring: RingElsewhere, *, is_first: bool) -> "FlightTicket":
        from messagehub.flight.messages import FlightTicket

        options, start = self._options, self._options.start
        positions: dict[str, list[str | int]] = (
            {name: [*one] for name, one in start.items()} if isinstance(start, dict) else {}
        )
        left = self._left.get(path)
        if left is not None:
            positions = {left.block_id: [*left]}
        begin = "oldest" if isinstance(start, dict) else start
        return FlightTicket(
            channel=options.channel,
            kind="ring",
            block=ring.shm_name,
            start=begin if is_first or left is not None else "first",
            positions=positions,
            lossless=options.lossless,
            verify=options.verify,
            consumer_id=options.consumer_id,
        )

    # -- with the turn -------------------------------------------------------------------------------------

    def is_here(self, host: str | None) -> bool:
        return host in self._here

    def take(self, readable: Set[str]) -> list["RemoteRing"]:
        """Return the rings that were opened since; raise UnexpectedSchema for one that cannot be read."""
        taken = []
        while self._opened:
            ring = self._opened[0]
            if readable and ring.header.schema_hash not in readable:
                expected = " or ".join(map(repr, sorted(readable)))
                raise UnexpectedSchema(ring.header.schema_hash, expected, ring.schema)
            with self._changing:
                self._opened.pop(0)
                self._held.add(ring.path)
            taken.append(ring)
        return taken

    def ended(self, ring: "RemoteRing") -> None:
        """Take note that a ring was read to its end, or let go of, and close it."""
        with self._changing:
            self._held.discard(ring.path)
            self._left[ring.path] = ring.position
            if ring.path in self._told:
                self._ended[ring.path] = self._told[ring.path].registered_at
        ring.close()

    def failed(self, ring: "RemoteRing") -> None:
        """Have a ring that broke off opened again where it was left, when the registry is asked the next time."""
        with self._changing:
            self._held.discard(ring.path)
            self._left[ring.path] = ring.position
        ring.close()

    def is_producing(self) -> bool:
        """Whether somebody produces on another host what was not read to its end."""
        return any(path not in self._ended for path in self._told)

    def has_tables(self) -> bool:
        return self.tables is not None and self.tables.host is not None

    def fetch_parts(self, manifest: Manifest, verify: bool) -> list[Any]:
        """Give the parts of a generation of which some are on other hosts."""
        from messagehub.flight.remote_tables import parts_of

        channel = self._options.channel
        if not self._gateways.is_in_site:
            part = next(part for part in manifest.parts if part.host not in ("", this_host()))
            raise BlockOnOtherHost(part.name, part.host, this_host())
        path = self._directory.tables_path(channel)
        return parts_of(self._gateways.get(), channel, path, manifest, home=this_host(), verify=verify)

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
            opened, self._opened = self._opened, []
        for ring in opened:
            ring.close()
