"""The examples about blocks and topics run as they are printed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import preloaded
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import ROOT, clean_environment


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"e{os.getpid()}") as made:
        yield made


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("share_batches.py", "10.0 volts, found through files"),
        ("publish_a_table.py", "generation 1: 2 rows"),
        ("replay_a_topic.py", "went on with {'id': 5}"),
    ],
)
def test_the_example_runs(place: Place, name: str, says: str) -> None:
    done = preloaded.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        timeout=100,
        env=clean_environment() | {"MESSAGEHUB_DIR": str(place.dir)},
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
