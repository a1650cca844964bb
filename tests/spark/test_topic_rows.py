"""What Spark asks the source of topics for, asked without Spark: which messages are read, and what is published."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from messagehub import MessageHub
from messagehub.errors import DataLost, HubError, InvalidRequest
from messagehub.shm.channel_directory.directory import Directory
from messagehub.spark import topic_reader, topic_writer
from messagehub.spark.errors import BadOption, RowsReordered
from messagehub.spark.hubs import hub_of
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import struct_of
from messagehub.spark.topic_reader import COLUMNS, MESSAGES_PER_TASK, TopicReader, TopicStreamReader
from messagehub.spark.topic_writer import TopicSink, numbered
from registry import commands
from registry.records import RetainedMessage
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served

Make = Callable[..., Options]
MESSAGE = spark.StructType([spark.StructField("payload", spark.StringType())])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("topics") / "hub", f"topics{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def hub(place: Place) -> Iterator[MessageHub]:
    """One broker for all: each test has topics of its own. The source asks through the process's singleton."""
    server = Served(place.dir)
    MessageHub.reset_instance()
    yield MessageHub.get_instance(**place.arguments)
    MessageHub.reset_instance()
    server.close()


@pytest.fixture
def make(place: Place) -> Make:
    return lambda use=None, **given: Options.parse(place.arguments | given, use)


def fill(hub: MessageHub, topic: str, *payloads: Any, keep: int = 100_000) -> None:
    hub.topic(topic, keep=keep).publish_all(payloads)


def read(options: Options, columns: pa.Schema = COLUMNS) -> list[Any]:
    reader = TopicReader(options, struct_of(columns))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def payloads(rows: list[Any]) -> list[bytes]:
    return [row["payload"] for row in rows]


# -- reading


def test_patterns_and_offsets_choose_messages(hub: MessageHub, make: Make) -> None:
    fill(hub, "chosen.eu", b"e1", b"e2", b"e3")
    fill(hub, "chosen.us", b"u1", b"u2")
    fill(hub, "chosen2", b"o1")
    assert payloads(read(make(topic="chosen.>"))) == [b"e1", b"e2", b"e3", b"u1", b"u2"]
    assert payloads(read(make(topic="chosen.us,chosen2"))) == [b"u1", b"u2", b"o1"]
    some = make(topic="chosen.>", startingOffsets='{"chosen.eu": 2, "chosen.us": -1}', endingOffsets='{"chosen.eu": 3}')
    assert payloads(read(some)) == [b"e2"]
    assert payloads(read(make(topic="chosen.>", startingOffsets="latest"))) == []
    assert read(make(topic="chosen2"), pa.schema([COLUMNS.field("offset")])) == [{"offset": 1}]


def test_a_time_chooses_messages(hub: MessageHub, make: Make) -> None:
    fill(hub, "timed", b"1", b"2")
    (first, _) = read(make(topic="timed"))
    at = first["timestamp"]
    for said in (str(int(at.timestamp() * 1000)), at.isoformat(), "2020-01-01T00:00:00Z", "0"):
        assert payloads(read(make(topic="timed", startingTimestamp=said))) == [b"1", b"2"], said
    assert read(make(topic="timed", startingTimestamp=str(int(at.timestamp() * 1000) + 30_000))) == []


def test_a_long_topic_is_read_by_several_tasks(hub: MessageHub, make: Make) -> None:
    count = MESSAGES_PER_TASK + 10
    topic = hub.topic("long", keep=2 * count)
    topic.publish_all([b"%d" % number for number in range(count)], timeout=60.0)
    options = make(topic="long")
    assert len(TopicReader(options, struct_of(COLUMNS)).partitions()) == 2
    assert payloads(read(options)) == [b"%d" % number for number in range(count)]


