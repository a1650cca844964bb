"""`messagehub record`, `replay` and `hz`: a ring into a file and back, and how fast it is written."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from messagehub.channels.recording import Recording
from messagehub.cli import app
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import ROOT

POINT = np.dtype([("x", "<f8"), ("v", "<i4", (2,))])
RECORDED: dict[str, tuple[Any, list[Any]]] = {
    "arrow": (
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
        [pa.record_batch([[n, n + 1], ["a", None]], names=["id", "name"]) for n in range(5)],
    ),
    "dictionary": (
        pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))]),
        [pa.record_batch([pa.array([word, "x"]).dictionary_encode()], names=["word"]) for word in ("a", "b")],
    ),
    "array": (np.dtype("<f4"), [np.arange(6, dtype="<f4").reshape(2, 3) + n for n in range(3)]),
    "records": (POINT, [np.zeros(3, POINT), np.ones(2, POINT)]),
    "bytes": (None, [b"one", b"", b"\x00\xff" * 3000]),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"r{os.getpid()}") as made:
        yield made


def call(place: Place, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, [*arguments, "--dir", str(place.dir), "--domain", place.domain])
    assert done.exit_code == code, done.output
    return done


def record(place: Place, file: Path, schema: Any, values: list[Any]) -> dict[str, Any]:
    with place.hub().producer("live", schema=schema, page_size=8192) as producer:
        for value in values:
            producer.write(value)
    options = ("--start", "oldest", "--no-follow", "--json")
    done: dict[str, Any] = json.loads(call(place, "record", "live", str(file), *options).stdout)
    return done


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return bool(one == other)


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_comes_back_as_it_was(place: Place, tmp_path: Path, name: str) -> None:
    schema, values = RECORDED[name]
    file = tmp_path / "live.arrows"
    done = record(place, file, schema, values)
    assert (done["items"], done["missed"], done["size_bytes"]) == (len(values), 0, file.stat().st_size)
    with place.hub().consumer("again") as consumer:
        played = json.loads(call(place, "replay", str(file), "--channel", "again", "--speed", "0", "--json").stdout)
        assert (played["channel"], played["items"]) == ("again", len(values))
        read = [consumer.read(timeout=30) for _ in values]
    assert all(map(is_same, read, values))


def test_a_recording_of_arrow_data_is_a_stream_that_other_tools_read(place: Place, tmp_path: Path) -> None:
    schema, values = RECORDED["arrow"]
    record(place, tmp_path / "live.arrows", schema, values)
    with pa.ipc.open_stream(tmp_path / "live.arrows") as reader:
        assert reader.read_all().to_pylist() == pa.Table.from_batches(values).to_pylist()


def test_a_recording_is_played_at_its_own_pace(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "live.arrows"
    with place.hub().producer("live") as producer:
        producer.write(b"1")
        time.sleep(0.3)  # the time between two items is what is recorded
        producer.write(b"2")
    call(place, "record", "live", str(file), "--start", "oldest", "--no-follow")
    with place.hub().consumer("live") as consumer:
        began_at = time.time()  # the first item may be late
        call(place, "replay", str(file), "--speed", "0.5")
        written = [item.written_at for item in (consumer.read_item(timeout=30), consumer.read_item(timeout=30))]
    assert written[1] - began_at >= 0.59


def test_a_recording_whose_writer_was_killed_is_played_up_to_its_last_whole_item(place: Place, tmp_path: Path) -> None:
    schema, values = RECORDED["arrow"]
    file = tmp_path / "live.arrows"
    record(place, file, schema, values)
    file.write_bytes(file.read_bytes()[:-100])
    done = call(place, "replay", str(file), "--channel", "again", "--speed", "0")
    assert f"{len(values) - 1} items" in done.stdout
    assert "ends within an item" in done.stderr


def test_what_cannot_be_recorded_or_played_says_why(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "there"
    file.write_text("not a recording")
    assert "exists already" in call(place, "record", "live", str(file), code=1).stderr
    assert "you may write" in call(place, "record", "live", str(tmp_path / "no" / "new"), code=1).stderr
    assert "is not a recording" in call(place, "replay", str(file), code=1).stderr
    with place.hub().producer("silent"):
        nothing = call(place, "record", "silent", str(tmp_path / "new"), "--seconds", "0.1")
        assert "nothing came, so" in nothing.stderr
        unknown = call(place, "record", "slient", str(tmp_path / "new"), "--seconds", "0.1", code=1)
        assert "nobody knows channel 'slient' (did you mean 'silent'?)" in unknown.stderr
    assert not (tmp_path / "new").exists()
    with pa.ipc.new_stream(tmp_path / "foreign.arrows", pa.schema([("a", pa.int8())])) as writer:
        writer.write_batch(pa.record_batch([pa.array([1], pa.int8())], names=["a"]))
    assert "give --channel" in call(place, "replay", str(tmp_path / "foreign.arrows"), code=1).stderr
    played = call(place, "replay", str(tmp_path / "foreign.arrows"), "--channel", "foreign")
    assert "foreign: 1 item in" in played.stdout


@contextmanager
def writing(producer: Any, payload: bytes) -> Iterator[None]:
    """While the block runs, the payload is written again and again."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.005):
            producer.write(payload)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_hz_shows_how_fast_a_channel_is_written(place: Place) -> None:
    with place.hub().producer("quiet"):
        quiet = call(place, "hz", "quiet", "--every", "0.1", "-n", "1")
        assert quiet.stdout.startswith("nothing was written for")
        refused = call(place, "hz", "quite", "--every", "0.1", "-n", "1", code=1)
        assert "nobody knows channel 'quite' (did you mean 'quiet'?)" in refused.stderr
    with place.hub().producer("live", capacity=64) as producer, writing(producer, b"x" * 1024):
        found = json.loads(call(place, "hz", "live", "--every", "4", "-n", "1", "--json").stdout)
        shown = call(place, "hz", "live", "--every", "4", "-n", "2").stdout.splitlines()
    assert found["items"] > 10
    assert found["bytes"] == 1024 * found["items"]
    assert found["items_per_second"] == pytest.approx((found["items"] + found["missed"]) / found["seconds"], rel=0.01)
    assert 0 < found["interval_seconds"]["least"] <= found["interval_seconds"]["mean"]
    assert found["age_seconds"]["mean"] >= 0
    assert len(shown) == 2
    assert all(" items/s, " in line and " KiB/s" in line for line in shown)


