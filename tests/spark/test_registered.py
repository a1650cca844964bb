"""What Spark writes is registered by the process that commits it, and asked about before any task runs."""

import os
import pwd
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from messagehub import MessageHub
from messagehub import spark as hub_spark
from messagehub.discovery import Discovery
from messagehub.errors import SchemaIncompatible, SchemaMismatch
from messagehub.shm.identity import host
from registry import commands
from registry.formats import arrow
from registry.records import SchemaConfig
from tests.integration.harness import Served, eventually

pytestmark = pytest.mark.timeout(300, func_only=True)

Options = dict[str, str]


def write(df: DataFrame, options: Options, mode: str = "overwrite") -> None:
    df.write.format("messagehub").options(**options).mode(mode).save()


def declare(hub: MessageHub, channel: str) -> None:
    """Bound by its declaration alone: the subject's level would allow anything."""
    schema = pa.schema([("id", pa.int64())])
    hub.create_channel(channel, schema=arrow.from_arrow(schema), schema_type="ARROW")
    hub.ask(commands.ConfigureSchemas(subject=channel, config=SchemaConfig(compatibility="NONE")))


def _later(hub: MessageHub, channel: str, generation: int) -> Discovery | None:
    """Answers from memory follow what other processes publish a moment later."""
    found = hub.discover(channel)
    return found if found is not None and found.generation >= generation else None


def marked(spark: SparkSession, marker: Path, columns: str) -> DataFrame:
    """A DataFrame that leaves a mark if any of it is computed."""
    path = str(marker)

    def leave(batches: Any) -> Any:
        Path(path).touch()
        yield from batches

    return spark.range(4).mapInArrow(leave, "id long").selectExpr(columns)


def test_a_write_shows_what_a_ring_shows(spark: SparkSession, hub: MessageHub, channel_options: Options) -> None:
    write(spark.range(0, 10, 1, 2), channel_options)
    found = hub.discover("sales")
    assert found is not None
    assert (found.source, found.status, found.schema, found.schema_version) == ("broker", "active", "verified", "1")
    assert [one.schema_id for one in hub.schema_versions("sales")] == [found.schema_id]
    table = found.table
    assert table is not None
    assert (table.rows, table.parts, table.host, table.hosts) == (10, 2, host(), {host(): 2})
    assert table.application == spark.sparkContext.applicationId
    assert table.user == pwd.getpwuid(os.geteuid()).pw_name
    assert table.pid not in (None, os.getpid())
    write(spark.range(3), channel_options, "append")
    again = eventually(lambda: _later(hub, "sales", 2))
    assert (again.schema_version, again.schema_id) == ("1", found.schema_id)


def test_what_was_written_without_a_broker_is_registered_when_one_comes(
    spark: SparkSession, domain: str, channel_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(spark.range(10), channel_options)
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", domain)
    with Served(tmp_path / "hub"), MessageHub(dir=tmp_path / "hub", domain=domain) as hub:
        assert hub.connect(timeout=30.0)
        found = eventually(lambda: hub.discover("sales"))
        assert (found.source, found.schema, found.schema_version) == ("broker", "verified", "1")
        assert found.table is not None
        assert (found.table.rows, found.table.application) == (10, spark.sparkContext.applicationId)


def test_a_failed_job_leaves_neither_table_nor_schema_version(
    spark: SparkSession, hub: MessageHub, channel_options: Options
) -> None:
    def fail(batches: Any) -> Any:
        raise RuntimeError("every attempt fails")

    with pytest.raises(PySparkException, match="every attempt fails"):
        write(spark.range(3).mapInArrow(fail, "id long"), channel_options)
    assert hub.subjects() == []
    assert hub.discover("sales") is None


@pytest.mark.parametrize("is_adaptive", ["true", "false"])
def test_an_incompatible_write_is_refused_before_any_task_runs(
    spark: SparkSession, hub: MessageHub, channel_options: Options, tmp_path: Path, is_adaptive: str
) -> None:
    """Adaptive execution, Spark's default, runs what is before a shuffle first; here is none."""
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", is_adaptive)
    declare(hub, "bound")
    hub.publish_table("levelled", pa.table({"id": [1]}))
    for channel, said in (("bound", "SchemaMismatch"), ("levelled", "SchemaIncompatible")):
        with pytest.raises(PySparkException, match=said):
            write(marked(spark, tmp_path / "mark", "cast(id as string) as id"), channel_options | {"channel": channel})
    spark.conf.set("spark.sql.adaptive.enabled", before)
    assert not (tmp_path / "mark").exists()
    assert [len(hub.schema_versions(name)) for name in ("bound", "levelled")] == [1, 1]


def test_publish_asks_before_anything_upstream_runs(
    spark: SparkSession, hub: MessageHub, channel_options: Options, tmp_path: Path
) -> None:
    """With adaptive execution a shuffle runs before Spark so much as plans the write."""
    declare(hub, "bound")
    hub.publish_table("levelled", pa.table({"id": [1]}))
    options = {name: value for name, value in channel_options.items() if name != "channel"}
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        shuffled = (
            marked(spark, tmp_path / "mark", "cast(id as string) as id").repartition(3, "id").groupBy("id").count()
        )
        for channel, refusal in (("bound", SchemaMismatch), ("levelled", SchemaIncompatible)):
            with pytest.raises(refusal):
                hub_spark.publish(shuffled, channel, progress=False, **options)
        assert not (tmp_path / "mark").exists()
        published = hub_spark.publish(shuffled, "free", progress=False, **options)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert published is not None
    found = hub.discover("free")
    assert found is not None
    assert (found.schema, found.generation) == ("verified", published.generation)
    assert (tmp_path / "mark").exists()


def test_a_stream_registers_every_micro_batch(
    spark: SparkSession, hub: MessageHub, channel_options: Options, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    spark.range(0, 4, 1, 2).write.parquet(str(source))
    query = (
        spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .writeStream.format("messagehub")
        .options(**channel_options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = hub.discover("sales")
    assert found is not None
    assert found.table is not None
    assert (found.generation, found.table.rows, found.schema, found.schema_version) == (2, 4, "verified", "1")
    assert found.table.application == spark.sparkContext.applicationId
