"""What a group of consumers has left on the other hosts of a site, as their gateways tell one member.

The registry knows the rings of those who produce. A ring whose producer has ended is known to its host alone, and may
hold what the group has not done yet. As on one host, all rings of the channel that are there belong to the group.

Rule 1: all gateways are asked at once, each within its deadline, where waiting is allowed. One that does not answer is
left alone for a while, unless the registry names its host.
Rule 2: the group is done when every gateway that was ever known to have its rings says so.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.hosts import RingElsewhere
from messagehub.errors import HubError
from messagehub.shm.errors import BlockOnOtherHost
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import Position

if TYPE_CHECKING:
    from messagehub.flight.messages import GroupQuery, GroupRing

log = logging.getLogger("messagehub")

ASK_SECONDS = 1.0
LEFT_ALONE_SECONDS = 10.0
AT_ONCE = 8

SharesOf = Callable[[str], Iterable[MemberShare]]
"""The shares of a ring, by its name, of members that nobody reads now."""


class GroupElsewhere:
    """One thread looks; others ask what it saw."""

    def __init__(self, channel: str, group: str, gateways: GatewayAccess) -> None:
        self.noted: dict[str, Position] | None = None
        """Where each ring ended when this member came, by path."""
        self.lost: dict[str, BlockOnOtherHost] = {}
        """The lost hosts that had rings of the channel, until they answer."""
        self.looked_at = 0.0
        self._channel = channel
        self._group = group
        self._gateways = gateways
        self._rings: dict[str, dict[str, GroupRing]] = {}  # by host, and name
        self._silent: dict[str, float] = {}  # hosts that did not answer, and until when they are left alone
        self._left_out: list[tuple[str, MemberShare]] = []
        self._has_looked = False
        self._told: set[str] = set()

    def forget(self) -> None:
        """Take note that what was left may be more by now: shares are dealt anew."""
        self._left_out = []
        self._has_looked = False

    def leave_out(self, shares_of: SharesOf) -> None:
        """Do not wait for what these shares have left, from the next look on."""
        names = {name for rings in self._rings.values() for name in rings}
        self._left_out = [(name, share) for name in sorted(names) for share in shares_of(name)]

    def look(self, told: Iterable[str]) -> None:
        """Ask the gateways; `told` are the hosts where the registry knows rings of the channel."""
        now = time.monotonic()
        known = {*told, *self.lost, *(host for host, rings in self._rings.items() if rings)}
        self._told = {*told}
        hosts = [
            host
            for host in dict.fromkeys([*self._hosts(), *known])
            if host in known or self._silent.get(host, 0.0) <= now
        ]
        query = self._query()
        if len(hosts) == 1:
            self._ask(hosts[0], query)
        elif hosts:
            with ThreadPoolExecutor(min(len(hosts), AT_ONCE), "messagehub-flight-group") as pool:
                list(pool.map(lambda host: self._ask(host, query), hosts))
        if self.noted is None:
            self.noted = {
                f"{host}:{name}": Position(*ring.position)
                for host, rings in self._rings.items()
                for name, ring in rings.items()
            }
        self._has_looked, self.looked_at = True, time.monotonic()

    def left(self) -> list[RingElsewhere]:
        """Return the rings that hold what the group has not done."""
        return [
            RingElsewhere(host, name, 0.0)
            for host, rings in self._rings.items()
            for name, ring in rings.items()
            if ring.left
        ]

    def awaited(self) -> int:
        """Return how many items nobody of the group has done, of rings that nobody writes; at least one while that is
        not known."""
        if not self._has_looked:
            return 1
        unknown = sum(1 for host in self._silent if self._rings.get(host))
        return unknown + sum(ring.left + ring.is_alive for rings in self._rings.values() for ring in rings.values())

    def has_rings(self) -> bool:
        """Whether a host that is not lost has rings of the channel."""
        return any(self._rings.values())

    def _hosts(self) -> list[str]:
        return [each.host for each in self._gateways.other_hosts(ASK_SECONDS) if each.gateway]

    def _query(self) -> "GroupQuery":
        from messagehub.flight.messages import GroupQuery, MemberTicket

        left_out = [
            (name, MemberTicket(group=self._group, epoch=share.epoch, index=share.index, count=share.count))
            for name, share in self._left_out
        ]
        return GroupQuery(channel=self._channel, group=self._group, left_out=left_out)

    def _ask(self, host: str, query: "GroupQuery") -> None:
        try:
            found = self._gateways.get().group_rings(query, host)
        except BlockOnOtherHost as error:
            log.debug("what a group has left on host %s is not known: %s", host, error)
            self._silent[host] = time.monotonic() + LEFT_ALONE_SECONDS
            if error.is_lost:  # nobody waits for what is in its memory
                if self._rings.pop(host, None) or host in self._told or host in self.lost:
                    self.lost[host] = error
            elif error.state == "none":  # it was forgotten
                self.lost.pop(host, None)
            elif host in self.lost:
                self.lost[host] = error  # it comes back, and has not said what it has
        except HubError as error:  # it knows no groups: an older version
            log.debug("host %s does not tell what a group has left there: %s", host, error)
        else:
            self._silent.pop(host, None)
            self.lost.pop(host, None)
            self._rings[host] = {ring.block: ring for ring in found}
