"""What both ends of a stream socket of this host need: who is at the other end, and bytes that wait to be taken."""

import socket
import struct
from collections import deque
from itertools import islice
from time import monotonic
from typing import NamedTuple

PATIENCE_SECONDS = 30.0
_AT_ONCE = 64
_CREDENTIALS = struct.Struct("iII")


class Credentials(NamedTuple):
    """The process at the other end of a unix socket, from the kernel: when it connected, or listened."""

    pid: int
    """0 if it is in a pid namespace that is not visible here."""
    uid: int
    gid: int


def credentials_of(connection: socket.socket) -> Credentials:
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Credentials(*_CREDENTIALS.unpack(said))


class Outbox:
    """Frames that the other side has not taken yet, bounded in bytes and time. Used by one thread at a time."""

    __slots__ = ("_frames", "_socket", "_taken_at", "most_bytes", "untaken_bytes")

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.untaken_bytes = 0
        self._socket = connection
        self._frames: deque[bytes] = deque()
        self._taken_at = 0.0

    def __len__(self) -> int:
        """Return how many frames wait, the first perhaps in part."""
        return len(self._frames)

    @property
    def is_stuck(self) -> bool:
        """Whether so much waits, or has waited for so long, that the other side must be given up."""
        is_full = self.untaken_bytes > self.most_bytes
        return is_full or (bool(self._frames) and monotonic() - self._taken_at > PATIENCE_SECONDS)

    def send(self, frame: bytes) -> bool:
        """Send now if nothing waits, and queue what is not taken; True when all was taken."""
        if not self._frames:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                return True  # it has ended, and whoever reads will see that
            if sent == len(frame):
                return True
            frame = frame[sent:]
        self.put(frame)
        return False

    def put(self, frame: bytes) -> None:
        """Queue a frame for the next `empty`."""
        if not self._frames:
            self._taken_at = monotonic()
        self._frames.append(frame)
        self.untaken_bytes += len(frame)

    def empty(self) -> int:
        """Send what waits, as far as it is taken; return how many bytes were."""
        frames, total = self._frames, 0
        while frames:
            sent = self._give(list(islice(frames, _AT_ONCE)))
            if not sent:
                break
            total += sent
            while frames and sent >= len(frames[0]):
                sent -= len(frames.popleft())
            if sent:
                frames[0] = frames[0][sent:]
        if total:
            self.untaken_bytes -= total
            self._taken_at = monotonic()
        return total

    def clear(self) -> None:
        self._frames.clear()
        self.untaken_bytes = 0

    def _give(self, frames: list[bytes]) -> int:
        """Return how many bytes were taken; one that has ended takes all, and whoever reads will see that."""
        try:
            return self._socket.send(frames[0]) if len(frames) == 1 else self._socket.sendmsg(frames)
        except BlockingIOError:
            return 0
        except OSError:
            return sum(map(len, frames))
