"""The leader key of a site: who may write.

Rule 1: the key exists while the lease of the hub that made it lives. Each leadership has its own revision of etcd, at
which the key was created; a transaction that compares it fails once the key is gone or another hub's.
Rule 2: a lease that etcd does not know any more is not renewed: the leadership is over, and the next one is another.
"""

from time import monotonic

from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import NotLeader

SITES = b"/messagehub/"
"""What all keys of all sites begin with."""


class LeaderKey:
    def __init__(self, client: EtcdClient, site: str, *, ttl_seconds: int) -> None:
        self.key = prefix_of(site) + b"leader"
        self.created_at = 0
        """The revision of etcd at which this leadership began; 0 if there is none."""
        self.lasts_until = 0.0
        """Until when, by this process's monotonic clock, no other hub can have become the leader."""
        self.seen: tuple[int, bytes] | None = None
        """The leadership that was seen last: the revision of etcd at which it began, and its value."""
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._lease = 0

    def take(self, value: bytes) -> bool:
        """Become the leader if there is none. `value` tells others who leads."""
        if self.created_at:
            return True
        if self.is_taken():
            return False
        asked_at = monotonic()
        if not self._lease:
            request = messages.LEASE_GRANT.request(TTL=self._ttl_seconds)
            self._lease = int(self._client.ask(messages.LEASE_GRANT, request).ID)
        taking = messages.TxnRequest(
            compare=[messages.created_at(self.key, 0)],
            success=[messages.put(self.key, value, lease=self._lease)],
            failure=[messages.get(self.key)],
        )
        try:
            answer = self._client.ask(messages.TXN, taking)
        except NotLeader:
            self._lease = 0  # it ran out: the next attempt asks for another
            return False
        if answer.succeeded:
            self.created_at = int(answer.header.revision)
        else:
            found = answer.responses[0].response_range.kvs
            if not found or found[0].lease != self._lease:
                return False
            self.created_at = int(found[0].create_revision)  # by an attempt whose answer was lost
        self.lasts_until = asked_at + self._ttl_seconds
        self.seen = self.created_at, value
        return True

    def is_taken(self) -> bool:
        """Return whether another hub leads. Only reads: a transaction that may write goes through etcd's log, and every
        hub of a site asks a few times a second."""
        found = self._client.ask(messages.RANGE, messages.RangeRequest(key=self.key)).kvs
        self.seen = (int(found[0].create_revision), bytes(found[0].value)) if found else None
        return bool(found) and found[0].lease != self._lease

    def renew(self) -> None:
        """Keep the lease alive, and raise NotLeader if it has run out."""
        asked_at = monotonic()
        if self._lease:
            # The method is a stream of requests; one request and its end are a stream too.
            request = messages.LEASE_KEEP_ALIVE.request(ID=self._lease)
            answer = self._client.ask(messages.LEASE_KEEP_ALIVE, request)
            if answer.TTL > 0:
                self.lasts_until = asked_at + self._ttl_seconds
                return
        self._lease = self.created_at = 0
        raise NotLeader("the lease of this hub's leadership has run out")

    def lapse(self) -> None:
        """Write nothing more under this leadership. The lease, if it lives, is left to run out."""
        self._lease = self.created_at = 0

    def give_up(self) -> None:
        """Let another hub lead at once, instead of when the lease runs out."""
        lease, self._lease, self.created_at = self._lease, 0, 0
        if lease:
            try:
                self._client.ask(messages.LEASE_REVOKE, messages.LEASE_REVOKE.request(ID=lease))
            except NotLeader:
                return  # it ran out before


def prefix_of(site: str) -> bytes:
    """Return what all keys of a site begin with."""
    return SITES + f"{site}/".encode()
