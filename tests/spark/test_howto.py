"""The page about Spark, typed block by block into a process with a session of its own, a classic one or Connect's."""

import importlib.util
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.snippets import Block, blocks_of
from tests.docs.test_pages import Reader
from tests.integration.harness import ROOT
from tests.spark.sessions import SMALL, environment

PAGE = ROOT / "docs" / "howto" / "spark.md"
AFTERWARDS = """
import json
query.processAllAvailable()
(source,) = query.lastProgress["sources"]
(behind,) = (place["behind"] for place in json.loads(source["latestOffset"]).values())
assert behind.keys() == {"payloads", "rows", "bytes", "seconds"}, behind
query.stop()
assert (dear, rows) == (33, 100), (dear, rows)
assert spark.sql("SELECT count(*) FROM prices").collect()[0][0] in (100, 101)
assert decoded.collect()[0].asDict() == {"id": 1, "total": 12.5}
with MessageHub.get_instance().consumer("averages") as consumer:
    found = {row["sensor"]: row["avg(celsius)"] for row in consumer.latest().to_pylist()}
assert found == {"a": 21.0, "b": 5.0}, found
with MessageHub.get_instance().consumer("all-rigs") as consumer:
    assert sorted(consumer.latest()["channel"].to_pylist()) == ["rigs.a", "rigs.b"]
assert batch.num_rows in (50, 100), batch
spark.stop()
"""


CLASSIC = 'SparkSession.builder.master("local[2]")'
CONNECT = 'SparkSession.builder.remote("local[2]").config("spark.driver.host", "127.0.0.1")'
has_connect = pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark Connect needs grpcio")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "session", [CLASSIC, pytest.param(CONNECT, marks=[pytest.mark.slow, has_connect])], ids=["classic", "connect"]
)
def test_every_block_of_the_page_works_in_order(session: str) -> None:
    in_environment = environment() | (SMALL if session == CLASSIC else {})
    first, *blocks = blocks_of(PAGE)
    assert CLASSIC in first.text
    first = replace(first, text=first.text.replace(CLASSIC, session))
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        reader = Reader(Path(home), has_directory=True, **in_environment)
        try:
            for block in [first, *blocks, Block(PAGE, 1, "python", AFTERWARDS)]:
                reader.types(block)
        finally:
            reader.close()
