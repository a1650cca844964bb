"""Run one of each kind of query that tests run, so that the JVM sees the classes that they need.

`tools/setup.py` runs this with the JVM option that writes those classes to an archive when the JVM ends.
"""

import sys
import tempfile
from collections.abc import Iterator

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

EXIT_SECONDS = 300.0
"""The JVM writes the archive while it ends, 20 s or more."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.log.level": "ERROR",
}


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="spark-classes-") as scratch:
        builder = SparkSession.builder.master("local[2]").config("spark.local.dir", scratch)
        for name, value in (SETTINGS | {"spark.sql.warehouse.dir": f"{scratch}/warehouse"}).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.createDataFrame([(1, "a", 1.5)], "id long, name string, x double").createOrReplaceTempView("rows")
        grouped = spark.sql("SELECT id % 2 AS odd, count(*), avg(x), max(name) FROM rows GROUP BY 1 ORDER BY 1")
        grouped.collect()
        spark.range(10).mapInArrow(same, "id long").toArrow()
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        stream = rate.writeStream.format("noop").option("checkpointLocation", f"{scratch}/checkpoint")
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination(60)
        gateway = SparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        sys.exit(gateway.proc.wait(EXIT_SECONDS))


if __name__ == "__main__":
    main()
