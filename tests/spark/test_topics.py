"""Retained topics as a source and a sink of Spark, in batches and streams."""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming.query import StreamingQuery

from messagehub import MessageHub
from tests.integration.harness import Served
from tests.spark.jobs import running

pytestmark = pytest.mark.timeout(300, func_only=True)
QUERY_SECONDS = 200
KILLS = 20


@pytest.fixture
def options(domain: str, server: Served) -> dict[str, str]:
    return {"dir": str(server.dir), "domain": domain}


def read(spark: SparkSession, options: dict[str, str], topic: str, **more: Any) -> DataFrame:
    return spark.read.format("messagehub").options(**options, topic=topic, **more).load()


def fill(hub: MessageHub, topic: str, *payloads: Any, keep: int = 10_000) -> None:
    if not hub.topics(topic):
        hub.topic(topic, keep=keep)
    hub.topic(topic).publish_all(payloads)


def run(df: DataFrame, options: dict[str, str], checkpoint: Path, **more: str) -> StreamingQuery:
    """Write all that is there now into a channel or topics."""
    query = (
        df.writeStream.format("messagehub")
        .options(**options, **more)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(QUERY_SECONDS)
    return query


def test_messages_are_read_and_published_as_rows(spark: SparkSession, hub: MessageHub, options: dict[str, str]) -> None:
    topic = hub.topic("from.eu", keep=100)
    topic.publish({"id": 1}, headers={"trace": "a", "priority": 3})
    topic.publish(b"\x00\xff")
    fill(hub, "from.us", b"us")
    df = read(spark, options, "from.>")
    assert df.columns == ["topic", "offset", "timestamp", "kind", "headers", "payload"]
    first, second, third = df.orderBy("topic", "offset").collect()
    assert (first.topic, first.offset, first.kind) == ("from.eu", 1, "json")
    assert first.headers == {"trace": "a", "priority": "3"}
    assert (second.offset, second.kind, second.headers, bytes(second.payload)) == (2, "bytes", {}, b"\x00\xff")
    assert (third.topic, bytes(third.payload)) == ("from.us", b"us")
    parsed = df.where("kind = 'json'").select(from_json(col("payload").cast("string"), "id long").alias("order"))
    assert [row.order.id for row in parsed.collect()] == [1]

    for name in ("to.eu", "to.us"):
        hub.topic(name, keep=100)
    copied = df.selectExpr("replace(topic, 'from', 'to') as topic", "kind", "headers", "payload")
    with hub.subscribe("plain") as subscription:
        copied.write.format("messagehub").options(**options, topic="to.*").mode("append").save()
        made = spark.range(1).selectExpr("to_json(struct(id)) as payload")
        made.write.format("messagehub").options(**options, topic="plain", payloadKind="json").mode("append").save()
        assert subscription.receive(60.0).payload == {"id": 0}
    with hub.subscribe("to.*", since="oldest") as subscription:
        found = [subscription.receive(30.0) for _ in range(3)]
    assert sorted((message.topic, message.offset) for message in found) == [("to.eu", 1), ("to.eu", 2), ("to.us", 1)]
    assert next(message.payload for message in found if message.headers) == {"id": 1}


def test_what_cannot_be_done_is_refused_with_our_words(
    spark: SparkSession, hub: MessageHub, options: dict[str, str]
) -> None:
    """Each kind of refusal is shown without Spark in test_topic_rows; here it is that they reach the user."""
    hub.topic("here", keep=10)
    with pytest.raises(PySparkException, match=r"topic 'nothing' is not retained.*messagehub topics keep nothing"):
        read(spark, options, "nothing").collect()
    with pytest.raises(PySparkException, match="column 'id' is no part of a message"):
        spark.range(1).write.format("messagehub").options(**options, topic="here").mode("append").save()
    empty = spark.range(1).selectExpr("cast(null as string) as payload")
    with pytest.raises(PySparkException, match="its column `payload` is null"):
        empty.write.format("messagehub").options(**options, topic="here").mode("append").save()


def test_a_query_reads_every_message_once_across_restarts(
    spark: SparkSession, hub: MessageHub, options: dict[str, str], tmp_path: Path, server: Served
) -> None:
    fill(hub, "in.a", *(b"%d" % number for number in range(10)))

    def stream(**more: str) -> DataFrame:
        loaded = spark.readStream.format("messagehub").options(**options, topic="in.>", **more).load()
        return loaded.selectExpr("cast(payload as string) as text")

    query = run(stream(maxRowsPerTrigger="4"), options, tmp_path / "checkpoint", channel="out")
    assert len([each for each in query.recentProgress if each.numInputRows]) == 3
    source = query.lastProgress.sources[0]
    assert json.loads(source.endOffset)["in.a"]["offset"] == 11
    assert json.loads(source.latestOffset)["in.a"]["offset"] == 11
    server.kill()
    server.start()
    hub.topic("in.a").publish(b"10", timeout=30.0)
    fill(hub, "in.b", b"11", b"12")
    run(stream(), options, tmp_path / "checkpoint", channel="out")
    rows = spark.read.format("messagehub").options(**options, channel="out").load().collect()
    assert sorted(int(row.text) for row in rows) == list(range(13))
    hub.topic("in.b").delete()
    with pytest.raises(StreamingQueryException, match=r"topic 'in.b'.*is gone.*failOnDataLoss=false"):
        run(stream(), options, tmp_path / "checkpoint", channel="out")


def test_a_micro_batch_that_is_replayed_is_published_once(
    spark: SparkSession, hub: MessageHub, options: dict[str, str], tmp_path: Path
) -> None:
    """As after a crash between publishing and Spark's note of it: the note of the last batch is taken away."""
    fill(hub, "in", *(b"%d" % number for number in range(1200)))
    hub.topic("out", keep=10_000)

    def copy() -> None:
        stream = spark.readStream.format("messagehub").options(**options, topic="in").load().select("payload")
        run(stream, options, tmp_path / "checkpoint", topic="out")

    copy()
    for noted in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        noted.unlink()
    fill(hub, "in", *(b"%d" % number for number in range(1200, 1900)))
    copy()
    rows = read(spark, options, "out").orderBy("offset").collect()
    assert [int(row.payload) for row in rows] == list(range(1900))


@pytest.mark.slow
@pytest.mark.timeout(1800, func_only=True)
def test_a_driver_that_is_killed_again_and_again_copies_every_message_once(
    hub: MessageHub, options: dict[str, str], tmp_path: Path
) -> None:
    """From a topic to a table and to a topic. Each time somewhere else: between messages, publishing and commits."""
    random.seed(7)
    hub.topic("in", keep=1_000_000)
    hub.topic("out", keep=1_000_000)
    checkpoints = str(tmp_path / "checkpoints")
    count = 0

    def publish(seconds: float) -> None:
        nonlocal count
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fill(hub, "in", *(b"%d" % number for number in range(count, count + 100)))
            count += 100
            time.sleep(0.02)

    for _ in range(KILLS):
        with running("local[2]", tmp_path, options) as job:
            assert job.ask("follow", checkpoints=checkpoints) == "followed"
            publish(random.uniform(0.2, 6.0))
            job.kill()
    with running("local[2]", tmp_path, options) as job:
        assert job.ask("follow", checkpoints=checkpoints, is_all=True) == "followed"
        everything_once = [count, count, sum(range(count))]
        assert job.ask("read_messages", topic="out") == everything_once
        assert job.ask("read_messages") == everything_once
