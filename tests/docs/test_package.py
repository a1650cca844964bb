"""The package as it is shipped: an sdist, the wheel that is built from it, and the README's first steps with that."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.snippets import blocks_of
from tests.integration.harness import ROOT, end_at_once

SECONDS = 300.0
BUILD = "import sys\nfrom setuptools import build_meta\nprint(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
NEEDED = ("messagehub", "registry", "tools", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
PYTHON_BLOCKS = [block for block in blocks_of(ROOT / "README.md") if block.language == "python" and not block.how]


def built(source: Path, how: str, target: Path) -> Path:
    command = [sys.executable, "-c", BUILD, how, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, so that the sdist has all that it takes."""
    place = tmp_path_factory.mktemp("package")
    source = place / "source"
    source.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    with tarfile.open(built(source, "build_sdist", place)) as sdist:
        sdist.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    return built(unpacked, "build_wheel", place)


def test_a_wheel_owns_no_name_but_its_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = {name.partition("/")[0] for name in files.namelist()}
        modules = [name for name in files.namelist() if name.endswith(".py")]
    assert {name for name in names if not name.endswith(".dist-info")} == {"messagehub", "pyspark_messagehub"}
    inside = {name.removeprefix("messagehub/") for name in modules if name.startswith("messagehub/registry/")}
    assert inside == {str(path.relative_to(ROOT)) for path in (ROOT / "registry").rglob("*.py")}


def test_a_wheel_has_the_files_of_the_web_console(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        shipped = {name for name in files.namelist() if name.startswith("messagehub/admin/console/")}
    folder = ROOT / "messagehub" / "admin" / "console"
    assert shipped == {str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.is_file()}


class Installed:
    """An environment of its own with the package, and a home."""

    def __init__(self, place: Path) -> None:
        self.place = place
        venv.create(place / "env", with_pip=False)
        self.python = str(place / "env" / "bin" / "python")
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(place / "env")}))
        self.environment = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        self.environment |= {"HOME": str(place), "MESSAGEHUB_HTTP": "127.0.0.1:0"}
        self.environment.pop("MESSAGEHUB_DIR", None)

    def run(self, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
        return done

    @contextmanager
    def hub(self) -> Iterator[str]:
        """A running hub; yields the line that says so."""
        with (self.place / "log").open("w") as log:
            process = subprocess.Popen(
                [self.python, "-m", "messagehub", "serve"],
                cwd=self.place,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "ready:" in line, (self.place / "log").read_text()
            yield line
            self.run("-m", "messagehub", "stop")
            assert process.wait(SECONDS) == 0
        finally:
            end_at_once(process)
            process.wait(SECONDS)
            assert process.stdout is not None
            process.stdout.close()

    def takes_the_first_steps(self) -> None:
        """What the README shows: the ten lines, Python and shared memory, the command line."""
        program = self.place / "steps.py"
        assert len(PYTHON_BLOCKS) > 3
        domain = self.environment["MESSAGEHUB_DOMAIN"]
        program.write_text("\n".join(block.with_domain(domain) for block in PYTHON_BLOCKS))
        assert "/pylabhub_sensor_data" in self.run(str(program)).stdout
        assert "healthy" in self.run("-m", "messagehub", "status").stdout
        self.run("-m", "messagehub", "channels")
        assert "messagehub" in self.run("-c", "import messagehub; print(messagehub.__file__)").stdout


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        yield Path(home)


@pytest.mark.timeout(600)
def test_a_wheel_beside_another_distribution_called_registry_takes_the_first_steps(wheel: Path, place: Path) -> None:
    """What the wheel needs is taken from the environment of this test."""
    installed = Installed(place)
    with zipfile.ZipFile(wheel) as files:
        files.extractall(installed.site)
    (installed.site / "registry").mkdir()
    (installed.site / "registry" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    (installed.site / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    with installed.hub() as line:
        assert "http=http://127.0.0.1:" in line
        installed.takes_the_first_steps()
    theirs = installed.run("-c", "import messagehub.hub, registry; print(registry.OWNER)").stdout
    assert theirs == "somebody else\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_in_an_empty_environment_takes_the_first_steps(wheel: Path, place: Path) -> None:
    """pip fetches what the wheel needs, and no extra: what lacks one says which."""
    installed = Installed(place)
    del installed.environment["MESSAGEHUB_HTTP"]  # who asks for HTTP and cannot have it is refused
    pip = [sys.executable, "-m", "pip", "--python", installed.python, "install", "--quiet", str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and ("NewConnectionError" in done.stderr or "name resolution" in done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    with installed.hub() as line:
        assert "http=None" in line
        assert "messagehub[admin]" in (place / "log").read_text()
        installed.takes_the_first_steps()
    assert "messagehub[admin]" in installed.run("-m", "messagehub", "serve", "--http", "127.0.0.1:0", code=1).stderr
    assert "messagehub[jupyter]" in installed.run("-c", "import messagehub.jupyter.kernel", code=1).stderr
    assert "messagehub[spark]" in installed.run("-c", "from messagehub.spark import publish", code=1).stderr
