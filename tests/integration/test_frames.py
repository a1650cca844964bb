"""Data frames of pandas and polars are written to a channel as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import PayloadSchemaMismatch

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("x", pa.float64())])
COLUMNS = {"n": [1, 2], "text": ["a", None], "x": [0.5, 1.5]}
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
        with pytest.raises(PayloadSchemaMismatch):
            producer.write(frame(columns))
        assert producer.sequence == 0
