"""A reader written in C from the layout and the header alone is a member like any other."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from messagehub.shm import errors
from messagehub.shm.layout import Checksum, WhenFull
from messagehub.shm.rings.ring import describe
from messagehub.shm.rings.writer import RingWriter
from tests.shm.children import eventually
from tests.shm.rings import payload, writer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    built = str(tmp_path_factory.mktemp("c") / "ring_reader")
    source = ROOT / "examples" / "c" / "ring_reader.c"
    options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/messagehub/shm/core"]
    subprocess.run([compiler, *options, str(source), "-o", built], check=True, timeout=60)
    return built


def reading(program: str, made: RingWriter) -> "subprocess.Popen[str]":
    """Start the program, and return when it has read the first item: from then on the writer knows of it."""
    made.write(payload(1))
    child = subprocess.Popen([program, made.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: [holder.lag for holder in describe(made.path)[1]["holders"]] == [0])
    return child


def expected(first: int, last: int) -> list[str]:
    return [f"{number} 300 {sum(payload(number))}" for number in range(first, last + 1)]


def test_a_reader_in_c_gets_every_item_of_a_blocking_ring(root: str, program: str) -> None:
    with writer(root, when_full=WhenFull.BLOCK, checksum=Checksum.NONE) as made:
        child = reading(program, made)
        for number in range(2, 501):
            made.write(payload(number), timeout_seconds=20)
    said, told = child.communicate(timeout=20)
    assert said.splitlines() == expected(1, 500)
    assert told == "0 lost\n"
    assert describe(made.path)[1]["readers"] == 0


def test_a_reader_in_c_that_is_killed_or_stopped_is_seen(root: str, program: str) -> None:
    with writer(root, when_full=WhenFull.BLOCK, checksum=Checksum.NONE) as made:
        child = reading(program, made)
        os.kill(child.pid, signal.SIGSTOP)
        for number in range(2, 6):
            made.write(payload(number), timeout_seconds=20)
        with pytest.raises(errors.RingFull, match=f"process {child.pid} has not read"):
            made.write(payload(6), timeout_seconds=0.05)
        child.kill()
        child.communicate(timeout=10)
        assert made.write(payload(6), timeout_seconds=20).last == 6


def test_a_reader_in_c_of_an_overwriting_ring_counts_what_it_lost(root: str, program: str) -> None:
    with writer(root, checksum=Checksum.NONE) as made:
        child = reading(program, made)
        os.kill(child.pid, signal.SIGSTOP)
        for number in range(2, 101):
            made.write(payload(number))
        os.kill(child.pid, signal.SIGCONT)
        eventually(lambda: describe(made.path)[1]["holders"][0].lag == 0)
    said, told = child.communicate(timeout=20)
    first, *lines = said.splitlines()
    assert [first] == expected(1, 1)
    assert lines == expected(101 - len(lines), 100)
    assert told == f"{99 - len(lines)} lost\n"


def test_a_reader_in_c_refuses_what_is_no_ring(tmp_path: Path, program: str) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    ran = subprocess.run([program, str(tmp_path / "file")], capture_output=True, text=True, timeout=20, check=False)
    assert ran.returncode == 1
    assert "no ring of layout 3" in ran.stderr
