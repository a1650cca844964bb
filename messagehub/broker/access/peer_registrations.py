"""The owner of each lease, and how many registrations one peer holds.

Rule 1: a lease belongs to the peer that registered under it until the lease ends; then its owner is forgotten.
Rule 2: a request for a registration takes a place, so that many requests at once are counted too.
Rule 3: counting costs the same however many there are. Places whose registration ended by itself are searched for only
when all places are taken, and at most once a second.
"""

from collections.abc import Callable, Iterable

from messagehub.errors import TooManyRegistrations
from registry import commands, names, replies
from registry.channels.leases import Member, consumer_lease, default_owner

LOOK_SECONDS = 1.0
_ASKED = ""
IsRegistered = Callable[[str, Member], bool]
"""Returns whether a member is registered under a lease."""
Registering = (
    commands.RegisterProducer | commands.RegisterConsumer | commands.RegisterWorker | commands.RegisterSubscriber
)
Registered = (
    replies.ProducerRegistered | replies.ConsumerRegistered | replies.WorkerRegistered | replies.SubscriberRegistered
)
Unregistered = (
    replies.ProducerUnregistered
    | replies.ConsumerUnregistered
    | replies.WorkerUnregistered
    | replies.SubscriberUnregistered
)


class PeerRegistrations:
    def __init__(self, limit: int) -> None:
        """`limit` 0 means no limit."""
        self.limit = limit
        self._owners: dict[str, tuple[str, set[Member]]] = {}
        """The peer of each lease, and the places that it has taken under the lease."""
        self._places: dict[str, dict[Member, str]] = {}
        self._look_at: dict[str, float] = {}

    def owner(self, lease: str) -> str | None:
        owned = self._owners.get(lease)
        return owned[0] if owned is not None else None

    def __len__(self) -> int:
        """Return how many leases have an owner."""
        return len(self._owners)

    def owners(self) -> dict[str, str]:
        """Return the peer of each lease that has an owner."""
        return {lease: user for lease, (user, _) in self._owners.items()}

    def ended(self, leases: Iterable[str]) -> None:
        for lease in leases:
            user, members = self._owners.pop(lease, ("", ()))
            places = self._places.get(user, {})
            for member in members:
                if places.get(member) == lease:
                    del places[member]
            if not places:
                self._places.pop(user, None)

    def ask(self, user: str, command: Registering, is_registered: IsRegistered, now: float) -> None:
        """Take a place for a registration; a repeated registration keeps its place."""
        if not self.limit:
            return
        places = self._places.setdefault(user, {})
        member = _asked(command)
        if member in places:
            return
        if len(places) >= self.limit and now >= self._look_at.get(user, 0.0):
            self._look_at[user] = now + LOOK_SECONDS
            self._free(places, is_registered)
        if len(places) >= self.limit:
            said = f"this peer holds {len(places)} registrations, and one may hold {self.limit}"
            raise TooManyRegistrations(said, limit=self.limit)
        places[member] = _ASKED

    def answered(self, user: str, command: commands.AnyCommand, reply: replies.Reply) -> None:
        """Keep or free the place of a registration after its reply. A refusal frees no earlier one."""
        if isinstance(command, Registering):
            member = _asked(command)
            if isinstance(reply, Registered):
                _, members = self._owners.setdefault(reply.lease, (user, set()))
                if self.limit:
                    members.add(member)
                    self._places.setdefault(user, {})[member] = reply.lease
            elif self._places.get(user, {}).get(member) == _ASKED:
                del self._places[user][member]
        elif isinstance(reply, Unregistered):
            self._give_back(user, _ended(reply))

    def _give_back(self, user: str, member: Member) -> None:
        lease = self._places.get(user, {}).pop(member, _ASKED)
        if lease in self._owners:
            self._owners[lease][1].discard(member)

    def _free(self, places: dict[Member, str], is_registered: IsRegistered) -> None:
        for member, lease_id in list(places.items()):
            if lease_id != _ASKED and not is_registered(lease_id, member):
                del places[member]


def lease_of(command: commands.AnyCommand) -> str | None:
    """Return the lease that the command acts under, or the registry's default if it names none."""
    lease: str | None = getattr(command, "lease", None)
    if not lease and isinstance(command, commands.RegisterProducer | commands.UnregisterProducer):
        return command.producer_id or default_owner(names.logical(command.channel))
    if not lease and isinstance(command, commands.RegisterConsumer | commands.UnregisterConsumer):
        return consumer_lease(names.logical(command.channel), command.consumer_id)
    return lease


def _asked(command: Registering) -> Member:
    if isinstance(command, commands.RegisterWorker):
        return Member("worker", command.address, command.worker_id)
    if isinstance(command, commands.RegisterSubscriber):
        return Member("subscriber", "", command.member_id)
    channel = names.logical(command.channel)
    if isinstance(command, commands.RegisterConsumer):
        return Member("consumer", channel, command.consumer_id)
    return Member("producer", channel, command.producer_id or default_owner(channel))


def _ended(reply: Unregistered) -> Member:
    if isinstance(reply, replies.WorkerUnregistered):
        return Member("worker", reply.address, reply.worker_id)
    if isinstance(reply, replies.SubscriberUnregistered):
        return Member("subscriber", "", reply.member_id)
    if isinstance(reply, replies.ConsumerUnregistered):
        return Member("consumer", reply.channel, reply.consumer_id)
    return Member("producer", reply.channel, reply.producer_id)
