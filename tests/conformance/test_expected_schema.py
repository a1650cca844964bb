"""What the registry calls readable comes out in the expected type, or is refused; never as something else."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from messagehub.channels.consumer.expected_schema import as_expected
from messagehub.errors import SchemaMismatch
from registry.formats import arrow

TEXT = pa.string()
POINT, WIDER = pa.struct([("a", pa.int32())]), pa.struct([("b", TEXT), ("a", pa.int64())])
CASES: list[tuple[pa.DataType, list[Any], pa.DataType, list[Any]]] = [
    (pa.int32(), [1, None], pa.int64(), [1, None]),
    (pa.uint8(), [255], pa.int16(), [255]),
    (pa.int32(), [-5], pa.decimal128(12, 2), [Decimal("-5.00")]),
    (pa.decimal32(5, 2), [Decimal("1.50")], pa.decimal256(40, 4), [Decimal("1.5000")]),
    (pa.float16(), [1.5], pa.float64(), [1.5]),
    (pa.string(), ["é"], pa.binary(), ["é".encode()]),
    (pa.string(), ["é"], pa.large_string(), ["é"]),
    (pa.string(), ["é"], pa.string_view(), ["é"]),
    (pa.binary(3), [b"abc"], pa.large_binary(), [b"abc"]),
    (pa.dictionary(pa.int8(), TEXT), ["a", "b"], TEXT, ["a", "b"]),
    (TEXT, ["a", "b"], pa.dictionary(pa.int8(), TEXT), ["a", "b"]),
    (pa.run_end_encoded(pa.int32(), TEXT), ["a", "a"], TEXT, ["a", "a"]),
    (TEXT, ["a", "a"], pa.run_end_encoded(pa.int32(), TEXT), ["a", "a"]),
    (pa.null(), [None], WIDER, [None]),
    (POINT, [{"a": 1}, None], WIDER, [{"b": None, "a": 1}, None]),
    (pa.list_(POINT), [[{"a": 1}], []], pa.large_list(WIDER), [[{"b": None, "a": 1}], []]),
    (pa.list_(pa.int32(), 2), [[1, 2]], pa.list_(pa.int64()), [[1, 2]]),
    (pa.map_(TEXT, POINT), [[("k", {"a": 1})]], pa.map_(TEXT, WIDER), [[("k", {"b": None, "a": 1})]]),
]


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize(("old", "values", "new", "expected"), CASES, ids=[f"{c[0]} as {c[2]}" for c in CASES])
def test_a_readable_column_comes_in_the_expected_type(
    old: pa.DataType, values: list[Any], new: pa.DataType, expected: list[Any], as_table: bool
) -> None:
    written, wanted = pa.schema([("x", old), ("other", pa.int8())]), pa.schema([("new", TEXT), ("x", new)])
    assert arrow.compare(_parsed(written), _parsed(wanted)) == []
    column = pc.run_end_encode(pa.array(values)) if pa.types.is_run_end_encoded(old) else pa.array(values, old)
    value: Any = pa.record_batch([column, pa.nulls(len(values), pa.int8())], schema=written)
    found = as_expected(pa.Table.from_batches([value]) if as_table else value, wanted, "c")
    found.validate(full=True)
    assert found.schema.equals(wanted)
    assert found.to_pydict() == {"new": [None] * len(values), "x": expected}


def test_what_pyarrow_cannot_cast_is_refused() -> None:
    written, wanted = pa.schema([("x", pa.list_view(pa.int8()))]), pa.schema([("x", pa.list_(pa.int16()))])
    batch = pa.record_batch([pa.array([[1], [2, 3]], pa.list_view(pa.int8()))], schema=written)
    with pytest.raises(SchemaMismatch, match="column 'x'"):
        as_expected(batch, wanted, "c")


def test_a_value_that_does_not_fit_is_refused() -> None:
    """The registry refuses such schemas; without it, equal hashes come here alone."""
    batch = pa.record_batch([pa.array([1000])], names=["x"])
    with pytest.raises(SchemaMismatch, match="column 'x'"):
        as_expected(batch, pa.schema([("x", pa.int8())]), "c")
    with pytest.raises(SchemaMismatch, match="no column 'y'"):
        as_expected(batch, pa.schema([pa.field("y", pa.int8(), nullable=False)]), "c")


def _parsed(schema: pa.Schema) -> Any:
    return arrow.parse(arrow.from_arrow(schema), {})
