"""Topics and payloads of registered schemas, as a user's job has them; run in a session of any kind."""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct

from messagehub import MessageHub
from messagehub.spark import from_registry, to_registry

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
TOPICS = ("numbers", "copies")
COUNT = 100
DONE = {"read": [COUNT, 4950], "copied": [COUNT, 4950], "stored": [COUNT, 4950]}
"""What `through_topics` returns: of each step, how many rows, and the sum of their numbers."""


def prepare(hub: MessageHub) -> None:
    hub.register_schema("orders", json.dumps(ORDER), schema_type="AVRO")
    for name in TOPICS:
        hub.topic(name, keep=1000)


def through_topics(spark: SparkSession, where: dict[str, str], checkpoints: str) -> dict[str, list[int]]:
    """Encode rows and publish them; read and decode them; copy them by streams to a topic and to a table."""

    def topic(name: str) -> dict[str, str]:
        return {**where, "topic": name}

    def decoded(messages: DataFrame) -> list[int]:
        orders = messages.select(from_registry("payload", "orders", **where).alias("order")).select("order.*")
        found = orders.selectExpr("count(*)", "sum(id)").collect()[0]
        return [int(value or 0) for value in found]

    encoded = spark.range(0, COUNT, 1, 2).select(to_registry(struct("id"), "orders", **where).alias("payload"))
    encoded.write.format("messagehub").options(**topic("numbers")).mode("append").save()
    sinks: dict[str, dict[str, Any]] = {"copied": topic("copies"), "stored": {**where, "channel": "stored"}}
    for name, sink in sinks.items():
        stream = spark.readStream.format("messagehub").options(**topic("numbers"), maxRowsPerTrigger="60").load()
        writer = stream.select("payload").writeStream.format("messagehub").options(**sink)
        query = writer.option("checkpointLocation", f"{checkpoints}/{name}").trigger(availableNow=True).start()
        assert query.awaitTermination(120), f"the stream that is to be {name} does not end"
    return {
        "read": decoded(spark.read.format("messagehub").options(**topic("numbers")).load()),
        "copied": decoded(spark.read.format("messagehub").options(**topic("copies")).load()),
        "stored": decoded(spark.read.format("messagehub").options(**where, channel="stored").load()),
    }
