"""`make setup`: what is there is not made again, and another tree's environment is left alone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.class_archive import ARCHIVE

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not ARCHIVE.exists(), reason="make setup has made no archive of Spark's classes (no Java?)")
def test_a_second_setup_does_not_make_the_archive_of_classes_again() -> None:
    """Asked in the way that `main` asks; a whole set-up could install packages under the tests that run."""
    ask = "import sys; sys.argv[1:] = ['dev', sys.argv[1]]; from tools import setup; print(setup.is_archived())"
    command = [sys.executable, "-c", ask, sys.prefix]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def test_setup_refuses_to_install_into_the_environment_of_another_tree(tmp_path: Path) -> None:
    for tree in ("ours", "theirs"):
        (tmp_path / tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "setup.py", tmp_path / tree / "tools")
    environment = tmp_path / "theirs" / ".venv"
    environment.mkdir()
    (tmp_path / "ours" / ".venv").symlink_to(environment)
    done = subprocess.run(
        [sys.executable, tmp_path / "ours" / "tools" / "setup.py", "dev"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"leads to {environment}, the environment of another tree" in done.stderr
    assert list(environment.iterdir()) == []
