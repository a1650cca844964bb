"""Whose a lease is, and how many registrations one peer holds.

Rule 1: a lease belongs to the peer that registered under it, for as long as it lives.
Rule 2: a place is taken when a registration is asked for, so that many asked for at once are counted too.
Rule 3: counting costs the same however many there are. Places whose registration has ended unasked are found only
when all are taken, by looking through them at most once a second.
"""

from messagehub.errors import TooManyRegistrations
from registry import commands, names
from registry.leases import Leases, Member

LOOK_SECONDS = 1.0
_ASKED = ""


class Registrations:
    def __init__(self, limit: int) -> None:
        """0 is without a limit."""
        self._limit = limit
        self._owners: dict[str, str] = {}
        self._places: dict[str, dict[Member, str]] = {}
        self._look_at: dict[str, float] = {}

    def owner(self, lease: str, leases: Leases) -> str | None:
        if leases.get(lease) is None:
            self._owners.pop(lease, None)
        return self._owners.get(lease)

    def ask(
        self,
        user: str,
        command: commands.RegisterProducer | commands.RegisterConsumer,
        leases: Leases,
        now: float,
    ) -> None:
        """Take a place for it; saying a registration again takes no other one."""
        if not self._limit:
            return
        places = self._places.setdefault(user, {})
        member = _member(command)
        if member in places:
            return
        if len(places) >= self._limit and now >= self._look_at.get(user, 0.0):
            self._look_at[user] = now + LOOK_SECONDS
            self._free(places, leases)
        if len(places) >= self._limit:
            said = f"this peer holds {len(places)} registrations, and one may hold {self._limit}"
            raise TooManyRegistrations(said, limit=self._limit)
        places[member] = _ASKED

    def began(self, user: str, command: commands.RegisterProducer | commands.RegisterConsumer, lease: str) -> None:
        self._owners.setdefault(lease, user)
        if self._limit:
            self._places.setdefault(user, {})[_member(command)] = lease

    def refused(self, user: str, command: commands.RegisterProducer | commands.RegisterConsumer) -> None:
        """One that stands from before is kept."""
        places, member = self._places.get(user, {}), _member(command)
        if places.get(member) == _ASKED:
            del places[member]

    def ended(self, user: str, command: commands.UnregisterProducer | commands.UnregisterConsumer) -> None:
        self._places.get(user, {}).pop(_member(command), None)

    def _free(self, places: dict[Member, str], leases: Leases) -> None:
        for member, lease_id in list(places.items()):
            if lease_id == _ASKED:
                continue
            lease = leases.get(lease_id)
            if lease is None:
                self._owners.pop(lease_id, None)
            if lease is None or member not in lease.members:
                del places[member]


def _member(
    command: commands.RegisterProducer
    | commands.RegisterConsumer
    | commands.UnregisterProducer
    | commands.UnregisterConsumer,
) -> Member:
    channel = names.logical(command.channel)
    if isinstance(command, commands.RegisterConsumer | commands.UnregisterConsumer):
        return Member("consumer", channel, command.consumer_id)
    return Member("producer", channel, command.producer_id or f"{channel}/default")
