"""The tests' files are compiled once, before the processes of a run begin."""

import os
import sys
from pathlib import Path

import pytest

from tests.rewritten import WORTHWHILE, compile_once, stale


def test_files_are_compiled_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    files = [tmp_path / f"test_{number:02}.py" for number in range(WORTHWHILE)]
    for number, file in enumerate(files):
        file.write_text(f"def test_{number}():\n    assert {number} < {WORTHWHILE}\n")
    assert stale([tmp_path]) == files
    compile_once([tmp_path])
    assert stale([tmp_path]) == []
    later = files[3].stat().st_mtime + 60
    os.utime(files[3], (later, later))
    assert stale([tmp_path, tmp_path / "test_not_there.py"]) == [files[3]]


def test_a_few_files_are_left_to_those_that_run_them(tmp_path: Path) -> None:
    file = tmp_path / "test_alone.py"
    file.write_text("def test_it():\n    assert True\n")
    compile_once([file])
    assert stale([file]) == [file]
