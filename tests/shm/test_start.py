"""Where a reader starts, and that everything it asked for is either read or reported as a gap."""

import os

from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.ring import open_reader
from tests.shm.children import fork, wait
from tests.shm.rings import drain, payload, writer


def test_what_a_reader_of_the_oldest_loses_before_its_first_read_is_a_gap(root: str) -> None:
    with writer(root) as made:
        for number in range(1, 4):
            made.write(payload(number))
        with open_reader(os.path.join(root, "ring"), start="oldest") as reader:
            for number in range(4, 11):
                made.write(payload(number))
            assert drain(reader) == [-1, -6, 7, 8, 9, 10]


def test_a_reader_from_the_first_item_hears_of_all_that_is_gone(root: str) -> None:
    with writer(root) as made:
        for number in range(1, 7):
            made.write(payload(number))
        with open_reader(os.path.join(root, "ring"), start="first") as reader:
            assert reader.read(0) == Gap(1, 2)
            assert drain(reader) == [3, 4, 5, 6]


def test_items_that_are_published_while_a_reader_looks_for_the_oldest_hide_no_older_one(root: str) -> None:
    """The slots are looked at one after the other, so that a new item may be seen without the one before it."""
    count = 4000
    made = writer(root, slot_count=4096, slot_bytes=64)
    made.write(b"1")
    made.close()

    def write() -> None:
        with writer(root, slot_count=4096, slot_bytes=64) as again:
            for number in range(2, count + 1):
                again.write(b"%d" % number)

    pid = fork(write)
    head = 1
    while head < count:
        with open_reader(os.path.join(root, "ring"), start="oldest", lossless=False) as reader:
            found = reader.read(0)
            assert isinstance(found, Item)
            assert found.sequence == 1
            head = reader.head
    assert wait(pid) == 0
