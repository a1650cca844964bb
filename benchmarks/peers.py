"""redis-server, etcd and nats-server from Debian and a FastAPI route, with the load generators made for them.

Each runs on a free loopback port in a temporary directory with its usual settings; only Redis's background
saves are off, since nothing else here writes to disk behind a read.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import packages
from benchmarks.harness import CannotMeasure
from benchmarks.native import Native
from benchmarks.processes import accepts, free_port, running, spawn

LOAD_SECONDS = 60


@dataclass(frozen=True)
class Peer:
    port: int
    unix_socket: str = ""


@contextmanager
def redis_server() -> Iterator[Peer]:
    program = packages.program("redis-server", "redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        unix_socket = f"{directory}/redis.sock"
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", ""]
        with running([*command, "--unixsocket", unix_socket], is_ready=accepts(port)):
            yield Peer(port, unix_socket)


@contextmanager
def etcd_server(directory: Path) -> Iterator[Peer]:
    """One member on the given disk: its puts are synced there, as ours are."""
    program = packages.program("etcd", "etcd-server")
    port, peer_port = free_port(), free_port()
    client_url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    with tempfile.TemporaryDirectory(prefix="etcd-", dir=directory) as data:
        command = [program, "--data-dir", data, "--log-level", "error"]
        command += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
        command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
        command += ["--initial-cluster", f"default={peer_url}"]
        with running(command, is_ready=accepts(port)):
            yield Peer(port)


@contextmanager
def nats_server() -> Iterator[Peer]:
    program = packages.program("nats-server", "nats-server")
    port = free_port()
    with running([program, "-a", "127.0.0.1", "-p", str(port)], is_ready=accepts(port)):
        yield Peer(port)


@contextmanager
def http_server() -> Iterator[Peer]:
    port = free_port()
    with running([sys.executable, "-m", "benchmarks.http_peer", str(port)], is_ready=accepts(port)):
        yield Peer(port)


@contextmanager
def nats_responder(clients: Native, server: Peer, record: bytes) -> Iterator[None]:
    """The service behind NATS request-reply, on NATS's own C client."""
    command = [
        str(clients.program),
        "serve",
        f"endpoint=nats://127.0.0.1:{server.port}",
        f"request={record.decode()}",
    ]
    process = spawn(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise CannotMeasure("the NATS responder did not start")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=LOAD_SECONDS)


def redis_benchmark(server: Peer, *, operations: int, pipeline: int = 1) -> float:
    """GETs a second of 32 clients, by Redis's own load generator."""
    program = packages.program("redis-benchmark", "redis-tools")
    command = [
        program,
        "-p",
        str(server.port),
        "-c",
        "32",
        "-n",
        str(operations),
        "-P",
        str(pipeline),
        "--csv",
    ]
    output = _output([*command, "GET", "bench.c0"])
    figures = re.findall(r'^"GET bench\.c0","([0-9.]+)"', output, re.MULTILINE)
    if not figures:
        raise CannotMeasure(f"redis-benchmark said {output[:300]!r}")
    return float(figures[0])


def grpc_load(server: Peer, method: str, message: bytes, *, operations: int) -> float:
    """Calls a second of 32 connections by nghttp2's native load generator: a gRPC call is an HTTP/2 POST."""
    program = packages.program("h2load", "nghttp2-client")
    with tempfile.NamedTemporaryFile() as body:
        body.write(b"\0" + len(message).to_bytes(4, "big") + message)
        body.flush()
        command = [program, "-c", "32", "-m", "1", "-t", "1", "-n", str(operations), "-d", body.name]
        command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        output = _output([*command, f"http://127.0.0.1:{server.port}/{method}"])
    succeeded = re.search(r"(\d+) succeeded", output)
    speed = re.search(r"finished in .*?, ([0-9.]+) req/s", output)
    if not succeeded or not speed or int(succeeded[1]) != operations:
        raise CannotMeasure(f"h2load said {output[-400:]!r}")
    return float(speed[1])


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    if done.returncode:
        raise CannotMeasure(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-300:]}")
    return done.stdout
