"""What of a channel is in the memory of other hosts, for one consumer: rings and tables, read through their gateways.

Rule 1: where something is, is known from the registry alone. What cannot be read from there is a BlockOnOtherHost that
names both hosts; a block of the same name on this host is not that data.
Rule 2: streams are opened where waiting is allowed (`prepare`), and read by whoever has the turn.
Rule 3: a ring that was there before the consumer is read from where the consumer asked, one that came later from its
first item; one that ended, or that could not be reached any more, from where it was left (`broken_rings`).
Rule 4: where one of several hosts cannot be reached, the others are read, unless the consumer asked to be told. What is
missing is said once, and asked for again every AGAIN_SECONDS.
Rule 5: of a group, each ring is read as the share of it says that was dealt last. What is left in rings whose producers
have ended belongs to the group too (`group_elsewhere`).
Rule 6: what the registry does not say changes nothing: while it does not answer, what it said last holds.
"""

import logging
import os
import threading
import time
from collections.abc import Set
from typing import TYPE_CHECKING, Any

from messagehub.channels.consumer.broken_rings import BrokenRings
from messagehub.channels.consumer.consumer_options import ConsumerOptions
from messagehub.channels.consumer.group_elsewhere import GroupElsewhere, SharesOf
from messagehub.channels.consumer.missing_hosts import MissingHosts
from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.hosts import Places, RingElsewhere, has_data, names_of, places_of
from messagehub.discovery import Discovery
from messagehub.errors import BrokerUnavailable, HubError
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import (
    AssignmentChanged,
    BlockOnOtherHost,
    MemberTaken,
    NothingThere,
    PositionUnknown,
    UnexpectedSchema,
)
from messagehub.shm.identity import host as this_host
from messagehub.shm.rings.read_results import Position
from messagehub.shm.tables.manifests import Manifest
from registry import replies

if TYPE_CHECKING:
    from messagehub.flight.messages import FlightTicket, MemberTicket
    from messagehub.flight.remote_ring import RemoteRing
    from messagehub.flight.remote_tables import RemoteTables

log = logging.getLogger("messagehub")

APPEAR_SECONDS = 2.0
AGAIN_SECONDS = 0.05
END_SECONDS = 0.5
ASK_SECONDS = 1.0


def share_of(assignment: replies.Assignment, shm_name: str) -> replies.Share:
    """Return what of a ring is dealt; one that is not listed is shared by all members."""
    for share in assignment.shares:
        if share.shm_name == shm_name:
            return share
    return replies.Share(shm_name=shm_name, index=assignment.index, count=assignment.count)


