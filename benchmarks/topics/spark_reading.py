"""What Spark reads: tables of another process beside Parquet, and payloads of registered schemas beside a UDF."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.brokers import hub_broker
from benchmarks.harness import Bench, comparison
from benchmarks.spark_sessions import seconds, session
from benchmarks.verdicts import at_least, at_most, beside
from messagehub import MessageHub
from messagehub.shm.tables.column_statistics import Collector

REPETITIONS = 5
PARTS = 16
DOMAIN = "benchmark-spark-reading"
OURS, PARQUET = "MessageHub", "Parquet in /dev/shm"
OURS_FILTERED, PARQUET_FILTERED = "MessageHub, one part of 16 matches", "Parquet, the same filter"
STATISTICS, PUBLISH = "statistics of its parts, on two cores", "publishing a DataFrame"
FROM_REGISTRY, UDF = "from_registry", "a Python UDF with fastavro"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": "double"},
        {"name": "customer", "type": "string"},
    ],
}


@comparison("a table of another process into Spark")
def table_into_spark(bench: Bench) -> None:
    """2 million rows of six columns in 16 parts; with --quick a tenth of them. Every row goes through Spark."""
    rows = bench.scaled(2_000_000, 200_000)
    each = rows // PARTS
    place: dict[str, Any] = {"dir": str(bench.directory), "domain": DOMAIN}
    with session(bench) as spark, tempfile.TemporaryDirectory(dir="/dev/shm") as parquet:
        try:
            with MessageHub(**place) as hub:
                for part in range(PARTS):
                    table = _rows(part * each, each)
                    hub.publish_table("frames", table, mode="append" if part else "overwrite")
                    pq.write_table(table, f"{parquet}/{part:02}.parquet")
            ours = spark.read.format("messagehub").options(channel="frames", **place).load
            theirs = spark.read.parquet
            wanted = f"id >= {5 * each} and id < {6 * each}"
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            contenders = {
                OURS: lambda: _through(ours()),
                PARQUET: lambda: _through(theirs(parquet)),
                OURS_FILTERED: lambda: _through(ours().where(wanted)),
                PARQUET_FILTERED: lambda: _through(theirs(parquet).where(wanted)),
            }
            for warm_up in contenders.values():
                warm_up()
            bench.compare(
                {name: seconds(run) for name, run in contenders.items()},
                unit="s",
                claims=[
                    at_most(1.15, OURS, PARQUET),
                    at_most(1.0, OURS_FILTERED, OURS),
                    beside(OURS_FILTERED, PARQUET_FILTERED),
                ],
                repetitions=REPETITIONS,
            )
        finally:
            _clean()


@comparison("statistics of a table that Spark writes")
def statistics_of_a_write(bench: Bench) -> None:
    """Collected from the batches that Spark wrote, as its two tasks do side by side, against the whole write."""
    from messagehub import spark as hub_spark

    rows = bench.scaled(2_000_000, 200_000)
    place: dict[str, Any] = {"dir": str(bench.directory), "domain": DOMAIN}
    with session(bench) as spark:
        df = spark.range(0, rows, 1, 2).selectExpr(
            "id", "id * 0.5d as a", "id + 1 as b", "rand(1) as c", "cast(id as string) as d", "repeat('x', 36) as e"
        )

        def publish() -> None:
            hub_spark.publish(df, "written", progress=False, **place)

        try:
            publish()
            with MessageHub(**place) as hub, hub.consumer("written") as consumer:
                table = consumer.latest()
            batches = table.to_batches()

            def collect() -> None:
                for _ in Collector(table.schema).passing(batches):
                    pass

            bench.compare(
                {STATISTICS: seconds(collect, 2.0), PUBLISH: seconds(publish)},
                unit="s",
                claims=[at_most(0.03, STATISTICS, PUBLISH)],
                repetitions=REPETITIONS,
            )
        finally:
            _clean()


@comparison("Avro payloads of a registered schema to columns, in Spark")
def avro_in_spark(bench: Bench) -> None:
    """500,000 payloads of three fields; with --quick a tenth. Spark's own from_avro is in a package that PyPI lacks."""
    from pyspark.sql.functions import struct as columns
    from pyspark.sql.functions import udf

    from messagehub.spark import from_registry, to_registry

    rows = bench.scaled(500_000, 50_000)
    with hub_broker(bench) as broker, session(bench) as spark:
        endpoint = broker.endpoint
        with MessageHub(endpoint=endpoint) as hub:
            hub.register_schema("orders", json.dumps(AVRO), schema_type="AVRO")
        source = spark.range(0, rows, 1, 2).selectExpr(
            "id", "id * 0.5d as total", "concat('customer ', id) as customer"
        )
        encoded = source.select(to_registry(columns("id", "total", "customer"), "orders", endpoint=endpoint).alias("p"))
        encoded = encoded.cache()
        encoded.count()
        decode = udf(_decoder(), "id long, total double, customer string")
        contenders = {
            FROM_REGISTRY: lambda: _through(encoded.select(from_registry("p", "orders", endpoint=endpoint))),
            UDF: lambda: _through(encoded.select(decode("p"))),
        }
        for warm_up in contenders.values():
            warm_up()
        bench.compare(
            {name: seconds(run) for name, run in contenders.items()},
            unit="s",
            claims=[at_least(3.0, UDF, FROM_REGISTRY)],
            repetitions=REPETITIONS,
        )


def _decoder() -> Any:
    """Return what a user without us writes: the schema is parsed once, a payload at a time is decoded."""
    schema = AVRO
    parsed: list[Any] = []

    def decode(payload: bytes) -> Any:
        import io

        import fastavro

        if not parsed:
            parsed.append(fastavro.parse_schema(schema))
        found = fastavro.schemaless_reader(io.BytesIO(payload[5:]), parsed[0], None)
        return found["id"], found["total"], found["customer"]

    return decode


def _through(df: Any) -> None:
    """Compute every row and column, and keep nothing."""
    df.write.format("noop").mode("overwrite").save()


def _rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    random = np.random.default_rng(first)
    return pa.table(
        {
            "id": ids,
            "a": ids * 0.5,
            "b": ids + 1,
            "c": random.random(count),
            "d": pa.array(ids).cast(pa.string()),
            "e": pa.array(["x" * 36] * count),
        }
    )


def _clean() -> None:
    shutil.rmtree(Path("/dev/shm") / f"messagehub-{os.geteuid()}" / DOMAIN, ignore_errors=True)
