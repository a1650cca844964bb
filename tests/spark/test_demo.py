"""What `make demo` shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.sessions import ROOT, environment


@pytest.mark.slow
@pytest.mark.timeout(500, func_only=True)
def test_the_demo_prints_results_and_status_draws_a_picture_and_leaves_no_memory(tmp_path: Path) -> None:
    picture = tmp_path / "demo.png"
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark_demo.py"), "--seconds", "5", "--picture", str(picture)],
        cwd=tmp_path,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "samples in" in done.stdout
    assert "demo.sensors" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    left = {name for name in set(os.listdir("/dev/shm")) - before if "demo" in name}
    assert left == set()
