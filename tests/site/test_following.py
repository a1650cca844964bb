"""Hubs that follow the leader of a site: a copy by watching one key, whatever happens to members of etcd."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import EtcdUnavailable
from messagehub.store.etcd.following import HeadWatch, Missed
from messagehub.store.etcd.head import Head
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore
from registry import commands
from registry.events import AnyEvent
from registry.registry import Registry
from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import eventually
from tests.registry.observing import followed_state
from tests.site.stores import created, leading_store, write


@pytest.fixture(scope="module")
def members() -> Iterator[list[EtcdMember]]:
    with etcd(3) as started:
        yield started


class Copy:
    """A registry that follows the site on a thread of its own, as a hub that does not lead does."""

    def __init__(self, urls: str, site: str) -> None:
        self.loads = 0
        self._client = EtcdClient(EtcdAccess(endpoints=tuple(urls.split(","))), request_seconds=3.0)
        leader = LeaderKey(self._client, site, ttl_seconds=60)
        self._store = EtcdStore(self._client, site, leader, MemoryStore())
        self._site = site
        self._is_over = False
        self._load()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _load(self) -> None:
        saved = self._store.load()
        self.registry = Registry()
        self.registry.schemas.restore(
            saved.schemas,
            last_id=saved.last_schema_id,
            configs=saved.configs,
            modes=saved.modes,
            revision=saved.revision,
        )
        self.registry.log.restore_copy(saved.channels, revision=saved.revision)
        self.loads += 1
        self.watch = HeadWatch(self._client, self._site, after=self._store.loaded_at, check_seconds=0.1)

    def _run(self) -> None:
        while not self._is_over:
            try:
                self.watch.run(self._take)
            except Missed:
                eventually(self._has_loaded)

    def _has_loaded(self) -> bool:
        try:
            self._load()
        except EtcdUnavailable:
            return False
        return True

    def _take(self, head: Head) -> None:
        happened = head.decoded_events()
        if happened is None or head.before != self.registry.revision:
            raise Missed("as a hub does")
        for event in happened:
            self.registry.log.follow(event)
        self.registry.log.revision = head.revision

    def close(self) -> None:
        self._is_over = True
        self.watch.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._client.close()


@contextmanager
def following(urls: str, site: str) -> Iterator[Copy]:
    copy = Copy(urls, site)
    try:
        yield copy
    finally:
        copy.close()


def all_of(members: list[EtcdMember]) -> str:
    return ",".join(member.url for member in members)


def agree(copy: Copy, registry: Registry) -> Callable[[], bool]:
    return lambda: (
        copy.registry.revision == registry.revision and followed_state(copy.registry) == followed_state(registry)
    )


HISTORY: list[commands.Command] = [
    commands.CreateChannel(channel="a", priority="high"),
    commands.RegisterProducer(channel="a", schema_hash="h", access="shared", producer_id="p"),
    commands.RegisterConsumer(channel="a", consumer_id="c", group="g"),
    commands.RegisterConsumer(channel="a", consumer_id="d", group="g"),
    commands.RegisterSchema(subject="s", schema={"type": "object"}),
    commands.DeleteSchema(subject="s", version=1),
    commands.DestroyChannel(channel="a"),
    commands.RegisterProducer(channel="a", schema_hash="other"),
]


def test_a_copy_hears_of_everything_that_the_leader_wrote(members: list[EtcdMember], tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    urls = all_of(members)
    with leading_store(urls, tmp_path / "a.db", site) as store, following(urls, site) as copy:
        for command in HISTORY:
            write(store, registry, command)
            eventually(agree(copy, registry))
        write(store, registry, *(commands.CreateChannel(channel=f"c{n}") for n in range(500)))
        eventually(agree(copy, registry))
        assert copy.loads == 1
        with following(urls, site) as late:
            assert agree(late, registry)()


def test_a_copy_that_begins_late_shows_stalls_conflicts_and_shares(members: list[EtcdMember], tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    urls = all_of(members)
    with leading_store(urls, tmp_path / "a.db", site) as store:

        def keep(happened: list[AnyEvent]) -> None:
            rows = [row for event in happened for row in store.rows(event)]
            store.write(rows, revision=registry.revision, durable=False)
            with following(urls, site) as late:
                assert agree(late, registry)()

        write(store, registry, *HISTORY[:4], commands.RegisterProducer(channel="b", schema_hash="h"))
        keep(registry.host_events.show_conflict("a", "two of them", now=1.0))
        keep(registry.expire(now=20.0))
        assert registry.channels["a"].producers["p"].status == "stalled"
        keep(registry.apply(commands.Heartbeat(lease="p"), now=21.0).events)
        keep(registry.apply(commands.RegisterProducer(channel="b", schema_hash="h"), now=21.0).events)
        keep(registry.apply(commands.UnregisterConsumer(channel="a", consumer_id="c"), now=21.0).events)
        keep(registry.host_events.show_conflict("a", None, now=21.0))
        keep(registry.expire(now=100.0))
        keep(registry.apply(commands.DestroyChannel(channel="a"), now=100.0).events)
        keep(registry.apply(commands.CreateChannel(channel="a"), now=100.0).events)


def test_an_event_that_is_too_large_to_be_sent_is_loaded(members: list[EtcdMember], tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    urls = all_of(members)
    large = {"title": Random(1).randbytes(200_000).hex()}
    with leading_store(urls, tmp_path / "a.db", site) as store, following(urls, site) as copy:
        write(store, registry, commands.RegisterSchema(subject="s", schema=large))
        eventually(agree(copy, registry))
        assert copy.loads == 2


def test_what_was_compacted_away_is_loaded(tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    with etcd() as (member,), leading_store(member.url, tmp_path / "a.db", site) as store:
        write(store, registry, commands.CreateChannel(channel="first"))
        with following(member.url, site) as copy:
            copy.watch.heard = 1  # as if it had been away since then
            for name in ("second", "third"):
                write(store, registry, commands.CreateChannel(channel=name))
            revision = member.ask("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
            member.ask("/v3/kv/compaction", {"revision": revision, "physical": True})
            member.kill()
            member.start()
            eventually(agree(copy, registry))


def test_a_copy_goes_on_with_another_member_of_etcd(tmp_path: Path) -> None:
    """Also when its member is only cut off from the others: that one says nothing, and hangs up on nobody."""
    site, registry = uuid.uuid4().hex, Registry()
    with etcd(3) as members:
        urls = all_of(members)
        with leading_store(urls, tmp_path / "a.db", site) as store, following(urls, site) as copy:
            for number, member in enumerate(members):
                member.pause()
                registry = created(store, registry, f"paused{number}")
                eventually(agree(copy, registry))
                member.go_on()
                eventually(member.is_healthy)


def test_a_new_site_is_followed_in_an_etcd_that_has_forgotten_its_beginning(tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    with etcd() as (member,):
        with leading_store(member.url, tmp_path / "a.db") as other:
            write(other, Registry(), commands.CreateChannel(channel="of_another_site"))
        revision = member.ask("/v3/kv/range", {"key": "YQ=="})["header"]["revision"]
        member.ask("/v3/kv/compaction", {"revision": revision, "physical": True})
        with (
            following(member.url, site) as copy,
            leading_store(member.url, tmp_path / "b.db", site) as store,
        ):
            write(store, registry, commands.CreateChannel(channel="first"))
            eventually(agree(copy, registry))
            assert copy.loads == 1


def test_the_age_of_a_copy_grows_while_there_is_no_quorum(tmp_path: Path) -> None:
    site, registry = uuid.uuid4().hex, Registry()
    with etcd(3) as members:
        urls = all_of(members)
        with leading_store(urls, tmp_path / "a.db", site) as store, following(urls, site) as copy:
            write(store, registry, commands.CreateChannel(channel="before"))
            eventually(agree(copy, registry))
            eventually(lambda: copy.watch.confirmed_at)
            for member in members[1:]:
                member.kill()
            eventually(lambda: not members[0].is_healthy())
            confirmed_at = copy.watch.confirmed_at
            assert copy.registry.channels["before"]
            for member in members[1:]:
                member.start()
            eventually(lambda: copy.watch.confirmed_at > confirmed_at)
            registry = created(store, registry, "after")
            eventually(agree(copy, registry))
