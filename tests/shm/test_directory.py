import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory import cleaning
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, EntryRegistration, ProducerEntry
from messagehub.shm.identity import ProcessIdentity, jvm_ancestor
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.rings.writer import RingWriter
from tests.shm.children import eventually, fork, kill, parked, wait


def entry(directory: Directory, producer_id: str, channel: str = "c", *blocks: str) -> ProducerEntry:
    return ProducerEntry(
        channel=channel,
        producer_id=producer_id,
        process=ProcessIdentity.current(),
        registered_at=time.time(),
        blocks=tuple(directory.relative(block) for block in blocks),
        schema_hash="abc",
        schema={"fields": ["x"]},
        details={"access": "shared"},
    )


def produce(directory: Directory, producer_id: str, *, exclusive: bool) -> tuple[EntryRegistration, RingWriter]:
    block = directory.exclusive_block("c") if exclusive else directory.shared_block("c", producer_id)
    with directory.locked("c") as channel:
        registration = channel.register(entry(directory, producer_id, "c", block))
        spec = RingSpec("c", producer_id, directory.readers_path(block, "c"), slot_bytes=40_000)
        return registration, open_writer(block, spec, codec_for(None))


def files(root: str) -> list[str]:
    return sorted(os.path.relpath(os.path.join(base, name), root) for base, _, names in os.walk(root) for name in names)


def test_an_entry_is_found_alive_with_everything_it_says(root: str) -> None:
    directory = Directory(root=root)
    made = entry(directory, "p1")
    with directory.locked("c") as channel, channel.register(made):
        (listed,) = directory.producers("c")
        assert listed.is_alive
        assert listed.entry == made
        assert directory.channels() == ["c"]
    assert not directory.producers("c")[0].is_alive


def test_unknown_channels_are_empty_and_leave_nothing(root: str) -> None:
    directory = Directory(root=root)
    assert directory.producers("c") == []
    assert directory.channels() == []
    assert os.listdir(root) == []


def test_domains_and_channels_have_names_of_their_own(root: str) -> None:
    default, other = Directory(root=root), Directory("lab", root=root)
    assert default.exclusive_block("a.b") == os.path.join(root, "pylabhub_a.b")
    assert other.exclusive_block("a.b") == os.path.join(root, "pylabhub_a.b@lab")
    assert default.channel_path("a.b") != other.channel_path("a.b")
    block = default.exclusive_block("a.b")
    assert default.readers_path(block, "a.b") == f"messagehub-{os.geteuid()}/default/channels/a.b/readers"
    assert default.readers_path(default.shared_block("a.b", "p"), "a.b") == "readers"


def test_a_producer_id_is_refused_while_it_lives_and_succeeded_when_it_died(root: str) -> None:
    directory = Directory(root=root)

    def register() -> EntryRegistration:
        with directory.locked("c") as channel:
            return channel.register(entry(directory, "p1"))

    pid = parked(register)
    with pytest.raises(errors.NameTaken, match=str(pid)):
        register()
    kill(pid)
    assert not directory.producers("c")[0].is_alive
    with register():
        (listed,) = directory.producers("c")
        assert listed.is_alive
        assert listed.entry.process.pid == os.getpid()


def test_a_killed_owner_of_the_channel_lock_gives_it_up_and_a_live_one_is_waited_for(root: str) -> None:
    directory = Directory(root=root)
    pid = parked(lambda: (held := directory.locked("c"), held.__enter__()))
    with pytest.raises(errors.Busy), directory.locked("c", 0.02):
        pass
    kill(pid)
    with directory.locked("c", 0.02):
        pass


def test_damaged_entries_are_shown_and_hide_nobody(root: str) -> None:
    directory = Directory(root=root)
    with directory.locked("c") as channel, channel.register(entry(directory, "good")):
        for name, content in (
            ("empty", b""),
            ("text", b"not json"),
            ("list", b"[]"),
            ("half", entry(directory, "half").to_json()[:100]),
            (
                "escape",
                changed(entry(directory, "x"), blocks=["../x"]),
            ),
            ("endless", changed(entry(directory, "x"), process={"pid": float("inf"), "start_time": 1})),
            ("late", changed(entry(directory, "x"), registered_at=10**400)),
        ):
            channel.register(entry(directory, name)).close()
            with open(os.path.join(channel.path, f"{name}.json"), "wb") as file:
                file.write(content)
        listed = {found.producer_id: found for found in directory.producers("c")}
        assert listed["good"].entry is not None
        assert all(listed[name].flaw for name in ("empty", "text", "list", "half", "escape", "endless", "late"))


def changed(made: ProducerEntry, **fields: Any) -> bytes:
    return json.dumps({**json.loads(made.to_json()), **fields}).encode()


