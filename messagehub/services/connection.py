"""A caller's connection to one worker.

Rule 1: a caller that finds the connection idle reads its answer from the socket itself; no other thread is involved.
Callers that come meanwhile wait. Whoever reads hands out all answers. When it has its own, one of those who wait reads
on; where answers are due that no thread waits for, the reading thread does.
Rule 2: whoever reads holds `reading`, whoever writes holds `_sending`. The last to leave a lost connection closes it.
Rule 3: the worker answers every request once, also one that expired before it was seen. An answer that nobody waits for
any more is late.
Rule 4: a worker that takes nothing more may have answered before, so an ended connection is read to its end.
Rule 5: every request ends once: by its answer, its deadline, or the loss of the connection, which ends all on it.
"""

import queue
import select
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from messagehub.errors import HubError, NoResponse, RequestTimeout, SendTimeout
from messagehub.protocol.stream_frames import CHUNK, Frames, NotAFrame
from messagehub.protocol.topic_frames import IN_BLOCK
from messagehub.runtime.handover_lock import HandoverLock
from messagehub.services.frames import ANSWER, EXPIRED, MAX_FRAME_BYTES, PARTIAL, REPLY
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.payloads import attached, is_known_kind
from registry.records import Worker

HAND_OVER_SECONDS = 5.0
_unpack = ANSWER.unpack_from


class Reading(Protocol):
    """The thread that reads the answers that no caller reads itself."""

    def watch(self, connection: "ServiceConnection") -> None: ...

    def forget(self, connection: "ServiceConnection") -> None: ...


class WaitingRequest(Protocol):
    """Someone whose request is on its way. Called by whoever reads; `reads_itself` when it comes for its answer."""

    reads_itself: bool

    def take(self, form: int, kind: int, load: int, frame: bytes) -> None: ...

    def lose(self, error: HubError) -> None: ...

    def wake(self) -> bool:
        """Have its thread read, if one waits."""


class ServiceAnswer:
    """The one answer to a request. `news` wakes its thread: the answer is here, or it is its turn to read.

    Where no thread comes for it, `on_arrival` is called by whoever reads.
    """

    __slots__ = ("block", "error", "form", "frame", "is_awaited", "kind", "load", "news", "on_arrival", "reads_itself")

    def __init__(self) -> None:
        self.reads_itself = True
        self.on_arrival: Callable[[], None] | None = None
        self.form = -1
        self.kind = self.load = 0
        self.frame = b""
        self.block: Any = None
        self.error: HubError | None = None
        self.is_awaited = False
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def has_arrived(self) -> bool:
        return self.form >= 0 or self.error is not None

    def take(self, form: int, kind: int, load: int, frame: bytes) -> None:
        if kind & IN_BLOCK:
            self.block = attached(kind, frame, ANSWER.size, "a reply")
        self.kind, self.load, self.frame, self.form = kind, load, frame, form
        if self.is_awaited:
            self.news.put(None)
        if self.on_arrival is not None:
            self.on_arrival()

    def lose(self, error: HubError) -> None:
        self.error = error
        self.news.put(None)
        if self.on_arrival is not None:
            self.on_arrival()

    def wake(self) -> bool:
        if self.is_awaited:
            self.news.put(None)
        return self.is_awaited

    def wait(self, seconds: float) -> bool:
        try:
            self.news.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            return False
        return True


class NotSent(Exception):
    """The connection was gone before anything was sent: another may be tried."""


