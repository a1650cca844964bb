"""Whose a lease is, and how many registrations one peer holds.

Rule 1: a lease belongs to the peer that registered under it, for as long as it lives.
Rule 2: a place is taken when a registration is asked for, so that many asked for at once are counted too.
Rule 3: counting costs the same however many there are. Places whose registration has ended unasked are found only
when all are taken, by looking through them at most once a second.
"""

from messagehub.errors import TooManyRegistrations
from registry import commands, names, replies
from registry.leases import Leases, Member, consumer_lease, default_owner

LOOK_SECONDS = 1.0
_ASKED = ""
Registering = commands.RegisterProducer | commands.RegisterConsumer | commands.RegisterWorker
Registered = replies.ProducerRegistered | replies.ConsumerRegistered | replies.WorkerRegistered
Unregistered = replies.ProducerUnregistered | replies.ConsumerUnregistered | replies.WorkerUnregistered


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

    def ask(self, user: str, command: Registering, leases: Leases, now: float) -> None:
        """Take a place for it; saying a registration again takes no other one."""
        if not self._limit:
            return
        places = self._places.setdefault(user, {})
        member = _asked(command)
        if member in places:
            return
        if len(places) >= self._limit and now >= self._look_at.get(user, 0.0):
            self._look_at[user] = now + LOOK_SECONDS
            self._free(places, leases)
        if len(places) >= self._limit:
            said = f"this peer holds {len(places)} registrations, and one may hold {self._limit}"
            raise TooManyRegistrations(said, limit=self._limit)
        places[member] = _ASKED

    def answered(self, user: str, command: commands.AnyCommand, reply: replies.Reply) -> None:
        """What was asked for is held now, or is not; one that stands from before a refusal is kept."""
        if isinstance(command, Registering):
            member = _asked(command)
            if isinstance(reply, Registered):
                self._owners.setdefault(reply.lease, user)
                if self._limit:
                    self._places.setdefault(user, {})[member] = reply.lease
            elif self._places.get(user, {}).get(member) == _ASKED:
                del self._places[user][member]
        elif isinstance(reply, Unregistered):
            self._places.get(user, {}).pop(_ended(reply), None)

    def _free(self, places: dict[Member, str], leases: Leases) -> None:
        for member, lease_id in list(places.items()):
            if lease_id == _ASKED:
                continue
            lease = leases.get(lease_id)
            if lease is None:
                self._owners.pop(lease_id, None)
            if lease is None or member not in lease.members:
                del places[member]


def lease_of(command: commands.AnyCommand) -> str | None:
    """Under which a command acts: the one that it names or, where it names none, the one that the registry takes."""
    lease: str | None = getattr(command, "lease", None)
    if not lease and isinstance(command, commands.RegisterProducer | commands.UnregisterProducer):
        return command.producer_id or default_owner(names.logical(command.channel))
    if not lease and isinstance(command, commands.RegisterConsumer | commands.UnregisterConsumer):
        return consumer_lease(names.logical(command.channel), command.consumer_id)
    return lease


def _asked(command: Registering) -> Member:
    if isinstance(command, commands.RegisterWorker):
        return Member("worker", command.address, command.worker_id)
    channel = names.logical(command.channel)
    if isinstance(command, commands.RegisterConsumer):
        return Member("consumer", channel, command.consumer_id)
    return Member("producer", channel, command.producer_id or default_owner(channel))


def _ended(reply: Unregistered) -> Member:
    if isinstance(reply, replies.WorkerUnregistered):
        return Member("worker", reply.address, reply.worker_id)
    if isinstance(reply, replies.ConsumerUnregistered):
        return Member("consumer", reply.channel, reply.consumer_id)
    return Member("producer", reply.channel, reply.producer_id)
