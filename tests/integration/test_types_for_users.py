"""A user's program is type-checked against the package, where that is developed and as a wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio

import numpy as np

from messagehub import Consumer, Gap, HubError, Message, MessageHub, Producer, RingFull
from messagehub.testing import hub as hub_fixture


def keep(producer: Producer, consumer: Consumer, message: Message) -> list[object]:
    try:
        producer.write(message.payload)
    except RingFull as error:
        return [error]
    found = consumer.read_item()
    return [found.value if found is not None and not isinstance(found, Gap) else None]


def measure(hub: MessageHub) -> int:
    with hub.producer("voltages", schema=np.dtype("f8"), when_full="block", policy="DoubleBuffer") as producer:
        first: int = producer.write(np.zeros(3), timeout=1.0)
    with hub.consumer("voltages", start="oldest", on_lag="raise") as consumer:
        for value in consumer:
            print(value, consumer.missed)
    with hub.consumer("voltages", start=-10) as last, hub.consumer("voltages", start=last.position) as again:
        print(next(again), again.schema, last.lag + again.lag)
    found = hub.discover("voltages")
    return first if found is None or found.shm_name is None else len(found.shm_name)


async def talk(hub: MessageHub) -> None:
    number: int = await hub.publish_async("orders.eu", {"n": 1}, timeout=1.0)
    connected: bool = await hub.connect_async()
    print(await hub.request_async("service:resize", number), connected)
    async with await hub.producer_async("voltages") as producer, hub.consumer("voltages") as consumer:
        number = await producer.write_async(b"1")
        async for value in consumer:
            print(value)
    async for message in hub.subscribe("orders.>"):
        print(message.payload, message.headers)


try:
    with MessageHub(endpoint="tcp://127.0.0.1:5570") as one:
        print(measure(one))
        asyncio.run(talk(one))
except HubError as error:
    print(error.code, error.retryable, hub_fixture)
"""
WRONG = """
from messagehub import MessageHub

hub = MessageHub()
hub.producer("a", when_full="drop")
hub.producer("a", policy="Ring")
hub.producer("a", checksum="crc")
hub.consumer("a", start="newest")
hub.consumer("a", on_lag="wait")
hub.producer("a", capacity="10")
found: str = hub.discover("a")
"""


def environment() -> dict[str, str]:
    """Without a PYTHONPATH, which names this repository where Spark's tests run in the same process."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def checked(program: str, python: str, place: Path) -> list[str]:
    """What mypy says of a program, in a folder of its own with no settings."""
    (place / "program.py").write_text(program)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--cache-dir", str(place / "cache"), "--config-file", "", "--python-executable", python, "program.py"),
        ],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout.splitlines()


def wheel_built_in(place: Path, **variables: str) -> Path:
    source = place / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for folder in ("messagehub", "registry"):
        shutil.copytree(ROOT / folder, source / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE", "tools/packaging.py"):
        (source / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, source / file)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    built = subprocess.run(
        [sys.executable, "-c", build],
        cwd=source,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return place / built.stdout.split()[-1]


@pytest.fixture(scope="module")
def environment_with_wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its interpreter has the wheel, and what the wheel needs from the environment that runs this test."""
    place = tmp_path_factory.mktemp("wheel")
    built = wheel_built_in(place)
    venv.create(place / "env")
    python = str(place / "env" / "bin" / "python")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place / "env")}))
    with zipfile.ZipFile(built) as wheel:
        inside = {"messagehub/shm/core/_ring.abi3.so", "messagehub/shm/core/ring.h"}
        assert "-cp311-abi3-" in built.name
        assert inside <= set(wheel.namelist()) or shutil.which("gcc") is None
        wheel.extractall(site)
    (site / "needed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    where = [python, "-c", "import messagehub; print(messagehub.__file__)"]
    found = subprocess.run(where, cwd=place, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert Path(found.stdout.strip()).is_relative_to(place)
    return python


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_wheel", [False, True], ids=["editable", "wheel"])
def test_a_users_program_is_checked_strictly(is_wheel: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.getfixturevalue("environment_with_wheel") if is_wheel else sys.executable
    assert checked(PROGRAM, python, tmp_path) == []
    said = [line for line in checked(WRONG, python, tmp_path) if ": error: " in line]
    assert [int(line.split(":")[1]) for line in said] == list(range(5, 12)), said
    assert all(line.startswith("program.py:") for line in said)


@pytest.mark.timeout(600)
def test_without_a_compiler_the_wheel_has_no_core_and_works(tmp_path: Path) -> None:
    built = wheel_built_in(tmp_path, CC="/bin/false")
    with zipfile.ZipFile(built) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]
        wheel.extractall(tmp_path / "site")
    program = (
        "import messagehub, messagehub.shm.core as core; print(messagehub.__file__, core.IMPLEMENTATION)\n"
        "hub = messagehub.MessageHub(dir='hub', domain='no-compiler')\n"
        "with hub.producer('c') as producer, hub.consumer('c', start='oldest') as consumer:\n"
        "    producer.write(b'x'); print(consumer.read(1).decode())\n"
        "hub.close()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    place, implementation, value = ran.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert (implementation, value) == ("python", "x")
    shutil.rmtree(f"/dev/shm/messagehub-{os.geteuid()}/no-compiler", ignore_errors=True)
    Path("/dev/shm/pylabhub_c@no-compiler").unlink(missing_ok=True)
