"""An acquisition process, a ring, Structured Streaming, a channel of results, a plain consumer."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.spark.sessions import ROOT

pytestmark = pytest.mark.timeout(400, func_only=True)
QUERY_SECONDS = 200


class Acquisition:
    """The process; it can be told to write, and be killed."""

    def __init__(self, options: dict[str, str], capacity: int, first: int = 0) -> None:
        command = [sys.executable, "-m", "tests.spark.acquisition", options["dir"], options["domain"], "raw"]
        self.process = subprocess.Popen(
            [*command, str(capacity), str(first)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._hear() == "ready"

    def write(self, batches: int) -> int:
        """Returns the id that comes next."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batches}\n")
        self.process.stdin.flush()
        return int(self._hear())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=30)

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def acquisition(channel_options: dict[str, str]) -> Iterator[Any]:
    started: list[Acquisition] = []

    def start(capacity: int, first: int = 0) -> Acquisition:
        started.append(Acquisition(channel_options, capacity, first))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.kill()


def run_once(spark: SparkSession, options: dict[str, str], checkpoint: Path, **more: str) -> StreamingQuery:
    """Everything that is there, from the checkpoint on, into the channel of results."""
    source = spark.readStream.format("messagehub").options(**options | {"channel": "raw"}, **more).load()
    query = (
        source.where("id >= 0")
        .writeStream.format("messagehub")
        .options(**options | {"channel": "results"}, checkpointLocation=str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(QUERY_SECONDS):
        query.stop()
        pytest.fail("the query did not end in time")
    return query


def results(domain: str) -> list[int]:
    with TableStore(Directory(domain).tables_path("results")).open() as snapshot:
        return sorted(snapshot.table()["id"].to_pylist())


def test_restarts_lose_and_double_nothing_and_an_outage_too_long_for_the_ring_is_named(
    spark: SparkSession, channel_options: dict[str, str], domain: str, tmp_path: Path, acquisition: Any
) -> None:
    checkpoint = tmp_path / "checkpoint"
    producer = acquisition(capacity=32)
    producer.write(10)
    run_once(spark, channel_options, checkpoint)
    assert results(domain) == list(range(100))

    # The query is down; the producer goes on, dies and is replaced by another.
    following = producer.write(10)
    producer.kill()
    producer = acquisition(capacity=32, first=following)
    following = producer.write(10)
    query = run_once(spark, channel_options, checkpoint, maxRowsPerTrigger="120")
    assert len([each for each in query.recentProgress if each["numInputRows"]]) == 2  # 200 rows in turns of 120
    assert results(domain) == list(range(300))

    # A crash between our publish and Spark's note of it: the same micro-batch runs again.
    newest = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for path in (checkpoint / "commits" / str(newest), checkpoint / "commits" / f".{newest}.crc"):
        path.unlink(missing_ok=True)
    run_once(spark, channel_options, checkpoint)
    assert results(domain) == list(range(300))

    # An outage that is too long for the ring.
    producer.write(40)
    with pytest.raises(StreamingQueryException, match=r"DataLost.*sequences 31 to 38 of block"):
        run_once(spark, channel_options, checkpoint)
    assert results(domain) == list(range(300))


@pytest.mark.parametrize("unread", [0, 3])
def test_a_producer_that_ended_while_the_query_was_not_there_is_read_on_or_said_to_be_lost(
    spark: SparkSession, channel_options: dict[str, str], domain: str, tmp_path: Path, acquisition: Any, unread: int
) -> None:
    """As between two runs of a pipeline: the ring that the checkpoint names has been cleaned by then."""
    producer = acquisition(capacity=32)
    producer.write(10)
    run_once(spark, channel_options, tmp_path / "checkpoint")
    following = producer.write(unread) if unread else 100
    producer.kill()
    for now in (1.0, 2.0):
        clean(Directory(domain), now=now, linger_seconds=0.0)
    acquisition(capacity=32, first=following).write(2)
    if unread:
        with pytest.raises(StreamingQueryException, match=r"DataLost.*sequences 11 to 13 of block"):
            run_once(spark, channel_options, tmp_path / "checkpoint")
        assert results(domain) == list(range(100))
    else:
        run_once(spark, channel_options, tmp_path / "checkpoint")
        assert results(domain) == list(range(120))


@pytest.mark.slow
def test_a_query_that_accepts_loss_goes_on_behind_the_gap_and_counts_it(
    spark: SparkSession, channel_options: dict[str, str], domain: str, tmp_path: Path, acquisition: Any
) -> None:
    producer = acquisition(capacity=8)
    producer.write(5)
    run_once(spark, channel_options, tmp_path / "checkpoint")
    producer.write(20)
    query = run_once(spark, channel_options, tmp_path / "checkpoint", failOnDataLoss="false")
    assert results(domain) == [*range(50), *range(170, 250)]
    (place,) = json.loads(query.lastProgress["sources"][0]["endOffset"]).values()
    assert (place["sequence"], place["lost"]) == (25, 12)
