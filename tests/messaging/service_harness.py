"""What the tests of services share: workers as processes of their own, handlers that wait, numbers."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from messagehub import MessageHub
from messagehub.services.connection import ServiceConnection
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.frames import (
    ANSWER,
    SCHEME,
    WELCOME,
    Greeting,
    Proof,
    decode_challenge,
    greeting,
    key_id,
    proof_of,
)
from messagehub.services.services import Services
from messagehub.services.workers import ServiceWorker
from registry import commands, replies
from registry.records import Worker
from tests import preloaded
from tests.integration.harness import ROOT, Served, clean_environment, hub_of

SECONDS = 20.0
CONNECTED = "03"  # in /proc/net/unix
SOON = 5.0  # far below every timeout that is given, far above what it takes


def patient_hub(broker: Served, **settings: Any) -> AbstractContextManager[MessageHub]:
    """A broker on a loaded machine may need more than half a second to say hello."""
    return hub_of(broker, hello_timeout_seconds=5.0, **settings)


class WorkerProcess:
    def __init__(self, broker: Served, address: str, *, log: Path | None = None, **options: Any) -> None:
        words = [broker.endpoint, address, *(f"{name}={value}" for name, value in options.items())]
        with contextlib.ExitStack() as stack:
            self.process = preloaded.Popen(
                [sys.executable, "-W", "error", "-m", "tests.messaging.service_process", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("w")) if log else None,
                text=True,
                env=clean_environment(),
                cwd=ROOT,
            )
        assert self.process.stdout is not None
        self.worker_id = self.process.stdout.readline().strip()
        assert self.worker_id, "the worker did not start"

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)  # also to one that has just ended, and whose end is not told yet
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


def metrics(hub: MessageHub) -> dict[str, int]:
    found: dict[str, int] = hub.metrics()["services"]
    return found


def worker_of(hub: MessageHub, address: str) -> Worker:
    """Who serves the address, as the broker tells callers."""
    resolved = hub.ask(commands.ResolveService(address=address))
    assert isinstance(resolved, replies.ServiceResolved)
    (worker,) = resolved.service.workers
    return worker


def connections(worker: Worker) -> int:
    """How many callers are connected to the process of this worker, as the kernel sees it."""
    path = worker.endpoint.removeprefix("unix:")
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sum(words[-1] == path and words[5] == CONNECTED for words in sockets)


def stranger_to(worker: Worker) -> socket.socket:
    """A plain socket to the process of this worker."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect("\0" + worker.endpoint.removeprefix("unix:@"))
    return connected


def sender_of(broker: Served, hub: MessageHub) -> str:
    """How the hub is named to those who get its messages."""
    with patient_hub(broker) as other, other.serve("name:who", lambda message, context: message.sender):
        return str(hub.request("name:who", timeout=SECONDS))


def services(hub: MessageHub) -> Services:
    return hub._parts.services  # private: a hub shows neither its connections nor what it knows of workers


def connection_of(hub: MessageHub) -> ServiceConnection:
    """The only one of the hub."""
    (connection,) = services(
        hub
    ).requests.connections._connections.values()  # private: what is tested happens on the connection, inside of a call
    return connection


def has_nothing_open(hub: MessageHub) -> bool:
    """Whether every reply that a hub asked for has ended on its connections."""
    connections = services(
        hub
    ).requests.connections._connections.values()  # private: what is left of an ended stream only takes memory
    return all(connection.is_idle for connection in connections)


def has_waiting(served: ServiceWorker) -> bool:
    """Whether a caller waits for room in the mailbox."""
    return bool(served.mailbox._blocked)  # private: a message that waits is counted only when there is room for it


def pids(hub: MessageHub, address: str, count: int) -> list[int]:
    return [hub.request(address, {}, timeout=SECONDS)["pid"] for _ in range(count)]


def connected(endpoint: str) -> socket.socket:
    """A plain socket to a worker's process, as anybody on the host could make one."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(SECONDS)
    peer.connect("\0" + endpoint.removeprefix(SCHEME))
    return peer


def received(peer: socket.socket) -> bytes:
    """One whole frame; nothing when the other side hangs up."""
    data = b""
    size = ANSWER.size
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            return b""
        data += more
        size = int.from_bytes(data[:4], "little") + 4 if len(data) >= 4 else size
    return data


def welcomed(worker: Worker, sender: str = "peer") -> socket.socket:
    """A plain socket that has greeted a worker with its key."""
    peer = connected(worker.endpoint)
    peer.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), sender, "nonce")))
    said = decode_challenge(received(peer)[ANSWER.size :])
    peer.sendall(greeting(Proof(proof_of("caller", worker.key, "nonce", said.nonce))))
    assert received(peer)[4] == WELCOME
    return peer


class Gate:
    """Holds handlers of this process until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        self.seen: list[Any] = []

    def __call__(self, message: ServiceMessage, context: ServiceContext) -> Any:
        self.seen.append(message.payload)
        self.entered.release()
        assert self.opened.wait(SECONDS)
        return message.payload
