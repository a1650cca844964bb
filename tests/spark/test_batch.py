"""Tables through Spark, with no broker anywhere."""

import datetime
import decimal
import os
import re
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark import StatusTracker, TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from messagehub import MessageHub
from messagehub import spark as hub_spark
from messagehub.shm.tables.tables import TableStore
from messagehub.spark.progress import showing_progress
from tests.integration.harness import eventually

pytestmark = pytest.mark.timeout(300, func_only=True)

Options = dict[str, str]

EVERYTHING = """
    select id,
        if(id % 3 = 0, null, id % 2 = 0) as flag, cast(id as byte) as tiny, cast(id as short) as small,
        cast(id as int) as whole, cast(id / 3 as float) as real, if(id = 1, double('NaN'), id / 7) as fine,
        cast(id as decimal(38, 9)) as exact, if(id % 3 = 1, null, concat('ü', id)) as text,
        if(id = 2, null, cast(concat('b', id) as binary)) as bytes, date_add(date'1969-12-30', int(id)) as day,
        timestamp'2024-10-27 00:30:00 UTC' + make_dt_interval(0, id) as instant,
        timestamp_ntz'2024-10-27 02:30:00' as local, make_dt_interval(id, 1, 2, 3.000004) as span,
        time'12:34:56.789' as clock, null as nothing,
        if(id = 0, null, sequence(0, id)) as numbers, array(array('x'), null, array()) as nested,
        map('a', id, 'b', null) as mapped, named_struct('x', id, 'y', array(named_struct('z', 'deep'))) as grouped
    from range(0, 6, 1, 3)
"""


def write(df: DataFrame, options: Options, mode: str = "overwrite", **more: Any) -> None:
    df.write.format("messagehub").options(**options, **more).mode(mode).save()


def load(spark: SparkSession, options: Options, **more: Any) -> DataFrame:
    return spark.read.format("messagehub").options(**options, **more).load()


def left_behind(tables: TableStore) -> set[str]:
    """What no manifest names."""
    named = set()
    for generation in tables.generations():
        with tables.open(generation) as snapshot:
            named |= {part.name for part in snapshot.manifest.parts}
    return {n for n in os.listdir(tables.path) if n.endswith((".txn", ".arrow"))} - named


