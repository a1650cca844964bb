"""The directory of a group: made and used by its members, checked on every opening, and never a way out of it."""

import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.channel_directory.entries import newest_table
from messagehub.shm.channel_directory.ownership import group_of, parent_of
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import HEADER_BYTES, Header
from messagehub.shm.mapped_file import open_lock, open_trusted, remove_file, write_file
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.tables.tables import TableStore
from tests.shm.children import die_with_parent, fork, kill, parked, wait
from tests.shm.rings import checked, payload

GROUP, OTHER_GROUP = 4242, 4243
ALICE, MALLORY, OUTSIDER = 54321, 54322, 54323
TABLE = pa.table({"n": [1, 2, 3]})
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def place(root: str) -> str:
    """Where everybody may make files, as in /dev/shm."""
    os.chmod(root, 0o1777)
    return root


def become(uid: int, *groups: int) -> None:
    ProcessIdentity.current()  # loads what the user may not read: our Python
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.umask(0o077)
    die_with_parent()  # the kernel forgets that with the user


def as_user(uid: int, work: Callable[[], object], *groups: int) -> None:
    def run() -> None:
        become(uid, *groups)
        work()

    assert wait(fork(run)) == 0


def produce(root: str, channel: str = "c") -> tuple[Any, Any]:
    directory = Directory(root=root, gid=GROUP)
    block = directory.exclusive_block(channel)
    with directory.locked(channel) as locked:
        entry = ProducerEntry(channel, "p", ProcessIdentity.current(), 1.0, (directory.relative(block),))
        held = locked.register(entry)
        made = open_writer(block, RingSpec(channel, "p", directory.readers_path(block, channel)), codec_for(None))
    made.write(payload(1))
    return held, made


def alive_as(uid: int, root: str) -> int:
    def run() -> object:
        become(uid, GROUP)
        return produce(root)

    return parked(run)


def left_by(uid: int, root: str) -> Directory:
    """A channel whose producer was killed."""
    kill(alive_as(uid, root))
    return Directory(root=root, gid=GROUP)


def cleaned(root: str) -> tuple[int, int, list[str]]:
    done = clean(Directory(root=root, gid=GROUP), now=time.time() + 100, linger_seconds=0)
    return len(done.producers), len(done.blocks), done.flaws


def everything(path: str) -> list[str]:
    return [os.path.join(here, name) for here, below, files in os.walk(path) for name in (*below, *files)]


def test_what_members_make_is_the_groups_whatever_their_umask(place: str) -> None:
    pid = alive_as(ALICE, place)

    def read() -> None:
        directory = Directory(root=place, gid=GROUP)
        with open_reader(directory.exclusive_block("c"), start="oldest") as reader:
            assert checked(reader.read(0)) == 1
            for path in everything(place):
                found = os.lstat(path)
                wanted = 0o2770 if stat.S_ISDIR(found.st_mode) else 0o660
                assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, wanted), path
            assert {os.lstat(path).st_uid for path in everything(place)} == {ALICE, MALLORY}

    as_user(MALLORY, read, GROUP)
    kill(pid)


def test_who_is_not_in_the_group_is_told_so_and_makes_nothing(place: str) -> None:
    def knock() -> None:
        with pytest.raises(errors.NotInGroup, match=f"group {GROUP}"):
            Directory(root=place, gid=GROUP)
        with pytest.raises(PermissionError):
            os.listdir(os.path.join(place, f"messagehub@{GROUP}"))
        with pytest.raises(errors.PermissionRefused):
            open_reader(os.path.join(place, f"messagehub@{GROUP}", "default", "channels", "c", "_exclusive.ring"))

    pid = alive_as(ALICE, place)
    before = sorted(everything(place))
    as_user(OUTSIDER, knock, OTHER_GROUP)
    assert sorted(everything(place)) == before
    kill(pid)


def test_a_place_that_an_outsider_made_first_is_refused(place: str) -> None:
    top = os.path.join(place, f"messagehub@{GROUP}")

    def squat() -> None:
        os.mkdir(top)
        os.chmod(top, 0o2777)

    as_user(OUTSIDER, squat)

    def work() -> None:
        with pytest.raises(errors.SharingRefused, match="belongs to group"):
            produce(place)

    as_user(ALICE, work, GROUP)
    assert os.listdir(top) == []


@pytest.mark.parametrize("name", ["_exclusive.ring", "p.json", "p.lock", "channel.lock", "readers", "."])
def test_what_is_looser_than_the_group_is_refused(place: str, name: str) -> None:
    pid = alive_as(ALICE, place)
    directory = Directory(root=place, gid=GROUP)
    path = os.path.normpath(os.path.join(directory.channel_path("c"), name))
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o004)

    def use() -> None:
        with directory.locked("c"):
            directory.producers("c")
        with open_reader(directory.exclusive_block("c")):
            pytest.fail("it must be refused")

    def try_it() -> None:
        with pytest.raises(errors.SharingRefused, match="open to others"):
            use()

    as_user(MALLORY, try_it, GROUP)
    os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~0o007)
    os.chown(path, -1, OTHER_GROUP)

    def try_again() -> None:
        with pytest.raises(errors.SharingRefused, match=f"belongs to group {OTHER_GROUP}"):
            use()

    as_user(MALLORY, try_again, GROUP, OTHER_GROUP)
    kill(pid)


