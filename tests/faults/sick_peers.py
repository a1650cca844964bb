"""Peers that listen where a broker should be, and are none: real sockets, on ports of their own."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import zmq

from tests import preloaded

Message = dict[str, Any]
Answer = Callable[[Message], Message | bytes | None]

HELLO_ACK: Message = {
    "type": "HELLO_ACK",
    "version": "1.0",
    "broker_id": "sick",
    "revision": 0,
    "heartbeat_seconds": 0.2,
    "lease_seconds": 40.0,
    "beacon_seconds": 0.1,
    "endpoints": {},
    "server": "sick",
}


def error(code: str, *, retryable: bool = False) -> Message:
    return {"type": "ERROR", "code": code, "message": f"this peer says {code}", "details": {}, "retryable": retryable}


def always(answer: Message | bytes | None) -> Answer:
    return lambda _: answer


def after_hello(answer: Message | bytes | None) -> Answer:
    return lambda asked: HELLO_ACK if asked["type"] == "HELLO" else answer


class SickBroker:
    """A ROUTER that answers as it is told to; `endpoint` says where, `asked` which types it was asked."""

    def __init__(self, answer: Answer, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.answer = answer
        self.asked: list[Message] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(endpoint)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if not self._router.poll(20):
                continue
            *path, body = self._router.recv_multipart()
            asked = json.loads(body)
            self.asked.append(asked)
            answer = self.answer(asked)
            if isinstance(answer, dict):
                answer = json.dumps(answer | {"id": asked.get("id")}).encode()
            if answer is not None:
                self._router.send_multipart([*path, answer])

    def count(self, kind: str) -> int:
        return sum(asked["type"] == kind for asked in self.asked)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._router.close(0)
        self._context.term()

    def __enter__(self) -> "SickBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


FLOOD = """
import json, sys, zmq
hello, unasked = (text.encode() for text in sys.argv[1:])
router = zmq.Context().socket(zmq.ROUTER)
router.setsockopt(zmq.LINGER, 0)
router.setsockopt(zmq.SNDHWM, 100000)
router.bind("tcp://127.0.0.1:*")
print(router.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
while True:
    peer, _, body = router.recv_multipart()
    asked = json.loads(body)
    if asked["type"] == "HELLO" and hello:
        answer = json.dumps(json.loads(hello) | {"id": asked["id"]}).encode()
        router.send_multipart([peer, b"", answer])
    while not router.poll(0):
        for _ in range(1000):
            router.send(peer, zmq.SNDMORE)
            router.send(b"", zmq.SNDMORE)
            router.send(unasked)
"""


class FloodingBroker:
    """A process that sends answers that nobody asked for, as fast as it can, to the peer that asked last."""

    def __init__(self, *, says_hello: bool) -> None:
        pong = {"type": "PONG", "id": "nobody", "broker_id": "sick", "revision": 1}
        hello = json.dumps(HELLO_ACK) if says_hello else ""
        self._process = preloaded.Popen(
            [sys.executable, "-c", FLOOD, hello, json.dumps(pong)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()

    def __enter__(self) -> "FloodingBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Stranger:
    """A TCP server that does not speak ZeroMQ: it says something, and hangs up or not."""

    def __init__(self, said: bytes, *, hangs_up: bool) -> None:
        self._said = said
        self._hangs_up = hangs_up
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            self._connections.append(connection)
            if self._thread is None:
                return
            try:
                connection.sendall(self._said)
                if self._hangs_up:
                    connection.close()
            except OSError:
                continue  # it was quicker

    def close(self) -> None:
        thread, self._thread = self._thread, None
        socket.create_connection(self._listener.getsockname()).close()
        thread.join()
        for connection in [*self._connections, self._listener]:
            connection.close()

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SlowRelay:
    """A TCP relay to a broker that passes the first bytes on late, as a host does whose cores are all taken."""

    def __init__(self, endpoint: str, seconds: float) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._seconds = seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_over = threading.Event()
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets = [self._listener]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            outside, _ = self._listener.accept()
            inside = socket.create_connection(self._target)
            self._sockets += [outside, inside]
            for source, sink in ((outside, inside), (inside, outside)):
                thread = threading.Thread(target=self._relay, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        self._is_over.wait(self._seconds)
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side is gone

    def close(self) -> None:
        self._is_over.set()
        socket.create_connection(self._listener.getsockname()).close()
        self._threads[0].join()
        for each in self._sockets[1:]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def __enter__(self) -> "SlowRelay":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