class Elsewhere:
    def __init__(self, options: ConsumerOptions, directory: Directory, gateways: GatewayAccess) -> None:
        self.tables: RemoteTables | None = None
        """Once a table of the channel was on another host."""
        self.missing = MissingHosts(options.channel, options.on_unreachable)
        self._options = options
        self._directory = directory
        self._gateways = gateways
        self._changing = threading.Lock()
        self._told: dict[str, RingElsewhere] = {}
        self._opened: list[RemoteRing] = []  # and not yet taken
        self._held: set[str] = set()
        self._ended: dict[str, float] = {}  # when the producer was registered that ended the ring
        self._left: dict[str, Position] = {}
        self._broken = BrokenRings()
        self._found: Discovery | None = None  # what the registry said last
        self._unknown: HubError | None = None  # why the registry says nothing now
        self._here: Set[str | None] = {this_host(), None}
        self.namesakes: frozenset[str] = frozenset()
        """The rings of this host, by path, that are not what is produced under their names now, on other hosts alone:
        the exclusive one, and those of the same producers."""
        self._there_before: set[str] | None = None  # the rings that were there when this consumer came, by path
        self._is_closed = False
        self._has_told_of_hosts = False
        self._group = None if options.group is None else GroupElsewhere(options.channel, options.group, gateways)
        self._assignment: replies.Assignment | None = None
        self._is_dealt_anew = False  # and nobody has looked since
        self._superseded: AssignmentChanged | MemberTaken | None = None
        self._spent: dict[str, RemoteRing] = {}  # of a group: read to the end, and kept there until the group is done
        self._has_met = False

    # -- where waiting is allowed --------------------------------------------------------------------------

    def prepare(self, found: Discovery | None, *, is_made: bool, unknown: HubError | None = None) -> None:
        """Open what is new on other hosts; raise why it cannot be read. None: nobody produces the channel.

        `unknown` is why the registry did not answer: then `found` is what is on this host.
        """
        is_here = unknown is not None and has_data(found)
        if not self._gateways.is_in_site:
            unknown = None
        if unknown is not None:
            found = self._found
        self._found = found
        places = places_of(found, self._directory) if found is not None else Places(is_here=True)
        self._here = places.here or self._here
        self.namesakes = self._namesakes(found, places)
        if found is not None and places.hosts and not self._gateways.is_in_site:
            self._check_alone(found, places)
        if not self._gateways.is_in_site:
            with self._changing:
                self._told = {}
            self._unknown = None
            return
        missed = []
        if found is not None and (places.table is not None or self.tables is not None):
            try:
                self._look_at_tables(places.table)
            except BlockOnOtherHost as error:
                missed.append(error)
        missed += self._open_rings(places, found)
        is_here |= places.is_here and has_data(found)
        is_served = is_here or bool(self._held or self._opened)
        if self._group is not None:
            is_served |= self._group.has_rings()
        self.missing.note(missed, is_served=is_served, is_made=is_made, is_complete=unknown is None)
        self._unknown = unknown  # at last: whoever finds that it is known finds opened what is there

    def why_unknown(self) -> HubError | None:
        """Return why it is not known what other hosts have of the channel; None if it is, and is opened."""
        for error in list(self.missing.errors.values()):
            return error
        unknown = self._unknown
        if unknown is None:
            return None
        said = f"what other hosts have of channel {self._options.channel!r} is not known: {unknown.message}"
        return BrokerUnavailable(said)

    def is_left_to_group(self) -> bool:
        """Whether rings on other hosts hold what this member's group has not done, though nobody produces."""
        return self._group is not None and bool(self._group.left())

    def _namesakes(self, found: Discovery | None, places: Places) -> frozenset[str]:
        if found is None or places.is_here or self._group is not None:
            return frozenset()
        directory, channel = self._directory, self._options.channel
        at = directory.channel_path(channel)
        shared = {os.path.join(at, f"{producer.producer_id}.ring") for producer in found.producers}
        return frozenset({directory.exclusive_block(channel), *shared})

    def _check_alone(self, found: Discovery, places: Places) -> None:
        if not places.is_here:
            raise BlockOnOtherHost(found.shm_name or found.channel, places.hosts[0], this_host())
        if not self._has_told_of_hosts:
            self._has_told_of_hosts = True
            said = "channel %r is also produced on %s; what is here is read, that is not"
            log.warning(said, self._options.channel, ", ".join(places.hosts))

    def _look_at_tables(self, host: str | None) -> None:
        if self.tables is None:
            from messagehub.flight.remote_tables import RemoteTables

            channel = self._options.channel
            tables = RemoteTables(channel, self._directory.tables_path(channel), self._gateways.get())
            tables.look(host)
            self.tables = tables
        else:
            self.tables.look(host)

    def _open_rings(self, places: Places, found: Discovery | None) -> list[BlockOnOtherHost]:
        """Open what is not open, and return what kept hosts from being read."""
        told = {f"{ring.host}:{ring.shm_name}": ring for ring in places.rings}
        with self._changing:
            self._told = told
            still = {path: at for path, at in self._ended.items() if path in told}
            self._ended = {path: at for path, at in still.items() if told[path].registered_at == at}
            dealt, self._is_dealt_anew = self._assignment, False
            wanted = self._broken.wanted(told.keys(), names_of(found)) | told
        if self._group is not None:
            self._group.look(ring.host for ring in places.rings)
            if dealt is None:
                return []  # it is not registered yet, and has no share of anything
            wanted |= {f"{ring.host}:{ring.shm_name}": ring for ring in self._group.left()}
            wanted = {path: ring for path, ring in wanted.items() if share_of(dealt, ring.shm_name).count}
            self._has_met |= bool(told)
        with self._changing:
            again = [ring for path, ring in self._spent.items() if path in told and path not in self._ended]
            for ring in again:
                self._let_go(ring)
            known = {*self._held, *self._ended, *(ring.path for ring in self._opened)}
        for ring in again:
            ring.close()  # its producer has come again, and this member's share is taken once
        if self._there_before is None:
            self._there_before = set(wanted)
        missed = {} if self._group is None else dict(self._group.lost)  # by host
        try:
            for path, at in wanted.items():
                if path not in known and at.host not in missed:
                    error = self._open_or_miss(path, at, dealt)
                    if error is not None:
                        missed[at.host] = error
        except (AssignmentChanged, MemberTaken) as error:
            self._superseded = error  # whoever has the turn asks for the share that holds now
        return [*missed.values()]

    def _open_or_miss(self, path: str, at: RingElsewhere, dealt: replies.Assignment | None) -> BlockOnOtherHost | None:
        """Open a ring, or return what keeps its host from being read. One that broke off may be gone by now."""
        try:
            self._open_soon(path, at, dealt)
        except BlockOnOtherHost as error:
            if path in self._told or error.state != "none":
                return error
            self._forget_broken(path)  # the host is no member any more, or gives nothing to others
        except NothingThere:
            if path in self._told:
                raise
            self._forget_broken(path)
        return None

    def _open_soon(self, path: str, at: RingElsewhere, dealt: replies.Assignment | None) -> None:
        """Open a ring that may not be there yet: a producer is registered a moment before it makes its ring."""
        deadline = time.monotonic() + APPEAR_SECONDS
        while True:
            try:
                opened = self._open(path, at, dealt)
                break
            except NothingThere:
                if self._is_closed or path not in self._told or time.monotonic() >= deadline:
                    raise
            time.sleep(AGAIN_SECONDS)
        with self._changing:
            self._broken.forget(path)
            if not self._is_closed and dealt is self._assignment:
                self._opened.append(opened)
                return
        opened.close()

    def _open(self, path: str, at: RingElsewhere, dealt: replies.Assignment | None) -> "RemoteRing":
        from messagehub.flight.remote_ring import RemoteRing

        gateways, ticket = self._gateways.get(), self._ticket(path, at, dealt)
        try:
            return RemoteRing(gateways, at.host, ticket, broken_since=self._broken.since(path))
        except PositionUnknown as error:
            if path not in self._left:  # or a ring that was read before was replaced, and its numbers go on
                log.warning(
                    "channel %r: %s Reading begins with the oldest item that is there", self._options.channel, error
                )
            self._left.pop(path, None)
            ticket = self._ticket(path, at, dealt)
            ticket.positions.clear()
            return RemoteRing(gateways, at.host, ticket)

    def _ticket(self, path: str, at: RingElsewhere, dealt: replies.Assignment | None) -> "FlightTicket":
        from messagehub.flight.messages import FlightTicket

        options, start = self._options, self._options.start
        positions: dict[str, list[str | int]] = (
            {name: [*one] for name, one in start.items()} if isinstance(start, dict) else {}
        )
        left = self._left.get(path)
        if left is not None:
            positions = {left.block_id: [*left]}
        elif self._group is not None and self._group.noted is not None:
            noted = self._group.noted.get(path)
            if noted is not None and start == "latest":
                positions = {noted.block_id: [*noted]}
        begin = "oldest" if isinstance(start, dict) else start
        return FlightTicket(
            channel=options.channel,
            kind="ring",
            block=at.shm_name,
            start=begin if left is not None or self._was_there(path) else "first",
            positions=positions,
            lossless=options.lossless,
            verify=options.verify,
            consumer_id=options.consumer_id,
            member=None if dealt is None else _group_share(dealt, at.shm_name),
        )

    def _was_there(self, path: str) -> bool:
        """Whether the ring was there before this consumer."""
        if self._group is not None and self._group.noted is not None:
            return path in self._group.noted
        return self._there_before is not None and path in self._there_before

    def where_nobody_produces(self) -> str:
        """Return, for a message, where it is that nobody produces the channel."""
        if not self._gateways.is_in_site:
            return "on this host"
        lost = [each.host for each in self._gateways.other_hosts(ASK_SECONDS) if each.health in ("left", "lost")]
        if not lost:
            return "on any host of the site"
        return (
            f"on the hosts of the site that are there ({', '.join(map(repr, lost))} {'is' if len(lost) == 1 else 'are'}"
            " lost: what is in memory there is read when its hub is back)"
        )

    # -- with the turn -------------------------------------------------------------------------------------

    def is_here(self, host: str | None) -> bool:
        return host in self._here

    @property
    def is_behind(self) -> bool:
        """Whether something on other hosts is to be looked at again, though the registry has told nothing new."""
        return self._is_dealt_anew or self.missing.is_due()

    def deal(self, assignment: replies.Assignment) -> None:
        """Read as this member of a group, from the next `prepare` on. The rings that were taken are the caller's."""
        with self._changing:
            self._assignment = assignment
            closing, self._opened = [*self._opened, *self._spent.values()], []
            self._held, self._ended, self._left, self._spent = set(), {}, {}, {}
            self._superseded = None
            self._is_dealt_anew = self._gateways.is_in_site
        if self._group is not None:
            self._group.forget()
        for ring in closing:
            ring.close()

    def awaited(self, shares_of: SharesOf) -> int:
        """Return how many items of rings elsewhere that nobody writes the group has not done, as far as is known; at
        least one while it is not known. From time to time, have the gateways asked again.

        `shares_of` gives the shares of a ring, by its name, that nobody in this process reads now.
        """
        if self._group is None or not self._gateways.is_in_site:
            return 0
        self._group.leave_out(shares_of)
        if time.monotonic() - self._group.looked_at >= END_SECONDS:
            self._is_dealt_anew = True
        return self._group.awaited()

    @property
    def has_met(self) -> bool:
        """Of a group: whether another host produced the channel while this member was there, whoever has read it."""
        return self._has_met

    def take(self, readable: Set[str]) -> list["RemoteRing"]:
        """Return the rings that were opened since; raise UnexpectedSchema for one that cannot be read, and
        AssignmentChanged or MemberTaken where a share is another's by now."""
        superseded, self._superseded = self._superseded, None
        if superseded is not None:
            self._is_dealt_anew = True
            raise superseded
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

    def _forget_broken(self, path: str) -> None:
        with self._changing:
            self._broken.forget(path)

    def ended(self, ring: "RemoteRing") -> None:
        """Take note that a ring was read to its end, or let go of. It is closed or, of a group, kept there until the
        group is done."""
        with self._changing:
            self._left[ring.path] = ring.position
            if ring.path in self._told:
                self._ended[ring.path] = self._told[ring.path].registered_at
            if self._group is not None:
                self._spent[ring.path] = ring
                return
            self._held.discard(ring.path)
        ring.close()

    def close_spent(self) -> None:
        """The group is done."""
        with self._changing:
            spent = list(self._spent.values())
            for ring in spent:
                self._let_go(ring)
        for ring in spent:
            ring.close()

    def failed(self, ring: "RemoteRing") -> None:
        """Have a ring that broke off opened again where it was left, when the registry is asked the next time."""
        with self._changing:
            self._held.discard(ring.path)
            self._left[ring.path] = ring.position
            if self._group is None:  # it knows by itself what is left, and where
                self._broken.add(ring)
        ring.close()

    def is_producing(self) -> bool:
        """Whether somebody produces on another host what was not read to its end, or may do so on a lost one."""
        return bool(self._broken) or any(path not in self._ended for path in self._told)

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
            closing, self._opened = [*self._opened, *self._spent.values()], []
            self._spent = {}
        for ring in closing:
            ring.close()

    def _let_go(self, ring: "RemoteRing") -> None:
        self._spent.pop(ring.path, None)
        self._held.discard(ring.path)


def _group_share(dealt: replies.Assignment, shm_name: str) -> "MemberTicket":
    from messagehub.flight.messages import MemberTicket

    share = share_of(dealt, shm_name)
    return MemberTicket(group=dealt.group, epoch=dealt.epoch, index=share.index, count=share.count)
