"""The compiled load generators: built into build/bench/, run as processes, every reply checked."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks import packages
from benchmarks.harness import CannotMeasure, PeerMissing
from benchmarks.processes import spawn, stop
from messagehub.security.credentials import KeyPair

SOURCES = Path(__file__).parent / "native"
MOST_SECONDS = 150.0


class Load(msgspec.Struct):
    operations: int
    errors: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


@dataclass(frozen=True)
class Native:
    """One built program; every call is one load with `key=value` options (see native/load.h)."""

    program: Path

    def start(self, **options: object) -> "Running":
        arguments = [f"{key}={value}" for key, value in options.items()]
        return Running(spawn([self.program, *arguments], stdout=subprocess.PIPE, is_client=True))

    def run(self, **options: object) -> Load:
        return self.start(**options).result()


@dataclass(frozen=True)
class Running:
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """For a load whose figures nobody wants."""
        stop(self.process)

    def result(self) -> Load:
        try:
            output, _ = self.process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise CannotMeasure("the native clients did not end") from None
        if self.process.returncode:
            raise CannotMeasure(f"the native clients ended with {self.process.returncode}")
        load = msgspec.json.decode(output, type=Load)
        if load.errors or not load.operations:
            raise CannotMeasure(f"{load.errors} wrong or missing replies, {load.operations} answered")
        return load


def curve(pair: KeyPair | None) -> dict[str, str]:
    """The options of clients that come with a key."""
    if pair is None:
        return {}
    return {"server_key": pair.server_key, "public_key": pair.public, "secret_key": pair.secret}


def zmq_clients(directory: Path) -> Native:
    packages.header("zmq.h", "libzmq3-dev")
    return _build(directory, "zmq_clients", "-lzmq")


def unix_clients(directory: Path) -> Native:
    return _build(directory, "unix_clients")


def nats_clients(directory: Path) -> Native:
    packages.header("nats/nats.h", "libnats-dev")
    return _build(directory, "nats_clients", "-lnats")


def _build(directory: Path, name: str, *libraries: str) -> Native:
    compiler = shutil.which("cc") or packages.program("gcc", "gcc")
    program = directory / name
    newest = max(source.stat().st_mtime for source in SOURCES.iterdir())
    if not program.exists() or program.stat().st_mtime < newest:
        flags = ["-O2", "-Wall", "-Wextra", *libraries, "-lpthread", "-o", str(program)]
        command = [compiler, str(SOURCES / f"{name}.c"), *flags]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            raise PeerMissing(f"{name} does not compile here: {built.stderr.strip()[-400:]}")
    return Native(program)
