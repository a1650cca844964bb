"""Tables that were overwritten or dropped elsewhere while the hub of their host was down: they do not come back.

Beta is the host whose hub is killed. Alpha has the newer table.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.broker.host_watcher.tables import DROP_SECONDS
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from registry.events import TableCommitted
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.clocks import HOUR, shifted
from tests.site.etcd_copy import copied, restored
from tests.site.hosts import Site, SiteHub, await_known, on, process_on, site

OLD = 'hub.publish_table({0!r}, pa.table({{"x": [1, 2, 3]}}){1})'
AT_ONCE = ", retention=__import__('messagehub').Retention(grace_seconds=0.0)"
"""Have a generation that was superseded end without a time of grace."""
NEW = pa.table({"x": [7]})


@pytest.fixture
def hosts(member: EtcdMember, tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, member.url, "alpha", "beta") as started:
        yield started


def store_of(hub: SiteHub, channel: str) -> TableStore:
    return TableStore(Directory(hub.environment["MESSAGEHUB_DOMAIN"]).tables_path(channel))


def publish(hub: SiteHub, channel: str, more: str = "") -> TableStore:
    """Publish three rows on the host of a hub, which is down or not."""
    with process_on(hub) as there:
        there.do(OLD.format(channel, more))
    return store_of(hub, channel)


def host_and_rows(hub: SiteHub, channel: str) -> tuple[str, int] | None:
    table = hub.ask({"type": "DISCOVERY_REQUEST", "channel": channel}).get("table")
    return (str(table["host"]), int(table["rows"])) if table else None


def blocks(store: TableStore) -> list[str]:
    return [name for name in os.listdir(store.path) if name.endswith(".arrow")]


def overwritten(hub: MessageHub, *channels: str, dropped: bool) -> None:
    for channel in channels:
        hub.publish_table(channel, NEW)
        if dropped:
            hub.drop_table(channel)


def stays(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(0.1)


@pytest.mark.parametrize("leader", ["alpha", "beta"])
def test_a_table_that_was_overwritten_and_dropped_while_its_hub_was_down_is_gone(
    member: EtcdMember, tmp_path: Path, leader: str
) -> None:
    with site(tmp_path, member.url, leader, "beta" if leader == "alpha" else "alpha") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        store = publish(beta, "t.gone")
        beta.kill()
        eventually(alpha.is_leader)
        with on(alpha) as here, process_on(beta) as reader:
            overwritten(here, "t.gone", dropped=True)
            reader.do(f"""
                from messagehub.shm.tables.tables import TableStore
                snapshot = TableStore({store.path!r}).open()
            """)
            beta.start()
            eventually(lambda: not store.generations())
            reader.do("assert snapshot.table().num_rows == 3")
            assert blocks(store), "a reader that holds it keeps it"
            reader.do("snapshot.close()")
            eventually(lambda: os.listdir(store.path) == ["commit.lock"])
            publish(beta, "t.after")
            eventually(lambda: [each.channel for each in here.tables()] == ["t.after"])


def test_a_table_that_was_dropped_while_its_hub_was_down_is_gone(hosts: Site) -> None:
    """Its record was, by somebody who took the host for lost."""
    alpha, beta = hosts["alpha"], hosts["beta"]
    store = publish(beta, "t.forgotten")
    beta.kill()
    with on(alpha) as here:
        here.drop_table("t.forgotten", forget=True)
        beta.start()
        eventually(lambda: not store.generations())
        stays(lambda: here.tables() == [], 1.0)


def test_an_overwritten_table_does_not_come_back_by_a_clock_that_is_ahead(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha") as hosts:
        alpha, beta = hosts["alpha"], hosts.add("beta", preload=shifted(tmp_path, HOUR))
        await_known(alpha, "beta")
        kept, freed = publish(beta, "t.kept"), publish(beta, "t.freed", AT_ONCE)
        beta.kill()
        with on(alpha) as here:
            overwritten(here, "t.kept", "t.freed", dropped=False)
        beta.start()
        eventually(lambda: not freed.generations())
        publish(beta, "t.after")
        eventually(lambda: host_and_rows(alpha, "t.after") == ("beta", 3))
        for channel in ("t.kept", "t.freed"):
            assert host_and_rows(alpha, channel) == host_and_rows(beta, channel) == ("alpha", 1)
        assert kept.generations() == [1], "a job that was planned with it may be about to open it"
        publish(beta, "t.kept")
        assert host_and_rows(alpha, "t.kept") == ("beta", 3)


def test_an_overwritten_table_does_not_come_back_while_its_hub_runs(member: EtcdMember, tmp_path: Path) -> None:
    """Nor by a clock: whoever looks at the directory again finds what the registry had."""
    with site(tmp_path, member.url, "alpha") as hosts:
        alpha, beta = hosts["alpha"], hosts.add("beta", preload=shifted(tmp_path, HOUR))
        await_known(alpha, "beta")
        store = publish(beta, "t.beside")
        with on(alpha) as here:
            overwritten(here, "t.beside", dropped=False)
            eventually(lambda: host_and_rows(beta, "t.beside") == ("alpha", 1))
            os.utime(store.path)
            stays(lambda: host_and_rows(alpha, "t.beside") == ("alpha", 1), 2.0)
            here.drop_table("t.beside")
            eventually(lambda: not store.generations())
            stays(lambda: here.tables() == [], 1.0)


def test_a_table_that_was_published_while_its_hub_was_down_is_registered(hosts: Site) -> None:
    alpha, beta = hosts["alpha"], hosts["beta"]
    publish(beta, "t.grown")
    publish(beta, "t.late")
    with on(alpha) as here:
        beta.kill()
        publish(beta, "t.new")
        publish(beta, "t.grown", ', mode="append"')
        overwritten(here, "t.late", dropped=True)
        publish(beta, "t.late")
        beta.start()
        for channel, rows in (("t.new", 3), ("t.grown", 6), ("t.late", 3)):
            eventually(lambda name=channel, rows=rows: host_and_rows(alpha, name) == ("beta", rows))


def test_a_table_that_went_on_while_its_hub_was_down_is_never_called_gone(hosts: Site) -> None:
    """Its generation that the registry knew was retired meanwhile."""
    alpha, beta = hosts["alpha"], hosts["beta"]
    store = publish(beta, "t.onwards", AT_ONCE)
    with on(alpha) as here, here.watch("t.onwards") as watch:
        assert watch.wait_current(PATIENCE_SECONDS)
        beta.kill()
        for _ in range(2):
            publish(beta, "t.onwards", AT_ONCE)
        assert store.generations()[0] > 1
        beta.start()
        told = watch.get(PATIENCE_SECONDS)
        assert isinstance(told, TableCommitted)
        assert told.table is not None
        assert told.table.generation == 3


def test_a_table_that_no_hub_has_seen_is_kept_beside_one_that_is_newer_by_the_clock(hosts: Site) -> None:
    alpha, beta = hosts["alpha"], hosts["beta"]
    beta.kill()
    store = publish(beta, "t.unseen")
    with on(alpha) as here:
        overwritten(here, "t.unseen", dropped=False)
        beta.start()
        publish(beta, "t.after")
        assert host_and_rows(alpha, "t.unseen") == ("alpha", 1)
        here.drop_table("t.unseen")
        eventually(lambda: "tables drop t.unseen" in beta.log())
        stays(lambda: store.generations() == [1] and [each.channel for each in here.tables()] == ["t.after"], 2.0)
        publish(beta, "t.unseen")
        assert host_and_rows(alpha, "t.unseen") == ("beta", 3)


def test_a_table_that_somebody_is_changing_is_removed_when_that_is_done(hosts: Site) -> None:
    alpha, beta = hosts["alpha"], hosts["beta"]
    store = publish(beta, "t.busy")
    beta.kill()
    with on(alpha) as here:
        overwritten(here, "t.busy", dropped=True)
        with store.locked():
            beta.start()
            stays(lambda: store.generations() == [1] and here.tables() == [], 2.0)
        eventually(lambda: not store.generations())
        assert here.tables() == []


def test_what_another_site_has_seen_is_no_reason_to_remove_a_table(member: EtcdMember, tmp_path: Path) -> None:
    """A host that moves to another site takes its tables along."""
    with site(tmp_path / "first", member.url, "beta") as first:
        there = first["beta"]
        publish(there, "t.moved")
        there.kill()
        domain = there.environment["MESSAGEHUB_DOMAIN"]
        with site(tmp_path / "second", member.url, "alpha") as second:
            with on(second["alpha"]) as here:
                overwritten(here, "t.moved", dropped=True)
            second.add("beta", domain=domain)
            eventually(lambda: host_and_rows(second["alpha"], "t.moved") == ("beta", 3))


def test_a_table_is_kept_where_the_registry_was_restored_from_before_it(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        before = copied(member, hosts.name)
        store = publish(beta, "t.restored")
        for hub in (beta, alpha):
            hub.kill()
        restored(member, hosts.name, before)
        alpha.start()
        eventually(alpha.is_leader)
        beta.start()
        eventually(lambda: host_and_rows(alpha, "t.restored") == ("beta", 3))
        assert store.generations() == [1]


def test_what_a_leader_could_not_store_was_not_registered(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "beta", "alpha") as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        member.pause()
        try:
            store = publish(beta, "t.unstored")
            beta.kill()
        finally:
            member.go_on()
        eventually(alpha.is_leader)
        for number in range(20):
            assert alpha.ask({"type": "CHANNEL_CREATE", "channel": f"c{number}"})["type"] == "CHANNEL_CREATE_ACK"
        beta.start()
        eventually(lambda: host_and_rows(alpha, "t.unstored") == ("beta", 3))
        assert store.generations() == [1]


def test_a_table_that_is_dropped_where_it_is_leaves_nothing(hosts: Site) -> None:
    alpha, beta = hosts["alpha"], hosts["beta"]
    store = publish(beta, "t.dropped")
    publish(beta, "t.dropped")
    with process_on(beta) as there:
        there.do('hub.drop_table("t.dropped")')
    eventually(lambda: os.listdir(store.path) == ["commit.lock"])
    publish(beta, "t.dropped")
    assert host_and_rows(alpha, "t.dropped") == ("beta", 3)
    assert store.generations() == [3]
    stays(lambda: host_and_rows(alpha, "t.dropped") == ("beta", 3), min(DROP_SECONDS, PATIENCE_SECONDS) + 1.0)
