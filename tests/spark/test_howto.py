"""The page about Spark, typed block by block into a process with a session of its own."""

import tempfile
from pathlib import Path

import pytest

from tests.docs.snippets import Block, blocks_of
from tests.docs.test_pages import Reader
from tests.integration.harness import ROOT
from tests.spark.sessions import environment

PAGE = ROOT / "docs" / "howto" / "spark.md"
AFTERWARDS = """
query.processAllAvailable()
query.stop()
with MessageHub.get_instance().consumer("averages") as consumer:
    found = {row["sensor"]: row["avg(celsius)"] for row in consumer.latest().to_pylist()}
assert found == {"a": 21.0, "b": 5.0}, found
with MessageHub.get_instance().consumer("all-rigs") as consumer:
    assert sorted(consumer.latest()["channel"].to_pylist()) == ["rigs.a", "rigs.b"]
assert batch.num_rows in (50, 100), batch
spark.stop()
"""


@pytest.mark.timeout(600)
def test_every_block_of_the_page_works_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        reader = Reader(Path(home), has_directory=True)
        try:
            for block in [*blocks_of(PAGE), Block(PAGE, 1, "python", AFTERWARDS)]:
                reader.types(block)
        finally:
            reader.close()
