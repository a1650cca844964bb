"""The connections of a hub to workers, and the one thread that reads the answers that no caller reads itself."""

import io
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from messagehub.errors import SendTimeout
from messagehub.runtime.supervision import keep_turning
from messagehub.services.connection import ServiceConnection
from messagehub.services.directory import Place, place_of
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
        self._links: dict[int, ServiceConnection] = {}
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._wake: io.FileIO | None = None
        self._left: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def watch(self, link: ServiceConnection) -> None:
        """Watch a connection once, until something comes."""
        with self._lock:
            if self._is_closed or link.is_lost:  # a lost one is closed only after it was forgotten here
                return
            epoll = self._epoll or self._start()
            flags = select.EPOLLIN | select.EPOLLONESHOT
            if self._links.get(link.fd) is link:
                epoll.modify(link.fd, flags)
            else:
                self._links[link.fd] = link
                epoll.register(link.fd, flags)

    def forget(self, link: ServiceConnection) -> None:
        with self._lock:
            if self._links.get(link.fd) is link and self._epoll is not None:
                del self._links[link.fd]
                self._epoll.unregister(link.fd)

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
                pass  # it has just ended, and so have all links

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
                link = self._links.get(fd)
                if link is not None:
                    self._read(link)
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

    def _read(self, link: ServiceConnection) -> None:
        try:
            link.read_once()
        except Exception:  # nobody reads this one any more, so nobody is to wait for it either
            log.exception("the answers of %s could not be read", link.endpoint)
            self._on_defect()
            link.lose("a defect in this hub; its log says more")
            link.leave()


class ConnectionPool:
    def __init__(self, sender: str, metrics: ServiceMetrics, on_defect: Callable[[], None]) -> None:
        self._sender = sender
        self._metrics = metrics
        self.reader = ConnectionReader(on_defect)
        self._links: dict[Place, ServiceConnection] = {}
        self._connecting: dict[Place, threading.Lock] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def find(self, worker: Worker) -> ServiceConnection | None:
        """Return the connection to a worker, if there is one."""
        link = self._links.get(place_of(worker))
        return link if link is not None and not link.is_ended else None

    def to(self, worker: Worker, deadline: float) -> ServiceConnection:
        """Return the connection to a worker, made if there is none."""
        place = place_of(worker)
        link = self._links.get(place)
        if link is not None and not link.is_ended:
            return link
        with self._lock:
            connecting = self._connecting.setdefault(place, threading.Lock())
        if not connecting.acquire(timeout=max(deadline - monotonic(), 0.0)):
            raise SendTimeout("others were connecting to the worker all the time", endpoint=worker.endpoint)
        try:
            link = self._links.get(place)
            if link is None or link.is_ended:
                link = ServiceConnection(worker, self._sender, deadline, self._metrics, self.reader)
                with self._lock:
                    if self._is_closed:
                        link.close()
                    else:
                        self._links[place] = link
            return link
        finally:
            connecting.release()

    def is_alive(self, worker: Worker) -> bool:
        return self.find(worker) is not None

    def drop_lost(self, is_known: Callable[[Place], bool]) -> None:
        """Forget lost connections, and close idle ones to workers that have ended."""
        with self._lock:
            gone = [p for p, link in self._links.items() if link.is_lost or (link.is_idle and not is_known(p))]
            links = [self._links.pop(place) for place in gone]
            for place in gone:
                self._connecting.pop(place, None)
        for link in links:
            link.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.lose("this hub is closed")
        self.reader.close()
        for link in links:
            link.close()

    def abandon(self) -> None:
        for link in self._links.values():
            link.abandon()
        self.reader.abandon()
