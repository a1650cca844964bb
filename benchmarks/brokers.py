"""MessageHub's broker and the echo that is its floor, each in a process of its own.

Both on loopback TCP, because Redis, etcd and NATS are measured over that too, or as on a host of its own: the broker
where its directory says.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from benchmarks.harness import Bench, CannotMeasure
from benchmarks.processes import free_port, running
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, server_keys
from messagehub.settings import Settings
from messagehub.shm.channel_directory.directory import Directory

REPLY_TIMEOUT_MS = 10_000
REGISTERED_AT_ONCE = 100
# What the benchmark registers sends no heartbeats, and must outlive it.
SETTINGS = "stall_seconds = 7200.0\nlease_seconds = 14400.0\n"


@dataclass(frozen=True)
class Server:
    endpoint: str
    pid: int


@dataclass(frozen=True)
class Broker(Server):
    directory: Path
    keys: dict[str, KeyPair] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """What it and programs on its host are started with."""


@contextmanager
def echo_broker(endpoint: str = "") -> Iterator[Server]:
    endpoint = endpoint or f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "benchmarks.echo_broker", endpoint]
    with client_socket(endpoint) as probe, running(command, is_ready=answering(probe)) as process:
        yield Server(endpoint, process.pid)


@contextmanager
def hub_broker(
    bench: Bench,
    *,
    directory: Path | None = None,
    environment: dict[str, str] | None = None,
    profiled: bool = True,
    http: str | None = None,
    peers: Sequence[str] = (),
    requests_per_second: float = 0.0,
    is_local: bool = False,
    arguments: Sequence[str] = (),
) -> Iterator[Broker]:
    """A fresh broker with the durable store of a user's, under the profiler when the bench asks for that.

    A local one listens in its directory, and clients find it by that.

    A comparison with two brokers has only one of them `profiled`: there is one report. With named `peers`, CURVE is
    on, and each of them has a key and a right to everything. A local one has an ipc endpoint, and the local socket.
    """
    with tempfile.TemporaryDirectory(prefix="messagehub-bench-", dir=bench.directory) as fresh:
        directory = directory or Path(fresh)
        endpoint = (
            Settings.for_client(dir=directory, endpoint="").endpoint if is_local else f"tcp://127.0.0.1:{free_port()}"
        )
        (directory / "messagehub.toml").write_text(f"{SETTINGS}requests_per_second = {requests_per_second}\n")
        keys = _keys(directory, peers)
        program = (
            ["-m", "benchmarks.sampler", str(bench.profile)] if bench.profile and profiled else ["-m", "messagehub"]
        )
        command = [
            sys.executable,
            *program,
            "serve",
            *([] if is_local else ["--endpoint", endpoint]),
            "--dir",
            str(directory),
            *(["--http", http] if http else ["--no-http"]),
            *(["--curve"] if keys else []),
            *arguments,
        ]
        # Nothing of the machine's own hub may be touched: blocks and channel files get a domain of their own.
        domain = f"bench{free_port()}"
        settings = {"MESSAGEHUB_DOMAIN": domain, **(environment or {})}
        try:
            with (
                client_socket(endpoint, pair=next(iter(keys.values()), None)) as probe,
                running(command, is_ready=answering(probe), environment=settings) as process,
            ):
                yield Broker(endpoint, process.pid, directory, keys, settings)
        finally:
            remove_domain(domain)


def remove_domain(name: str) -> None:
    """Remove what is in shared memory of a domain that nobody uses any more; a ring may outlive its hub."""
    domain = Directory(name)
    shutil.rmtree(os.path.dirname(domain.path), ignore_errors=True)
    for ring in Path(domain.root).glob(f"pylabhub_*@{name}"):
        ring.unlink(missing_ok=True)


def _keys(directory: Path, peers: Sequence[str]) -> dict[str, KeyPair]:
    keys = {}
    for name in peers:
        keys[name] = KeyPair.new(server_keys(directory / "keys").public)
        allow_key(AccessFile(directory / "access.json"), name, keys[name].public, ["admin"])
    return keys


@contextmanager
def client_socket(endpoint: str, kind: int = zmq.REQ, pair: KeyPair | None = None) -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.linger = 0
    socket.rcvtimeo = REPLY_TIMEOUT_MS
    # libzmq waits 100 ms before it tries again; a start-up measured through it would be rounded up to that.
    socket.reconnect_ivl = 5
    if pair is not None:
        socket.curve_serverkey = pair.server_key.encode()
        socket.curve_publickey, socket.curve_secretkey = pair.public.encode(), pair.secret.encode()
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close()
        context.term()


class answering:  # noqa: N801  reads as the predicate it is
    """Ready once a PING came back; it is sent once and waits in libzmq until the broker listens."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._is_sent = False

    def __call__(self) -> bool:
        if not self._is_sent:
            self._socket.send(b'{"type":"PING"}')
            self._is_sent = True
        if not self._socket.poll(5):
            return False
        self._socket.recv()
        return True


def register_channels(endpoint: str, count: int, pair: KeyPair | None = None) -> None:
    """Active channels bench.c0 … as the draft's PRODUCER_REGISTER makes them."""
    config = {"policy": "RingBuffer", "capacity": 10, "page_size": 4096}
    request = {
        "type": "PRODUCER_REGISTER",
        "schema_hash": "abc123",
        "schema_version": "1.0.0",
        "config": config,
    }
    with client_socket(endpoint, zmq.DEALER, pair) as socket:
        for first in range(0, count, REGISTERED_AT_ONCE):
            numbers = range(first, min(first + REGISTERED_AT_ONCE, count))
            for number in numbers:
                socket.send(b"", zmq.SNDMORE)
                socket.send(msgspec.json.encode({**request, "channel": f"bench.c{number}"}))
            for _ in numbers:
                reply = _received(socket)
                if b"PRODUCER_REGISTER_ACK" not in reply:
                    raise CannotMeasure(f"PRODUCER_REGISTER was refused: {reply.decode()[:300]}")


def _received(socket: "zmq.Socket[bytes]") -> bytes:
    try:
        return socket.recv_multipart()[-1]
    except zmq.Again:
        raise CannotMeasure(f"no reply within {REPLY_TIMEOUT_MS / 1000:g} s") from None