class ServiceConnection:
    def __init__(
        self, worker: Worker, connected: socket.socket, where: str, metrics: ServiceMetrics, reader: Reading
    ) -> None:
        """`connected` has greeted the worker; `where` is what errors say of its host, if that is another one."""
        self.endpoint = worker.endpoint
        self.where = where
        self.worker_id = worker.worker_id
        self.is_ended = self.is_lost = False
        self._metrics = metrics
        self._reader = reader
        self._frames = Frames(ANSWER, MAX_FRAME_BYTES)
        self._pending: dict[int, WaitingRequest] = {}
        self._late = 0
        self._unsent = b""
        self.reading = HandoverLock()
        self._sending = threading.Lock()
        self._socket = connected
        self.fd = self._socket.fileno()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ask(self, number: int, frame: bytes, deadline: float) -> ServiceAnswer:
        """Send and wait for the answer. RequestTimeout at the deadline, NoResponse at a loss."""
        answer = ServiceAnswer()
        is_leader = self.reading.acquire_if_free()
        try:
            try:
                self.post(number, frame, answer, deadline)
                if is_leader:
                    self.reading.drive(answer.has_arrived, self._wait_and_read, deadline)
            finally:
                if is_leader:
                    self.reading.release()
                    self.leave()
            return self.finish(number, answer, deadline)
        except BaseException:  # also an interrupt, after which nobody waits for it
            self.give_up(number)
            raise

    def finish(self, number: int, answer: ServiceAnswer, deadline: float) -> ServiceAnswer:
        """Wait for the answer to what was posted; raises as `ask` does."""
        if not answer.has_arrived():
            self._follow(answer, deadline)
        if not answer.has_arrived():
            if self.give_up(number):
                raise self._too_late()
            answer.is_awaited = True
            while not answer.has_arrived() and answer.wait(HAND_OVER_SECONDS):
                pass  # it is being handed over at this very moment; what woke us may have been an earlier turn to read
            if not answer.has_arrived():
                raise self._too_late()
        if answer.error is not None:
            raise answer.error
        if answer.form == EXPIRED:
            raise self._too_late()
        return answer

    def _too_late(self) -> RequestTimeout:
        return RequestTimeout(f"the worker{self.where} did not answer in time", endpoint=self.endpoint)

    def _follow(self, answer: ServiceAnswer, deadline: float) -> None:
        """Wait while another thread reads from this connection, and take over when it stops."""
        answer.is_awaited = True  # from now on whoever leaves may wake us; if it left before, the lock is free
        try:
            while not answer.has_arrived() and (remaining := deadline - monotonic()) > 0:
                if self.reading.acquire_if_free():
                    try:
                        self.reading.drive(answer.has_arrived, self._wait_and_read, deadline)
                    finally:
                        self.reading.release()
                else:
                    answer.wait(remaining)
        finally:  # also at an interrupt: whoever is woken must be there to read
            answer.is_awaited = False
            self.leave()  # we may have been woken to read, and have what we wanted

    @property
    def is_idle(self) -> bool:
        return not self._pending

    def post(self, number: int, frame: bytes, waiting: WaitingRequest, deadline: float) -> None:
        """Send only; what comes is given to `waiting` by whoever reads."""
        self._pending[number] = waiting
        try:
            self._send(frame, deadline)
        except BaseException:
            self._pending.pop(number, None)
            self.leave()
            raise
        self._metrics.count("sent")

    def post_at_once(self, number: int, frame: bytes, waiting: WaitingRequest) -> bool:
        """Send without waiting; False when that cannot be done now, and nothing was sent.

        What is sent in part has to be completed with `complete`: `is_unsent` says so.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if self.is_ended or self._unsent:
                return False
            self._pending[number] = waiting
            try:
                sent = self._socket.send(frame)
            except OSError as error:
                self._pending.pop(number, None)
                self.is_ended = self.is_ended or not isinstance(error, BlockingIOError)
                return False
            self._unsent = frame[sent:]
        finally:
            self._sending.release()
        self._metrics.count("sent")
        return True

    @property
    def is_unsent(self) -> bool:
        """Whether a message was sent only in part. Nothing else can be sent before the rest of it."""
        return bool(self._unsent)

    def complete(self, deadline: float) -> None:
        """Send the rest of what was sent in part."""
        self.tell(b"", deadline)

    def tell(self, frame: bytes, deadline: float) -> bool:
        """Send what gets no answer. Return False if it was not taken until the deadline. It may still be lost."""
        try:
            self._send(frame, deadline)
        except NotSent:
            self.leave()
        except SendTimeout:
            self.leave()
            return False
        return True

    def give_up(self, number: int) -> bool:
        """Nobody waits for this any more: what still comes is late. False when the answer is here."""
        is_open = self._pending.pop(number, None) is not None
        self._late += is_open
        self.leave()
        return is_open

    def leave(self) -> None:
        """After using the connection: see that what is still to come is read, or that a lost connection is closed."""
        if self.is_lost if self._pending else self.is_ended and not self.is_lost:
            self.lose(self._ended("the worker has ended"))
        if self.is_lost:
            self._close_if_unused()
        elif self._pending or self._late:
            pending = list(self._pending.values())
            if self.reading.is_held or any(waiting.wake() for waiting in pending):
                return
            if self._late or not all(waiting.reads_itself for waiting in pending):
                self._reader.watch(self)

    def read_once(self) -> None:
        """Read what has come. The reading thread calls this."""
        if self.reading.acquire_if_free():
            try:
                self._read()
            finally:
                self.reading.release()
            self.leave()

    def lose(self, why: str) -> None:
        """No more answers come. Any thread may find out first."""
        self.is_ended = self.is_lost = True
        while self._pending:
            try:
                _, waiting = self._pending.popitem()
            except KeyError:
                break  # another thread took the last one
            waiting.lose(NoResponse(why, endpoint=self.endpoint))
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # last: whoever reads would give this end as the reason
        except OSError:
            pass  # the other side has done so

    def close(self) -> None:
        self.lose("this hub is closed")
        self._close_if_unused()

    def abandon(self) -> None:
        """In a forked child: only its own descriptor is closed."""
        self.is_ended = self.is_lost = True
        self._socket.close()

    # -- inside --------------------------------------------------------------------------------------------

    def _ended(self, said: str) -> str:
        return f"the worker{self.where} has ended, or the link to it is lost" if self.where else said

    def _wait_and_read(self, deadline: float) -> None:
        remaining = deadline - monotonic()
        if remaining > 0 and self._poll.poll(int(remaining * 1000) + 1):
            self._read()

    def _read(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.lose(self._ended("the worker ended, or hung up, before it answered"))
            return
        try:
            frames = self._frames.feed(data)
        except NotAFrame:
            self.lose("the worker sent what is no answer")
            return
        for frame in frames:
            _, form, kind, number, load = _unpack(frame)
            if not REPLY <= form <= EXPIRED or not is_known_kind(kind):
                self.lose("the worker sent what is no answer")
                return
            waiting = self._pending.get(number) if form == PARTIAL else self._pending.pop(number, None)
            if waiting is not None:
                waiting.take(form, kind, load, frame)
            elif form != PARTIAL:
                self._late = max(self._late - 1, 0)
                if form != EXPIRED:
                    self._metrics.count("late_replies")

    def _send(self, frame: bytes, deadline: float) -> None:
        """Send the whole frame. If the deadline passes midway, the next sender completes it, and it arrives expired."""
        if not self._sending.acquire(blocking=False) and not self._sending.acquire(
            timeout=max(deadline - monotonic(), 0.0)
        ):
            raise SendTimeout("other threads were sending to the worker until the deadline", endpoint=self.endpoint)
        try:
            if self.is_ended:
                raise NotSent
            begun, self._unsent = self._unsent, b""
            rest = memoryview(begun + frame if begun else frame)
            while True:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self.is_ended = True  # whoever reads comes to the end after what has been answered
                    raise NotSent from None
                if not rest:
                    return
                if not self._is_writable(deadline):
                    break
            has_begun = len(rest) < len(frame)
            self._unsent = bytes(rest if has_begun else rest[: len(rest) - len(frame)])
            raise SendTimeout(f"the worker{self.where} did not take the message in time", endpoint=self.endpoint)
        except (NotSent, HubError):
            raise
        except BaseException:  # an interrupt: how much of the frame has left is not known, and no other may follow it
            self.lose("a message to the worker was broken off")
            raise
        finally:
            self._sending.release()
            if self.is_lost:
                self._close_if_unused()  # whoever lost it meanwhile left that to us

    def _is_writable(self, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        remaining = deadline - monotonic()
        return remaining > 0 and bool(poll.poll(int(remaining * 1000) + 1))

    def _close_if_unused(self) -> None:
        """Close a lost connection, unless somebody reads or sends: they come here when they have done so."""
        while self.reading.acquire_if_free():
            if self._sending.acquire(blocking=False):
                self._reader.forget(self)
                self._socket.close()  # nobody reads it again: that lock stays taken
                self._sending.release()  # who comes to send sees that it is lost
                return
            self.reading.release()
            if self._sending.locked():
                return