def test_another_member_cleans_after_a_killed_producer_and_may_succeed_it(place: str) -> None:
    directory = left_by(ALICE, place)

    def succeed() -> None:
        _, made = produce(place)
        assert (made.head, made.epoch) == (2, 2)

    as_user(MALLORY, succeed, GROUP)

    def tidy() -> None:
        assert cleaned(place) == (1, 1, [])

    as_user(MALLORY, tidy, GROUP)
    assert directory.producers("c") == []
    assert directory.channels() == []


def test_a_cleaner_leaves_a_living_producer_of_another_member_alone(place: str) -> None:
    pid = alive_as(ALICE, place)

    def tidy() -> None:
        assert cleaned(place) == (0, 0, [])

    as_user(MALLORY, tidy, GROUP)
    os.kill(pid, signal.SIGSTOP)
    as_user(MALLORY, tidy, GROUP)
    kill(pid)
    as_user(MALLORY, lambda: cleaned(place), GROUP)
    assert Directory(root=place, gid=GROUP).producers("c") == []


# -- a member who attacks; the victim is root, who may write everywhere ------------------------------------------


@pytest.fixture
def precious(place: str) -> str:
    """Root's own files, with the names that cleaners remove and the group that they trust."""
    path = os.path.join(place, "precious")
    os.mkdir(path)
    for name in ("p.json", "p.lock", "p.dead", "_exclusive.ring", "index", "x.reader", "x.new"):
        write_file(os.path.join(path, name), b"1.0")
        os.chown(os.path.join(path, name), -1, GROUP)
        os.chmod(os.path.join(path, name), 0o660)
    os.chown(path, -1, GROUP)
    os.chmod(path, 0o2770)
    return path


def test_a_link_in_the_place_of_a_block_is_not_followed(place: str, precious: str) -> None:
    directory = left_by(ALICE, place)
    block = directory.exclusive_block("c")

    def plant() -> None:
        os.unlink(block)
        os.symlink(os.path.join(precious, "_exclusive.ring"), block)

    as_user(MALLORY, plant, GROUP)
    before = sorted(everything(precious))
    with pytest.raises(errors.SymlinkRefused):
        open_reader(block)
    with pytest.raises(errors.SymlinkRefused):
        produce(place)
    cleaned(place)
    assert sorted(everything(precious)) == before


@pytest.mark.parametrize("level", ["channels", "channels/c", "channels/c/readers", "channels/c/tables"])
def test_a_link_in_the_place_of_a_directory_leads_no_cleaner_out(place: str, precious: str, level: str) -> None:
    directory = left_by(ALICE, place)
    path = os.path.join(os.path.dirname(directory.path), level)

    def plant() -> None:
        if os.path.exists(path):
            os.rename(path, f"{path}-away")
        os.symlink(precious, path)

    as_user(MALLORY, plant, GROUP)
    before = {name: os.stat(name).st_mtime_ns for name in (precious, *everything(precious))}
    cleaned(place)
    with pytest.raises(errors.DataBlockError):
        TableStore(os.path.join(path, "c", "tables") if level == "channels" else path).sweep(now=time.time())
    if level != "channels/c/tables":
        with pytest.raises(errors.SymlinkRefused):
            produce(place)
    assert {name: os.stat(name).st_mtime_ns for name in (precious, *everything(precious))} == before


def test_a_directory_that_is_swapped_while_it_is_used_is_the_one_that_was_checked(place: str, precious: str) -> None:
    directory = left_by(ALICE, place)
    path = directory.channel_path("c")

    def swap() -> None:
        os.rename(path, f"{path}-away")
        os.symlink(precious, path)

    with parent_of(os.path.join(path, "p.json")) as (parent, name):
        as_user(MALLORY, swap, GROUP)
        os.unlink(name, dir_fd=parent)
    assert not os.path.exists(f"{path}-away/p.json")
    assert os.path.exists(f"{precious}/p.json")
    for refused in (
        lambda: remove_file(f"{path}/p.lock"),
        lambda: open_trusted(f"{path}/p.lock", os.O_RDONLY),
        lambda: open_lock(f"{path}/new.lock"),
        lambda: write_file(f"{path}/new", b""),
    ):
        with pytest.raises(errors.SymlinkRefused):
            refused()
    assert len(os.listdir(precious)) == 7


