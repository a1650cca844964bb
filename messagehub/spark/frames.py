"""One line each: make the source known, hand a DataFrame to everybody, take what somebody handed over."""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from messagehub.errors import ConfigurationError
from messagehub.shm.tables import manifests
from messagehub.shm.tables.tables import Mode
from messagehub.spark.options import Options
from messagehub.spark.progress import showing_progress
from messagehub.spark.registration import check
from messagehub.spark.schema_mapping import schema_text, written_schema
from messagehub.spark.source import MessageHubSource
from messagehub.spark.writer import stored_as

FORMAT = "messagehub"
# At its default Spark looks at the size of every batch after every row, which takes longer than the write itself.
_BATCH_BYTES = ("spark.sql.execution.arrow.maxBytesPerBatch", "2147483647")


log = logging.getLogger("messagehub")

_PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
_NO_COLUMNS = StructType([])
_SESSION_NAME = "messagehub.session"
"""A setting by which sessions are told apart: several objects in Python stand for the same one."""
_SETTINGS = threading.Lock()
_settings: "dict[tuple[int, str], tuple[int, str | None]]" = {}
"""By session and name of a setting that is changed for a while: by how many threads, and what it was before."""
_has_told_of_push_down = threading.Event()


class Published(NamedTuple):
    channel: str
    generation: int
    rows: int
    size_bytes: int
    parts: int


def register(spark: SparkSession) -> None:
    """Make `format("messagehub")` known where it is not found by its name (an editable or zipped install).

    Spark looks for it in the active session of the thread that writes. A thread of your own has none: call this there.
    """
    spark.dataSource.register(MessageHubSource)
    if not _is_active(spark):
        spark.createDataFrame([], _NO_COLUMNS)  # makes its session the active one; no other public call does


def _is_active(spark: SparkSession) -> bool:
    """Whether a session is the active one of this thread. To find out takes a fortieth of making it so again."""
    name = spark.conf.get(_SESSION_NAME, None)
    if name is None:
        spark.conf.set(_SESSION_NAME, uuid.uuid4().hex)
        return False
    active = SparkSession.getActiveSession()
    return active is not None and active.conf.get(_SESSION_NAME, None) == name


def publish(
    df: DataFrame, channel: str, *, mode: Mode = "overwrite", progress: bool | None = None, **options: Any
) -> Published | None:
    """Write a DataFrame as a new generation of a channel and say what was published.

    A schema that would be refused is refused here, before anything that the DataFrame is made of is computed.
    `progress`: a bar over the tasks, by default where a person watches (a terminal or a notebook). `options` are those
    of the format. None when the driver's host is another one (Spark Connect): it was published there.
    """
    if not hasattr(df, "sparkSession"):
        raise ConfigurationError(f"publish(df, channel): {df!r} is not a DataFrame")
    spark = df.sparkSession
    register(spark)
    options = {"transaction": uuid.uuid4().hex} | options
    parsed = Options.parse({name: str(value) for name, value in options.items()} | {"channel": channel})
    stored, _ = stored_as(parsed, written_schema(df.schema), mode)
    check(parsed, schema_text(stored), mode, is_users_process=True)
    with _setting(spark, *_BATCH_BYTES), showing_progress(spark, f"publishing {channel}", progress):
        df.write.format(FORMAT).options(channel=channel, **options).mode(mode).save()
    return _published(parsed)


def read(
    spark: SparkSession, channel: str, *, expected_schema: "StructType | str | None" = None, **options: Any
) -> DataFrame:
    """A channel's newest table (or `generation=…`). `expected_schema`: a type, as in SQL, or a schema hash."""
    register(spark)
    _tell_of_push_down(spark)
    if isinstance(expected_schema, str) and " " in expected_schema:
        expected_schema = spark.createDataFrame([], expected_schema).schema
    if expected_schema is not None:
        text = expected_schema if isinstance(expected_schema, str) else expected_schema.json()
        options["expectedSchema"] = text
    return spark.read.format(FORMAT).options(channel=channel, **options).load()


def _tell_of_push_down(spark: SparkSession) -> None:
    """Say once, where Spark keeps its filters to itself, how they can skip rows and parts that do not match."""
    if _has_told_of_push_down.is_set() or spark.conf.get(_PUSH_DOWN, "false") == "true":
        return
    _has_told_of_push_down.set()
    log.info("filters are not used to skip parts of tables: spark.conf.set(%r, True) switches that on", _PUSH_DOWN)


def _published(options: Options) -> Published | None:
    path = options.tables().path
    for generation in reversed(manifests.generations(path)):
        found = manifests.load(path, generation)
        if found is not None and found.transaction == options.transaction:
            return Published(options.channel, generation, found.rows, found.size_bytes, len(found.parts))
    return None


@contextlib.contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A session setting for the time of a write, and what it was before when the last thread has written."""
    key = (id(spark), name)
    with _SETTINGS:
        writers, before = _settings.get(key, (0, None))
        if not writers:
            before = spark.conf.get(name, None)
            spark.conf.set(name, value)
        _settings[key] = writers + 1, before
    try:
        yield
    finally:
        with _SETTINGS:
            writers, before = _settings.pop(key)
            if writers > 1:
                _settings[key] = writers - 1, before
            elif before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)
