"""A Spark session to measure with."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import Bench, Measure, PeerMissing
from benchmarks.processes import ROOT

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.driver.maxResultSize": "2g",
    "spark.log.level": "ERROR",
    # For every contender alike: at its default Spark looks at the size of a batch after every row.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def seconds(run: Callable[[], Any], unit: float = 1.0) -> Measure:
    def measure() -> float:
        started = time.perf_counter()
        run()
        return (time.perf_counter() - started) / unit

    return measure


@contextmanager
def session(bench: Bench) -> Iterator[Any]:
    if shutil.which("java") is None:
        raise PeerMissing("no Java, so no Spark")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    bench.step("starting Spark")
    builder = SparkSession.builder.master("local[2]").appName("messagehub-benchmark")
    with tempfile.TemporaryDirectory(prefix="spark-", dir=bench.directory) as scratch:
        for name, value in (SETTINGS | {"spark.local.dir": scratch}).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            gateway = SparkContext._gateway
            spark.stop()
            if gateway is not None:
                gateway.shutdown()
                gateway.proc.stdin.close()
                gateway.proc.wait(60)
                SparkContext._gateway = SparkContext._jvm = None
