"""The connections of a hub to workers, and the one thread that reads the answers that no caller reads itself."""

import io
import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from messagehub.errors import RouteError, SendTimeout
from messagehub.runtime.supervision import keep_turning
from messagehub.services.between_hosts.relay import HostRelay
from messagehub.services.connection import ServiceConnection
from messagehub.services.directory import WorkerKey, is_elsewhere, key_of
from messagehub.services.handshake import connect, connect_elsewhere
from messagehub.services.metrics import ServiceMetrics
from messagehub.shm.locks import check_spare_files
from registry.records import Worker

log = logging.getLogger("messagehub.services")

CLOSE_SECONDS = 5.0
_ONE = (1).to_bytes(8, "little")  # what wakes an eventfd


class ConnectionReader:
    """The thread that reads connections. It starts when it is first needed."""

    def __init__(self, on_defect: Callable[[], None]) -> None:
        self._on_defect = on_defect
        self._connections: dict[int, ServiceConnection] = {}
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._wake: io.FileIO | None = None
        self._left: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def watch(self, connection: ServiceConnection) -> None:
        """Watch a connection once, until something comes."""
        with self._lock:
            if self._is_closed or connection.is_lost:  # a lost one is closed only after it was forgotten here
                return
            epoll = self._epoll or self._start()
            flags = select.EPOLLIN | select.EPOLLONESHOT
            if self._connections.get(connection.fd) is connection:
                epoll.modify(connection.fd, flags)
            else:
                self._connections[connection.fd] = connection
                epoll.register(connection.fd, flags)

    def forget(self, connection: ServiceConnection) -> None:
        with self._lock:
            if self._connections.get(connection.fd) is connection and self._epoll is not None:
                del self._connections[connection.fd]
                self._epoll.unregister(connection.fd)

    def run_soon(self, job: Callable[[], None]) -> None:
        """Have the thread call it.

        Finalizers use this, since they may take no lock. It is dropped if no thread runs.
        """
        self._left.append(job)
        wake = self._wake
        if wake is not None:
            try:
                wake.write(_ONE)
            except (ValueError, OSError):
                pass  # it has just ended, and so have all connections

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread = self._thread
            if self._wake is not None:
                self._wake.write(_ONE)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def abandon(self) -> None:
        if self._epoll is not None and self._wake is not None:
            self._epoll.close()
            self._wake.close()

    def _start(self) -> select.epoll:
        check_spare_files(2)
        self._epoll = select.epoll()
        self._wake = io.FileIO(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+")
        self._epoll.register(self._wake.fileno(), select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, args=(self._epoll,), name="messagehub-answers", daemon=True)
        self._thread.start()
        return self._epoll

    def _run(self, epoll: select.epoll) -> None:
        wake = self._wake
        assert wake is not None

        def turn() -> None:
            for fd, _ in epoll.poll():
                connection = self._connections.get(fd)
                if connection is not None:
                    self._read(connection)
                elif fd == wake.fileno():
                    wake.read(len(_ONE))
                    while self._left:
                        self._left.popleft()()

        keep_turning(
            turn,
            what="the thread of answers",
            log=log,
            is_over=lambda: self._is_closed,
            on_defect=self._on_defect,
        )
        with self._lock:
            epoll.close()
            self._epoll = self._wake = None
            wake.close()

    def _read(self, connection: ServiceConnection) -> None:
        try:
            connection.read_once()
        except Exception:  # nobody reads this one any more, so nobody is to wait for it either
            log.exception("the answers of %s could not be read", connection.endpoint)
            self._on_defect()
            connection.lose("a defect in this hub; its log says more")
            connection.leave()


class ConnectionPool:
    def __init__(
        self, sender: str, metrics: ServiceMetrics, on_defect: Callable[[], None], *, host: str, relay: HostRelay
    ) -> None:
        """`host` is the name of this host; `relay` leads to workers of other hosts."""
        self._sender = sender
        self._host = host
        self._relay = relay
        self._metrics = metrics
        self.reader = ConnectionReader(on_defect)
        self._connections: dict[WorkerKey, ServiceConnection] = {}
        self._connecting: dict[WorkerKey, threading.Lock] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def find(self, worker: Worker) -> ServiceConnection | None:
        """Return the connection to a worker, if there is one."""
        connection = self._connections.get(key_of(worker))
        return connection if connection is not None and not connection.is_ended else None

    def to(self, worker: Worker, deadline: float, *, is_only: bool) -> ServiceConnection:
        """Return the connection to a worker, made if there is none. `is_only` says that no other could be tried."""
        key = key_of(worker)
        connection = self._connections.get(key)
        if connection is not None and not connection.is_ended:
            return connection
        with self._lock:
            connecting = self._connecting.setdefault(key, threading.Lock())
        if not connecting.acquire(timeout=max(deadline - monotonic(), 0.0)):
            raise SendTimeout(
                "other threads were connecting to the worker until the deadline", endpoint=worker.endpoint
            )
        try:
            connection = self._connections.get(key)
            if connection is None or connection.is_ended:
                connected, where = self._connect(worker, deadline, is_only)
                connection = ServiceConnection(worker, connected, where, self._metrics, self.reader)
                with self._lock:
                    if self._is_closed:
                        connection.close()
                    else:
                        self._connections[key] = connection
            return connection
        finally:
            connecting.release()

    def _connect(self, worker: Worker, deadline: float, is_only: bool) -> tuple[socket.socket, str]:
        """Return a connection that has greeted, and what errors say of where it leads."""
        if not is_elsewhere(worker, self._host):
            try:
                return connect(worker, self._sender, deadline), ""
            except RouteError as error:
                if worker.host in (None, self._host):
                    raise
                said = f"it is on host {worker.host!r}, this is {self._host!r}, and it named no address for other hosts"
                raise RouteError(f"{error.message}; {said}", **error.details) from None
        connected = connect_elsewhere(
            worker, self._sender, deadline, is_only=is_only, host=self._host, relay=self._relay
        )
        return connected, f" on host {worker.host!r}, asked from host {self._host!r},"

    def is_alive(self, worker: Worker) -> bool:
        return self.find(worker) is not None

    def drop_lost(self, is_known: Callable[[WorkerKey], bool]) -> None:
        """Forget lost connections, and close idle ones to workers that have ended."""
        with self._lock:
            gone = [
                key
                for key, connection in self._connections.items()
                if connection.is_lost or (connection.is_idle and not is_known(key))
            ]
            connections = [self._connections.pop(key) for key in gone]
            for key in gone:
                self._connecting.pop(key, None)
        for connection in connections:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.lose("this hub is closed")
        self.reader.close()
        for connection in connections:
            connection.close()

    def abandon(self) -> None:
        for connection in self._connections.values():
            connection.abandon()
        self.reader.abandon()
