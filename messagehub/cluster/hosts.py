"""The hosts of a site in etcd: `hosts/NAME` under a lease while the hub of a host lives, `members/NAME` for good.

Rule 1: a host is lost when its lease has run out. A hub that ends says that it has left, and leaves its lease to run
out: the next hub of the same host takes the name over, and what is registered there stays.
Rule 2: two hosts do not have one name. A name belongs to the directory of the hub that took it first, until its lease
has run out.
"""

import hashlib
from time import monotonic
from typing import Any

import msgspec

from messagehub.broker.topics.other_hubs import HubTopics
from messagehub.errors import ConfigurationError, StoreError
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import NotLeader
from messagehub.store.etcd.leadership import prefix_of
from registry.decoding import decodable
from registry.records import SiteHost
from registry.topics.retained import DEFAULT_LIMIT_BYTES

MOST_HOSTS = 10_000
ENTER_ATTEMPTS = 5


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
    retained_topics: str = ""
    """Where it sends what it has stored of retained topics."""
    kept_limit_bytes: int = DEFAULT_LIMIT_BYTES
    """How much its retained topics may keep."""
    gateway: str = ""
    """Where its Arrow Flight gateway serves; empty while it has none."""
    runs_gateway: bool | None = None
    """Whether it runs a gateway, or starts one; None of an earlier version."""
    gateway_secret: str = ""
    """What tokens for that gateway are signed with."""
    gateway_certificate: str = ""
    access: str = ""
    """Changes whenever the rights of a peer of its do; empty if all peers may do everything."""
    version: str = ""
    revision: int = 0
    is_degraded: bool = False
    has_left: bool = False
    """Whether the hub has stopped. Its lease goes on until its term is over."""


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
        self._own_topics = {"topics": "", "retained_topics": ""}
        self._own_limit = DEFAULT_LIMIT_BYTES
        self._own_access = ""
        self._last: dict[str, HostEntry] = {}
        """What hosts that are lost said last, as far as this hub heard it."""
        self._changed_at: dict[str, int] = {}
        """The revisions of etcd at which the entries were changed, as they were read last."""
        self._read_at = 0
        """The revision of etcd that was read last; 0: nothing was read yet."""

    def enter(self) -> None:
        """Take the name of this host; raise ConfigurationError if another host has it.

        What has changed between reading and writing may be our own: etcd carried out a request whose answer was lost,
        or the last one of the hub that ran here before.
        """
        for _ in range(ENTER_ATTEMPTS):
            present = self._read("hosts/").get(self.entry.host)
            if present is not None and present.owner != self.entry.owner:
                raise ConfigurationError(
                    f"site {self._site!r} has a host {self.entry.host!r} already, at {present.endpoint}: give each host"
                    " a name of its own (hostname, or MESSAGEHUB_HOST for all processes of this one). If it is this"
                    f" host with a new directory, wait {self._ttl_seconds} s"
                )
            if self._write(self._changed_at.get(self.entry.host, 0)):
                self.refresh()
                return
        raise StoreError(
            f"the entry of host {self.entry.host!r} in etcd changes all the time: is its hub started twice?"
        )

    def keep(self, *, revision: int, is_degraded: bool) -> None:
        """Renew the lease, and say how far this hub is. A lease that has run out is replaced by a new one."""
        self.entry = msgspec.structs.replace(
            self.entry,
            revision=revision,
            is_degraded=is_degraded,
            access=self._own_access,
            kept_limit_bytes=self._own_limit,
            **self._own_topics,
            **self._own_gateway,
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

    def leave(self) -> None:
        """Say that this hub has stopped, under the lease that it has: nothing if that is over, or another hub is here
        by now."""
        if self._lease and self._put is not None:
            self.entry = msgspec.structs.replace(self.entry, has_left=True)
            self._write(self._changed_at.get(self.entry.host, 0))

    def set_gateway(self, location: str, *, secret: str, certificate: str) -> None:
        """Say where the gateway of this host is, from the next `keep` on. Another thread may call this."""
        self._own_gateway = {"gateway": location, "gateway_secret": secret, "gateway_certificate": certificate}

    def set_topics(self, endpoint: str, retained: str) -> None:
        """Say where other hubs hear what is published here, and what is stored of it, from the next `keep` on.

        Another thread may call this.
        """
        self._own_topics = {"topics": endpoint, "retained_topics": retained}

    def set_kept_limit(self, limit_bytes: int) -> None:
        """Say how much the retained topics of this host may keep, from the next `keep` on. As above."""
        self._own_limit = limit_bytes

    def set_access(self, access: str) -> None:
        """Say what changes with the rights of peers here, from the next `keep` on. Another thread may call this."""
        self._own_access = access

    def access(self) -> str:
        """Return a text that changes whenever the rights of a peer of another host do; empty if no hub says any."""
        said = sorted((name, entry.access) for name, entry in self.seen.items() if entry.access)
        said = [each for each in said if each[0] != self.entry.host]
        return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16] if said else ""

    def topics(self) -> frozenset[HubTopics]:
        """Return where what is published on the other hosts is to be heard."""
        return frozenset(
            HubTopics(entry.topics, entry.key, entry.retained_topics)
            for name, entry in self.seen.items()
            if name != self.entry.host and entry.topics
        )

    def refresh(self) -> None:
        """Read who is there: in one request, and only what has changed unless somebody has left."""
        if not self._read_changes(self._read_at):
            self._read_changes(0)

    def _read_changes(self, after: int) -> bool:
        """Take in what was changed after a revision of etcd; 0: read all. Return False if that is not everything."""
        asked = [
            messages.get_beneath(self._prefix + below, limit=MOST_HOSTS, changed_after=after)
            for below in (b"hosts/", b"members/")
        ]
        answer = self._client.ask(messages.TXN, messages.TxnRequest(success=asked))
        hosts, members = (response.response_range for response in answer.responses)
        seen, changed_at = dict(self.seen) if after else {}, dict(self._changed_at) if after else {}
        for each in hosts.kvs:
            entry = _entry(each)
            seen[entry.host], changed_at[entry.host] = entry, int(each.mod_revision)
        known = (self.known if after else frozenset()) | {each.value.decode(errors="replace") for each in members.kvs}
        if after and (len(seen) != hosts.count or len(known) != members.count):
            return False
        gone = {name: entry for name, entry in self.seen.items() if name not in seen}
        self._last = {name: entry for name, entry in (self._last | gone).items() if name in known - seen.keys()}
        self.seen, self.known, self._changed_at, self._read_at = seen, known, changed_at, int(answer.header.revision)
        return True

    def listed(self, leader: str | None, newest: int) -> list[SiteHost]:
        """Return the hosts by name, as they were seen last."""
        hosts = []
        for name in sorted(self.known | self.seen.keys()):
            entry = self.seen.get(name)
            if entry is None or entry.has_left:
                hosts.append(self._absent(name, entry))
                continue
            hosts.append(
                SiteHost(
                    host=name,
                    health="degraded" if entry.is_degraded else "healthy",
                    reason="it cannot reach etcd, so its copy may be old" if entry.is_degraded else "",
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

    def _absent(self, name: str, entry: HostEntry | None) -> SiteHost:
        """Return a host without a hub; `entry` is what its hub has said under a lease that is not over."""
        last = entry or self._last.get(name)
        if entry is not None:
            why = f"its hub was stopped: its members end unless a hub is back within {self._ttl_seconds} s"
        elif last is None:
            why = "its lease is over, and nothing was heard of its hub since this hub was started"
        elif last.has_left:
            why = "its hub was stopped and did not come back: its members have ended"
        else:
            why = "nothing was heard of its hub until its lease was over: its members have ended"
        return SiteHost(
            host=name,
            health="lost" if entry is None else "left",
            reason=why,
            revision=last.revision if last is not None else None,
            version=last.version if last is not None else "",
        )

    def _write(self, changed_at: int) -> bool:
        """Write the entry; return False if it is another one by now than at this revision of etcd, or the lease is
        over."""
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
            answer = self._client.ask(messages.TXN, putting)
        except NotLeader:  # etcd's word for a lease that has run out: the next attempt asks for another
            self._lease, self._put = 0, None
            return False
        if not answer.succeeded:
            self._put = None
            return False
        self._put = self.entry
        self._changed_at[self.entry.host] = int(answer.header.revision)
        return True

    def _read(self, below: str) -> dict[str, HostEntry]:
        prefix = self._prefix + below.encode()
        asked = messages.RangeRequest(key=prefix, range_end=messages.end_of(prefix), limit=MOST_HOSTS)
        found: dict[str, HostEntry] = {}
        changed_at: dict[str, int] = {}
        for each in self._client.ask(messages.RANGE, asked).kvs:
            entry = _entry(each)
            found[entry.host] = entry
            changed_at[entry.host] = int(each.mod_revision)
        self._changed_at = changed_at
        return found


def _entry(found: Any) -> HostEntry:
    try:
        return msgspec.json.decode(found.value, type=HostEntry)
    except msgspec.DecodeError:
        raise StoreError(f"{found.key.decode(errors='replace')} in etcd is not a hub's") from None
