import gc
import os
import signal
import threading

import pytest

from messagehub.shm import errors
from messagehub.shm.locks import (
    OWNER,
    Descriptor,
    exclusive,
    exclusively_locked,
    is_locked,
    lock_within,
    shared,
    try_lock,
)
from messagehub.shm.rings.ring import describe, open_reader
from tests.shm.children import fork, kill, parked, wait
from tests.shm.rings import checked, number_of, payload, writer

LOCK = exclusive(OWNER)


def opened(root: str) -> Descriptor:
    return Descriptor.open(os.path.join(root, "file"), os.O_RDWR | os.O_CREAT)


def test_a_probe_sees_the_lock_without_taking_it(root: str) -> None:
    owner, other = opened(root), opened(root)
    assert not is_locked(other.fd, LOCK)
    assert try_lock(owner.fd, LOCK)
    assert is_locked(other.fd, LOCK)
    assert not try_lock(other.fd, LOCK)
    owner.close()
    assert not is_locked(other.fd, LOCK)


def test_a_lock_ends_with_its_killed_owner_but_not_while_it_is_stopped(root: str) -> None:
    probe = opened(root)

    def own() -> Descriptor:
        mine = opened(root)
        assert try_lock(mine.fd, LOCK)
        return mine

    pid = parked(own)
    os.kill(pid, signal.SIGSTOP)
    assert is_locked(probe.fd, LOCK)
    kill(pid)
    assert not is_locked(probe.fd, LOCK)


def test_a_forked_child_neither_frees_nor_keeps_the_locks_of_its_parent(root: str) -> None:
    owner, probe = opened(root), opened(root)
    assert try_lock(owner.fd, LOCK)

    def child() -> None:
        assert owner.fd == -1
        owner.close()

    assert wait(fork(child)) == 0
    assert is_locked(probe.fd, LOCK)
    pid = parked(lambda: None)
    owner.close()
    assert not is_locked(probe.fd, LOCK), "the child kept the lock of its parent alive"
    kill(pid)


def test_waiting_for_a_lock_ends_at_its_timeout(root: str) -> None:
    owner, other = opened(root), opened(root)
    assert try_lock(owner.fd, LOCK)
    with pytest.raises(errors.Busy):
        lock_within(other, LOCK, "file", 0.01)
    owner.close()
    lock_within(other, LOCK, "file", 0.01)


def test_views_dropped_in_many_threads_and_by_the_collector_leave_no_pin(root: str) -> None:
    with writer(root, slot_count=8) as made, open_reader(made.path, start="oldest", copy="never") as reader:
        made.write(payload(1))

        def churn() -> None:
            for _ in range(300):
                cycle: list[object] = [reader.latest(), reader.latest()]
                cycle.append(cycle)  # only the garbage collector can drop these

        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        gc.collect()
        assert describe(made.path)[1]["held"] == 0


def test_a_child_that_drops_inherited_views_changes_nothing_for_its_parent(root: str) -> None:
    with writer(root, slot_count=2) as made:
        made.write(payload(1))
        with open_reader(os.path.join(root, "ring"), start="oldest") as reader:
            item = reader.read(0)
            views = [item.value, item.value]
            del item

            def child() -> None:
                views.clear()
                gc.collect()
                with pytest.raises(errors.HandleClosed):
                    reader.read(0)
                with pytest.raises(errors.HandleClosed):
                    made.write(b"from the child")
                reader.close()
                made.close()

            assert wait(fork(child)) == 0
            for number in range(2, 30):
                made.write(payload(number))
            assert number_of(views[0]) == 1
            assert reader.is_writer_alive()
            views.clear()
            assert reader.latest().sequence == 29


def test_a_forked_child_does_not_keep_its_dead_parents_ring(root: str) -> None:
    """The parent writes and pins, forks a child that lives on, and is killed: its locks must be gone."""
    read_end, write_end = os.pipe()

    def parent() -> object:
        made = writer(root)
        made.write(payload(1))
        reader = open_reader(os.path.join(root, "ring"), start="oldest")
        kept = reader.read(0).value
        child = parked(lambda: None)
        os.write(write_end, str(child).encode())
        return made, reader, kept

    pid = parked(parent)
    child = int(os.read(read_end, 32))
    os.close(read_end)
    os.close(write_end)
    try:
        kill(pid)
        with writer(root, slot_count=4) as made:
            assert made.epoch == 2
            with open_reader(os.path.join(root, "ring"), start="oldest") as reader:
                assert checked(reader.read(0)) == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_exclusive_locks_are_listed_byte_by_byte(root: str) -> None:
    owner, other = opened(root), opened(root)
    for byte in (3, 4, 9):
        assert try_lock(owner.fd, exclusive(byte))
    assert try_lock(other.fd, shared(6))
    assert exclusively_locked(other.fd, 0, 20) == {3, 4, 9}
    assert exclusively_locked(other.fd, 4, 5) == {4}
    assert exclusively_locked(owner.fd, 0, 20) == set()


@pytest.mark.parametrize("order", [[2, 3, 5], [5, 3, 2], [3, 5, 2], [3, 2, 5]])
def test_locks_of_several_descriptions_are_all_found_in_whatever_order_they_were_taken(
    root: str, order: list[int]
) -> None:
    """The kernel tells the lock that it comes to first: two members of a group were counted as one."""
    holders = [opened(root) for _ in order]
    for holder, byte in zip(holders, order, strict=True):
        assert try_lock(holder.fd, exclusive(byte))
    other = opened(root)
    assert exclusively_locked(other.fd, 0, 100) == {2, 3, 5}
    assert exclusively_locked(other.fd, 3, 2) == {3}
