"""A hub's membership of a site: its threads between etcd, the other hubs and the loop of its broker.

Rule 1: the loop is told what happens in order, as values, through one queue and an eventfd.
Rule 2: each thread tries again what fails, within the deadlines of etcd's client; none of them decides anything.
"""

import copy
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from messagehub.broker.persistence.restore import load_copy
from messagehub.broker.polling import Polling
from messagehub.broker.site.host_answers import way_to
from messagehub.broker.site.link import (
    Followed,
    Gateway,
    HostsSeen,
    HubPath,
    Kind,
    LeaderSeen,
    Loaded,
    Lost,
    News,
    Status,
    Won,
)
from messagehub.broker.site.member import SiteMember
from messagehub.broker.site.site_problem import OLD_SECONDS
from messagehub.cluster.connections import HubConnections, SiteLeader
from messagehub.cluster.etcd_settings import etcd_access
from messagehub.cluster.hosts import HostEntry, SiteHosts
from messagehub.cluster.new_site import NEW_SITE, OtherSites, check_new
from messagehub.cluster.site_file import site_file_for, write_site_file
from messagehub.cluster.table_parts import TableParts
from messagehub.cluster.transfer import is_half_imported
from messagehub.errors import ConfigurationError, GatewayUnavailable, StoreError
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import server_keys
from messagehub.setting_checks import is_loopback
from messagehub.settings import Settings
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.identity import host
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.election import Election
from messagehub.store.etcd.errors import NewerRecords, NotLeader
from messagehub.store.etcd.following import CHECK_SECONDS, HeadWatch
from messagehub.store.etcd.head import Head, head_key
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore
from messagehub.version import __version__
from registry import commands, replies
from registry.records import SiteHost, Table

log = logging.getLogger("messagehub.site")

REQUEST_SECONDS = 2.0
LEADER_SECONDS = 2
"""The term of the leader's lease: a leader that is killed is replaced after that."""
HOSTS_SECONDS = 0.5
PAUSE_SECONDS = 0.1
OUTDATED_SECONDS = 1.0
TAKEN_PER_TURN = 256
STOP_SECONDS = 5.0
GatewayState = Literal["starting", "none", "lost"]
EPOCH_FLOOR = 1 << 51
"""Above every epoch that a hub on its own gives to a group of consumers."""


class _Leader(NamedTuple):
    """The hub that leads as another leadership than before; None: no other hub does."""

    leader: SiteLeader | None
    leadership: int | None


