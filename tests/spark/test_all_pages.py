"""No page contradicts another: all of them are typed, one after the other, with one and the same hub."""

import tempfile
from pathlib import Path

import pytest

from tests.docs.snippets import blocks_of
from tests.docs.test_pages import PAGES, Reader
from tests.integration.harness import ROOT
from tests.spark.sessions import environment

LAST = [ROOT / "docs" / "howto" / "spark.md", ROOT / "docs" / "tutorial" / "first-hour.md"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_pages_work_one_after_the_other_with_one_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (environment() | {"MPLBACKEND": "Agg"}).items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        reader = Reader(Path(home), has_directory=True)
        try:
            for page in [*PAGES, *LAST]:
                for block in blocks_of(page):
                    reader.types(block)
                reader.turns_the_page()
        finally:
            reader.close()