@pytest.mark.parametrize("said", [b'"O"', b"[]]", b'[["a", "O"]]', b'"no such"', b"7"])
def test_a_recording_whose_dtype_makes_no_sense_is_refused(place: Place, tmp_path: Path, said: bytes) -> None:
    about = {b"messagehub.channel": b"live", b"messagehub.dtype": said}
    schema = pa.schema([("value", pa.large_binary())], metadata=about)
    with pa.ipc.new_stream(tmp_path / "strange.arrows", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([b"1"], pa.large_binary())], schema=schema))
    refused = call(place, "replay", str(tmp_path / "strange.arrows"), code=1)
    assert "does not say how its arrays are to be read" in refused.stderr


def test_a_recording_that_is_damaged_anywhere_ends_in_an_error_or_early(place: Place, tmp_path: Path) -> None:
    schema, values = RECORDED["arrow"]
    file = tmp_path / "live.arrows"
    record(place, file, schema, values)
    whole = file.read_bytes()
    for at in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        done = CliRunner().invoke(
            app, ["replay", str(file), "--channel", "again", "--speed", "0", "--dir", str(place.dir)]
        )
        assert done.exit_code in (0, 1), (at, done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), (at, done.exception)


@pytest.mark.parametrize("start", ["latest", "oldest"])
def test_a_table_is_shown_and_recorded_without_following(place: Place, tmp_path: Path, start: str) -> None:
    place.hub().publish_table("table", pa.table({"a": [1, 2]}))
    options = ("--start", start, "--no-follow")
    assert call(place, "tail", "table", *options).stdout.split() == ["A", "1", "2"]
    assert "1 item," in call(place, "record", "table", str(tmp_path / "t.arrows"), *options).stdout


