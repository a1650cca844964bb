"""The cells of docs/howto/notebooks.md, run in order in a real kernel of Jupyter, with and without a hub."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.jupyter.kernel import Failure, Kernel
from tests.docs.snippets import blocks_of
from tests.integration.harness import ROOT, Served

CELLS = blocks_of(ROOT / "docs" / "howto" / "notebooks.md")
SECONDS = 120.0


@pytest.fixture(params=["with a hub", "without a hub"])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        server = Served(Path(home)) if request.param == "with a hub" else None
        environment = {
            "PYTHONPATH": str(ROOT),
            "MESSAGEHUB_DIR": home,
            "MESSAGEHUB_DOMAIN": os.environ["MESSAGEHUB_DOMAIN"],
            "MPLBACKEND": "Agg",
        }
        try:
            with Kernel.start(cwd=str(ROOT), env=environment, timeout_seconds=SECONDS) as running:
                yield running
        finally:
            if server is not None:
                server.close()


@pytest.mark.timeout(300)
def test_every_cell_works_in_order(kernel: Kernel) -> None:
    assert len(CELLS) > 8
    results = {}
    for cell in CELLS:
        assert cell.language == "python", cell.place
        done = kernel.execute(cell.text).wait(timeout_seconds=SECONDS)
        failed = [f"{output.ename}: {output.evalue}" for output in done.outputs if isinstance(output, Failure)]
        assert done.status == "ok", f"{cell.place}: {failed}"
        if done.result is not None:
            results[cell.text.strip().splitlines()[-1]] = done.result.data["text/plain"]
    assert results["message.payload  # {'id': 7}"] == "{'id': 7}"
    assert results["latest"].startswith("{'volts'")
    assert "price" in results["prices.describe()"]
