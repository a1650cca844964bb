"""The core of rings (`ring.h`) in a C program of its own, built in several ways: killed processes, and threads.

The controls take out what the protocol rests on, and must fail: else these tests would prove nothing.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from messagehub.shm import core
from tests.levels import IS_QUICK

ROOT = Path(__file__).parents[3]
STRESS = Path(__file__).with_name("ring_stress.c")
HEADER = Path(core.__file__).with_name("ring.h")
SECONDS = 2 if IS_QUICK else 30
ADDRESS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-g", "-fsanitize=thread", "-Wno-tsan")  # fences are run, but not followed: the orders of words are


def built(directory: Path, *options: str, header: str | None = None) -> Path:
    """Compile the stress, with another `ring.h` if one is given."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here, which builds the stress of the core")
    (directory / "ring.h").write_text(HEADER.read_text() if header is None else header)
    program = directory / "ring_stress"
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{directory}", *options]
    command += [str(STRESS), "-o", str(program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("gcc has no runtime of its sanitizers here")
    assert done.returncode == 0, done.stderr
    return program


def ran(program: Path, seconds: float, *how: str) -> tuple[int, str]:
    seed = time.time_ns() % 100_000
    command = [str(program), str(seconds), str(seed), *how]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds + 120)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not understand the addresses that this kernel gives out")
    print(f"seed {seed}\n{done.stdout}{done.stderr[:4000]}")
    return done.returncode, done.stdout + done.stderr


def counted(output: str, what: str) -> int:
    return sum(map(int, re.findall(rf"\b{what} (\d+)", output)))


def test_processes_killed_at_random_leave_no_torn_no_lost_and_no_stalled_item(tmp_path: Path) -> None:
    status, output = ran(built(tmp_path, "-O2"), SECONDS)
    assert (status, counted(output, "read") > 1000, counted(output, "kills") > 10) == (0, True, True)


def test_the_sanitizers_of_addresses_and_of_undefined_behaviour_find_nothing(tmp_path: Path) -> None:
    status, output = ran(built(tmp_path, *ADDRESS), SECONDS)
    assert (status, counted(output, "read") > 1000) == (0, True)


def test_the_sanitizer_of_threads_finds_no_race_for_the_payload_of_a_pinned_slot(tmp_path: Path) -> None:
    """It does not see other processes, so threads share the ring. Copies without a pin, which race by intention and are
    looked at again afterwards, are left out."""
    status, output = ran(built(tmp_path, *THREAD), SECONDS, "threads")
    assert (status, counted(output, "read") > 1000) == (0, True)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core no load passes a store of another")
def test_control_without_fences_reads_are_torn(tmp_path: Path) -> None:
    program = built(tmp_path, "-O2", "-DMH_CONTROL_WITHOUT_FENCES")
    torn = 0
    deadline = time.monotonic() + 60
    while not torn and time.monotonic() < deadline:  # 700 in a second on two cores
        torn = counted(ran(program, 1)[1], "torn")
    assert torn


@pytest.mark.slow
@pytest.mark.parametrize("order", ["RELEASE", "ACQUIRE"])
def test_control_without_the_order_of_words_the_sanitizer_of_threads_finds_races(tmp_path: Path, order: str) -> None:
    header = HEADER.read_text().replace(f"__ATOMIC_{order}", "__ATOMIC_RELAXED")
    status, output = ran(built(tmp_path, *THREAD, header=header), 1, "threads")
    assert status != 0
    assert "data race" in output


RUN_WITH = """
import importlib.util, sys
import pytest
# private: the extension built with sanitizers takes the place of the one beside it
spec = importlib.util.spec_from_file_location("messagehub.shm.core._ring", sys.argv[1])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
from messagehub.shm import core
assert core.IMPLEMENTATION == "c", core.REASON
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_extension_itself_behaves_under_the_sanitizers(tmp_path: Path) -> None:
    """The tests of its behaviour, with views, forks and damaged words, run in a Python that has them loaded."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc here, which builds the extension")
    module = tmp_path / "_ring.abi3.so"
    command = [compiler, *ADDRESS, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    command += [str(HEADER.with_name("_ring.c")), "-o", str(module)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"the extension cannot be built with sanitizers here: {done.stderr[-200:]}")
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    variables = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it needs until the end
        "PYTHONMALLOC": "malloc",
        "MESSAGEHUB_PURE_PYTHON": "0",
    }
    suites = [str(ROOT / "tests/shm" / name) for name in ("test_core.py", "test_views.py", "test_held_values.py")]
    tests = [sys.executable, "-c", RUN_WITH, str(module), *suites]
    done = subprocess.run(tests, check=False, capture_output=True, text=True, timeout=500, env=variables, cwd=ROOT)
    print(done.stdout[-4000:], done.stderr[-4000:])
    assert done.returncode == 0
    assert "Sanitizer" not in done.stdout + done.stderr
