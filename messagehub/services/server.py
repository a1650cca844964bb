"""The worker's side: one listening socket for all that a hub serves, and threads that read, handle and answer.

Rule 1: there is one thread more than handlers may run at once, and all of them wait in one epoll: whoever is woken
reads a message and, when a handler may run, runs it itself. So a message changes threads only under load, and somebody
always reads.
Rule 2: a connection is read by one thread at a time (EPOLLONESHOT), so the messages of a caller are admitted in order.
Rule 3: anybody on the host may connect, so who has not proven to know a worker's key has GREETING_SECONDS for it, and
one other user has at most MOST_STRANGERS such connections: the oldest goes when there are more.
Rule 4: nothing that a connection says ends a thread: it ends that connection.
"""

import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from messagehub.errors import DuplicateRegistration, HubError, MailboxClosed, MailboxFull, NoResponse, NotInitialised
from messagehub.protocol.stream_frames import CHUNK, NotAFrame
from messagehub.runtime.supervision import keep_turning
from messagehub.services.frames import (
    CALL,
    MORE,
    SCHEME,
    SEND,
    STREAM,
    TAKEN,
    WELCOME,
    Greeting,
    answer,
    failure,
)
from messagehub.services.handshake import challenge_caller, is_proven
from messagehub.services.incoming import hear_more, job_of
from messagehub.services.mailbox import Job, OfferResult
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.server_connections import ServerConnection

if TYPE_CHECKING:
    from messagehub.services.workers import ServiceWorker

log = logging.getLogger("messagehub.services")

BACKLOG = 1024
CLOSE_SECONDS = 5.0
REFUSED_SECONDS = 0.05
GREETING_SECONDS = 5.0
MOST_STRANGERS = 128
ACCEPTED_AT_ONCE = 64
_ONCE = select.EPOLLIN | select.EPOLLONESHOT


