"""A Spark application in a process of its own, driven by lines on stdin; answers are lines of JSON.

python -m tests.spark.job MASTER WORK_DIR DIR DOMAIN [SPARK_SETTING=VALUE…]
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from messagehub.shm.identity import jvm_ancestor
from tests.spark.messages import through_topics
from tests.spark.sessions import close, new_session

Batches = Iterator[pa.RecordBatch]


def kill_executor(batches: Batches) -> Batches:
    """The first attempt of partition 1 takes its JVM with it, after its first batch."""
    for batch in batches:
        yield batch
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and context.attemptNumber() == 0:
            jvm = jvm_ancestor()
            assert jvm is not None
            os.kill(jvm.pid, signal.SIGKILL)


def dawdle(batches: Batches) -> Batches:
    """The first attempt of partition 3 is slow enough for Spark to start a second one beside it."""
    context = TaskContext.get()
    if context is not None and context.partitionId() == 3 and context.attemptNumber() == 0:
        time.sleep(30)
    yield from batches


def stall(batches: Batches) -> Batches:
    """Partition 1 never ends."""
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context is not None and context.partitionId() == 1:
            time.sleep(600)


SHAPES = {"kill_executor": kill_executor, "dawdle": dawdle, "stall": stall}


class Job:
    def __init__(self, spark: SparkSession, options: dict[str, str]) -> None:
        self.spark = spark
        self.options = options

    def write(self, rows: int = 1000, parts: int = 4, shape: str = "", wide: int = 1) -> str:
        df: DataFrame = self.spark.range(0, rows, 1, parts).selectExpr("id", f"repeat('x', {wide}) as pad")
        if shape:
            df = df.mapInArrow(SHAPES[shape], df.schema)
        df.write.format("messagehub").options(**self.options).mode("overwrite").save()
        return "written"

    def read(self) -> list[int]:
        back = self.spark.read.format("messagehub").options(**self.options).load()
        found = back.selectExpr("count(*)", "sum(id)").collect()[0]
        return [int(value or 0) for value in found]

    def follow(self, checkpoints: str, is_all: bool = False) -> str:
        """Copy topic `in` to topic `out` and to the channel, from now on; or once all that is there."""
        place = {name: self.options[name] for name in ("dir", "domain")}
        queries = []
        for name, sink in (("table", self.options), ("topic", {**place, "topic": "out"})):
            stream = self.spark.readStream.format("messagehub").options(**place, topic="in", maxRowsPerTrigger=500)
            writer = stream.load().select("payload").writeStream.format("messagehub").options(**sink)
            writer = writer.option("checkpointLocation", f"{checkpoints}/{name}")
            trigger: dict[str, Any] = {"availableNow": True} if is_all else {"processingTime": "0 seconds"}
            queries.append(writer.trigger(**trigger).start())
        for query in queries if is_all else ():
            query.awaitTermination()
        return "followed"

    def read_messages(self, topic: str = "") -> list[int]:
        """Return how many messages a topic or the channel has, how many differ, and the sum of the numbers in them."""
        options = {name: self.options[name] for name in ("dir", "domain")} | {"topic": topic} if topic else self.options
        back = self.spark.read.format("messagehub").options(**options).load()
        numbers = back.selectExpr("cast(cast(payload as string) as long) as number")
        found = numbers.selectExpr("count(*)", "count(distinct number)", "sum(number)").collect()[0]
        return [int(value or 0) for value in found]

    def through_topics(self, checkpoints: str) -> dict[str, list[int]]:
        return through_topics(self.spark, {name: self.options[name] for name in ("dir", "domain")}, checkpoints)

    def jvm(self) -> int:
        found = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        return int(found)


def main(master: str, work_dir: str, directory: str, domain: str, *settings: str) -> None:
    config: dict[str, Any] = dict(setting.split("=", 1) for setting in settings)
    spark = new_session(Path(work_dir), master, **config)
    job = Job(spark, {"channel": "sales", "domain": domain, "dir": directory})
    print(json.dumps({"ready": job.jvm()}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = {"answer": getattr(job, asked.pop("call"))(**asked)}
        except PySparkException as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    close(spark)


if __name__ == "__main__":
    main(*sys.argv[1:])
