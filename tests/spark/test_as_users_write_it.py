"""Lines that Spark users type: named queries, SQL with views and tables, paths."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from messagehub import spark as hub_spark
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore

QUERY_SECONDS = 120


def options_text(options: dict[str, str]) -> str:
    return ", ".join(f"{name} '{value}'" for name, value in options.items())


@pytest.fixture
def filled(spark: SparkSession, channel_options: dict[str, str]) -> dict[str, str]:
    spark.range(5).write.format("messagehub").options(**channel_options).mode("overwrite").save()
    return channel_options


def test_a_streaming_query_has_a_name(
    spark: SparkSession, channel_options: dict[str, str], domain: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    spark.range(3).write.mode("overwrite").parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("id long")
        .parquet(str(tmp_path / "in"))
        .writeStream.format("messagehub")
        .options(**channel_options, checkpointLocation=str(tmp_path / "checkpoint"))
        .queryName("clean")
        .trigger(availableNow=True)
        .start()
    )
    assert query.name == "clean"
    assert query.awaitTermination(QUERY_SECONDS)
    with TableStore(Directory(domain).tables_path("sales")).open() as snapshot:
        assert sorted(snapshot.table()["id"].to_pylist()) == [0, 1, 2]


def test_a_temporary_view_is_read_and_inserted_into(spark: SparkSession, filled: dict[str, str]) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING messagehub OPTIONS ({options_text(filled)})")
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == 5
    spark.sql("INSERT INTO seen VALUES (7)")
    again = spark.read.format("messagehub").options(**filled).load()
    assert sorted(row.id for row in again.collect()) == [0, 1, 2, 3, 4, 7]


def test_a_view_keeps_its_generation_and_says_when_that_is_gone(
    spark: SparkSession, filled: dict[str, str], tables: TableStore
) -> None:
    def overwrite(rows: int) -> None:
        spark.range(rows).write.format("messagehub").options(**filled).mode("overwrite").save()
        tables.sweep(now=time.time() + 600, retention=None)  # what was superseded stays for five minutes otherwise

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kept USING messagehub OPTIONS ({options_text(filled)})")
    count = "SELECT count(*) FROM kept"
    assert spark.sql(count).first()[0] == 5
    spark.range(6).write.format("messagehub").options(**filled).mode("overwrite").save()
    assert spark.sql(count).first()[0] == 5, "as it was first read"
    overwrite(7)
    with pytest.raises(PySparkException, match=r"generation 1 .* is not there.*CREATE OR REPLACE TEMPORARY VIEW"):
        spark.sql(count).collect()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW kept USING messagehub OPTIONS ({options_text(filled)})")
    assert spark.sql(count).first()[0] == 7


def test_frames_that_would_lose_something_are_refused(spark: SparkSession, filled: dict[str, str]) -> None:
    without_columns = spark.range(3).select()
    collated = spark.range(1).selectExpr("'a' collate UNICODE_CI AS city")
    for frame, said in ((without_columns, "without columns"), (collated, r"city \(string collate UNICODE_CI\)")):
        with pytest.raises(PySparkException, match=said):
            frame.write.format("messagehub").options(**filled).mode("overwrite").save()
    assert spark.read.format("messagehub").options(**filled).load().count() == 5


def test_a_catalog_table_is_created_and_its_error_says_what_works(spark: SparkSession, filled: dict[str, str]) -> None:
    spark.sql(f"CREATE TABLE listed (id BIGINT) USING messagehub OPTIONS ({options_text(filled)})")
    try:
        with_options = ", ".join(f"'{name}' = '{value}'" for name, value in filled.items())
        assert spark.sql(f"SELECT count(*) FROM listed WITH ({with_options})").first()[0] == 5
        with pytest.raises(PySparkException, match=r"TEMPORARY VIEW.*WITH \(channel"):
            spark.sql("SELECT count(*) FROM listed").collect()
        with pytest.raises(PySparkException, match=r"TEMPORARY VIEW.*WITH \(channel"):
            spark.sql("INSERT INTO listed VALUES (7)")
    finally:
        spark.sql("DROP TABLE listed")


def test_what_save_as_table_made_says_how_it_is_read(spark: SparkSession, filled: dict[str, str]) -> None:
    try:
        spark.range(2).write.format("messagehub").options(**filled).mode("overwrite").saveAsTable("saved")
        with pytest.raises(PySparkException, match=r"TEMPORARY VIEW.*WITH \(channel"):
            spark.table("saved").count()
    finally:
        spark.sql("DROP TABLE IF EXISTS saved")
    assert spark.read.format("messagehub").options(**filled).load().count() == 2


def test_a_path_names_the_channel(spark: SparkSession, filled: dict[str, str]) -> None:
    where = {name: value for name, value in filled.items() if name != "channel"}
    assert spark.read.format("messagehub").options(**where).load("sales").count() == 5
    assert spark.read.format("messagehub").options(**where).load(["sales"]).count() == 5
    with pytest.raises(PySparkException, match="one channel, not 2"):
        spark.read.format("messagehub").options(**where).load(["sales", "other"]).count()


def test_a_stream_of_a_channel_that_has_only_a_table_is_refused(
    spark: SparkSession, filled: dict[str, str], tmp_path: Path
) -> None:
    source = spark.readStream.format("messagehub").options(**filled).schema("id long").load()
    query = (
        source.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match=r"holds a table and no live data: spark\.read reads it"):
        query.awaitTermination(QUERY_SECONDS)


def test_threads_publish_side_by_side(spark: SparkSession, channel_options: dict[str, str], domain: str) -> None:
    """A thread has no active session in the JVM, in which Spark would look for the source."""
    others = {name: value for name, value in channel_options.items() if name != "channel"}
    setting = "spark.sql.execution.arrow.maxBytesPerBatch"
    before = spark.conf.get(setting)

    def publish(number: int) -> int:
        made = hub_spark.publish(spark.range(number + 1), f"by.thread{number}", progress=False, **others)
        assert made is not None
        return made.rows

    def write(number: int) -> None:
        hub_spark.register(spark)
        spark.range(number + 1).write.format("messagehub").options(**others).mode("overwrite").save(f"own.t{number}")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(publish, range(4))) == [1, 2, 3, 4]
        list(pool.map(write, range(3)))
    assert spark.conf.get(setting) == before
    with TableStore(Directory(domain).tables_path("own.t2")).open() as snapshot:
        assert snapshot.manifest.rows == 3


def test_sessions_take_turns_in_a_thread(spark: SparkSession, channel_options: dict[str, str]) -> None:
    """Spark looks for the source in the session that was active last, whichever a DataFrame is of."""
    others = {name: value for name, value in channel_options.items() if name != "channel"}
    sessions = [spark.newSession(), spark.newSession(), spark]  # the last one stays the active one of this thread
    for turn in range(2):
        for number, session in enumerate(sessions):
            made = hub_spark.publish(session.range(turn + 1), f"turns.t{number}", progress=False, **others)
            assert made is not None
            assert made.rows == turn + 1
            assert hub_spark.read(session, f"turns.t{number}", **others).count() == turn + 1


def test_many_small_appends_are_few_tasks(spark: SparkSession, channel_options: dict[str, str]) -> None:
    for number in range(12):
        frame = spark.range(number * 10, number * 10 + 10, 1, 1)
        frame.write.format("messagehub").options(**channel_options).mode("append").save()
    found = spark.read.format("messagehub").options(**channel_options).load()
    assert found.rdd.getNumPartitions() <= max(os.cpu_count() or 1, 2)
    assert [row.id for row in found.collect()] == list(range(120))


def append(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("messagehub").options(**options).mode("append").save()


def test_what_is_appended_is_matched_by_name(spark: SparkSession, channel_options: dict[str, str]) -> None:
    append(spark.sql("SELECT 1 AS id, 'a' AS name, 0.5D AS price"), channel_options)
    append(spark.sql("SELECT 1.5D AS price, 2 AS id, 'b' AS name"), channel_options)
    append(spark.sql("SELECT 'c' AS Name, 3 AS ID"), channel_options)
    others = {name: value for name, value in channel_options.items() if name != "channel"}
    made = hub_spark.publish(spark.sql("SELECT 4 AS id"), "sales", mode="append", progress=False, **others)
    assert made is not None
    found = spark.read.format("messagehub").options(**channel_options).load()
    assert found.columns == ["id", "name", "price"]
    assert [tuple(row) for row in found.orderBy("id").collect()] == [
        (1, "a", 0.5),
        (2, "b", 1.5),
        (3, "c", None),
        (4, None, None),
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 2L AS id", "Column 'id' is int32 in the table and int64 here."),
        ("SELECT 2 AS id, 'x' AS more", "Column 'more' is not in the table."),
        ("SELECT 2 AS id, 3 AS ID", "Column 'ID' is not in the table."),
    ],
)
def test_what_does_not_fit_is_not_appended_and_says_which_column(
    spark: SparkSession, channel_options: dict[str, str], query: str, said: str
) -> None:
    append(spark.sql("SELECT 1 AS id"), channel_options)
    with pytest.raises(PySparkException, match=re.escape(said)):
        append(spark.sql(query), channel_options)
    assert spark.read.format("messagehub").options(**channel_options).load().count() == 1


def test_comments_of_columns_are_kept(spark: SparkSession, channel_options: dict[str, str]) -> None:
    commented = spark.range(1).select(col("id").alias("id", metadata={"comment": "who"}), lit(1.5).alias("price"))
    commented.write.format("messagehub").options(**channel_options).mode("overwrite").save()
    spark.range(2).selectExpr("id", "2.5D AS price").write.format("messagehub").options(**channel_options).mode(
        "append"
    ).save()
    back = spark.read.format("messagehub").options(**channel_options).load()
    assert [field.metadata.get("comment") for field in back.schema] == ["who", None]
    assert back.count() == 3
