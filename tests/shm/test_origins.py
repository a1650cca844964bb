"""Items say when they were written and by whom, over restarts and replacements of their ring."""

import os
import time

import pytest

from messagehub.shm import errors
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.rings.ring import open_reader
from tests.shm.rings import drain, payload, writer


def test_an_item_carries_its_time(root: str) -> None:
    with writer(root) as made, open_reader(made.path, start="oldest") as reader:
        assert reader.newest_ns() == -1
        for number in range(1, 7):
            before = time.time_ns()
            made.write(payload(number))
            assert before <= reader.newest_ns() <= time.time_ns()
            assert reader.read(0).written_ns == reader.latest().written_ns == reader.newest_ns()


def test_a_block_that_claims_times_it_has_no_room_for_is_refused(root: str) -> None:
    from dataclasses import replace

    with writer(root) as made:
        header = made.header
    segment = Segment.attach(made.path, writable=True)
    smaller = replace(header, geometry=replace(header.geometry, scratch_bytes=0))
    packed = smaller.pack()
    segment.data[: len(packed)] = packed
    with pytest.raises(errors.HeaderInconsistent, match="times"):
        open_reader(made.path)


def test_each_item_names_the_producer_that_wrote_it(root: str) -> None:
    reader = None
    for first, producer_id in ((1, "a"), (3, "b"), (5, "b"), (7, "a")):
        with writer(root, producer_id=producer_id, slot_count=16) as made:
            reader = reader or open_reader(made.path, start="oldest", wait_for_writer=True)
            for number in (first, first + 1):
                made.write(payload(number))
    assert [reader.read(0).producer_id for _ in range(8)] == ["a", "a", "b", "b", "b", "b", "a", "a"]
    reader.close()


def test_a_ring_is_replaced_rather_than_naming_a_wrong_producer(root: str) -> None:
    for number in range(1, 31):
        with writer(root, producer_id=f"p{number}", slot_count=16) as made:
            made.write(payload(number))
            with open_reader(made.path, start="oldest") as reader:
                assert reader.latest().producer_id == f"p{number}"


def test_a_ring_of_another_shape_goes_on_with_the_numbers_of_the_old_one(root: str) -> None:
    with writer(root) as made:
        for number in range(1, 4):
            made.write(payload(number))
    with open_reader(made.path, start="oldest", wait_for_writer=True) as old:
        assert old.read(0).sequence == 1
        position = old.position
        with writer(root, slot_count=8) as new:
            assert (new.head, new.epoch) == (3, 2)
            assert new.header.block_id == made.header.block_id
            assert old.is_replaced()
            new.write(payload(4))
            assert [old.read(0).sequence, old.read(0).sequence] == [2, 3]
            with pytest.raises(errors.StreamEnded):
                old.read(5)
            with open_reader(made.path, start=old.position) as reader:
                assert drain(reader) == [4]
            with open_reader(made.path, start=position) as reader:
                assert not reader.is_replaced()
                assert reader.read(0) == Gap(2, 3)
                assert drain(reader) == [4]
            with open_reader(made.path, start="oldest") as reader:
                assert drain(reader) == [4]
    assert len(os.listdir(os.path.join(root, "readers"))) == 1


def test_what_is_missing_of_a_replaced_ring_is_seen_before_anything_new_is_written(root: str) -> None:
    with writer(root) as made:
        made.write(payload(1))
        with open_reader(made.path, start="oldest") as reader:
            position = reader.position
        made.write(payload(2))
    with writer(root, slot_count=8), open_reader(made.path, start=position) as reader:
        assert reader.read(0) == Gap(1, 2)
        assert reader.read(0) is None
