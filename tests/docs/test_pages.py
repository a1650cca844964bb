"""What README and docs/ show works when it is typed in order, with the hub's directory at its default and elsewhere."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.docs.snippets import Block, blocks_of
from tests.integration.harness import ROOT, end_at_once, eventually

SECONDS = 300.0  # Spark starts in the first block of its page
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    # tests/spark has those that need Java, and test_notebooks.py the cells of a notebook
    if blocks_of(page) and page.name not in ("spark.md", "first-hour.md", "notebooks.md")
)


class Reader:
    """Somebody with a hub, a Python prompt, a shell and a page."""

    def __init__(self, home: Path, *, has_directory: bool, **environment: str) -> None:
        self.home = home
        self.domain = f"pytest-{os.getpid()}-{home.name}"  # of the whole module
        self.directory = home / "hub" if has_directory else home / ".local/state/messagehub"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MESSAGEHUB_")} | {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MESSAGEHUB_DOMAIN": self.domain,
            "MESSAGEHUB_HTTP": "127.0.0.1:0",
            **environment,
        }
        if has_directory:
            self.environment["MESSAGEHUB_DIR"] = str(self.directory)
        self.processes: list[subprocess.Popen[str]] = []
        self._hub = self._start([sys.executable, "-m", "messagehub", "serve"], preloaded.Popen)
        assert "ready" in self._line_of(self._hub)
        self._python = self.interpreter()

    def interpreter(self) -> "subprocess.Popen[str]":
        # Spark's driver starts anew, as users start it: JVM and workers take far longer than its imports.
        popen = subprocess.Popen if "PYSPARK_PYTHON" in self.environment else preloaded.Popen
        return self._start([sys.executable, "-m", "tests.docs.interpreter"], popen)

    def _start(
        self, command: list[str], popen: type["subprocess.Popen[Any]"] = subprocess.Popen
    ) -> "subprocess.Popen[str]":
        with (self.home / "complaints").open("a") as complaints:
            process = popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _line_of(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], SECONDS)[0], f"it does not end\n{self.complaints()}"
        return process.stdout.readline()

    def complaints(self) -> str:
        return (self.home / "complaints").read_text()

    def types(self, block: Block) -> None:
        if block.language == "python":
            self._python_block(block)
        else:
            assert block.language in ("sh", "bash"), f"{block.place}: nobody knows how to run {block.language}"
            self._shell_block(block)

    def _python_block(self, block: Block) -> None:
        is_background = block.how.startswith("background")
        python = self.interpreter() if is_background else self._python
        assert python.stdin is not None
        text = block.with_domain(self.domain)
        python.stdin.write(json.dumps({"page": block.page.name, "line": block.line, "text": text}) + "\n")
        python.stdin.flush()
        if is_background:
            awaited = block.how.partition(" until ")[2]
            eventually(lambda: awaited in self.complaints(), timeout=SECONDS)
            return
        done = json.loads(self._line_of(python))
        assert done["raised"] == block.how.removeprefix("raises "), f"{block.place}\n{done['trace']}{self.complaints()}"
        says_so = any("print(" in line and "# None" in line for line in block.text.splitlines())
        assert says_so or "None" not in done["lines"], f"{block.place} prints None, and does not say that it will"

    def _shell_block(self, block: Block) -> None:
        kept = "$HOME/variables"
        before = f'[ ! -f "{kept}" ] || . "{kept}"\nset -a\n'
        if block.how.startswith("background"):
            process = self._start(["bash", "-ec", f"{before}exec {block.text}"])
            while block.how.partition(" until ")[2] not in (line := self._line_of(process)):
                assert line, f"{block.place}\n{self.complaints()}"
            return
        script = f'{before}{block.text}\nexport -p > "{kept}"'
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"

    def turns_the_page(self) -> None:
        """End what the page has started, and go on with a new prompt and a new shell, but with the same hub."""
        self._end(self.processes[1:])
        del self.processes[1:]
        (self.home / "variables").unlink(missing_ok=True)
        os.truncate(self.home / "complaints", 0)  # no block waits for what another page has printed
        self._python = self.interpreter()

    def close(self) -> None:
        self._end(self.processes)

    def _end(self, processes: list["subprocess.Popen[str]"]) -> None:
        for process in reversed(processes):
            end_at_once(process)
            process.wait(SECONDS)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def read(directory: str, page: Path) -> Any:
    """A reading of a page. `make test` reads README.md with both directories, the others with the default."""
    is_slow = directory != "default" and page.name != "README.md"
    return pytest.param(
        directory, page, id=f"{directory}-{page.relative_to(ROOT)}", marks=[pytest.mark.slow] if is_slow else []
    )


@pytest.fixture(scope="module")
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Somebody who reads all pages with one hub."""
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        person = Reader(Path(home), has_directory=request.param == "MESSAGEHUB_DIR")
        yield person
        person.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("reader", "page"),
    [read(directory, page) for directory in ("default", "MESSAGEHUB_DIR") for page in PAGES],
    indirect=["reader"],
)
def test_every_block_of_a_page_works_in_order(page: Path, reader: Reader) -> None:
    try:
        for block in blocks_of(page):
            reader.types(block)
        assert "another broker serves domain" not in reader.complaints(), "it shares memory with the reader's own hub"
    finally:
        reader.turns_the_page()