def test_a_dead_ring_is_cleaned_after_its_linger_time_and_nothing_is_left(root: str) -> None:
    directory = Directory(root=root)
    for exclusive in (True, False):
        pid = parked(lambda exclusive=exclusive: produce(directory, "p1", exclusive=exclusive))
        assert clean(directory, now=1000.0, linger_seconds=0).blocks == []
        kill(pid)
        assert clean(directory, now=1000.0, linger_seconds=30).blocks == []
        assert clean(directory, now=1029.0, linger_seconds=30).blocks == []
        report = clean(directory, now=1030.0, linger_seconds=30)
        assert report.producers == ["p1"]
        assert len(report.blocks) == 1
        assert files(root) == []


def test_a_producer_that_came_back_starts_its_linger_time_anew(root: str) -> None:
    directory = Directory(root=root)
    kill(parked(lambda: produce(directory, "p1", exclusive=True)))
    clean(directory, now=1000.0)
    kill(parked(lambda: produce(directory, "p1", exclusive=True)))
    assert clean(directory, now=1031.0).producers == []
    assert clean(directory, now=1062.0).producers == ["p1"]


def test_a_ring_is_kept_while_a_reader_is_attached_or_holds_a_view(root: str) -> None:
    directory = Directory(root=root)
    pid = parked(lambda: (made := produce(directory, "p1", exclusive=True), made[1].write(b"x" * 40_000)))
    reader = open_reader(directory.exclusive_block("c"), start="oldest")
    kill(pid)
    assert clean(directory, now=1000.0, linger_seconds=0).blocks == []
    view = reader.read(0)
    reader.close()
    assert clean(directory, now=1001.0, linger_seconds=0).blocks == []
    del view, reader
    assert len(clean(directory, now=1002.0, linger_seconds=0).blocks) == 1


def test_cleaning_a_dead_entry_leaves_the_ring_to_the_writer_that_took_it_over(root: str) -> None:
    directory = Directory(root=root)
    kill(parked(lambda: (made := produce(directory, "old", exclusive=True), made[1].write(b"1"))))
    registration, made = produce(directory, "new", exclusive=True)
    with registration, made:
        assert made.epoch == 2
        report = clean(directory, now=1000.0, linger_seconds=0)
        assert (report.producers, report.blocks) == (["old"], [])
        made.write(b"2")
        with open_reader(directory.exclusive_block("c"), start="oldest") as reader:
            assert bytes(reader.read(0).value) == b"1"
    assert len(clean(directory, now=1001.0, linger_seconds=0).blocks) == 1


def test_two_cleaners_racing_remove_everything_once(root: str) -> None:
    directory = Directory(root=root)

    def clean_all() -> None:
        clean(directory, now=1000.0, linger_seconds=0, lock_seconds=5)

    for _ in range(5):
        for name in ("a", "b", "c"):
            kill(parked(lambda name=name: produce(directory, name, exclusive=False)))
        children = [fork(clean_all) for _ in range(4)]
        assert [wait(pid) for pid in children] == [0] * 4
        assert files(root) == []


