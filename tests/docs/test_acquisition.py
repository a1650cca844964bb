"""The two programs of docs/howto/acquisition.md, as they are printed: ten lines each, and nothing is lost."""

import contextlib
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import MessageHub
from tests import preloaded
from tests.docs.snippets import blocks_of
from tests.integration.harness import ROOT, Served, end_at_once, eventually

PAGE = ROOT / "docs/howto/acquisition.md"
ACQUIRE, PLOT = (block.text for block in blocks_of(PAGE) if block.language == "python")
SECONDS = 120.0
SAMPLES = 3000


def lines_of(program: str) -> list[str]:
    return [line for line in program.splitlines() if line.strip()]


def test_each_program_has_ten_lines() -> None:
    assert len(lines_of(ACQUIRE)) <= 10
    assert len(lines_of(PLOT)) <= 10


class Programs:
    """Both programs in files and processes of their own, without a hub."""

    def __init__(self, place: Path) -> None:
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "MESSAGEHUB_DIR": str(place / "hub"),
            "MPLBACKEND": "Agg",
        }
        (place / "acquire.py").write_text(ACQUIRE)
        (place / "plot.py").write_text(PLOT)
        self._complaints = (place / "complaints").open("w+")
        self.acquire = self._start(str(place / "acquire.py"))
        self.plot = self._start("-m", "tests.docs.watched_program", str(place / "plot.py"))

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return preloaded.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            bufsize=0,  # select sees what readline has left
            start_new_session=True,
        )

    def told(self) -> dict[str, Any]:
        """The next line of the plot."""
        assert self.plot.stdout is not None
        assert select.select([self.plot.stdout], [], [], SECONDS)[0], self.complaints()
        line = self.plot.stdout.readline()
        assert line, self.complaints()
        found: dict[str, Any] = json.loads(line)
        return found

    def plots_until(self, number: int) -> dict[str, Any]:
        while (told := self.told())["read"] < number:
            pass
        return told

    def ends_by_ctrl_c(self, process: "subprocess.Popen[bytes]") -> None:
        """As a person does: again, if nothing happens. Python discards an interrupt that comes in a finalizer, and
        matplotlib has many: of 250 at this plot one was discarded, in `TransformNode.set_children`."""

        def ends() -> bool:
            process.send_signal(signal.SIGINT)
            try:
                return process.wait(2.0) is not None
            except subprocess.TimeoutExpired:
                return False

        eventually(ends, timeout=SECONDS)

    def complaints(self) -> str:
        return Path(self._complaints.name).read_text()

    def close(self) -> None:
        for process in (self.plot, self.acquire):
            end_at_once(process)
            process.wait(SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        self._complaints.close()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    running = Programs(tmp_path)
    yield running
    running.close()


@pytest.mark.timeout(300)
def test_a_plot_of_a_loop_of_1_khz_loses_nothing_even_if_it_hangs(programs: Programs) -> None:
    with (
        MessageHub(dir=programs.environment["MESSAGEHUB_DIR"]) as hub,
        hub.consumer("lab.signal", start="oldest", on_lag="raise") as other,
    ):
        numbers = [int(other.read(timeout=SECONDS)["number"]) for _ in range(SAMPLES)]
        assert numbers == list(range(1, SAMPLES + 1)), "the loop writes every sample once"
        programs.plots_until(SAMPLES)

        programs.plot.send_signal(signal.SIGSTOP)
        numbers = [int(other.read(timeout=SECONDS)["number"]) for _ in range(SAMPLES)]
        assert numbers == list(range(SAMPLES + 1, 2 * SAMPLES + 1)), "nobody waits for a plot that hangs"
        programs.plot.send_signal(signal.SIGCONT)

        told = programs.plots_until(2 * SAMPLES)
        assert (told["drawn"], told["missed"]) == (1000, 0)
        assert programs.acquire.poll() is None, programs.complaints()
    programs.ends_by_ctrl_c(programs.plot)
    programs.ends_by_ctrl_c(programs.acquire)


@pytest.mark.timeout(300)
def test_a_reader_of_a_group_that_is_killed_goes_on_where_it_was(tmp_path: Path, served: Callable[..., Served]) -> None:
    called = re.search(r"`(consumer\([^`]*group=[^`]*\))`", PAGE.read_text())
    assert called, "the page says how to go on after a kill -9"
    (tmp_path / "acquire.py").write_text(ACQUIRE)
    (tmp_path / "reader.py").write_text(
        "from messagehub import MessageHub\n"
        f"with MessageHub.get_instance().{called[1]} as consumer:\n"
        "    for item in consumer:\n"
        "        print(int(item['number']), flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MESSAGEHUB_DIR": str(served().dir)}

    @contextlib.contextmanager
    def run(name: str) -> "Iterator[subprocess.Popen[str]]":
        command = [sys.executable, str(tmp_path / name)]
        with preloaded.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def numbers(reader: "subprocess.Popen[str]", count: int) -> list[int]:
        assert reader.stdout is not None
        return [int(line) for line in itertools.islice(reader.stdout, count)]

    with run("acquire.py"), run("reader.py") as first:
        read = numbers(first, SAMPLES)
        first.kill()
        read += numbers(first, 100_000)  # what it had printed until then
        assert read == list(range(1, len(read) + 1))
        with run("reader.py") as second:
            went_on = numbers(second, SAMPLES)
        assert went_on[0] in (read[-1], read[-1] + 1), "what it had in hand comes once more, and nothing else"
        assert went_on == list(range(went_on[0], went_on[0] + SAMPLES)), "nothing is lost while nobody reads"
