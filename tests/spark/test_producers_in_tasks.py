"""Code in Spark's tasks that opens producers through the singleton: each task has its own, for as long as it runs."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory
from registry import events
from registry.records import Producer
from tests.integration.harness import Served, eventually

pytestmark = pytest.mark.timeout(300, func_only=True)

SCHEMA = pa.schema([("id", pa.int64())])
TASKS = 6
left_open: list[Any] = []


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One hub for all tests here: Spark uses its workers again, and each has one singleton."""
    domain = f"spark-test-{uuid.uuid4().hex[:12]}"
    server = Served(tmp_path_factory.mktemp("hub"), domain=domain)
    yield {"dir": str(server.dir), "domain": domain}
    server.close()
    directory = Directory(domain)
    for path in Path(directory.root).glob(f"pylabhub_*@{domain}"):
        path.unlink()
    shutil.rmtree(Path(directory.path).parent, ignore_errors=True)


@pytest.fixture
def hub(options: dict[str, str]) -> Iterator[MessageHub]:
    with MessageHub(**options) as opened:
        yield opened


def writing(options: dict[str, str], channel: str, **arguments: Any) -> Callable[[Any], Any]:
    """What a user hands to `mapInArrow`: every task writes its rows into a ring of the channel."""

    def write(batches: Any) -> Any:
        hub = MessageHub.get_instance(**options)
        with hub.producer(channel, schema=SCHEMA, capacity=64, **arguments) as producer:
            for batch in batches:
                producer.write(batch)
                yield batch

    return write


def run(spark: SparkSession, task: Callable[[Any], Any], tasks: int = TASKS) -> None:
    assert spark.range(0, 10 * tasks, 1, tasks).mapInArrow(task, "id long").count() == 10 * tasks


def test_every_task_writes_a_ring_of_its_own(spark: SparkSession, hub: MessageHub, options: dict[str, str]) -> None:
    with hub.watch("rows") as watch, hub.consumer("rows", start="oldest") as consumer:
        assert watch.wait_current(30)
        for _ in range(2):  # the second job runs in the same workers
            run(spark, writing(options, "rows"))
        read: list[int] = []

        def reads_all() -> bool:
            batch = consumer.read(timeout=1)
            read.extend(batch["id"].to_pylist() if batch is not None else [])
            return len(read) == 2 * 10 * TASKS

        eventually(reads_all, timeout=60)
        assert sorted(read) == sorted([*range(10 * TASKS)] * 2)
        seen: dict[str, Producer] = {}

        def sees_all() -> bool:
            event = watch.get(timeout=1)
            if isinstance(event, events.ProducerRegistered):
                seen[event.producer.producer_id] = event.producer
            return len(seen) == 2 * TASKS

        eventually(sees_all, timeout=60)
    registered = list(seen.values())
    application = spark.sparkContext.applicationId
    tasks = [one.metadata["spark"] for one in registered]
    assert {one["application"] for one in tasks} == {application}
    assert sorted(one["partition"] for one in tasks) == sorted([*range(TASKS)] * 2)
    assert all(one.producer_id.startswith(f"spark-{application}-") for one in registered)
    assert all(one.access == "shared" for one in registered)


def test_what_a_task_left_open_ends_with_it(spark: SparkSession, hub: MessageHub, options: dict[str, str]) -> None:
    def forgetful(batches: Any) -> Any:
        singleton = MessageHub.get_instance(**options)
        left_open.append(singleton.producer("left", schema=SCHEMA))
        left_open.append(singleton.consumer("left"))
        left_open.append(singleton.register_producer("noted", schema_hash="h"))
        yield from batches

    run(spark, forgetful, tasks=2)
    eventually(lambda: not hub.channels("left") and not hub.channels("noted"))
    run(spark, writing(options, "left", access="exclusive"), tasks=1)


def test_an_exclusive_producer_is_still_one_of_a_kind(
    spark: SparkSession, hub: MessageHub, options: dict[str, str]
) -> None:
    with hub.producer("mine", schema=SCHEMA), pytest.raises(PySparkException, match="living producer"):
        run(spark, writing(options, "mine", access="exclusive"), tasks=1)


def test_a_hub_in_a_closure_says_what_to_do(spark: SparkSession, hub: MessageHub) -> None:
    def write(batches: Any) -> Any:
        hub.publish("a", 1)
        yield from batches

    with pytest.raises(Exception, match=r"calls MessageHub.get_instance\(\) itself"):
        run(spark, write, tasks=1)