def test_a_cleaner_never_makes_a_dead_producer_look_alive(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that comes back asks who lives, and was refused because of a cleaner that was just there."""
    directory = Directory(root=root)
    kill(parked(lambda: produce(directory, "p1", exclusive=True)))
    seen = []

    def look_meanwhile(path: str, now: float) -> float:
        seen.append([listed.is_alive for listed in Directory(root=root).producers("c")])
        return now

    # private: nothing public is called while a cleaner looks at an entry
    monkeypatch.setattr(cleaning, "_dead_since", look_meanwhile)
    clean(directory, now=1000.0, linger_seconds=30)
    assert seen == [[False]]


def test_a_cleaner_passes_over_a_busy_channel(root: str) -> None:
    directory = Directory(root=root)
    with directory.locked("c"):
        assert clean(directory, now=1.0, lock_seconds=0.01).busy == ["c"]


def test_cleaning_never_touches_what_an_entry_merely_claims(root: str) -> None:
    """A symlink at the claimed name, and a block that another live writer owns."""
    directory = Directory(root=root)
    target = os.path.join(root, "precious")
    with open(target, "wb") as file:
        file.write(b"data")
    os.symlink(target, directory.exclusive_block("c"))
    with directory.locked("c") as channel:
        channel.register(entry(directory, "liar", "c", directory.exclusive_block("c"))).close()
    clean(directory, now=1.0, linger_seconds=0)
    assert os.path.exists(target)
    assert os.path.islink(directory.exclusive_block("c"))


def test_identity_tells_a_process_from_a_later_one_with_its_pid() -> None:
    me = ProcessIdentity.current()
    assert me.is_alive() is True
    assert replace_identity(me, start_time=me.start_time - 1).is_alive() is False
    assert replace_identity(me, boot_id="other").is_alive() is False
    assert replace_identity(me, host="elsewhere").is_alive() is None
    pid = fork(lambda: None)
    them = ProcessIdentity.of(pid)
    wait(pid)
    assert them is None or them.is_alive() is False
    assert ProcessIdentity.from_json(json.loads(json.dumps(me.to_json()))) == me


def replace_identity(identity: ProcessIdentity, **changes: object) -> ProcessIdentity:
    return identity._replace(**changes)


def test_a_zombie_is_dead() -> None:
    pid = fork(lambda: None)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ProcessIdentity.of(pid) is None
    wait(pid)


def test_the_nearest_jvm_ancestor_is_found_by_its_program(root: str) -> None:
    assert jvm_ancestor() is None
    java = shutil.copy("/bin/sleep", os.path.join(root, "java"))
    with subprocess.Popen([java, "30"]) as process:
        eventually(lambda: os.readlink(f"/proc/{process.pid}/exe") == java)
        found = jvm_ancestor(process.pid)
        assert found is not None
        assert found.pid == process.pid
        process.kill()


def test_entry_round_trip_refuses_unknown_fields(root: str) -> None:
    made = entry(Directory(root=root), "p")
    content = made.to_json()
    assert ProducerEntry.from_json(content, "x") == made
    assert replace(made, producer_id="q") != made
    with pytest.raises(errors.EntryDamaged):
        ProducerEntry.from_json(content[:-1] + b', "extra": 1}', "x")


ELSEWHERE = '{"keeper": {"pid": 1, "start_time": 1, "boot_id": "b", "host": "elsewhere"}, "begun_at": %s}'


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 60_000,
        b'{"keeper": {"pid": Infinity, "start_time": 1, "boot_id": "b", "host": "h"}, "begun_at": 1}',
        (ELSEWHERE % '"now"').encode(),
        (ELSEWHERE % ("9" * 400)).encode(),
        (ELSEWHERE % ("9" * 5000)).encode(),
        (ELSEWHERE % ("1" + " " * 70_000)).encode(),
    ],
    ids=range(10),
)
def test_damage_in_one_channel_is_reported_and_the_others_are_cleaned(root: str, content: bytes) -> None:
    directory = Directory(root=root)
    kill(parked(lambda: produce(directory, "p", exclusive=True)))
    tables = directory.tables_path("a-damaged")
    directory.make_channel("a-damaged")
    os.mkdir(tables)
    with open(os.path.join(tables, "x.txn"), "wb") as file:
        file.write(content)
    with open(os.path.join(directory.path, "stray file"), "wb") as file:
        file.write(b"")
    report = clean(directory, now=1.0, linger_seconds=0)
    assert report.producers == ["p"]
    assert "x.txn" in report.flaws[0]
    assert directory.channels() == ["a-damaged"]


def test_what_readers_of_layout_2_left_is_removed_with_its_channel(root: str) -> None:
    directory = Directory(root=root)
    with directory.locked("c"):
        pass
    left = os.path.join(directory.channel_path("c"), "lanes", "0" * 32)
    os.makedirs(left, mode=0o700)
    for name in ("index", "a.lane", "a.bell", "writer.bell"):
        with open(os.path.join(left, name), "wb"):
            pass
    assert clean(directory, now=time.time() + 1000, linger_seconds=0).channels == ["c"]
    assert not os.path.exists(directory.channel_path("c"))


def test_a_ring_of_layout_2_is_told_to_readers_and_replaced_by_its_next_producer(root: str) -> None:
    directory = Directory(root=root)
    registration, made = produce(directory, "p1", exclusive=True)
    made.write(b"x")
    made.close()
    path = directory.exclusive_block("c")
    with open(path, "r+b") as block:
        block.seek(16)
        block.write((2).to_bytes(4, "little"))
    with pytest.raises(errors.OtherLayout, match=r"layout 2.*layout 3.*the producer runs an older version"):
        open_reader(path)
    registration.close()
    registration, made = produce(directory, "p1", exclusive=True)
    made.write(b"y")
    with open_reader(path, start="oldest") as reader:
        assert reader.read(0).value == b"y"
    made.close()
    registration.close()


def test_an_exclusive_ring_that_no_entry_names_is_cleaned_once_nobody_reads_it(root: str) -> None:
    directory = Directory(root=root)
    registration, writer = produce(directory, "p", exclusive=True)
    path = directory.exclusive_block("c")
    writer.write(b"x")
    reader = open_reader(path)
    writer.close()
    registration.close()
    for suffix in (".json", ".lock"):
        os.unlink(os.path.join(directory.channel_path("c"), f"p{suffix}"))
    clean(directory, now=0.0, linger_seconds=0)
    assert os.path.exists(path)
    reader.close()
    assert clean(directory, now=1.0, linger_seconds=0).blocks == [path]
    clean(directory, now=100.0, linger_seconds=0)
    assert [os.path.basename(name) for name in files(root)] == ["ended-rings"]
