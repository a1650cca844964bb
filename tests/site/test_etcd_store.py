"""The store of a site in etcd, beyond the contract of all stores: who may write, how much, and what fails how."""

import ssl
import subprocess
import threading
import uuid
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagehub.errors import ConfigurationError, StoreError
from messagehub.store.commit import GroupCommit
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.batches import MOST_BYTES, MOST_OPERATIONS, batches
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import EtcdFull, EtcdRefused, EtcdUnavailable, NotLeader
from messagehub.store.etcd.following import HeadWatch
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.rows import Changes
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.registry import Registry
from tests.etcd_server import EtcdMember, enable_authentication, etcd, free, key_values, put, remove
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.ports import own_ports
from tests.site.stores import created, leading_store, write


def channel(name: str, **fields: Any) -> commands.CreateChannel:
    return commands.CreateChannel(channel=name, **fields)


def names(store: EtcdStore) -> set[str]:
    return {found.name for found in store.load().channels}


# -- who may write -----------------------------------------------------------------------------------------


def test_a_hub_that_does_not_lead_any_more_cannot_write(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    registry = Registry()
    with leading_store(member.url, tmp_path / "a.db", site) as deposed:
        write(deposed, registry, channel("first"))
        put_lease_out(member, site)
        with leading_store(member.url, tmp_path / "b.db", site) as other:
            saved = other.load()
            again = Registry()
            again.restore(saved.channels, revision=saved.revision, now=1.0)
            for attempt in range(2):
                with pytest.raises(NotLeader):
                    write(deposed, registry, channel(f"late{attempt}"))
                with pytest.raises(NotLeader):
                    deposed.probe()
            write(other, again, channel("second"))
            assert names(other) == {"first", "second"}
            assert other.load().revision == again.revision
    with leading_store(member.url, tmp_path / "c.db", site) as third:
        assert names(third) == {"first", "second"}


def put_lease_out(member: EtcdMember, site: str) -> None:
    """End the leader's lease as if it had run out."""
    leases = member.ask("/v3/lease/leases", {})["leases"]
    for lease in leases:
        keys = member.ask("/v3/lease/timetolive", {"ID": lease["ID"], "keys": True}).get("keys", [])
        if keys:
            member.ask("/v3/lease/revoke", {"ID": lease["ID"]})
    assert f"/messagehub/{site}/leader" not in key_values(member, f"/messagehub/{site}/")


def test_one_of_many_hubs_becomes_the_leader(member: EtcdMember) -> None:
    client = EtcdClient(EtcdAccess(endpoints=(member.url,)))
    site = uuid.uuid4().hex
    keys = [LeaderKey(client, site, ttl_seconds=60) for _ in range(8)]
    took: list[LeaderKey] = []
    threads = [threading.Thread(target=lambda key=key: key.take(b"") and took.append(key)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    (leader,) = took
    leader.renew()
    assert not any(key.take(b"") for key in keys if key is not leader)
    leader.give_up()
    with pytest.raises(NotLeader):
        leader.renew()
    following = next(key for key in keys if key is not leader)
    assert following.take(b"")
    for key in keys:
        key.give_up()
    client.close()


def test_a_change_whose_answer_was_lost_is_stored_once_or_not_at_all(tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    with etcd() as (member,), leading_store(member.url, tmp_path / "a.db", site, request_seconds=1.0) as store:
        registry = created(store, Registry(), "before")
        member.pause()
        with pytest.raises(EtcdUnavailable):
            write(store, registry, channel("unsure"))
        member.go_on()
        again = created(store, registry, "after", has_failed=True)
        saved = store.load()
        assert {found.name for found in saved.channels} - {"unsure"} == {"before", "after"}
        assert len({found.revision for found in saved.channels}) == len(saved.channels)
        assert saved.revision == again.revision


# -- how much at once --------------------------------------------------------------------------------------


def test_a_thousand_changes_take_several_transactions_in_order(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    with leading_store(member.url, tmp_path / "a.db", site) as store:
        before = int(member.ask("/v3/kv/range", {"key": "YQ=="})["header"]["revision"])
        registry = Registry()
        write(store, registry, *(channel(f"c{number}") for number in range(1000)))
        after = int(member.ask("/v3/kv/range", {"key": "YQ=="})["header"]["revision"])
        assert len(names(store)) == 1000
        assert 1000 / MOST_OPERATIONS <= after - before <= 2000 / MOST_OPERATIONS


def test_a_failure_midway_says_how_far_it_came(member: EtcdMember, tmp_path: Path) -> None:
    with leading_store(member.url, tmp_path / "a.db") as store:
        registry = Registry()
        too_large = {"text": Random(1).randbytes(1_700_000).hex()}
        commit = GroupCommit(Kept(store), written=0)
        try:
            given = [*(channel(f"c{n}") for n in range(300)), channel("large", metadata=too_large), channel("last")]
            commit.submit([event for each in given for event in registry.apply(each, now=1.0).events])
            assert commit.flush(registry.revision, timeout=30)
            assert commit.failure is not None
            assert "larger than it takes" in commit.failure.message
            assert store.load().revision == commit.written == len(names(store)) == 300
        finally:
            commit.close(timeout=30)


class Kept:
    """A store that whoever uses it does not close."""

    def __init__(self, store: EtcdStore) -> None:
        self.load, self.rows, self.write, self.probe = store.load, store.rows, store.write, store.probe
        self.trim, self.topic_reader, self.close = store.trim, store.topic_reader, lambda: None


def test_a_schema_as_large_as_a_request_is_stored(member: EtcdMember, tmp_path: Path) -> None:
    with leading_store(member.url, tmp_path / "a.db") as store:
        registry = Registry()
        write(
            store, registry, commands.RegisterSchema(subject="s", schema={"title": Random(1).randbytes(500_000).hex()})
        )
        (found,) = store.load().schemas
        assert found == registry.schemas.every()[0]


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ab/1", "ab/2", "c"]), st.sampled_from([1, 2, 200_000, None])),
        st.tuples(st.integers(0, 200).map(str), st.just(3)),
        st.tuples(st.sampled_from(["ab/", "d/"]), st.just(0)),
    ),
    max_size=400,
)
"""A key and the length of its value, None to remove it; or a prefix and 0, to remove all keys beneath it."""


@given(CHANGES)
def test_transactions_do_what_their_events_do_and_touch_no_key_twice(given_changes: list[Any]) -> None:
    rows = [
        Changes(n, [("c", None)], [name])
        if size == 0
        else Changes(n, [(name, None if size is None else bytes([n % 256]) * size)])
        for n, (name, size) in enumerate(given_changes, 1)
    ]
    expected: dict[str, bytes] = {}
    for row in rows:
        carry_out(expected, row.removed_beneath, dict(row.values))
    found: dict[str, bytes] = {}
    revision = 0
    for batch in batches(rows):
        assert len(batch.values) + len(batch.removed_beneath) <= MOST_OPERATIONS
        assert sum(len(value or b"") for value in batch.values.values()) <= MOST_BYTES
        assert not [k for k in batch.values for prefix in batch.removed_beneath if k.startswith(prefix)]
        assert batch.revision > revision
        revision = batch.revision
        carry_out(found, batch.removed_beneath, batch.values)
    assert found == expected


def carry_out(keys: dict[str, bytes], removed: Any, values: dict[str, bytes | None]) -> None:
    for prefix in removed:
        for name in [name for name in keys if name.startswith(prefix)]:
            del keys[name]
    for name, value in values.items():
        if value is None:
            keys.pop(name, None)
        else:
            keys[name] = value


# -- what fails how ----------------------------------------------------------------------------------------


def test_a_full_etcd_is_a_full_disk_until_it_has_room_again(tmp_path: Path) -> None:
    room = ("--quota-backend-bytes", str(1 << 20))
    with etcd(1, *room) as (member,), leading_store(member.url, tmp_path / "a.db") as store:
        registry = Registry()
        with pytest.raises(EtcdFull, match="NOSPACE"):
            fill(store, registry)
        with pytest.raises(EtcdFull):
            store.probe()
        # Reads go on. Whether the last change is there is etcd's to say: it may apply the one that it refuses.
        assert store.load().revision in (registry.revision - 1, registry.revision)
        free(member)
        eventually(probed, store)
        again = Registry()
        again.restore(store.load().channels, revision=registry.revision, now=1.0)
        write(store, again, channel("after"))
        assert "after" in names(store)


def fill(store: EtcdStore, registry: Registry) -> None:
    for number in range(1000):
        write(store, registry, channel("c", metadata={"n": number, "x": "y" * 50_000}))
        write(store, registry, commands.DestroyChannel(channel="c"))


def probed(store: EtcdStore) -> bool:
    try:
        store.probe()
    except StoreError:
        return False
    return True


def test_any_member_of_the_cluster_will_do(tmp_path: Path) -> None:
    with etcd(3) as members:
        dead = f"http://127.0.0.1:{own_ports(1)[0]}"
        urls = ",".join([dead, *(member.url for member in members)])
        with leading_store(urls, tmp_path / "a.db") as store:
            registry = Registry()
            for number, member in enumerate(members):
                registry = created(store, registry, f"with{number}")
                member.kill()
                registry = created(store, registry, f"without{number}")
                member.start()
                eventually(member.is_healthy)
            assert len(names(store)) == 6


def test_without_a_quorum_a_write_fails_in_time_and_works_again_afterwards(tmp_path: Path) -> None:
    with etcd(3) as members:
        urls = ",".join(member.url for member in members)
        with leading_store(urls, tmp_path / "a.db", request_seconds=1.0) as store:
            registry = created(store, Registry(), "before")
            for member in members[:2]:
                member.kill()
            with pytest.raises(EtcdUnavailable, match="quorum"):
                write(store, registry, channel("never"))
            for member in members[:2]:
                member.start()
            created(store, registry, "after", has_failed=True)
            assert names(store) - {"never"} == {"before", "after"}


def opened(url: str, tmp_path: Path, site: str = "s", **more: Any) -> EtcdStore:
    site_id, request_seconds = more.pop("site_id", ""), more.pop("request_seconds", PATIENCE_SECONDS)
    client = EtcdClient(EtcdAccess(endpoints=(url,), **more), request_seconds=request_seconds)
    try:
        leader = LeaderKey(client, site, ttl_seconds=60)
        local = SQLiteStore(tmp_path / f"{uuid.uuid4().hex}.db")
        try:
            return EtcdStore(client, site, leader, local, site_id=site_id)
        finally:
            local.close()
    finally:
        client.close()


def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{own_ports(1)[0]}"
    with pytest.raises(EtcdUnavailable, match=dead):
        opened(dead, tmp_path, request_seconds=1.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"endpoints": ()}, "no address"),
        ({"endpoints": ("etcd:2379",)}, "no address of etcd"),
        ({"endpoints": ("http://etcd",)}, "HOST:PORT"),
        ({"endpoints": ("http://u:p@etcd:2379",)}, "user or password"),
        ({"endpoints": ("http://a:1", "https://b:1")}, "all members"),
        ({"endpoints": ("http://a:1",), "user": "u"}, "only one"),
        ({"endpoints": ("http://a:1",), "ca": Path("ca.pem")}, "begin with http"),
        ({"endpoints": ("https://a:1",), "cert": Path("c.pem")}, "go together"),
        ({"endpoints": ("https://a:1",), "ca": Path("/nowhere/ca.pem")}, "/nowhere/ca.pem"),
    ],
)
def test_access_that_cannot_work_is_refused_before_anything_connects(fields: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        EtcdClient(EtcdAccess(**fields))


def test_data_of_others_is_refused_and_not_changed(member: EtcdMember, tmp_path: Path) -> None:
    heads = {
        b"not json": "is not a hub's",
        b'{"site_id":"1","program":"other"}': "another program",
        b'{"site_id":"1","format":99}': "newer",
        b'{"site_id":"1"}': "another one than this hub",
    }
    for head, said in heads.items():
        site = uuid.uuid4().hex
        put(member, f"/messagehub/{site}/head", head)
        with pytest.raises(StoreError, match=said):
            opened(member.url, tmp_path, site, site_id="2")
        assert key_values(member, f"/messagehub/{site}/") == {f"/messagehub/{site}/head": head}
    with pytest.raises(StoreError, match="there is no site"):
        opened(member.url, tmp_path, "never made", site_id="2")


def test_records_that_cannot_be_read_are_named(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    with leading_store(member.url, tmp_path / "a.db", site) as store:
        write(store, Registry(), channel("a"))
        put(member, f"/messagehub/{site}/producers/nowhere/p", b"{}")
        with pytest.raises(StoreError, match="damaged"):
            store.load()


def test_a_site_that_was_removed_or_replaced_is_noticed(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    with leading_store(member.url, tmp_path / "a.db", site) as store:
        write(store, Registry(), channel("a"))
        put(member, f"/messagehub/{site}/head", b'{"site_id":"another"}')
        with pytest.raises(StoreError, match="replaced"):
            store.load()
        with pytest.raises(StoreError):
            write(store, Registry(), channel("b"))
        remove(member, f"/messagehub/{site}/head")
        with pytest.raises(StoreError, match="removed"):
            store.load()
        assert not key_values(member, f"/messagehub/{site}/channels/b")


def test_a_site_has_an_id_of_its_own(member: EtcdMember, tmp_path: Path) -> None:
    site = uuid.uuid4().hex
    with leading_store(member.url, tmp_path / "a.db", site) as store:
        write(store, Registry(), channel("a"))
        made = store.site_id
    with leading_store(member.url, tmp_path / "b.db", site, site_id=made) as store:
        assert store.site_id == made
        assert (
            msgspec.json.decode(key_values(member, f"/messagehub/{site}/")[f"/messagehub/{site}/head"])["site_id"]
            == made
        )


def test_user_and_password_over_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    trust.check_hostname = False
    options = ("--cert-file", str(tmp_path / "cert.pem"), "--key-file", str(tmp_path / "key.pem"))
    password = tmp_path / "password"
    password.write_text("right\n")
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    secure = {"ca": tmp_path / "cert.pem"}
    user = {"user": "hub", "password_file": password}
    with etcd(1, *options, tls=trust) as (member,):
        with pytest.raises(EtcdRefused, match="asks for none"):
            opened(member.url, tmp_path, **secure, **user)
        token = enable_authentication(member, "hub", "right", "/messagehub/s/")
        with pytest.raises(EtcdRefused, match="none is given"):
            opened(member.url, tmp_path, **secure)
        with pytest.raises(EtcdRefused, match="refuses the user or the password"):
            opened(member.url, tmp_path, **secure, user="hub", password_file=wrong)
        with pytest.raises(EtcdRefused, match="grant-permission"):
            opened(member.url, tmp_path, "elsewhere", **secure, **user)
        with pytest.raises(EtcdUnavailable, match=r"(?i)certificate|handshake|tls|ssl"):
            opened(member.url, tmp_path, request_seconds=1.0, **user)
        with leading_store(member.url, tmp_path / "a.db", "s", **secure, **user) as store:
            registry = Registry()
            write(store, registry, channel("a"))
            member.ask("/v3/auth/user/changepw", {"name": "hub", "password": "right"}, token)  # ends its tokens
            write(store, registry, channel("b"))
            assert names(store) == {"a", "b"}
            heard: list[int] = []
            client = EtcdClient(EtcdAccess(endpoints=(member.url,), **secure, **user))
            watch = HeadWatch(client, "s", after=store.loaded_at)
            thread = threading.Thread(target=watch.run, args=[lambda head: heard.append(head.revision)])
            thread.start()
            write(store, registry, channel("c"))
            eventually(lambda: heard == [registry.revision])
            watch.stop()
            thread.join(30)
            assert not thread.is_alive()
            client.close()


def certificates(directory: Path) -> None:
    made = [
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")),
    ]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
