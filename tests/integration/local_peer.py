"""A plain unix socket that speaks the frames of the local socket; knows nothing of our client."""

import json
import socket
import struct
from pathlib import Path

from messagehub.settings import local_socket_of
from tests.integration.harness import PATIENCE_SECONDS, AnyBroker, Message

REQUEST, SUBSCRIBE, UNSUBSCRIBE = 0, 1, 2
REPLY, EVENT = 0, 1


def local_path(broker: AnyBroker | str) -> Path:
    found = local_socket_of(broker if isinstance(broker, str) else broker.endpoint)
    assert found is not None
    return found


def framed(kind: int, body: bytes) -> bytes:
    return struct.pack("<IB", len(body) + 1, kind) + body


class LocalPeer:
    def __init__(self, broker: AnyBroker | str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(str(local_path(broker)))
        self._received = b""

    def send(self, message: Message | bytes) -> None:
        self.socket.sendall(framed(REQUEST, message if isinstance(message, bytes) else json.dumps(message).encode()))

    def subscribe(self, topic: bytes) -> None:
        self.socket.sendall(framed(SUBSCRIBE, topic))

    def unsubscribe(self, topic: bytes) -> None:
        self.socket.sendall(framed(UNSUBSCRIBE, topic))

    def frame(self) -> tuple[int, bytes] | None:
        """The next frame; None when the broker has hung up."""
        while True:
            if len(self._received) >= 5:
                length, kind = struct.unpack_from("<IB", self._received)
                if len(self._received) >= length + 4:
                    body, self._received = self._received[5 : length + 4], self._received[length + 4 :]
                    return kind, body
            try:
                data = self.socket.recv(2**20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._received += data

    def reply(self) -> Message:
        """The next reply; events before it are passed over."""
        while True:
            found = self.frame()
            assert found is not None, "the broker hung up"
            if found[0] == REPLY:
                reply: Message = json.loads(found[1])
                return reply

    def event(self) -> tuple[bytes, Message]:
        """The next event or beacon; replies before it are passed over."""
        while True:
            found = self.frame()
            assert found is not None, "the broker hung up"
            kind, body = found
            if kind == EVENT:
                (length,) = struct.unpack_from("<H", body)
                return body[2 : 2 + length], json.loads(body[2 + length :])

    def ask(self, message: Message | bytes) -> Message:
        self.send(message)
        return self.reply()

    def is_hung_up_on(self) -> bool:
        while self.frame() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "LocalPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
