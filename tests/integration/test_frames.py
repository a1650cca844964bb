"""Data frames of pandas and polars are written to a channel as they are."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import PayloadRefused

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("x", pa.float64())])
COLUMNS = {"n": [1, 2], "text": ["a", None], "x": [0.5, 1.5]}
NOON = dt.datetime(2020, 1, 1, 12)  # noqa: DTZ001  of no zone
FRAMES = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])


@FRAMES
def test_a_frame_is_written_in_the_types_and_order_of_the_schema(tmp_path: Path, frame: Callable[..., Any]) -> None:
    with (
        MessageHub(dir=tmp_path / "hub") as hub,
        hub.producer("frames", schema=SCHEMA) as producer,
        hub.consumer("frames", start="oldest") as consumer,
    ):
        for columns in (COLUMNS, dict(reversed(COLUMNS.items())), {name: [] for name in COLUMNS}):
            producer.write(frame(columns))
            batch = consumer.read(timeout=30.0)
            assert batch.schema == SCHEMA
            assert batch.to_pydict() == {name: columns[name] for name in SCHEMA.names}


@FRAMES
@pytest.mark.parametrize(
    "columns",
    [
        {"n": [1], "text": ["a"]},
        COLUMNS | {"more": [1, 2]},
        COLUMNS | {"n": ["one", "two"]},
        COLUMNS | {"n": [0.5, 1.0]},
    ],
    ids=["a column is missing", "a column too many", "text for numbers", "numbers that do not fit"],
)
def test_a_frame_of_another_schema_is_refused(
    tmp_path: Path, frame: Callable[..., Any], columns: dict[str, list[Any]]
) -> None:
    with MessageHub(dir=tmp_path / "hub") as hub, hub.producer("frames", schema=SCHEMA) as producer:
        with pytest.raises(PayloadRefused):
            producer.write(frame(columns))
        assert producer.sequence == 0


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([1e300], pa.float32()),
        ([5], pa.bool_()),
        ([NOON], pa.date32()),
        (["1"], pa.int64()),
        ([0.1], pa.string()),
        ([5], pa.timestamp("us")),
        ([NOON], pa.timestamp("us", "Europe/Berlin")),
        ([[1e300]], pa.list_(pa.float32())),
    ],
    ids=str,
)
@FRAMES
def test_what_would_have_to_be_converted_is_refused(
    tmp_path: Path, frame: Callable[..., Any], column: list[Any], kind: pa.DataType
) -> None:
    with MessageHub(dir=tmp_path / "hub") as hub, hub.producer("f", schema=pa.schema([("c", kind)])) as producer:
        with pytest.raises(PayloadRefused, match="column 'c'"):
            producer.write(frame({"c": column}))
        assert producer.sequence == 0


def written_as(tmp_path: Path, frame: Any, schema: pa.Schema) -> Any:
    with (
        MessageHub(dir=tmp_path / "hub") as hub,
        hub.producer("kinds", schema=schema) as producer,
        hub.consumer("kinds", start="oldest") as consumer,
    ):
        producer.write(frame)
        return consumer.read(timeout=30.0).to_pydict()


def test_other_ways_to_store_the_same_are_no_difference(tmp_path: Path) -> None:
    text = pa.schema([("c", pa.string())])
    coded = pa.schema([("c", pa.dictionary(pa.int32(), pa.string()))])
    expected = {"c": ["a", "b", "a"]}
    for frame in (
        pd.DataFrame({"c": pd.Categorical(["a", "b", "a"])}),
        pl.DataFrame({"c": ["a", "b", "a"]}, schema={"c": pl.Categorical}),
        pl.DataFrame({"c": ["a", "b", "a"]}),
    ):
        assert written_as(tmp_path, frame, text) == expected
        assert written_as(tmp_path, frame, coded) == expected
    numbers = pa.schema([("c", pa.float32())])
    assert written_as(tmp_path, pl.DataFrame({"c": [1, 2]}), numbers) == {"c": [1.0, 2.0]}


def test_the_index_of_pandas_is_a_column_only_where_the_schema_has_it(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2, 3]}).query("n > 1")
    assert written_as(tmp_path, frame, pa.schema([("n", pa.int64())])) == {"n": [2, 3]}
    named = frame.set_index(pd.Index([7, 8], name="key"))
    assert written_as(tmp_path, named, pa.schema([("key", pa.int64()), ("n", pa.int64())])) == {
        "key": [7, 8],
        "n": [2, 3],
    }


def test_a_frame_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    with (
        MessageHub(dir=tmp_path / "hub") as hub,
        hub.producer("f", schema=pa.schema([("n", pa.int64())])) as producer,
        pytest.raises(PayloadRefused),
    ):
        producer.write(pd.DataFrame([[1, 2]], columns=["n", "n"]))