class SiteMembership:
    """Implements `SiteLink`. `open_store` comes first, then `member`; `close` in any case."""

    def __init__(self, settings: Settings, *, runs_gateway: bool = False, may_make_site: bool = False) -> None:
        """`runs_gateway`: whether the hub is about to start a gateway, of which `set_gateway` will tell.

        `may_make_site`: whether the site may be a new one though etcd has others."""
        self.site, self.host = settings.site, host()
        self.beside: OtherSites | None = None
        """The other sites of the same etcd, if this hub makes its site; None if it was there."""
        self._runs_gateway, self._may_make_site = runs_gateway, may_make_site
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._settings = settings
        self._supervisor = Supervisor()
        self._access = etcd_access(settings)
        self._endpoint = settings.hubs_endpoint
        if not self._endpoint:
            raise ConfigurationError(
                f"a member of site {settings.site!r} needs an address for the other hubs: name --site-endpoint"
                " tcp://HOST:PORT, or a TCP --endpoint"
            )
        self._warn_of_loopback()
        self._news: deque[News | _Leader] = deque()
        self._stopping = threading.Event()
        self._must_load = self._is_leading = False
        self._follow_again = threading.Event()
        """Set when a leadership ends."""
        self._confirmed_at = monotonic()
        self._revision = 0
        self._leader_host: str | None = None
        self._outdated = ""
        self._election: Election | None = None
        self._watch: HeadWatch | None = None
        self._preparing: threading.Thread | None = None
        self._seen: HostsSeen | None = None
        self._parts: TableParts | None = None
        self._closing = ExitStack()
        self._closing.callback(os.close, self.wake_fd)

    def _warn_of_loopback(self) -> None:
        """Tell that hubs of other hosts cannot reach this one, if etcd is where they could be."""
        etcd_hosts = [urlsplit(url).hostname or "" for url in self._settings.etcd.split(",")]
        own, _, _ = self._endpoint.removeprefix("tcp://").rpartition(":")
        if is_loopback(own) and not all(is_loopback(name) for name in etcd_hosts):
            said = "site %s: other hubs are to reach this one at %s, which they cannot from another host: name an"
            log.warning(said + " address of this host with --site-endpoint", self.site, self._endpoint)

    # -- beginning and ending ------------------------------------------------------------------------------

    def open_store(self) -> EtcdStore:
        """Connect with etcd; raise what is wrong with the settings, with etcd or with the site. Nothing is written."""
        self._file = site_file_for(self._settings)
        self._client = client = EtcdClient(self._access, request_seconds=REQUEST_SECONDS)
        self._closing.callback(client.close)
        if is_half_imported(client, self.site):
            said = "was cut short: run `messagehub site import` again, and start the hubs when it is done"
            raise ConfigurationError(f"the import of a registry into site {self.site!r} {said}")
        self._store = EtcdStore(client, self.site, None, MemoryStore(), site_id=self._file.site_id)
        if self._store.is_new:
            self.beside = check_new(client, self.site, is_asked_for=self._may_make_site)
        keys = server_keys(self._settings.keys_path)
        self._connections = HubConnections(
            self._endpoint,
            keys,
            host_of_key=self._host_of_key,
            supervisor=self._supervisor,
        )
        self._closing.callback(self._connections.close)
        self._leader = SiteLeader(host=self.host, endpoint=self._connections.endpoint, key=keys.public)
        entry = HostEntry(
            host=self.host,
            owner=self._file.owner,
            endpoint=self._connections.endpoint,
            key=keys.public,
            version=__version__,
            runs_gateway=self._runs_gateway,
        )
        self._hosts = SiteHosts(client, self.site, entry, ttl_seconds=self._settings.host_lease_seconds)
        return self._store

    def member(self) -> SiteMember:
        """Enter the site, begin to follow what was loaded from the store, and stand for election.

        Whatever may keep the hub from serving was tried before, so a start that fails leaves nothing in the site, and
        does not bind the directory.
        """
        self._hosts.enter()
        write_site_file(self._settings, self._file)
        if not self._store.is_empty:
            self._keep_site_id(self._store.site_id)
        if self.beside is not None:
            log.warning(NEW_SITE, self.site, self.beside.text(), self._settings.dir)
        self._after = self._store.loaded_at
        self._confirmed_at = monotonic()
        self._closing.callback(self._leave)
        following = self._supervisor.start("messagehub-following", self._follow)
        self._closing.callback(following.join, STOP_SECONDS)
        keeping = self._supervisor.start("messagehub-hosts", self._keep_host)
        self._closing.callback(keeping.join, STOP_SECONDS)
        directory = directory_of(self._settings)
        self._parts = TableParts(directory, self._way_to, host=self.host, supervisor=self._supervisor)
        self._closing.callback(self._parts.close, timeout=STOP_SECONDS)
        self._key = LeaderKey(self._client, self.site, ttl_seconds=LEADER_SECONDS)
        self._election = Election(
            self._key,
            msgspec.json.encode(self._leader),
            on_won=self._take_over,
            on_lost=lambda why: self._tell_loop(Lost(why)),
            on_seen=self._see_leader,
            supervisor=self._supervisor,
        )
        return SiteMember(self)

    def close(self) -> None:
        self._stopping.set()
        self._follow_again.set()
        if self._watch is not None:
            self._watch.stop()
        if self._election is not None:
            self._election.close(timeout=STOP_SECONDS)
        if self._preparing is not None:
            self._preparing.join(STOP_SECONDS)
        self._closing.close()

    def _leave(self) -> None:
        """Tell the other hubs that this one has stopped, once no thread says anything else of it."""
        try:
            self._hosts.leave()
        except StoreError as error:
            log.info("the other hubs hear that this one has stopped when its lease ends: %s", error.message)

    def set_gateway(self, location: str, *, secret: str, certificate: str) -> None:
        """Tell the other hubs where the gateway of this host is. Any thread may call this."""
        self._hosts.set_gateway(location, secret=secret, certificate=certificate)

    # -- for the loop --------------------------------------------------------------------------------------

    @property
    def site_id(self) -> str:
        return self._file.site_id or self._store.site_id  # the file has it a moment after the first change is stored

    def poll_by(self, polling: Polling) -> None:
        polling.add(self.wake_fd)
        self._connections.poll_by(polling)

    def polls(self, fd: int) -> bool:
        return fd == self.wake_fd or self._connections.polls(fd)

    def take(self, *, takes_requests: bool) -> list[News]:
        taken: list[News] = []
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            pass
        for _ in range(min(len(self._news), TAKEN_PER_TURN)):
            news = self._news.popleft()
            if isinstance(news, _Leader):
                self._connections.connect(news.leader, news.leadership or 0)
                news = LeaderSeen(news.leadership)
            taken.append(news)
        if self._news:
            os.eventfd_write(self.wake_fd, 1)
        return taken + self._connections.receive(takes_requests=takes_requests)

    def send(self, number: int, kind: Kind, body: bytes, *, user: str, leadership: int) -> None:
        self._connections.send(number, kind, body, user=user, leadership=leadership)

    def ask_host(self, host: str, number: int, body: bytes, *, user: str) -> None:
        entry = self._hosts.seen.get(host)
        if entry is not None:
            hub = SiteLeader(host=host, endpoint=entry.endpoint, key=entry.key)
            self._connections.ask(hub, number, body, user=user)

    def leave_host(self, host: str) -> None:
        self._connections.leave(host)

    def answer(self, path: HubPath, status: Status, revision: int, payload: bytes) -> bool:
        self._connections.answer(path, status, revision, payload)
        return True

    def flush(self) -> None:
        self._connections.flush()

    def load_anew(self) -> None:
        self._must_load = True
        if self._watch is not None:
            self._watch.stop()

    def end_leading(self) -> None:
        """`load_anew` follows, since nothing was watched meanwhile."""
        self._store.end()
        self._is_leading = False
        self._must_load = True
        self._follow_again.set()

    def resign(self, why: str) -> None:
        if self._election is not None:
            self._election.resign(why)

    def tell(self, revision: int, *, access: str) -> None:
        self._revision = revision
        self._hosts.set_access(access)

    def hosts(self) -> list[SiteHost]:
        hosts = self._hosts
        newest = max([self._revision, *(entry.revision for entry in hosts.seen.values())])
        return [
            msgspec.structs.replace(each, revision=self._revision, lag=newest - self._revision)
            if each.host == self.host
            else each
            for each in hosts.listed(self._leader_host, newest)
        ]

    def set_topics(self, endpoint: str, retained: str) -> None:
        self._hosts.set_topics(endpoint, retained)

    def set_kept_limit(self, limit_bytes: int) -> None:
        self._hosts.set_kept_limit(limit_bytes)

    def gateway(self, host: str) -> Gateway:
        entry = self._hosts.seen.get(host)
        if entry is not None and entry.gateway and not entry.has_left:
            return Gateway(entry.gateway, entry.gateway_secret, entry.gateway_certificate)
        if entry is None and host in self._hosts.known:
            state: GatewayState = "lost"
            said = f"host {host!r} is lost: nothing is heard of its hub. It can be read again when its hub is back"
        elif entry is not None and entry.has_left:
            state = "lost"
            said = f"the hub of host {host!r} was stopped. What is there can be read again when its hub is back"
        elif entry is None:
            state, said = "none", f"host {host!r} is no member of site {self.site!r}"
        elif entry.runs_gateway:
            state, said = "starting", f"the hub of host {host!r} is there, and starts its Arrow Flight gateway"
        else:
            state = "none"
            said = f"the hub of host {host!r} runs no Arrow Flight gateway (--no-gateway, or pyarrow has no Flight)"
        raise GatewayUnavailable(said, host=host, state=state)

    def tables_seen(self, tables: Mapping[str, Table]) -> None:
        if self._parts is not None:
            self._parts.replace(tables)

    def table_changed(self, channel: str, table: Table | None) -> None:
        if self._parts is not None:
            self._parts.changed(channel, table)

    def _way_to(self, command: commands.RequestGateway, _timeout: float) -> replies.GatewayFound:
        return way_to(self.gateway(command.host), command, user=self.host)

    def age_seconds(self) -> float:
        watch = self._watch
        return monotonic() - max(self._confirmed_at, watch.confirmed_at if watch is not None else 0.0)

    def problem(self) -> str:
        return self._outdated or (self._election.problem if self._election is not None else "")

    def outdated(self) -> str:
        return self._outdated

    # -- threads -------------------------------------------------------------------------------------------

    def _tell_loop(self, news: "News | _Leader") -> None:
        if not self._stopping.is_set():
            self._news.append(news)
            os.eventfd_write(self.wake_fd, 1)

    def _follow(self) -> None:
        """Follow the head of the site, and load all records whenever that is not enough."""
        while not self._stopping.is_set():
            if self._is_leading:
                self._lead()
                continue
            if self._must_load:
                self._must_load = False
                self._load()
            watch = HeadWatch(self._client, self.site, after=self._after, supervisor=self._supervisor)
            self._watch = watch
            if self._must_load or self._is_leading or self._stopping.is_set():
                continue  # what stops a watch came in the meantime, and stopped the one before
            try:
                watch.run(self._take_head)
                self._after = watch.heard
            except NewerRecords as error:
                self._stand_aside(error)
                self._stopping.wait(OUTDATED_SECONDS)
            except StoreError as error:
                log.info("site %s: the records are loaded anew: %s", self.site, error.message)
                self._must_load = True
                self._stopping.wait(PAUSE_SECONDS)
            self._confirmed_at = max(self._confirmed_at, watch.confirmed_at)

    def _lead(self) -> None:
        """Watch nothing while this hub leads, since nobody else can write: only see that etcd has a quorum.

        The records are loaded once, after a moment, since a hub that has just taken over has more urgent things to do.
        """
        if self._follow_again.wait(CHECK_SECONDS):
            return
        if self._must_load:
            self._must_load = False
            self._load(is_for_leader=True)
            return
        asked_at = monotonic()
        try:
            self._client.ask(messages.RANGE, messages.RangeRequest(key=head_key(self.site)))
        except StoreError:
            return  # no quorum: the copy grows older
        self._confirmed_at = asked_at

    def _load(self, *, is_for_leader: bool = False) -> None:
        asked_at = monotonic()
        try:
            reader = EtcdStore(self._client, self.site, None, MemoryStore(), site_id=self._file.site_id)
            copy = load_copy(reader, self._settings)
        except NewerRecords as error:
            self._stand_aside(error)
            self._must_load = True
            self._stopping.wait(OUTDATED_SECONDS)
            return
        except StoreError as error:
            log.debug("the records of the site cannot be loaded: %s", error.message)
            self._must_load = True
            self._stopping.wait(PAUSE_SECONDS)
            return
        self._after, self._confirmed_at = reader.loaded_at, asked_at
        self._tell_loop(Loaded(copy, is_for_leader))

    def _take_head(self, head: Head) -> None:
        if head.revision:
            self._keep_site_id(head.site_id)
        try:
            events = None if head.writer == self._store.writer else head.decoded_events()
        except msgspec.DecodeError as error:  # of a newer version: the records are there to be loaded
            log.info("site %s: the leader says something that this hub does not know: %s", self.site, error)
            events = None
        self._tell_loop(Followed(head.before, head.revision, events))

    def _keep_host(self) -> None:
        while not self._stopping.is_set():
            if self._is_leading and self._revision:
                self._keep_site_id(self._store.site_id)
            try:
                self._hosts.keep(revision=self._revision, is_degraded=self.age_seconds() >= OLD_SECONDS)
                self._hosts.refresh()
            except StoreError as error:
                log.debug("the hosts of the site cannot be read: %s", error.message)
            else:
                hosts = self._hosts
                limits = frozenset((name, entry.kept_limit_bytes) for name, entry in hosts.seen.items())
                seen = HostsSeen(hosts.known, frozenset(hosts.seen), hosts.topics(), hosts.access(), limits)
                if seen != self._seen:
                    self._seen = seen
                    self._tell_loop(seen)
            self._stopping.wait(HOSTS_SECONDS)

    def _take_over(self) -> None:
        """Prepare to lead, on a thread of its own: the one that calls this has to renew the lease."""
        prepare = partial(self._prepare, copy.copy(self._key))
        self._preparing = self._supervisor.start("messagehub-taking-over", prepare)

    def _prepare(self, fence: LeaderKey) -> None:
        while not self._stopping.is_set() and self._key.created_at == fence.created_at:
            try:
                head, changed_at = self._store.prepare(fence)
            except NotLeader:
                return
            except NewerRecords as error:
                self._stand_aside(error)
                return
            except StoreError as error:
                log.debug("this hub cannot lead yet: %s", error.message)
                self._stopping.wait(PAUSE_SECONDS)
                continue
            if head.revision:
                self._keep_site_id(head.site_id)
            begin = partial(self._begin_leading, fence, head, changed_at)
            self._tell_loop(Won(fence.created_at, head.revision, EPOCH_FLOOR + fence.created_at, begin))
            return

    def _stand_aside(self, error: NewerRecords) -> None:
        """Lead no more, since another hub has to: this one cannot read what it would have to decide with."""
        if not self._outdated:
            log.error("site %s: %s. Until then it answers reads from what it had", self.site, error.message)
        self._outdated = error.message
        if self._election is not None:
            self._election.stand_aside(error.message)

    def _begin_leading(self, fence: LeaderKey, head: Head, changed_at: int) -> None:
        """On the loop's thread."""
        self._store.begin(fence, head, changed_at)
        self._follow_again.clear()
        self._is_leading = self._must_load = True
        if self._watch is not None:
            self._watch.stop()

    def _see_leader(self, seen: tuple[int, bytes] | None) -> None:
        leader = None
        if seen is not None:
            try:
                leader = msgspec.json.decode(seen[1], type=SiteLeader)
            except msgspec.DecodeError:
                log.error("the leader of site %s says nothing of itself that this hub can read", self.site)
        self._leader_host = leader.host if leader is not None else None
        is_other = leader is not None and leader.key != self._leader.key
        leadership = seen[0] if seen is not None and is_other else None
        self._tell_loop(_Leader(leader if is_other else None, leadership))

    def _host_of_key(self, key: str) -> str | None:
        return next((entry.host for entry in list(self._hosts.seen.values()) if entry.key == key), None)

    def _keep_site_id(self, site_id: str) -> None:
        """Bind the directory to the site, since something is registered there."""
        if not self._file.site_id:
            self._file = msgspec.structs.replace(self._file, site_id=site_id)
            write_site_file(self._settings, self._file)