class ServiceServer:
    def __init__(
        self,
        metrics: ServiceMetrics,
        on_dropped: Callable[["ServiceWorker", Job, HubError], None],
        on_defect: Callable[[], None],
    ) -> None:
        """`on_dropped` hears of every message that its sender believes to be delivered and that never will be."""
        self._metrics = metrics
        self._on_dropped = on_dropped
        self._on_defect = on_defect
        # Weakly: the hub holds them, so that a hub that its user forgets is collected, and closed with all it serves.
        self._served: weakref.WeakValueDictionary[bytes, ServiceWorker] = weakref.WeakValueDictionary()
        self._callers: dict[int, ServerConnection] = {}
        self._strangers: dict[
            int, ServerConnection
        ] = {}  # those of them that have proven nothing yet, the oldest first
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._ending: list[ServiceWorker] = []
        self._wanted = 0
        self._is_closed = False
        self._is_over = False
        name = f"messagehub-{os.urandom(8).hex()}"
        self.endpoint = SCHEME + name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind("\0" + name)
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), _ONCE)
        self._epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)  # each write wakes one thread

    def add(self, served: "ServiceWorker") -> None:
        with self._lock:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            present = self._served.setdefault(served.worker_id.encode(), served)
            if present is not served:
                where = {"address": present.address, "worker_id": present.worker_id}
                raise DuplicateRegistration(f"this hub serves as {present.worker_id!r} already", **where)
            self._wanted += _threads_for(served) + (not self._wanted)
            while len(self._threads) < self._needed():
                thread = threading.Thread(target=self._run, name="messagehub-service", daemon=True)
                self._threads.add(thread)
                thread.start()

    def remove(self, served: "ServiceWorker") -> None:
        with self._lock:
            if self._served.pop(served.worker_id.encode(), None) is not None:
                self._wanted -= _threads_for(served)
                self._ending.append(served)
        self.nudge()

    def nudge(self) -> None:
        """Wake a thread to look for work, or to end."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
            self._wanted = 0
            os.eventfd_write(self._wake_fd, 1)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._listener.close()
        with self._lock:
            callers, self._callers = list(self._callers.values()), {}
        for caller in callers:
            self._refuse_rest(caller)
            caller.finish(deadline)
            caller.close()
        with self._lock:
            self._is_over = True
            self._release()

    def _release(self) -> None:
        """With the lock: whoever leaves last closes what the threads wait on, be it a handler that did not end."""
        if self._is_over and not self._threads:
            self._epoll.close()
            os.close(self._wake_fd)

    def _needed(self) -> int:
        """With the lock: threads for all that is served, and those whose handlers outlast their service."""
        self._ending = [served for served in self._ending if served.mailbox.busy and not served.is_async]
        return self._wanted + sum(served.mailbox.busy for served in self._ending)

    def abandon(self) -> None:
        """In a forked child: its copies of the descriptors are closed; the parent's epoll is not touched."""
        for caller in self._callers.values():
            caller.socket.close()
        self._listener.close()
        self._epoll.close()
        os.close(self._wake_fd)

    # -- on the threads ------------------------------------------------------------------------------------

    def _run(self) -> None:
        keep_turning(self._turn, what="a thread of services", log=log, is_over=self._ends, on_defect=self._on_defect)

    def _turn(self) -> None:
        for fd, events in self._epoll.poll(GREETING_SECONDS / 4 if self._strangers else -1, 1):
            if (caller := self._callers.get(fd)) is not None:
                if caller.is_to_be_read(events):
                    self._receive_from(caller)
            elif fd == self._wake_fd:
                self._work_everywhere()
            elif fd == self._listener.fileno():
                self._accept()
        if self._strangers:
            self._drop_silent()

    def _receive_from(self, caller: ServerConnection) -> None:
        try:
            self._receive(caller)
        except Exception:  # it is not read again, so its sender is to hear that at once
            log.exception("a caller could not be read")
            self._on_defect()
            self._drop(caller)

    def _ends(self) -> bool:
        """Whether there is one thread too many; the next one is told to look too."""
        with self._lock:
            needed = self._needed()
            if len(self._threads) <= needed:
                return False
            self._threads.discard(threading.current_thread())
            if len(self._threads) > needed:
                os.eventfd_write(self._wake_fd, 1)
            self._release()
            return True

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPTED_AT_ONCE):
                connection, _ = self._listener.accept()
                self._let_stand(ServerConnection(connection, self._epoll))
        except BlockingIOError:
            pass  # that was all of them
        except OSError as error:
            log.warning("a caller could not be accepted: %s", error)
            time.sleep(REFUSED_SECONDS)  # no descriptor is free, and the caller waits on
        with self._lock:
            if not self._is_closed:
                self._epoll.modify(self._listener.fileno(), _ONCE)

    def accept(self, connection: socket.socket) -> None:
        """Take a caller of another host, by the local socket that its connection ends in. Any thread may call this."""
        if self._is_closed:
            connection.close()
        else:
            self._let_stand(ServerConnection(connection, self._epoll))

    def _let_stand(self, caller: ServerConnection) -> None:
        """A connection that has proven nothing yet; of too many of one user the oldest goes.

        Not of our own user, who may begin with a thousand processes at once, and could end us anyway.
        """
        is_own = caller.uid in (os.geteuid(), 0)
        with self._lock:
            alike = [] if is_own else [other for other in self._strangers.values() if other.uid == caller.uid]
            self._callers[caller.fd] = self._strangers[caller.fd] = caller
            caller.start()  # from here on other threads may have it
            if len(alike) >= MOST_STRANGERS:
                self._drop_stranger(alike[0])

    def _drop_silent(self) -> None:
        """End the connections that did not greet in time."""
        since = time.monotonic() - GREETING_SECONDS
        with self._lock:
            for caller in [caller for caller in self._strangers.values() if caller.connected_at <= since]:
                self._drop_stranger(caller)

    def _drop_stranger(self, caller: ServerConnection) -> None:
        """Close a connection that has not greeted in time. The caller holds the lock."""
        self._metrics.count("malformed")
        del self._strangers[caller.fd], self._callers[caller.fd]
        caller.close()

    def _receive(self, caller: ServerConnection) -> None:
        try:
            data = caller.socket.recv(CHUNK)
        except BlockingIOError:
            caller.read_on()
            return
        except OSError:
            data = b""
        try:
            frames = caller.frames.feed(data) if data else []
        except NotAFrame:
            self._metrics.count("malformed")
            data = b""
        if not data:
            self._drop(caller)
            return
        caller.held.extend(frames)
        try:
            touched = self._admit_held(caller)
        except Exception:  # a defect of ours, at what this one caller said
            log.exception("internal error at a message of %r", caller.sender)
            self._on_defect()
            self._drop(caller)
            return
        if len(touched) > 1:
            self.nudge()  # the first may take its time
        for served in touched:
            self._work(served)

    def _admit_held(self, caller: ServerConnection) -> "list[ServiceWorker]":
        """Admit what has been read, then have it read on; returns whose mailboxes got something.

        A caller of whom too much waits for room belongs, from the last offer on, to whoever makes room.
        """
        touched: list[ServiceWorker] = []
        while not (caller.is_crowded and caller.pauses()):
            if not caller.held:
                caller.read_on()
                return touched
            frame = caller.held.popleft()
            if not caller.is_welcome:
                is_understood = self._greets(caller, frame)
            elif frame[4] == MORE:
                is_understood = hear_more(caller, frame)
            else:
                is_understood = self._admit_frame(caller, frame, touched)
            if not is_understood:
                self._metrics.count("malformed")
                self._drop(caller)
                return touched
        return touched

    def _admit_frame(self, caller: ServerConnection, frame: bytes, touched: "list[ServiceWorker]") -> bool:
        """False for what is no message, or is for a worker that this connection is not to."""
        job = job_of(caller, frame)
        if job is None or frame[CALL.size : job.headers_at] != caller.target:
            return False
        served = self._served.get(caller.target)
        if served is None or not served.keys.is_valid(caller.key):
            self._refuse(job)
            return True
        if job.form == STREAM:
            caller.open_stream(job.number)
        outcome = served.mailbox.offer(job)
        if outcome == "blocked":
            caller.block(len(frame))
            return True
        self._settle(served, job, outcome)
        if served not in touched:
            touched.append(served)
        return True

    def _greets(self, caller: ServerConnection, frame: bytes) -> bool:
        """The handshake: who it wants and a nonce, then the proof that it has that worker's key."""
        said = caller.greeting
        if said is None:
            return challenge_caller(caller, frame, self._key_of)
        if not is_proven(caller, said, frame):
            return False
        with self._lock:
            self._strangers.pop(caller.fd, None)
        caller.welcome(said)
        caller.send(answer(WELCOME, 0, 0, 0, b""))
        return True

    def _key_of(self, said: Greeting) -> str | None:
        served = self._served.get(said.worker_id.encode())
        return served.keys.find(said.key_id) if served is not None else None

    def _refuse(self, job: Job) -> None:
        """Refuse a message: its worker has ended here, or its caller has only an old key."""
        self._metrics.count("received")
        self._metrics.count("refused")
        error = MailboxClosed("this worker serves here no more: ask for the address again", has_ended=True)
        job.caller.send(failure(job.number, 0, error))

    def _refuse_rest(self, caller: ServerConnection) -> None:
        """What came while the threads ended: its sender is told that nobody has seen it. More cannot come."""
        try:
            caller.socket.shutdown(socket.SHUT_RD)
            while data := caller.socket.recv(CHUNK):
                caller.held.extend(caller.frames.feed(data))
        except (OSError, NotAFrame):
            pass  # it has ended, or deserves no answer
        self._admit_held(caller)

    def _settle(self, served: "ServiceWorker", job: Job, outcome: OfferResult) -> None:
        """Tell the sender what its mailbox has decided."""
        mailbox = served.mailbox
        self._metrics.count("received")
        if outcome != "taken" and job.form == STREAM:
            job.caller.close_stream(job.number)
        if outcome == "expired":
            served.expire(job)
            return
        where = {"address": served.address, "worker_id": served.worker_id}
        error: HubError | None = None
        if outcome == "closed":
            self._metrics.count("refused")
            error = MailboxClosed(f"{served.address} takes nothing more", **where)
        elif outcome == "error":
            self._metrics.count("refused")
            error = MailboxFull(f"the mailbox of {served.address} is full", **where)
        elif outcome == "drop":
            self._metrics.count("dropped")
            dropped = NoResponse(f"the mailbox of {served.address} is full and dropped the message", **where)
            if job.form == SEND:
                self._on_dropped(served, job, dropped)
            else:
                error = dropped
        if error is not None:
            job.caller.send(failure(job.number, mailbox.load, error))
        elif job.form == SEND:
            job.caller.send(answer(TAKEN, 0, job.number, mailbox.load, b""))

    def _work_everywhere(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass  # another thread has read it, and looks too
        with self._lock:
            everyone = list(self._served.values())
        for served in everyone:
            self.let_in(served)
        waiting = [served for served in everyone if served.mailbox.has_work()]
        if len(waiting) > 1:
            self.nudge()  # the first may take its time
        for served in waiting:
            self._work(served)

    def _work(self, served: "ServiceWorker") -> None:
        """Handle what is queued, as long as a handler may run; have others help when there is more."""
        mailbox = served.mailbox
        job = mailbox.take()
        while job is not None:
            if mailbox.has_work():
                self.nudge()
            self.let_in(served)
            if served.is_async:
                is_begun = served.start(job, lambda: self._done(served))
                job = mailbox.take(is_done=not is_begun)
                continue
            try:
                served.handle(job)
            except Exception:  # a defect of ours must not end the thread
                log.exception("internal error while handling a message to %s", served.address)
                self._on_defect()
            job = mailbox.take(is_done=True)
        self.let_in(served)

    def _done(self, served: "ServiceWorker") -> None:
        """In the event loop of a handler: a message is handled, and the next may begin."""
        job = served.mailbox.take(is_done=True)
        while job is not None:
            is_begun = served.start(job, lambda: self._done(served))
            job = served.mailbox.take(is_done=not is_begun)
        self.let_in(served)

    def let_in(self, served: "ServiceWorker") -> None:
        """Admit what had to wait for room; whoever handles finds it."""
        while (found := served.mailbox.unblocked()) is not None:
            job, outcome = found
            is_to_go_on = job.caller.unblock(len(job.frame))
            self._settle(served, job, outcome)
            if is_to_go_on:
                self._admit_held(job.caller)
            if served.mailbox.has_work():
                self.nudge()

    def _drop(self, caller: ServerConnection) -> None:
        with self._lock:
            if self._callers.get(caller.fd) is caller:  # not another that has its descriptor by now
                del self._callers[caller.fd]
                self._strangers.pop(caller.fd, None)
            caller.close()


def _threads_for(served: "ServiceWorker") -> int:
    """How many threads its handlers may keep busy at once; those in an event loop keep one busy for a moment."""
    return 1 if served.is_async else served.mailbox.concurrency
