"""`messagehub tail` shows every type that a ring can hold."""

import datetime
import decimal
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from messagehub.cli import app
from tests.integration.block_processes import place_in

POINT = np.dtype([("x", "<f8"), ("v", "<i4", (2,))])
NESTED = np.dtype([("at", "<M8[ns]"), ("point", POINT), ("z", "<c16", (2,)), ("name", "S4")])
ARRAYS = {
    "rows": (np.arange(4.0).reshape(2, 2), [{"value": [0.0, 1.0]}, {"value": [2.0, 3.0]}]),
    "scalar": (np.array(7.5), [{"value": 7.5}]),
    "records": (np.zeros((1, 2), POINT), [{"x": 0.0, "v": [0, 0]}, {"x": 0.0, "v": [0, 0]}]),
    "complex": (np.array([1 + 2j]), [{"value": "1+2j"}]),
    "longdouble": (np.array([1.5], np.longdouble), [{"value": "1.5"}]),
    "datetime": (
        np.array(["2026-01-02T03:04:05.123456789", "NaT"], "M8[ns]"),
        [{"value": "2026-01-02T03:04:05.123456789"}, {"value": None}],
    ),
    "days": (np.array(["2026-01-02"], "M8[D]"), [{"value": "2026-01-02"}]),
    "timedelta": (np.array([5], "m8[ms]"), [{"value": "5 milliseconds"}]),
    "text": (np.array(["ä"]), [{"value": "ä"}]),
    "bytes": (np.array([b"ab"]), [{"value": "ab"}]),
    "bool": (np.array([True]), [{"value": True}]),
    "half": (np.array([0.5], "<f2"), [{"value": 0.5}]),
    "void": (np.array([b"ab"], "V2"), [{"value": "ab"}]),
    "nested": (
        np.zeros(1, NESTED),
        [{"at": "1970-01-01T00:00:00.000000000", "point": {"x": 0.0, "v": [0, 0]}, "z": ["0j", "0j"], "name": ""}],
    ),
    "empty": (np.zeros(0), []),
}
NS = 1_767_323_045_123_456_789
AT = "2026-01-02 03:04:05.123456789"
TIME = pa.timestamp("ns")
COLUMNS = {
    "timestamp[ns]": (pa.array([NS, None], TIME), [AT, None]),
    "timestamp[us, UTC]": (pa.array([NS // 1000], pa.timestamp("us", "UTC")), ["2026-01-02 03:04:05.123456Z"]),
    "time64[ns]": (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
    "duration": (pa.array([5], pa.duration("ns")), ["5 ns"]),
    "date": (pa.array([datetime.date(2026, 1, 2)], pa.date32()), ["2026-01-02"]),
    "decimal": (pa.array([decimal.Decimal("1.50")]), ["1.50"]),
    "binary": (pa.array([b"a\xff"]), ["a\\xff"]),
    "struct": (pa.array([{"at": NS}], pa.struct([("at", TIME)])), [{"at": AT}]),
    "list": (pa.array([[NS], None], pa.list_(TIME)), [[AT], None]),
    "map": (pa.array([[("a", NS)]], pa.map_(pa.string(), TIME)), [[["a", AT]]]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "half": (pa.array(np.array([0.5], "f2")), [0.5]),
    "null": (pa.nulls(1), [None]),
    "run ends": (pa.RunEndEncodedArray.from_arrays([2], pa.array(["a"])), ["a", "a"]),
    "union": (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([NS], TIME)]), [AT]),
}


def tail(tmp_path: Path, schema: Any, *values: Any, options: tuple[str, ...] = ()) -> str:
    with place_in(tmp_path / "hub", f"v{os.getpid()}") as place:
        with place.hub().producer("values", schema=schema) as producer:
            for value in values:
                producer.write(value)
        arguments = ["tail", "values", "--start", "oldest", "--no-follow", *options, "--dir", str(place.dir)]
        shown = CliRunner().invoke(app, [*arguments, "--domain", place.domain])
        assert shown.exit_code == 0, shown.output
        return shown.stdout


def test_samples_are_one_table_under_one_heading(tmp_path: Path) -> None:
    schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
    batches = [
        pa.record_batch([numbers, ["a"] * len(numbers)], schema=schema)
        for numbers in ([1], [10_000_000], [2], [3, 4], [5])
    ]
    shown = tail(tmp_path, schema, *batches)
    assert shown.splitlines() == [
        "NUMBER  TEXT",
        "1       a",
        "10000000  a",
        "2         a",  # as wide as the widest so far
        "NUMBER  TEXT",
        "3       a",
        "4       a",
        "NUMBER  TEXT",  # a batch of several rows is a table of its own
        "5       a",
    ]


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_shown_whatever_its_shape_and_type(tmp_path: Path, name: str) -> None:
    array, rows = ARRAYS[name]
    shown = tail(tmp_path, array.dtype, array, options=("--json",))
    assert [json.loads(line) for line in shown.splitlines()] == rows


@pytest.mark.parametrize("name", COLUMNS)
def test_a_batch_is_shown_whatever_its_types(tmp_path: Path, name: str) -> None:
    column, cells = COLUMNS[name]
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    shown = tail(tmp_path, batch.schema, batch, options=("--json",))
    assert [json.loads(line) for line in shown.splitlines()] == [{"c": cell} for cell in cells]


def test_times_and_structures_are_shown_to_a_person_too(tmp_path: Path) -> None:
    shown = tail(tmp_path, NESTED, ARRAYS["nested"][0])
    assert shown.splitlines()[0].split() == ["AT", "POINT", "Z", "NAME"]
    assert "1970-01-01T00:00:00.000000000" in shown


def test_raw_bytes_are_shown_as_text(tmp_path: Path) -> None:
    assert [json.loads(line) for line in tail(tmp_path, None, b"a\xff", options=("--json",)).splitlines()] == [
        {"bytes": "a\\xff"}
    ]


def test_a_large_batch_is_shown_in_part(tmp_path: Path) -> None:
    batch = pa.record_batch([list(range(100))], names=["n"])
    shown = tail(tmp_path, batch.schema, batch).splitlines()
    assert (len(shown), shown[1], shown[-1]) == (22, "0", "… and 80 more rows (--rows shows more of them)")
    assert (
        len(
            tail(
                tmp_path,
                batch.schema,
                batch,
                options=(
                    "--rows",
                    "3",
                ),
            ).splitlines()
        )
        == 5
    )
    assert len(tail(tmp_path, batch.schema, batch, options=("--json",)).splitlines()) == 100
    assert (
        len(
            tail(
                tmp_path,
                batch.schema,
                batch,
                options=(
                    "--json",
                    "--rows",
                    "3",
                ),
            ).splitlines()
        )
        == 3
    )
    array = np.arange(100)
    assert (
        len(
            tail(
                tmp_path,
                array.dtype,
                array,
                options=(
                    "--rows",
                    "100",
                ),
            ).splitlines()
        )
        == 101
    )
    assert len(tail(tmp_path, array.dtype, array).splitlines()) == 22


def test_the_last_items_can_be_asked_for(tmp_path: Path) -> None:
    with place_in(tmp_path / "hub", f"last{os.getpid()}") as place, place.hub() as hub:
        place_options = ["--dir", str(place.dir), "--domain", place.domain]
        with hub.producer("live", capacity=4) as producer:
            for number in range(20):
                producer.write(b"%d" % number)

            def tail(*options: str) -> Any:
                return CliRunner().invoke(app, ["tail", "live", "--json", *options, *place_options])

            done = tail("--start", "-3", "-n", "2")
            assert (done.exit_code, done.stdout.split()) == (0, ['{"bytes":"17"}', '{"bytes":"18"}'])
            for wrong in ("0", "3", "-0", "--3", "-x", "newest"):
                done = tail("--start", wrong)
                assert done.exit_code == 2, done.output
                assert "-N for the last N items" in " ".join(done.stderr.replace("│", " ").split())
