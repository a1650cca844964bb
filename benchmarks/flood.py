"""What a flooding peer costs the others: discovery with keys, alone and beside it. `python -m benchmarks.flood`."""

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from messagehub.credentials import AccessFile, KeyPair, allow_key, server_keys
from messagehub.private_files import private_directory

ROUNDS, DISCOVERIES = 3, 200


def connected(context: "zmq.Context[Any]", endpoint: str, server: str, pair: KeyPair) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 5000)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    socket.connect(endpoint)
    return socket


def flood(endpoint: str, server: str, pair: KeyPair, is_on: Any, sent: Any) -> None:
    socket = connected(zmq.Context(), endpoint, server, pair)
    while True:
        is_on.wait()
        socket.send_multipart([b"", b'{"type":"DISCOVERY_REQUEST","channel":"c","id":"flood"}'])
        sent.value += 1
        while socket.poll(0):
            socket.recv_multipart()


def discoveries(socket: "zmq.Socket[bytes]") -> list[float]:
    taken = []
    for number in range(DISCOVERIES):
        started = time.perf_counter()
        socket.send_multipart([b"", b'{"type":"DISCOVERY_REQUEST","channel":"c","id":"%d"}' % number])
        assert socket.poll(30_000), "no answer"
        assert b"DISCOVERY_RESPONSE" in socket.recv_multipart()[1]
        taken.append(time.perf_counter() - started)
        time.sleep(0.001)
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "hub"
        private_directory(directory)
        server = server_keys(directory / "keys").public
        good, bad = KeyPair.new(server), KeyPair.new(server)
        allow_key(AccessFile(directory / "access.json"), "good", good.public, ["admin"])
        allow_key(AccessFile(directory / "access.json"), "bad", bad.public, ["observe"])
        for rate in (1000.0, 0.0):
            measure(directory, server, good, bad, rate)


@contextmanager
def served(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "messagehub", "serve", "--no-http", "--dir", str(directory)]
    command += ["--endpoint", "tcp://127.0.0.1:0", "--curve", "--log", "ERROR"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split("endpoint=")[1].split()[0]
        process.terminate()


def measure(directory: Path, server: str, good: KeyPair, bad: KeyPair, rate: float) -> None:
    spawning = multiprocessing.get_context("spawn")
    is_on, sent = spawning.Event(), spawning.Value("Q", 0)
    (directory / "messagehub.toml").write_text(f"requests_per_second = {rate}\n")
    with served(directory) as endpoint:
        process = spawning.Process(target=flood, args=(endpoint, server, bad, is_on, sent), daemon=True)
        process.start()
        context: zmq.Context[Any] = zmq.Context()
        socket = connected(context, endpoint, server, good)
        socket.send_multipart([b"", b'{"type":"CHANNEL_CREATE","channel":"c"}'])
        assert socket.poll(30_000)
        socket.recv_multipart()
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(ROUNDS):
            alone += discoveries(socket)
            is_on.set()
            time.sleep(0.3)
            beside += discoveries(socket)
            is_on.clear()
            time.sleep(0.3)
        name = f"{rate:g} requests a second of one peer" if rate else "no limit"
        print(
            f"{name}: flood sent {sent.value}; discovery p50 / p99 in ms: alone {shown(alone)}, beside {shown(beside)}"
        )
        process.kill()
        process.join()
        socket.close(0)
        context.term()


def shown(taken: list[float]) -> str:
    cuts = statistics.quantiles(taken, n=100)
    return f"{cuts[49] * 1e3:.2f} / {cuts[98] * 1e3:.2f}"


if __name__ == "__main__":
    main()