def test_an_entry_that_names_what_is_not_its_channels_removes_nothing(place: str, precious: str) -> None:
    """Root's private ring is dead and could be removed by root: but not because a member's entry says so."""
    private = Directory(root=place)
    private.make_channel("mine")
    ring = private.exclusive_block("mine")
    open_writer(ring, RingSpec("mine", "p", private.readers_path(ring, "mine")), codec_for(None)).close()
    directory = left_by(ALICE, place)
    other = produce(place, "other")
    named = (directory.relative(ring), "precious/_exclusive.ring", directory.relative(other[1].path))
    other[1].close()

    def plant() -> None:
        with directory.locked("evil") as locked:
            locked.register(ProducerEntry("evil", "p", ProcessIdentity.current(), 1.0, named))

    as_user(MALLORY, plant, GROUP)
    shutil.rmtree(directory.channel_path("c"))
    assert cleaned(place) == (1, 0, [])  # of the other channel a producer lives, which has no ring any more
    assert all(os.path.exists(os.path.join(place, name)) for name in named)
    other[0].close()


def test_a_header_that_puts_its_reader_files_elsewhere_removes_nothing(place: str) -> None:
    directory = left_by(ALICE, place)
    block = directory.exclusive_block("c")
    victim = os.path.join(directory.make_channel("victim"), "precious")

    def plant() -> None:
        with open(block, "r+b") as file:
            data = bytearray(file.read())
            header = Header.unpack(data, block, len(data))
            schema = bytes(data[HEADER_BYTES : HEADER_BYTES + header.geometry.schema_bytes])
            file.seek(0)
            file.write(replace(header, readers_path="tables/keep").pack(schema))
        os.makedirs(os.path.join(os.path.dirname(block), "tables", "keep"))

    write_file(victim, b"1")
    as_user(MALLORY, plant, GROUP)
    keep = os.path.join(os.path.dirname(block), "tables", "keep")
    os.chmod(os.path.dirname(keep), 0o2770)
    os.chmod(keep, 0o2770)
    write_file(os.path.join(keep, "part"), b"1")
    with pytest.raises(errors.HeaderInconsistent, match="reader files"):
        open_reader(block)
    cleaned(place)
    assert os.path.exists(os.path.join(keep, "part"))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b"{}",
        b"[]",
        b"null",
        b'{"process": {"pid": 1, "start_time": 1, "boot_id": "", "host": ""}, "blocks": 5}',
        b'{"channel": 1, "producer_id": "p", "process": {"pid": 1, "start_time": 1, "boot_id": "", "host": ""},'
        b' "registered_at": 1, "blocks": []}',
        b'{"channel": "c", "producer_id": "p", "process": {"pid": 1, "start_time": 1, "boot_id": "", "host": ""},'
        b' "registered_at": "x", "blocks": []}',
        b'{"channel": "c", "producer_id": "p", "process": {"pid": 1, "start_time": 1, "boot_id": "", "host": ""},'
        b' "registered_at": 1, "blocks": [], "details": []}',
    ],
)
def test_an_entry_of_nonsense_is_a_flaw_and_nothing_worse(place: str, content: bytes) -> None:
    directory = Directory(root=place, gid=GROUP)
    path = directory.make_channel("c")
    write_file(os.path.join(path, "p.json"), content)
    write_file(os.path.join(path, "p.lock"), b"")
    (listed,) = directory.producers("c")
    assert listed.entry is None
    assert listed.flaw


def test_a_file_too_large_to_be_an_entry_is_not_read(place: str) -> None:
    directory = Directory(root=place, gid=GROUP)
    path = os.path.join(directory.make_channel("c"), "p.json")
    write_file(path, b"{}")
    os.truncate(path, 1 << 40)
    write_file(path.replace("json", "lock"), b"")
    (listed,) = directory.producers("c")
    assert listed.entry is None
    assert f"{1 << 40} bytes" in str(listed.flaw)


def test_only_the_place_of_a_group_is_a_groups() -> None:
    assert group_of("/dev/shm/messagehub@7/default/channels/c/x.ring") == 7
    assert group_of("/dev/shm/messagehub@7") == 7
    for path in ("/dev/shm/messagehub-7/default", "/dev/shm/messagehub@/x", "/dev/shm/messagehub@7x/y", "/dev/shm/x"):
        assert group_of(path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": "1"},
        {"generation": 10**30},
        {"committed_at": "now"},
        {"parts": [{"name": "x", "rows": "many", "size_bytes": 1}]},
        {"parts": [{"name": "../x", "rows": 1, "size_bytes": 1}]},
        {"parts": [{"name": "x", "rows": 10**30, "size_bytes": 1}]},
        {"details": [1]},
        {"details": {"schema_version": "x" * 5000}},
        {"retention": {"generations": "all"}},
    ],
    ids=str,
)
def test_a_manifest_of_nonsense_is_refused_as_damaged(place: str, changes: dict[str, Any]) -> None:
    directory = Directory(root=place, gid=GROUP)
    directory.make_channel("c")
    store = TableStore(directory.tables_path("c"))
    store.publish(TABLE.to_reader(), TABLE.schema, now=1.0)
    path = os.path.join(store.path, "g000000000001.json")
    with open(path, "rb") as file:
        written = json.load(file)
    remove_file(path)
    write_file(path, json.dumps(written | changes).encode())
    with pytest.raises(errors.EntryDamaged):
        store.open()
    assert newest_table(directory, "c") is None
    assert len(cleaned(place)[2]) == 1
