"""Processes that write and read rings for `test_ring_pairs`, each with the implementation that its environment chooses.

`Nursery` starts a Python with that environment, which forks a process for each `Actor`: starting Python anew takes a
second. An actor does what it is told over a connection, one method at a time, and answers with the result or the error.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from messagehub.shm import core, errors
from messagehub.shm.layout import Checksum
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.rings.writer import RingWriter
from tests.shm.children import die_with_parent, fork, wait
from tests.shm.rings import number_of, payload, writer

BYTES = np.dtype("u1")
DEADLINE_SECONDS = 60.0


class Actor:
    """What the process on the other end of a connection does; attributes of the class below are its methods."""

    def __init__(self, connection: Connection, implementation: str) -> None:
        self._connection = connection
        self.pid: int = self._answer()
        assert self.implementation() == implementation

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.begin(name, *args, **options)
            return self._answer()

        return call

    def begin(self, name: str, *args: Any, **options: Any) -> None:
        """Let it work without waiting for it; `finish` waits."""
        self._connection.send((name, args, options))

    def finish(self) -> Any:
        return self._answer()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self._connection.poll(DEADLINE_SECONDS)
        try:
            while True:  # what it answered before
                self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._connection.close()

    def leave(self) -> None:
        """Let its process end, if it was not killed."""
        self._connection.close()

    def _answer(self) -> Any:
        assert self._connection.poll(DEADLINE_SECONDS), "STALL"
        answer = self._connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Nursery:
    """Forks actors of one implementation."""

    def __init__(self, implementation: str) -> None:
        self.implementation = implementation
        self._socket, theirs = socket.socketpair()
        variables = os.environ | {"MESSAGEHUB_PURE_PYTHON": "1" if implementation == "python" else "0"}
        command = [sys.executable, "-m", "tests.conformance.ring_process", str(theirs.fileno())]
        self._process = subprocess.Popen(command, env=variables, pass_fds=[theirs.fileno()])
        theirs.close()

    def actor(self) -> Actor:
        ours, theirs = socket.socketpair()
        socket.send_fds(self._socket, [b"!"], [theirs.fileno()])
        theirs.close()
        return Actor(Connection(ours.detach()), self.implementation)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(DEADLINE_SECONDS)


class Acting:
    """The methods of an actor: it has at most one writer, any number of readers, and the views that it holds."""

    def __init__(self) -> None:
        self.writer: RingWriter | None = None
        self.readers: dict[int, RingReader] = {}
        self.held: list[tuple[int, Any]] = []
        self.is_plain = False

    def implementation(self) -> str:
        return core.IMPLEMENTATION

    # --- writing

    def open_writer(self, root: str, *, plain: bool = False, **changes: Any) -> int:
        """`plain`: payloads that the core copies by itself, without a checksum of the ring; returns the head."""
        self.is_plain = plain
        options = {"schema": BYTES, "checksum": Checksum.NONE} if plain else {"checksum": Checksum.VERIFY}
        self.writer = writer(root, **{**options, **changes})
        return self.writer.head

    def write(self, count: int, timeout_seconds: float = 20.0) -> int:
        """Write so many items that say their numbers; returns the last number."""
        assert self.writer is not None
        for _ in range(count):
            content = payload(self.writer.head + 1)
            self.writer.write(np.frombuffer(content, BYTES) if self.is_plain else content, timeout_seconds)
        return self.writer.head

    def write_for_ever(self) -> None:
        while True:
            self.write(1)

    def write_at_once(self) -> bool:
        """Return whether there was room."""
        try:
            self.write(1, 0.01)
        except errors.RingFull:
            return False
        return True

    def lend(self, *, commit: bool) -> int:
        assert self.writer is not None
        loan = self.writer.loan(300)
        loan.buffer[:] = payload(self.writer.head + 1)
        if commit:
            loan.commit()
        else:
            loan.abort()
        return self.writer.head

    def close_writer(self) -> None:
        assert self.writer is not None
        self.writer.close()

    # --- reading

    def open_reader(
        self, path: str, number: int = 0, share: tuple[int, int, int] | None = None, **options: Any
    ) -> None:
        if share is not None:
            options |= {"group": "g", "assignment": MemberShare(*share)}
        self.readers[number] = open_reader(path, **options)

    def read(self, count: int, number: int = 0, seconds: float = 20.0) -> list[int]:
        """Return the numbers of so many items, checked; a gap counts as one, and is told as its first and last."""
        return [each for _ in range(count) for each in self._told(self._read(number, seconds))]

    def read_up_to(self, last: int, number: int = 0) -> list[int]:
        found: list[int] = []
        while not found or found[-1] < last:
            found += self.read(1, number)
        return found

    def read_holding(self, last: int, seed: int) -> list[int]:
        """As `read_up_to`, keeping some views for a while and checking them again."""
        chance, found = random.Random(seed), [0]
        while abs(found[-1]) < last:
            item = self._read(0, 20.0)
            found += self._told(item)
            if isinstance(item, Item):
                self.held.append((item.sequence, item.buffer))
            if len(self.held) > 3:
                sequence, view = self.held.pop(chance.randrange(4))
                assert number_of(view) == sequence, "BAD READ"
        self.check_held()
        self.held.clear()
        return found[1:]

    def hold(self, count: int, number: int = 0) -> list[int]:
        """Read so many items and keep their buffers."""
        for _ in range(count):
            item = self._read(number, 20.0)
            assert isinstance(item, Item), item
            self.held.append((item.sequence, item.buffer))
        return self.check_held()

    def check_held(self) -> list[int]:
        for sequence, view in self.held:
            assert number_of(view) == sequence, "BAD READ"
        return [sequence for sequence, _ in self.held]

    def are_views(self) -> bool:
        return all(type(view) is not bytes for _, view in self.held)

    def drop(self) -> None:
        self.held.clear()

    def acknowledge(self, sequence: int, number: int = 0) -> None:
        self.readers[number].acknowledge(sequence)

    def close_reader(self, number: int = 0) -> None:
        self.readers.pop(number).close()

    def fork_and_drop(self) -> int:
        """A child checks and drops what it holds a copy of, and closes everything; returns its exit code."""

        def child() -> None:
            self.check_held()
            self.drop()
            for reader in self.readers.values():
                reader.close()
            if self.writer is not None:
                self.writer.close()

        return wait(fork(child))

    def drop_in_threads(self) -> None:
        """Finalizers run in any thread."""
        views, self.held = self.held, []
        threads = [threading.Thread(target=views.clear) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    def try_everything(self, number: int = 0) -> list[str]:
        """Use a reader of a damaged ring; returns the names of what came. Anything but our own errors fails."""
        found = []
        for use in ("read", "read", "read", "latest", "newest_ns", "has_unread", "is_spent"):
            try:
                result = getattr(self.readers[number], use)(*([0] if use == "read" else []))
                if isinstance(result, Item):
                    bytes(result.buffer)
                found.append(type(result).__name__)
            except errors.DataBlockError as error:
                found.append(type(error).__name__)
        return found

    def try_to_write(self) -> str:
        assert self.writer is not None
        try:
            self.write(1, 0.02)
        except errors.DataBlockError as error:
            return type(error).__name__
        return "written"

    def _read(self, number: int, seconds: float) -> Item | Gap:
        found = self.readers[number].read(seconds)
        assert found is not None, "STALL"
        return found

    def _told(self, found: Item | Gap) -> Iterator[int]:
        if isinstance(found, Gap):
            yield from (-found.first, -found.last)
        else:
            assert number_of(found.value) == found.sequence, "BAD READ"
            yield found.sequence


def act(connection: Connection) -> None:
    acting = Acting()
    connection.send(os.getpid())
    while True:
        try:
            name, args, options = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(acting, name)(*args, **options)
        except Exception as error:  # noqa: BLE001  the test gets it
            answer = AssertionError(f"{name}: {error!r}")
        connection.send(answer)


def main() -> None:
    die_with_parent()
    asked = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(asked, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            asked.close()
            act(Connection(fds[0]))
            os._exit(0)
        os.close(fds[0])


if __name__ == "__main__":
    main()