@pytest.mark.parametrize(
    ("given", "use", "said"),
    [
        ({"topic": "a..b"}, "read", r"option topic: pattern 'a\.\.b' breaks the rule"),
        ({"topic": "a", "channel": "c"}, "read", "give one of channel and topic"),
        ({"topic": "a", "generation": "1"}, "read", "option generation is for channels, not for topics"),
        ({"channel": "c", "endingOffsets": "latest"}, "read", "option endingOffsets is for topics, not for channels"),
        ({"channel": "c", "startingTimestamp": "0"}, "read", "is for readStream; this is a read of a channel"),
        ({"channel": "c", "startingOffsets": "latest"}, "read", "is for readStream; this is a read of a channel"),
        ({"topic": "a", "startingOffsets": '{"a": "x"}'}, "read", "option startingOffsets is"),
        ({"topic": "a", "startingOffsets": "{"}, "read", "option startingOffsets is"),
        ({"topic": "a", "endingOffsets": '{"a": -2}'}, "read", "option endingOffsets is"),
        ({"topic": "a", "startingTimestamp": "yesterday"}, "read", "option startingTimestamp is 'yesterday'"),
        ({"topic": "a", "startingTimestamp": "2026-01-01T00:00:00"}, "read", "a time with its zone"),
        ({"topic": "a", "startingTimestamp": "0", "startingOffsets": "latest"}, "read", "give one of startingOffsets"),
        ({"topic": "a", "payloadKind": "json"}, "read", "option payloadKind is for write and writeStream"),
        ({"topic": "a", "payloadKind": "xml"}, "write", "it must be bytes or json"),
        ({"topic": "a", "path": "b"}, "write", "give one of topic and a path"),
        ({"topic": "a", "startingTimestamp": "9" * 400}, "read", "option startingTimestamp is"),
        ({"subscribe": "a"}, "read", "there is no option 'subscribe': option topic names a topic"),
        ({"topic": "a", "maxOffsetsPerTrigger": "5"}, "readStream", "it is called maxRowsPerTrigger here"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(make: Make, given: dict[str, str], use: str, said: str) -> None:
    with pytest.raises(HubError, match=said):
        make(use, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "nothing"}, "topic 'nothing' is not retained"),
        ({"topic": "no.>"}, "no retained topic matches 'no.>'"),
        ({"topic": "one", "startingOffsets": '{"two": 1}'}, "names topic 'two', which is not retained"),
        ({"topic": "one", "endingOffsets": '{"two": 1}'}, "names topic 'two', which is not retained"),
        ({"topic": "one", "startingTimestamp": "4102444800000"}, "a time that has not come yet: it is in milliseconds"),
        ({"topic": "one", "startingOffsets": '{"one": 9}'}, "offset 9 is beyond the end of topic 'one'"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused(hub: MessageHub, make: Make, given: dict[str, str], said: str) -> None:
    fill(hub, "one", b"1")
    with pytest.raises(HubError, match=said):
        read(make(**given))
    with pytest.raises(HubError, match="has no column 'pay'; did you mean 'payload'"):
        TopicReader(make(topic="one"), spark.StructType([spark.StructField("pay", spark.BinaryType())]))


# -- streams


class Query:
    """What Spark does of a query: it remembers the offset, and reads from the last to the next."""

    def __init__(self, options: Options, offset: Any = None) -> None:
        self._reader = TopicStreamReader(options, struct_of(COLUMNS))
        self.offset = self._reader.initialOffset() if offset is None else offset

    def run(self, most: int | None = None) -> list[bytes]:
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        end = self._reader.latestOffset(self.offset, limit)
        parts = self._reader.partitions(self.offset, end)
        found = [row for part in parts for batch in self._reader.read(part) for row in batch.to_pylist()]
        self.offset = end
        return payloads(found)


def test_a_stream_reads_what_comes_and_topics_that_come(hub: MessageHub, make: Make) -> None:
    fill(hub, "come.a", b"1", b"2")
    query, late = Query(make(topic="come.>")), Query(make(topic="come.>", startingOffsets="latest"))
    assert (query.run(), late.run()) == ([b"1", b"2"], [])
    fill(hub, "come.a", b"3")
    fill(hub, "come.b", b"4")
    assert query.run() == [b"3", b"4"] == late.run()
    assert query.run() == []
    none_yet = Query(make(topic="later.>"))
    assert none_yet.run() == []
    fill(hub, "later.a", b"5")
    assert none_yet.run() == [b"5"]


def test_a_limit_is_shared_and_nobody_starves(hub: MessageHub, make: Make) -> None:
    fill(hub, "share.a", *[b"a"] * 90)
    fill(hub, "share.b", *[b"b"] * 10)
    query = Query(make(topic="share.>"))
    counts = []
    while found := query.run(10):
        counts.append((found.count(b"a"), found.count(b"b")))
    assert all(a + b <= 10 for a, b in counts)
    assert [sum(each) for each in zip(*counts, strict=True)] == [90, 10]
    assert len(counts) <= 12
    one_by_one = Query(make(topic="share.>"))
    assert [len(one_by_one.run(1)) for _ in range(100)] == [1] * 100


def test_what_retention_took_fails_a_stream_or_is_skipped(hub: MessageHub, make: Make) -> None:
    fill(hub, "short", b"1", b"2", keep=3)
    strict, loose = Query(make(topic="short")), Query(make(topic="short", failOnDataLoss="false"))
    assert strict.run() == loose.run() == [b"1", b"2"]
    fill(hub, "short", *(b"%d" % number for number in range(3, 11)), keep=3)
    with pytest.raises(DataLost, match=r"no longer has its messages 3 to 7.*failOnDataLoss=false"):
        strict.run()
    assert loose.run() == [b"8", b"9", b"10"]


def test_what_retention_took_of_a_topic_that_comes_later_is_not_missing(hub: MessageHub, make: Make) -> None:
    query = Query(make(topic="late.>"))
    hub.topic("late.a", keep=50).publish_all([b"%d" % number for number in range(1000)])
    found = [payload for _ in range(3) for payload in query.run(20)]
    assert found == [b"%d" % number for number in range(950, 1000)]


def test_a_planned_batch_whose_messages_were_removed_is_a_loss(hub: MessageHub, make: Make) -> None:
    reader = TopicStreamReader(make(topic="planned.>"), struct_of(COLUMNS))
    start = reader.initialOffset()
    topic = hub.topic("planned.a", keep=5)
    topic.publish_all([b"%d" % number for number in range(5)])
    end = reader.latestOffset(start, ReadAllAvailable())
    topic.publish_all([b"%d" % number for number in range(5, 15)])
    (part,) = reader.partitions(start, end)
    with pytest.raises(DataLost, match="no longer has its messages 1 to 5"):
        list(reader.read(part))


def test_a_named_topic_that_is_deleted_is_a_loss_that_may_be_accepted(
    hub: MessageHub, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fill(hub, "named", b"1", b"2")
    strict, loose = Query(make(topic="named")), Query(make(topic="named", failOnDataLoss="false"))
    assert strict.run() == loose.run() == [b"1", b"2"]
    fill(hub, "named", b"unread")
    hub.topic("named").delete()
    with pytest.raises(DataLost, match="topic 'named', of which the query has read up to offset 3, is gone"):
        strict.run()
    assert [loose.run() for _ in range(3)] == [[], [], []]
    assert len([record for record in caplog.records if "is gone" in record.getMessage()]) == 1
    hub.topic("named", keep=5)  # made again, and empty: what was not read is lost all the same
    with pytest.raises(DataLost, match="was deleted and made again"):
        strict.run()
    assert loose.run() == []
    fill(hub, "named", b"new", keep=5)
    assert loose.run() == [b"new"]


def test_a_checkpoint_of_something_else_is_refused_by_name(hub: MessageHub, make: Make) -> None:
    fill(hub, "noted.a", b"1")
    fill(hub, "noted.b", b"2")

    def reader(topic: str, **more: str) -> TopicStreamReader:
        return TopicStreamReader(make(topic=topic, **more), struct_of(COLUMNS))

    noted = reader("noted.a").initialOffset()
    for ask in (
        lambda: reader("noted.b").latestOffset(noted, ReadAllAvailable()),
        lambda: reader("noted.b", failOnDataLoss="false").partitions(noted, noted),
    ):
        with pytest.raises(BadOption, match=r"the checkpoint is of topic 'noted\.a', and this query reads 'noted\.b'"):
            ask()
    with pytest.raises(BadOption, match=r"the checkpoint is of a channel, and this query reads topic 'noted\.b'"):
        reader("noted.b").latestOffset({"block": {"epoch": 1, "sequence": 2}}, ReadAllAvailable())
    both = reader("noted.>").initialOffset()
    with pytest.raises(DataLost, match=r"topic 'noted\.a'.* is not in option topic now"):
        reader("noted.b").latestOffset(both, ReadAllAvailable())


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(hub: MessageHub, make: Make) -> None:
    fill(hub, "again.a", b"1", b"2")
    strict, loose = Query(make(topic="again.>")), Query(make(topic="again.>", failOnDataLoss="false"))
    assert strict.run() == loose.run() == [b"1", b"2"]
    hub.topic("again.a").delete()
    with pytest.raises(DataLost, match=r"topic .again\.a., of which the query has read up to offset 3, is gone"):
        strict.run()
    assert loose.run() == []
    fill(hub, "again.a", b"new")
    with pytest.raises(DataLost, match="deleted and made again"):
        strict.run()
    assert loose.run() == [b"new"]


# -- publishing


def sink(options: Options, schema: spark.StructType = MESSAGE) -> TopicSink:
    return TopicSink(options, schema, overwrite=False)


def rows(**columns: list[Any]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict(columns)])


def test_a_task_that_is_tried_again_publishes_what_is_missing(hub: MessageHub, make: Make) -> None:
    hub.topic("retried", keep=10_000)
    numbers = [str(number) for number in range(1300)]
    options = make("write", topic="retried")
    sink(options).publish(rows(payload=numbers[:700]), "task", 1)
    sink(options).publish(rows(payload=numbers), "task", 1)
    sink(options).publish(rows(payload=numbers), "task", 1)
    assert [int(payload) for payload in payloads(read(make(topic="retried")))] == list(range(1300))


@pytest.mark.parametrize("second", [["C", "A", "B"], ["B", "A"], ["A", "C"]])
def test_a_task_that_is_tried_again_with_other_rows_fails(hub: MessageHub, make: Make, second: list[str]) -> None:
    name = f"other-{'-'.join(second)}"
    hub.topic(name, keep=100)
    options = make("write", topic=name)
    sink(options).publish(rows(payload=["A", "B"]), "task", 1)
    with pytest.raises(RowsReordered, match="sortWithinPartitions"):
        sink(options).publish(rows(payload=second), "task", 1)
    sink(options).publish(rows(payload=["A", "B", "C"]), "task", 1)
    assert payloads(read(make(topic=name))) == [b"A", b"B", b"C"]


def test_rows_in_another_order_are_noticed_in_long_tasks_too(hub: MessageHub, make: Make) -> None:
    hub.topic("reversed", keep=10_000)
    numbers = [str(number) for number in range(1300)]
    options = make("write", topic="reversed")
    sink(options).publish(rows(payload=numbers[:1100]), "task", 1)
    with pytest.raises(RowsReordered):
        sink(options).publish(rows(payload=numbers[::-1]), "task", 1)


def test_rows_with_large_headers_are_published(hub: MessageHub, make: Make) -> None:
    hub.topic("headed", keep=1000)
    kind = spark.MapType(spark.StringType(), spark.StringType())
    schema = spark.StructType([*MESSAGE, spark.StructField("headers", kind)])
    headers = pa.array([[("h", "x" * 5000)]] * 400, pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([pa.array(["1"] * 400), headers], names=["payload", "headers"])
    sink(make("write", topic="headed"), schema).publish(iter([batch]), "task", 1)
    assert hub.topic("headed").describe().messages == 400


def test_numbers_of_a_stream_never_run_out(hub: MessageHub, make: Make) -> None:
    hub.topic("numbered", keep=100)
    for batch in (0, 1, 2**20 - 1, 2**20, 2**25, 2**40):
        sink(make("write", topic="numbered")).publish(rows(payload=[str(batch)]), *numbered("query", batch, 3))
    assert len(read(make(topic="numbered"))) == 6


def test_a_publisher_is_told_which_of_its_messages_are_stored(hub: MessageHub) -> None:
    hub.topic("told", keep=100)

    def publish(number: int, count: int) -> None:
        messages = [RetainedMessage(payload=b"x")] * count
        hub.ask(commands.PublishMessages(topic="told", messages=messages, publisher="p", number=number))

    publish(1, 5)
    publish(6, 5)
    with pytest.raises(InvalidRequest) as refused:
        publish(3, 10)
    assert refused.value.details["last_number"] == 10


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ("id long", "out", "column 'id' is no part of a message"),
        ("topic string", "out", "there is no column payload"),
        ("payload long", "out", "column 'payload' is bigint, not binary or string"),
        ("payload string, headers map<string,int>", "out", "column 'headers' is map<string,int>"),
        ("payload string", "out.>", "name one topic, or say the topic of each row"),
        ("payload string", "out,other", "name one topic, or say the topic of each row"),
    ],
)
def test_columns_that_are_no_message_are_refused(
    hub: MessageHub, make: Make, columns: str, topic: str, said: str
) -> None:
    hub.topic("out", keep=10)
    with pytest.raises(HubError, match=said):
        sink(make("write", topic=topic), _struct(columns))
    with pytest.raises(HubError, match=r'use \.mode\("append"\)'):
        TopicSink(make("write", topic="out"), MESSAGE, overwrite=True)


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ("payload string", {"payload": None}, "its column `payload` is null"),
        ("payload string, kind string", {"payload": "{", "kind": "json"}, "is not json"),
        ("payload string, kind string", {"payload": "x", "kind": "arrow_table"}, "is not arrow_table"),
        ("payload string, kind string", {"payload": "x", "kind": "xml"}, "kind 'xml' is not one of bytes, json"),
        ("payload string, topic string", {"payload": "x", "topic": None}, "its column `topic` is null"),
        ("payload string, topic string", {"payload": "x", "topic": "b"}, "which option topic .* does not match"),
        ("payload string", {"payload": "x" * 800_000}, "a retained topic takes"),
    ],
)
def test_rows_that_are_no_message_are_refused(
    hub: MessageHub, make: Make, columns: str, row: dict[str, Any], said: str
) -> None:
    hub.topic("rows", keep=10)
    with pytest.raises(HubError, match=said):
        sink(make("write", topic="rows"), _struct(columns)).publish(
            rows(**{name: [value] for name, value in row.items()}), "p", 1
        )
    assert hub.topic("rows").describe().messages == 0