def test_every_type_that_arrow_carries_comes_back_equal(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    df = spark.sql(EVERYTHING).repartition(8, "id")  # some of the eight are empty
    write(df, channel_options)
    back = load(spark, channel_options)
    assert back.dtypes == df.dtypes
    expected, found = (sorted(map(str, each.collect())) for each in (df, back))
    assert found == expected
    with tables.open() as snapshot:
        assert len(snapshot.manifest.parts) < 8
        plain = snapshot.table().sort_by("id")
    assert plain["exact"][5].as_py() == decimal.Decimal(5)
    assert plain["instant"][1].as_py() == datetime.datetime(2024, 10, 27, 1, 30, tzinfo=datetime.UTC)
    assert left_behind(tables) == set()


def test_append_projection_generations_and_filters(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    first = spark.range(0, 100, 1, 2).selectExpr("id", "id * 0.5d as half", "cast(id as string) as name")
    published = hub_spark.publish(
        first, "sales", progress=True, **{k: v for k, v in channel_options.items() if k != "channel"}
    )
    assert published is not None
    assert (published.generation, published.rows, published.parts) == (1, 100, 2)
    write(first.where("id < 10"), channel_options, "append")
    assert tables.generations() == [1, 2]

    both = load(spark, channel_options, maxPartitionBytes="600")
    assert both.count() == 110
    assert both.rdd.getNumPartitions() > 4  # larger blocks are split
    assert load(spark, channel_options, generation="1").count() == 100
    projected = spark.read.format("messagehub").options(**channel_options).schema("half double, id int").load()
    assert sorted(projected.limit(110).collect())[-1] == Row(half=49.5, id=99)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = load(spark, channel_options).where("id > 97 and name like '9%' and id is not null and id in (98, 5)")
        assert pushed.collect() == [Row(id=98, half=49.0, name="98")]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_display_of_progress_that_fails_goes_on(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = StatusTracker.getJobIdsForGroup, []

    def fail_first(tracker: StatusTracker, group: str | None = None) -> list[int]:
        calls.append(group)
        if len(calls) == 1:
            raise ValueError("a defect")
        return list(real(tracker, group))

    monkeypatch.setattr(StatusTracker, "getJobIdsForGroup", fail_first)
    with showing_progress(spark, "publish", is_wanted=True):
        eventually(lambda: len(calls) > 1)
    assert "the thread messagehub-progress failed and is started again" in caplog.text


def test_filters_skip_parts_and_a_count_without_columns_reads_none(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    write(
        spark.range(0, 100, 1, 4).selectExpr("id", "concat('name ', id + 1000) as name", "id * 0.5d as half"),
        channel_options,
    )
    without_columns = spark.read.format("messagehub").options(**channel_options).schema(StructType([])).load()
    assert without_columns.count() == 100
    with tables.open() as snapshot:
        assert [(part.columns["id"].low, part.columns["id"].high) for part in snapshot.manifest.parts] == [
            (0, 24),
            (25, 49),
            (50, 74),
            (75, 99),
        ]
        for part in snapshot.manifest.parts[1:]:
            os.unlink(os.path.join(tables.path, part.name))  # whoever opens one fails
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for wanted in ("id < 10", "name < 'name 1010'", "half < 5", "id between 0 and 24 and half < 5"):
            assert load(spark, channel_options).where(wanted).count() == 10, wanted
        assert load(spark, channel_options).where("id > 1000").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_zero_rows_are_a_table_too(spark: SparkSession, channel_options: Options, tables: TableStore) -> None:
    write(spark.createDataFrame([], "id long, name string"), channel_options)
    back = load(spark, channel_options)
    assert (back.columns, back.count()) == (["id", "name"], 0)
    with tables.open() as snapshot:
        assert snapshot.table().schema.names == ["id", "name"]


def test_an_incompatible_write_fails_before_any_task_and_names_the_column(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    with MessageHub(dir=channel_options["dir"], domain=channel_options["domain"]) as hub:
        hub.publish_table("sales", pa.table({"id": pa.array([1], pa.int64()), "price": [1.5]}))

    def explode(batches: Any) -> Any:
        raise AssertionError("a task ran")

    narrowed = spark.range(3).mapInArrow(explode, "id long, price int")
    with pytest.raises(PySparkException, match=r"SchemaIncompatible.*price"):
        write(narrowed, channel_options)
    with pytest.raises(PySparkException, match=r"SchemaIncompatible.*Column 'extra' is not in the table"):
        write(spark.range(3).mapInArrow(explode, "id long, price double, extra int"), channel_options, "append")
    assert tables.generations() == [1]
    assert left_behind(tables) == set()


def test_bad_requests_say_what_to_do(spark: SparkSession, channel_options: Options, tables: TableStore) -> None:
    with MessageHub(dir=channel_options["dir"], domain=channel_options["domain"]) as hub:
        hub.publish_table("sales", pa.table({"id": [1]}))
    for more, said in [
        ({"chanel": "x"}, "did you mean 'channel'"),
        ({"channel": "salez"}, "ChannelNotFound.*did you mean 'sales'"),
        ({"generation": "9"}, "GenerationGone.*there are: 1"),
    ]:
        with pytest.raises(AnalysisException) as caught:
            load(spark, channel_options | more)
        assert re.search(said, str(caught.value).splitlines()[0]), "the message comes first, not a stack"
    with pytest.raises(PySparkException, match=r"SchemaMismatch.*id"):
        hub_spark.read(spark, expected_schema="id string", **channel_options).count()
    with pytest.raises(PySparkException, match="no column 'di'; did you mean 'id'"):
        spark.read.format("messagehub").options(**channel_options).schema("di long").load().count()


def test_a_failed_task_is_retried_and_published_once_and_a_failed_job_leaves_nothing(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    def stumble(batches: Any) -> Any:
        context = TaskContext.get()
        yield from batches
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails after its data")

    def fail(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if TaskContext.get().partitionId() == 1:
                raise RuntimeError("every attempt fails")

    df = spark.range(0, 1000, 1, 2)
    write(df.mapInArrow(stumble, "id long"), channel_options)
    with tables.open() as snapshot:
        assert sorted(snapshot.table()["id"].to_pylist()) == list(range(1000))
    assert left_behind(tables) == set()
    with pytest.raises(PySparkException, match=r"Traceback(?s:.*)in fail(?s:.*)every attempt fails"):
        write(df.mapInArrow(fail, "id long"), channel_options)
    assert tables.generations() == [1]
    assert left_behind(tables) == set()


def overwrite_while_a_consumer_reads(spark: SparkSession, options: Options, tables: TableStore, times: int) -> set[int]:
    """Every look must show one whole generation: all rows, all of one value."""
    is_over = threading.Event()
    seen: set[int] = set()
    wrong: list[Any] = []

    def poll() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(0.002)  # one more look after the last overwrite
            if tables.generations():
                with tables.open() as snapshot:
                    column = snapshot.table()["turn"]
                values = set(column.unique().to_pylist())
                seen.update(values)
                if len(column) != 2000 or len(values) != 1:
                    wrong.append((len(column), values))

    watcher = threading.Thread(target=poll)
    watcher.start()
    try:
        for turn in range(times):
            write(spark.range(0, 2000, 1, 2).selectExpr("id", f"{turn} as turn"), options)
    finally:
        is_over.set()
        watcher.join(30)
    assert wrong == []
    return seen


def test_a_polling_consumer_sees_only_whole_generations(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    seen = overwrite_while_a_consumer_reads(spark, channel_options, tables, 4)
    assert 3 in seen


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
def test_fifty_overwrites_while_a_consumer_reads(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    seen = overwrite_while_a_consumer_reads(spark, channel_options, tables, 50)
    assert len(seen) > 10
