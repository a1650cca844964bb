"""A view stays as it was for as long as anyone holds it, and its slot is free right after."""

import os

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.layout import Kind, WhenFull
from messagehub.shm.rings.ring import describe, open_reader
from messagehub.shm.rings.writer import RingWriter
from tests.shm.children import kill, parked
from tests.shm.rings import number_of, payload, writer

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.utf8())])


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number] * 4), pa.array([f"t{number}"] * 4)], schema=SCHEMA)


def held_slots(made: RingWriter) -> int:
    found: int = describe(made.path)[1]["held"]
    return found


def test_a_view_is_unchanged_while_the_ring_wraps_many_times(root: str) -> None:
    with writer(root) as made, open_reader(os.path.join(root, "ring"), start="oldest") as reader:
        made.write(payload(1))
        view = memoryview(reader.read(0).buffer)
        for number in range(2, 500):
            made.write(payload(number))
        assert number_of(view) == 1
        assert held_slots(made) == 1
        del view
        assert held_slots(made) == 0


def test_of_two_views_of_a_slot_the_second_still_holds_it(root: str) -> None:
    with writer(root) as made, open_reader(os.path.join(root, "ring"), start="oldest") as reader:
        made.write(payload(1))
        first, second = memoryview(reader.read(0).buffer), memoryview(reader.latest().buffer)
        del first
        for number in range(2, 50):
            made.write(payload(number))
        assert number_of(second) == 1
        del second
        assert held_slots(made) == 0


def test_views_through_arrow_numpy_pandas_and_polars_hold_the_slot(root: str) -> None:
    with writer(root, SCHEMA, slot_bytes=4096) as made:
        made.write(batch(1))
        with open_reader(os.path.join(root, "ring"), start="oldest") as reader:
            value = reader.read(0).value
        column = value.column("number")
        derived = {
            "slice": value.slice(1, 2),
            "numpy": column.to_numpy(),
            "pandas": value.select(["number"]).to_pandas(zero_copy_only=True, split_blocks=True),
            "polars": pl.from_arrow(value),
            "buffer": memoryview(column.buffers()[1]),
        }
        del value, column
        for number in range(2, 100):
            made.write(batch(number))
        assert derived["slice"].to_pylist() == [{"number": 1, "text": "t1"}] * 2
        assert derived["numpy"].tolist() == [1] * 4
        assert derived["pandas"]["number"].tolist() == [1] * 4
        assert derived["polars"]["number"].to_list() == [1] * 4
        assert np.frombuffer(derived["buffer"], dtype=np.int64).tolist()[:4] == [1] * 4
        derived.clear()
        assert held_slots(made) == 0


def test_views_outlive_reader_and_writer(root: str) -> None:
    with writer(root) as made:
        made.write(payload(1))
        with open_reader(os.path.join(root, "ring"), start="oldest") as reader:
            view = memoryview(reader.read(0).buffer)
    os.unlink(os.path.join(root, "ring"))
    del reader, made
    assert number_of(view) == 1
    del view


def test_views_are_read_only(root: str) -> None:
    with (
        writer(root, slot_bytes=1 << 16) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(bytes(1 << 16))
        item = reader.read(0)
        assert item.value.readonly
        assert not np.frombuffer(item.buffer, dtype=np.uint8).flags.writeable


def test_a_killed_reader_frees_the_slots_it_held(root: str) -> None:
    with writer(root, kind=Kind.SINGLE, when_full=WhenFull.BLOCK) as made:
        made.write(payload(1))

        def hold() -> object:
            reader = open_reader(os.path.join(root, "ring"), start="oldest", copy="never")
            return reader, reader.read(0)

        pid = parked(hold)
        with pytest.raises(errors.RingFull):
            made.write(payload(2), timeout_seconds=0.01)
        kill(pid)
        assert made.write(payload(2), timeout_seconds=20).first == 2
