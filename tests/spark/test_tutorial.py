"""The tutorial, typed block by block: with a hub that is killed and started again, Spark, a plot and a service."""

import tempfile
from pathlib import Path

import pytest

from tests.docs.snippets import Block, blocks_of
from tests.docs.test_pages import Reader
from tests.integration.harness import ROOT
from tests.spark.sessions import SMALL, environment

PAGE = ROOT / "docs" / "tutorial" / "first-hour.md"
AFTERWARDS = """
assert len(shown) == 3000, len(shown)
with hub.consumer("lab.squares") as consumer:
    assert consumer.latest()["square"].to_pylist() == [n * n for n in range(1000)]
with hub.consumer("lab.means") as consumer:
    assert consumer.latest().num_rows > 1, consumer.latest()
with hub.consumer("lab.adc", on_lag="raise") as consumer:
    assert len(list(islice(consumer, 100))) == 100
assert consumer.missed == 0
"""


@pytest.mark.timeout(600)
def test_the_first_hour_works_as_it_is_written() -> None:
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        reader = Reader(Path(home), has_directory=True, **environment(), **SMALL, MPLBACKEND="Agg")
        try:
            for block in [*blocks_of(PAGE), Block(PAGE, 1, "python", AFTERWARDS)]:
                reader.types(block)
            assert Path(home, "first-hour.png").read_bytes().startswith(b"\x89PNG")
        finally:
            reader.close()
