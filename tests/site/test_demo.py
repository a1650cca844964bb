"""What `make demo-site` shows, on three hosts in namespaces of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.namespaces import why_not
from tests.debian import program_or_skip

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(500, func_only=True)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("with_spark", [False, True], ids=["without Spark", "with Spark"])
def test_the_demo_of_a_site_ends_with_everything_as_promised(with_spark: bool, tmp_path: Path) -> None:
    program_or_skip("etcd", "etcd-server")
    options = ["--seconds", "3", *([] if with_spark else ["--no-spark"])]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "site_demo.py"), *options],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "everything is as docs/howto/several-hosts.md promises" in done.stdout
    assert with_spark == ("'bert'" in done.stdout.partition("parts on")[2].partition("\n")[0])
