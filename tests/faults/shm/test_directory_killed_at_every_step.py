"""Exhaustive: producers, cleaners and members of groups die after each change of a file."""

import os
import time
from itertools import count

from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import WhenFull
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import Item
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.rings.writer import RingWriter
from tests.faults.shm.suicide import Fuse, count_system_calls, died_after
from tests.shm.children import kill, parked
from tests.shm.rings import checked, payload, writer


def produce(directory: Directory, producer_id: str) -> tuple[object, RingWriter]:
    block = directory.exclusive_block("c")
    with directory.locked("c") as channel:
        registration = channel.register(
            ProducerEntry("c", producer_id, ProcessIdentity.current(), time.time(), (directory.relative(block),))
        )
        made = open_writer(
            block, RingSpec("c", producer_id, directory.readers_path(block, "c"), slot_bytes=512), codec_for(None)
        )
    made.write(payload(made.head + 1))
    return registration, made


def files(root: str) -> list[str]:
    return [os.path.join(base, name) for base, _, names in os.walk(root) for name in names]


def assert_all_gone(directory: Directory) -> None:
    clean(directory, now=1e9, linger_seconds=0)
    assert {os.path.basename(name) for name in files(directory.root)} <= {"channel.lock", "ended-rings"}


def test_a_producer_that_dies_anywhere_in_its_registration_leaves_nothing_uncleanable(root: str) -> None:
    directory = Directory(root=root)
    for length in count(1):

        def body(fuse: Fuse) -> None:
            count_system_calls(fuse)
            registration, made = produce(directory, "p")
            reader = open_reader(directory.exclusive_block("c"), start="oldest")
            assert checked(reader.read(1)) == 1
            del registration, made

        died = died_after(body, length)
        for listed in directory.producers("c"):
            assert not listed.is_alive
        assert_all_gone(directory)
        if not died:
            return


def test_a_producer_registers_over_whatever_a_dead_one_left(root: str) -> None:
    directory = Directory(root=root)
    for length in count(1):

        def body(fuse: Fuse) -> None:
            count_system_calls(fuse)
            produce(directory, "p")

        died = died_after(body, length)
        registration, made = produce(directory, "p")
        with open_reader(directory.exclusive_block("c"), start="oldest") as reader:
            while (found := reader.read(0)) is not None:
                assert isinstance(found, Item)
                last = checked(found)
            assert last == made.head
        made.close()
        registration.close()  # type: ignore[attr-defined]
        assert_all_gone(directory)
        if not died:
            return


def test_a_cleaner_that_dies_anywhere_leaves_the_rest_to_the_next(root: str) -> None:
    directory = Directory(root=root)

    def dead_reader_too() -> object:
        return produce(directory, "p"), open_reader(directory.exclusive_block("c"), start="oldest")

    for length in count(1):
        kill(parked(dead_reader_too))

        def body(fuse: Fuse) -> None:
            count_system_calls(fuse)
            clean(directory, now=1e9, linger_seconds=0)

        died = died_after(body, length)
        assert_all_gone(directory)
        if not died:
            return


def test_a_member_that_dies_anywhere_in_a_new_assignment_loses_nothing(root: str) -> None:
    """Every death leaves the group's old or new cursor in force: the writer overwrites nothing unread."""
    path = os.path.join(root, "ring")
    with writer(root, slot_count=8, when_full=WhenFull.BLOCK) as made:
        epoch = 1
        open_reader(path, start="oldest", group="g", assignment=MemberShare(epoch, 0, 1)).close()
        unread = 1
        for length in count(1):
            for _ in range(3):
                made.write(payload(made.head + 1), timeout_seconds=5)
            epoch += 1

            def body(fuse: Fuse, epoch: int = epoch) -> None:
                count_system_calls(fuse)
                open_reader(path, group="g", assignment=MemberShare(epoch, 1, 2)).read(0)

            died = died_after(body, length)
            epoch += 1
            with open_reader(path, group="g", assignment=MemberShare(epoch, 0, 1)) as alone:
                while isinstance(found := alone.read(0), Item):
                    assert checked(found) == unread
                    alone.acknowledge(unread)
                    unread += 1
                assert found is None
            assert unread == made.head + 1
            if not died:
                return