def test_an_arrow_file_is_played_too_and_what_stands_in_the_way_is_said(place: Place, tmp_path: Path) -> None:
    schema, values = RECORDED["arrow"]
    with pa.ipc.new_file(tmp_path / "a.arrow", schema) as writer:
        for value in values:
            writer.write_batch(value)
    played = call(place, "replay", str(tmp_path / "a.arrow"), "--channel", "again", "--speed", "0")
    assert f"again: {len(values)} items" in played.stdout
    with place.hub().producer("again", schema=schema):
        refused = call(place, "replay", str(tmp_path / "a.arrow"), "--channel", "again", code=1)
    assert "another channel with --channel" in refused.stderr
    assert "not to stdout" in call(place, "record", "again", "-", code=1).stderr
    assert "there is no file" in call(place, "replay", str(tmp_path / "nowhere"), code=1).stderr


NARROW, WIDE = pa.schema([("id", pa.int64())]), pa.schema([("id", pa.int64()), ("note", pa.string())])
RESTARTED: dict[str, tuple[Any, Any]] = {
    "added column": (pa.record_batch([[1]], schema=NARROW), pa.record_batch([[2], ["b"]], schema=WIDE)),
    "fields in another order": (
        np.array([(1.0, 2.0)], [("volt", "<f8"), ("amp", "<f8")]),
        np.array([(2.0, 1.0)], [("amp", "<f8"), ("volt", "<f8")]),
    ),
    "byte order": (np.array([1.5], "<f8"), np.array([1.5], ">f8")),
    "another size": (np.array([1.5, 2.5], "<f4"), np.array([1.5], "<f8")),
}


@pytest.mark.parametrize("name", RESTARTED)
def test_items_of_another_schema_are_recorded_in_a_file_of_their_own(place: Place, tmp_path: Path, name: str) -> None:
    values = RESTARTED[name]
    file, second = tmp_path / "live.arrows", tmp_path / "live-2.arrows"
    hub = place.hub()
    for number, value in enumerate(values):  # each in a ring of its own, both of which are there
        schema = value.schema if isinstance(value, pa.RecordBatch) else value.dtype
        with hub.producer("live", schema=schema, access="shared", producer_id=f"p{number}") as producer:
            producer.write(value)
    done = call(place, "record", "live", str(file), "--start", "oldest", "--no-follow", "--json")
    told = json.loads(done.stdout)
    assert (told["files"], told["items"]) == ([str(file), str(second)], 2)
    assert f"another schema than those before it: the recording goes on in {second}" in done.stderr
    recorded = [[item.value for item in Recording(path).items()] for path in (file, second)]
    assert [len(items) for items in recorded] == [1, 1]
    for value in values:
        assert any(is_same(items[0], value) for items in recorded)


def test_a_second_file_that_exists_is_not_overwritten_and_the_first_one_is_whole(place: Place, tmp_path: Path) -> None:
    hub = place.hub()
    for number, value in enumerate(RESTARTED["byte order"]):
        with hub.producer("live", schema=value.dtype, access="shared", producer_id=f"p{number}") as producer:
            producer.write(value)
    (tmp_path / "live-2.arrows").write_text("mine")
    file = tmp_path / "live.arrows"
    done = call(place, "record", "live", str(file), "--start", "oldest", "--no-follow", code=1)
    assert "live-2.arrows exists already" in done.stderr
    recording = Recording(file)
    assert len(list(recording.items())) == 1
    assert recording.flaw is None


@pytest.mark.parametrize("name", ["array", "records", "nested"])
def test_the_code_of_the_guide_reads_recorded_arrays(place: Place, tmp_path: Path, name: str) -> None:
    nested = np.dtype([("at", [("x", "<f8"), ("y", ">i2", (2, 2))]), ("n", "<u4")])
    schema, values = {**RECORDED, "nested": (nested, [np.ones(3, nested)])}[name]
    file = tmp_path / "live.arrows"
    record(place, file, schema, values)
    guide = (ROOT / "docs/howto/data.md").read_text()
    code = guide[guide.index("def dtype_of") :].partition("```")[0]
    names: dict[str, Any] = {"np": np, "pa": pa, "json": json}
    exec(code, names)
    found = list(names["recorded_arrays"](str(file)))
    assert len(found) == len(values)
    assert all(is_same(one, other) for one, other in zip(found, values, strict=True))
