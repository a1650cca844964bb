"""Rings run in C where the extension was built, else in Python; users can see which, and choose Python."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from messagehub.shm import core, errors, layout
from messagehub.shm.core import python_primitives
from messagehub.shm.rings import reader_files

ROOT = Path(__file__).resolve().parents[2]


def doctor(tmp_path: Path, **variables: str) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "messagehub", "doctor", "--json", "--dir", str(tmp_path / "hub")],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    (found,) = [one for one in json.loads(ran.stdout)["findings"] if one["check"] == "rings"]
    return dict(found)


def test_doctor_says_which_implementation_is_used(tmp_path: Path) -> None:
    is_built = (ROOT / "messagehub" / "shm" / "core" / "_ring.abi3.so").exists()
    assert doctor(tmp_path, MESSAGEHUB_PURE_PYTHON="")["severity"] == ("ok" if is_built else "info")
    chosen = doctor(tmp_path, MESSAGEHUB_PURE_PYTHON="1")
    assert chosen["severity"] == "info"
    assert "MESSAGEHUB_PURE_PYTHON is set" in chosen["message"]


def test_rings_in_python_are_refused_where_stores_are_not_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    # private: what this process has told already keeps it from being checked again
    monkeypatch.setattr(core, "_told", [])
    monkeypatch.setattr(core, "IMPLEMENTATION", "python")
    monkeypatch.setattr(core.platform, "machine", lambda: "aarch64")
    with pytest.raises(errors.RingCoreMissing, match="aarch64"):
        core.check_usable()
    monkeypatch.setattr(core, "IMPLEMENTATION", "c")
    core.check_usable()


def test_the_header_in_c_and_the_layout_in_python_agree() -> None:
    header = (ROOT / "messagehub" / "shm" / "core" / "ring.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"\bMH_(\w+) = (\d+)", header)}
    assert found == {
        "HEAD": layout.HEAD,
        "EPOCH": layout.EPOCH,
        "STATE": layout.STATE,
        "OPEN": layout.State.OPEN,
        "WRITER_TICKET": layout.WRITER_TICKET,
        "SEQUENCE": layout.SEQUENCE,
        "LENGTH": layout.LENGTH,
        "CHECKSUM": layout.CHECKSUM,
        "HINT": layout.HINT,
        "SHAPE": layout.SHAPE,
        "LINE_WORDS": layout.LINE_WORDS,
        "CURSOR": reader_files.CURSOR,
        "TICKET": reader_files.TICKET,
        "LOSSLESS": reader_files.LOSSLESS,
        "HELD": reader_files.HELD,
        "PINS_OFFSET": reader_files.PINS_OFFSET,
        "GROUP_LINE_WORDS": python_primitives.GROUP_LINE_WORDS,
    }
    for name in ("CURSOR", "TICKET", "LOSSLESS", "HELD", "PINS_OFFSET"):
        assert getattr(python_primitives, name) == getattr(reader_files, name)


def test_a_core_of_other_sources_is_not_used() -> None:
    """Somebody has fetched newer sources, and not built them yet."""
    program = (
        "import sys, types\n"
        # private: the compiled module has no other name
        "sys.modules['messagehub.shm.core._ring'] = types.ModuleType('_ring')\n"
        "from messagehub.shm import core\n"
        "print(core.IMPLEMENTATION, core.REASON)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MESSAGEHUB_PURE_PYTHON"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("python the compiled core is of another version")
