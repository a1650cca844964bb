"""One array is one item, with its shape, order and dtype."""

import os

import numpy as np
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.layout import SHAPE, Checksum, Geometry
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.ring import open_reader
from tests.shm.rings import writer

F8 = np.dtype("<f8")
RECORD = np.dtype([("t", "<M8[us]"), ("v", ">f4", (2, 3))])
ARRAYS = {
    "rows and columns": np.arange(8000.0).reshape(1000, 8),
    "columns first": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "one dimension": np.arange(5.0),
    "every second": np.arange(10.0)[::2],
    "turned": np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
    "a scalar": np.float64(3.5),
    "no dimension": np.array(7.0),
    "nothing": np.zeros((0, 5)),
    "nothing at all": np.zeros(0),
    "six dimensions": np.arange(64.0).reshape(2, 2, 2, 2, 2, 2),
    "a matrix": np.zeros((4, 4)),
}


@pytest.mark.parametrize("checksum", [Checksum.NONE, Checksum.VERIFY])
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_as_it_was(root: str, name: str, checksum: Checksum) -> None:
    array = np.asarray(ARRAYS[name])
    with (
        writer(root, F8, slot_bytes=64_000, checksum=checksum) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(np.zeros((2, 2, 2)))  # a slot that is used again has nothing left of it
        for _ in range(5):
            assert made.write(ARRAYS[name]).first == made.head
        found = reader.latest()
        assert found is not None
        value = found.value
        assert (value.shape, value.dtype) == (array.shape, array.dtype)
        assert value.flags.fnc == array.flags.fnc
        assert np.array_equal(value, array)
        assert not value.flags.writeable
        del value, found


def test_an_array_of_records_keeps_its_shape(root: str) -> None:
    array = np.zeros((3, 2), dtype=RECORD)
    array["v"] = 1.5
    with (
        writer(root, RECORD, slot_bytes=4096) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(array)
        made.write(array[0, 0])
        assert np.array_equal(reader.read(0).value, array)
        assert reader.read(0).value.shape == ()


def test_a_view_of_an_array_keeps_its_slot(root: str) -> None:
    with (
        writer(root, F8, slot_count=2) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(np.full((4, 4), 1.0))
        corner = reader.read(0).value[2:, 2:]
        for n in range(10):
            made.write(np.full((4, 4), float(n)))
        assert corner.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_slot_takes_an_array_of_exactly_its_size_whatever_its_shape(root: str) -> None:
    with writer(root, F8, slot_bytes=4096) as made:
        made.write(np.zeros((64, 8)))
        with pytest.raises(errors.PayloadLargerThanSlot, match="page_size >= 4104") as refused:
            made.write(np.zeros((57, 9)))
        assert "split_rows" not in str(refused.value)
        assert made.head == 1


def test_an_arrow_batch_is_split_only_where_that_was_asked_for(root: str) -> None:
    batch = pa.record_batch([pa.array(range(1000))], names=["n"])
    with writer(root, batch.schema, slot_bytes=4096) as made:
        with pytest.raises(errors.PayloadLargerThanSlot, match="split_rows=True") as refused:
            made.write(batch)
        needed = int(str(refused.value).split("page_size >= ")[1].split(",")[0])
        assert made.head == 0
    os.unlink(os.path.join(root, "ring"))
    with (
        writer(root, batch.schema, slot_bytes=needed) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        assert made.write(batch) == (1, 1)
        assert reader.read(0).value.equals(batch)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (np.dtype(("<f8", (3,))), "last dimensions are \\(3,\\)"),
        (np.dtype("O"), "fixed bytes"),
        (np.dtype("U0"), "fixed bytes"),
        ("no such type", "NumPy dtype"),
        (pa.int64(), r"Arrow type int64, not a schema: give pa\.schema"),
        ({"a": 1}, "NumPy dtype"),
    ],
)
def test_what_cannot_be_a_schema_is_refused_by_the_arguments_name(schema: object, why: str) -> None:
    with pytest.raises(errors.PayloadRefused, match=f"schema.*{why}"):
        codec_for(schema)


def test_arrays_that_would_not_come_back_are_refused(root: str) -> None:
    with writer(root, F8) as made:
        for wrong in (np.zeros((1,) * 7), np.ma.masked_array([1.0, 2.0], [0, 1])):
            with pytest.raises(errors.PayloadRefused):
                made.write(wrong)
        for wrong in (1.0, [1.0], np.zeros(2, "<f4"), np.float32(1)):
            with pytest.raises(errors.PayloadSchemaMismatch):
                made.write(wrong)
        assert made.head == 0


@pytest.mark.parametrize("word", [200, 3, 8, (1 << 64) - 1])
def test_a_shape_that_does_not_fit_its_payload_is_damage(root: str, word: int) -> None:
    with (
        writer(root, F8, checksum=Checksum.NONE) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(np.zeros((2, 2, 2)))
        geometry: Geometry = made.header.geometry
        made._words[geometry.line(0) + SHAPE] = word  # private: no writer writes a wrong shape
        with pytest.raises(errors.PayloadDamaged):
            print(reader.read(0).value)
