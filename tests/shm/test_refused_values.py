"""What would be lost or changed on its way into a ring or a table is refused, and changes nothing."""

import os
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.rings.read_results import Item
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.tables.tables import TableStore
from tests.shm.rings import writer

STRICT = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])


def strict(inner: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", inner)])


INNER = pa.field("v", pa.int64(), nullable=False)
HIDDEN = [
    (pa.struct([INNER]), [{"v": 1}, {"v": None}], [{"v": 1}, None]),
    (pa.list_(INNER), [[1, None]], [[1], None, []]),
    (pa.large_list(INNER), [[None]], [None, [2]]),
    (pa.list_(INNER, 2), [[1, None]], [[1, 2], None]),
    (pa.list_(pa.struct([INNER])), [[{"v": None}]], [[{"v": 3}, None]]),
]


def test_a_null_in_a_column_without_nulls_is_refused_by_name(root: str) -> None:
    with (
        writer(root, STRICT, slot_bytes=4096) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        with pytest.raises(errors.PayloadRefused, match="column 'x' is declared without nulls and has 1"):
            made.write(pa.record_batch([[1, None], [None, 2]], schema=STRICT))
        with pytest.raises(errors.PayloadRefused, match="column 'x'"):
            made.write(pa.table([[1, None], [None, 2]], schema=STRICT))
        assert made.head == 0
        made.write(pa.record_batch([[1, 2], [None, 2]], schema=STRICT))
        made.write(pa.record_batch([[None, 2], [None, 2]], schema=STRICT).slice(1))
        assert [reader.read(0).value.num_rows for _ in range(2)] == [2, 1]


def test_a_batch_may_say_otherwise_which_of_its_columns_hold_no_nulls(root: str) -> None:
    """Only values count: Spark says of its columns that they hold none, others say nothing about theirs."""
    said = pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.int64(), nullable=False)])
    with (
        writer(root, STRICT, slot_bytes=4096) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(pa.record_batch([[1, 2], [3, 4]], schema=said))
        with pytest.raises(errors.PayloadRefused, match="column 'x' is declared without nulls and has 1"):
            made.write(pa.record_batch([[1, None], [3, 4]], schema=said))
        with pytest.raises(errors.PayloadSchemaMismatch):
            made.write(pa.record_batch([[1, 2], [3, 4]], names=["x", "z"]))
        read = reader.read(0).value
        assert (read.schema, read.to_pydict()) == (STRICT, {"x": [1, 2], "y": [3, 4]})


@pytest.mark.parametrize(("kind", "wrong", "right"), HIDDEN, ids=[str(kind) for kind, _, _ in HIDDEN])
def test_a_null_inside_a_column_is_found(root: str, kind: pa.DataType, wrong: list, right: list) -> None:
    schema = strict(kind)
    with writer(root, schema, slot_bytes=4096) as made:
        with pytest.raises(errors.PayloadRefused, match="column 'c"):
            made.write(pa.record_batch([pa.array(wrong, kind)], schema=schema))
        made.write(pa.record_batch([pa.array(right, kind)], schema=schema))
        made.write(pa.record_batch([pa.array(right * 2, kind)], schema=schema).slice(1))


def test_a_table_with_a_null_in_a_column_without_nulls_is_not_committed(root: str) -> None:
    store = TableStore(root)
    wrong = pa.record_batch([[1, None], [None, 2]], schema=STRICT)
    with pytest.raises(errors.PayloadRefused, match="column 'x'"):
        store.publish([wrong], STRICT, now=1.0)
    assert store.generations() == []
    store.publish([wrong.slice(0, 1)], STRICT, now=2.0)
    assert len(store.generations()) == 1


def test_a_number_that_is_too_large_for_its_column_is_refused(root: str) -> None:
    schema = pa.schema([("x", pa.float32())])
    with (
        writer(root, schema, slot_bytes=4096) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        given = np.array([(1e300,)], dtype=[("x", "<f8")])
        with pytest.raises(errors.PayloadRefused, match="column 'x' has a number that is too large for float"):
            made.write(given)
        for right in (1.5, np.inf, -np.inf, np.nan):
            given["x"] = right
            made.write(given)
        found = [reader.read(0).value.column(0)[0].as_py() for _ in range(4)]
        assert found[:3] == [1.5, np.inf, -np.inf]
        assert np.isnan(found[3])


def test_masked_arrays_are_refused_or_keep_their_mask(root: str) -> None:
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    for schema in (None, np.dtype("<f8")):
        with writer(root, schema) as made, pytest.raises(errors.PayloadRefused, match="mask"):
            made.write(masked)
    with writer(root) as made, pytest.raises(errors.PayloadRefused, match="mask"):
        made.write(np.ma.array([1, 2], dtype="u1"))
    schema = pa.schema([("x", pa.float64())])
    fields = np.ma.array([(1.0,), (2.0,)], mask=[(True,), (False,)], dtype=[("x", "<f8")])
    with (
        writer(root, schema, slot_bytes=4096) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(fields)
        assert reader.read(0).value.to_pydict() == {"x": [None, 2.0]}


@pytest.mark.parametrize(("size", "kind"), [(0, bytes), (32 << 10, bytes), ((32 << 10) + 1, memoryview)])
def test_raw_bytes_come_back_as_bytes_where_they_are_small(root: str, size: int, kind: type) -> None:
    with (
        writer(root, slot_bytes=1 << 16) as made,
        open_reader(os.path.join(root, "ring"), start="oldest") as reader,
    ):
        made.write(b"x" * size)
        value = reader.read(0).value
        assert type(value) is kind
        assert bytes(value) == b"x" * size


PAIR = pa.schema([("a", pa.int16()), ("b", pa.float64())])


def test_a_structured_array_is_taken_by_the_names_of_its_fields(root: str) -> None:
    with writer(root, PAIR, slot_bytes=4096) as made, open_reader(os.path.join(root, "ring"), start="oldest") as reader:
        made.write(np.array([(0.5, 7)], [("b", "<f8"), ("a", "<i2")]))
        item = reader.read(0.0)
        assert isinstance(item, Item)
        assert item.value.to_pydict() == {"a": [7], "b": [0.5]}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(2, [("a", "<i2")]), "a structured array without column 'b'. Give these columns, in any order"),
        (np.zeros(2, [("a", "<i2"), ("b", "<f8"), ("c", "<f8")]), "a structured array with column 'c'"),
        (pl.DataFrame({"a": [1], "c": [2.0]}), "a DataFrame without column 'b', with column 'c'"),
        (
            np.zeros((2, 3), [("a", "<i2"), ("b", "<f8")]),
            r"of shape \(2, 3\) has no rows of a table: write array.reshape",
        ),
        (
            np.array([(70_000, 0)], [("a", "<i4"), ("b", "<f8")]),
            "holds column 'a' as int16, the payload is .*70000 not",
        ),
    ],
)
def test_what_does_not_fit_the_columns_is_refused_by_name(root: str, given: Any, said: str) -> None:
    with writer(root, PAIR, slot_bytes=4096) as made:
        with pytest.raises(errors.PayloadRefused, match=said):
            made.write(given)
        assert made.head == 0
