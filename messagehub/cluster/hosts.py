"""The hosts of a site in etcd: `hosts/NAME` under a lease while the hub of a host lives, `members/NAME` for good.

Rule 1: a host is lost when its lease has run out. A hub that ends leaves its lease to run out: the next hub of the same
host takes the name over, and what is registered there stays.
Rule 2: two hosts do not have one name. A name belongs to the directory of the hub that took it first, until its lease
has run out.
"""

from time import monotonic

import msgspec

from messagehub.broker.topics.other_hubs import HubTopics
from messagehub.errors import ConfigurationError, StoreError
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import NotLeader
from messagehub.store.etcd.leadership import prefix_of
from registry.decoding import decodable
from registry.records import SiteHost

MOST_HOSTS = 10_000


@decodable
class HostEntry(msgspec.Struct, kw_only=True, frozen=True):
    """What a hub says of itself to the others."""

    host: str
    owner: str
    """The id of the hub's directory."""
    endpoint: str
    key: str
    """The public key that it shows to other hubs, and that they show to it."""
    topics: str = ""
    """Where it sends what is published to topics there."""
    gateway: str = ""
    """Where its Arrow Flight gateway serves; empty while it has none."""
    runs_gateway: bool | None = None
    """Whether it runs a gateway, or starts one; None of an earlier version."""
    gateway_secret: str = ""
    """What tokens for that gateway are signed with."""
    gateway_certificate: str = ""
    version: str = ""
    revision: int = 0
    is_degraded: bool = False


class SiteHosts:
    """The entry of this host, and those of the others. One thread uses it, but for what it has `seen`."""

    def __init__(self, client: EtcdClient, site: str, entry: HostEntry, *, ttl_seconds: float) -> None:
        self.entry = entry
        self.seen: dict[str, HostEntry] = {}
        """The hosts whose leases live, by name."""
        self.known: frozenset[str] = frozenset()
        self._client = client
        self._site = site
        self._prefix = prefix_of(site)
        self._ttl_seconds = max(int(ttl_seconds), 1)
        self._lease = 0
        self._put_at = 0.0
        self._put: HostEntry | None = None
        self._own_gateway: dict[str, str] = {}
        self._own_topics = ""
        self._changed_at: dict[str, int] = {}
        """The revisions of etcd at which the entries were changed, as they were read last."""

    def enter(self) -> None:
        """Take the name of this host; raise ConfigurationError if another host has it."""
        present = self._read("hosts/").get(self.entry.host)
        if present is not None and present.owner != self.entry.owner:
            raise ConfigurationError(
                f"site {self._site!r} has a host {self.entry.host!r} already, at {present.endpoint}: give each host a"
                " name of its own (hostname, or MESSAGEHUB_HOST for all processes of this one). If it is this host with"
                f" a new directory, wait {self._ttl_seconds} s"
            )
        if not self._write(self._changed_at.get(self.entry.host, 0)):
            raise ConfigurationError(f"another host has just taken the name {self.entry.host!r} in site {self._site!r}")
        self.refresh()

    def keep(self, *, revision: int, is_degraded: bool) -> None:
        """Renew the lease, and say how far this hub is. A lease that has run out is replaced by a new one."""
        self.entry = msgspec.structs.replace(
            self.entry, revision=revision, is_degraded=is_degraded, topics=self._own_topics, **self._own_gateway
        )
        written = self._put
        if monotonic() < self._put_at and (
            written is None or msgspec.structs.replace(written, revision=revision) == self.entry
        ):
            return
        if self._lease:
            request = messages.LEASE_KEEP_ALIVE.request(ID=self._lease)
            if self._client.ask(messages.LEASE_KEEP_ALIVE, request).TTL <= 0:
                self._lease = 0
        if not self._lease or self._put != self.entry:
            present = self._read("hosts/").get(self.entry.host)
            if present is not None and present.owner != self.entry.owner:
                raise StoreError(f"another host is called {self.entry.host!r} by now, at {present.endpoint}")
            if not self._write(self._changed_at.get(self.entry.host, 0)):
                return  # at the next turn
        self._put_at = monotonic() + self._ttl_seconds / 3

    def set_gateway(self, location: str, *, secret: str, certificate: str) -> None:
        """Say where the gateway of this host is, from the next `keep` on. Another thread may call this."""
        self._own_gateway = {"gateway": location, "gateway_secret": secret, "gateway_certificate": certificate}

    def set_topics(self, endpoint: str) -> None:
        """Say where other hubs hear what is published here, from the next `keep` on. Another thread may call this."""
        self._own_topics = endpoint

    def topics(self) -> frozenset[HubTopics]:
        """Return where what is published on the other hosts is to be heard."""
        return frozenset(
            HubTopics(entry.topics, entry.key)
            for name, entry in self.seen.items()
            if name != self.entry.host and entry.topics
        )

    def refresh(self) -> None:
        """Read who is there."""
        self.seen = self._read("hosts/")
        asked = messages.RangeRequest(
            key=self._prefix + b"members/", range_end=messages.end_of(self._prefix + b"members/"), limit=MOST_HOSTS
        )
        found = self._client.ask(messages.RANGE, asked).kvs
        self.known = frozenset(each.value.decode(errors="replace") for each in found)

    def listed(self, leader: str | None, newest: int) -> list[SiteHost]:
        """Return the hosts by name, as they were seen last."""
        hosts = []
        for name in sorted(self.known | self.seen.keys()):
            entry = self.seen.get(name)
            if entry is None:
                hosts.append(SiteHost(host=name, health="lost"))
                continue
            hosts.append(
                SiteHost(
                    host=name,
                    health="degraded" if entry.is_degraded else "healthy",
                    is_leader=name == leader,
                    revision=entry.revision,
                    lag=max(newest - entry.revision, 0),
                    endpoint=entry.endpoint,
                    gateway=entry.gateway,
                    topics=entry.topics,
                    version=entry.version,
                )
            )
        return hosts

    def _write(self, changed_at: int) -> bool:
        """Write the entry, and return False if it is another one by now than at this revision of etcd."""
        if not self._lease:
            request = messages.LEASE_GRANT.request(TTL=self._ttl_seconds)
            self._lease = int(self._client.ask(messages.LEASE_GRANT, request).ID)
        name = self.entry.host.encode()
        putting = messages.TxnRequest(
            compare=[messages.changed_at(self._prefix + b"hosts/" + name, changed_at)],
            success=[
                messages.put(self._prefix + b"hosts/" + name, msgspec.json.encode(self.entry), lease=self._lease),
                messages.put(self._prefix + b"members/" + name, name),
            ],
        )
        try:
            is_written = bool(self._client.ask(messages.TXN, putting).succeeded)
        except NotLeader:  # etcd's word for a lease that has run out
            self._lease = 0
            raise StoreError("the lease of this host has run out") from None
        self._put = self.entry if is_written else None
        return is_written

    def _read(self, below: str) -> dict[str, HostEntry]:
        prefix = self._prefix + below.encode()
        asked = messages.RangeRequest(key=prefix, range_end=messages.end_of(prefix), limit=MOST_HOSTS)
        found: dict[str, HostEntry] = {}
        changed_at: dict[str, int] = {}
        for each in self._client.ask(messages.RANGE, asked).kvs:
            try:
                entry = msgspec.json.decode(each.value, type=HostEntry)
            except msgspec.DecodeError:
                raise StoreError(f"{each.key.decode(errors='replace')} in etcd is not a hub's") from None
            found[entry.host] = entry
            changed_at[entry.host] = int(each.mod_revision)
        self._changed_at = changed_at
        return found