def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", f"restart{os.getpid()}")
    monkeypatch.setattr(topic_reader, "PLANNING_SECONDS", 30.0)  # a broker may take longer than 5 s to start
    server = Served(tmp_path / "hub")
    options = Options.parse({"dir": str(server.dir), "domain": f"restart{os.getpid()}", "topic": "a"})
    with hub_of(options) as hub:
        hub.topic("a", keep=10).publish(b"1")
        query = Query(options)
        writer = sink(options)
        server.kill()
        back = threading.Timer(1.0, server.start)
        back.start()
        assert query.run() == [b"1"]
        writer.publish(rows(payload=["2"]), "p", 1)
        assert query.run() == [b"2"]
    back.join()
    server.close()
    shutil.rmtree(Path(Directory(f"restart{os.getpid()}").path).parent)


def test_without_a_broker_both_ways_say_so(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reader, "PLANNING_SECONDS", 0.1)
    monkeypatch.setattr(topic_writer, "PLANNING_SECONDS", 0.1)
    options = make(topic="a", dir=str(tmp_path / "none"))
    with pytest.raises(HubError, match="broker"):
        read(options)
    with pytest.raises(HubError, match="broker"):
        sink(options)


_TYPES = {
    "long": spark.LongType(),
    "string": spark.StringType(),
    "map<string,int>": spark.MapType(spark.StringType(), spark.IntegerType()),
}


def _struct(columns: str) -> spark.StructType:
    """Spark's own parser of such a text needs a session."""
    named = [column.split(" ") for column in columns.split(", ")]
    return spark.StructType([spark.StructField(name, _TYPES[kind]) for name, kind in named])
