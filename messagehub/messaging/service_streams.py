"""Streamed replies: partial results of a request, as far ahead of their reader as the worker may be.

The thread that reads a link puts what comes into the queue of the request; the reader of the stream takes it from
there, and tells the worker how much it has taken, so that at most WINDOW_BYTES are on their way or wait to be read.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, ClassVar

from messagehub.errors import HubError, NoResponse, RequestTimeout
from messagehub.messaging.service_frames import (
    ANSWER,
    EVERYTHING,
    EXPIRED,
    FAILED,
    PARTIAL,
    REFUSED,
    WINDOW_BYTES,
    more,
    read_failure,
)
from messagehub.messaging.service_link import Link
from messagehub.messaging.service_metrics import ServiceMetrics
from messagehub.messaging.topic_messages import decode_payload

TELL_BYTES = WINDOW_BYTES // 4
MOST_HELD_BYTES = 8 * WINDOW_BYTES
Arrived = tuple[int, int, bytes] | HubError
"""Form, payload kind and frame; or why nothing more comes."""


class Streams:
    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics
        self._left: deque[Callable[[], None]] = deque()

    def open(self, link: Link, number: int, frame: bytes, deadline: float) -> "StreamedReply":
        """Registered before it is sent, so that nothing comes too early."""
        while self._left:
            self._left.popleft()()
        stream = _Stream(link, number, deadline)
        link.post(number, frame, stream, deadline)
        link.leave()  # so that it is read from now on
        return StreamedReply(stream, deadline, self._left, self._metrics)


class _Stream:
    """One request on its link: the queue between the thread that reads the link and the reader of the stream."""

    reads_itself: ClassVar[bool] = False

    def __init__(self, link: Link, number: int, deadline: float) -> None:
        self.arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._link = link
        self._number = number
        self._deadline = deadline
        self._bytes_in = self._bytes_out = self._bytes_told = 0  # each written by one side only

    def take(self, form: int, kind: int, load: int, frame: bytes) -> None:  # noqa: ARG002  a pool's load needs requests
        if form in (REFUSED, FAILED):
            self.lose(read_failure(memoryview(frame)[ANSWER.size :]))
            return
        if form == EXPIRED:
            self.lose(RequestTimeout("the worker did not come to it in time"))
            return
        self._bytes_in += len(frame)
        if self._bytes_in - self._bytes_out > MOST_HELD_BYTES:
            self.lose(NoResponse("the worker sends partial results faster than they are read, and does not wait"))
            self._link.give_up(self._number)
            return
        self.arrived.put((form, kind, frame))

    def wake(self) -> bool:
        return False  # its reader takes from a queue, not from the link

    def lose(self, error: HubError) -> None:
        self.arrived.put(error)

    def taken(self, size_bytes: int) -> None:
        """By the reader: have the worker send more, in time."""
        self._bytes_out += size_bytes
        amount = self._bytes_out - self._bytes_told
        if amount >= TELL_BYTES:
            self._bytes_told = self._bytes_out
            self._link.tell(more(self._number, amount), self._deadline)

    def leave(self) -> None:
        """The reader wants nothing more: neither what was sent nor what would be."""
        if self._link.give_up(self._number):
            self._link.tell(more(self._number, EVERYTHING), monotonic())


class StreamedReply:
    """Iterate for the partial results; then `result` is the reply. Ends with the error that ended the request."""

    def __init__(
        self, stream: _Stream, deadline: float, left: deque[Callable[[], None]], metrics: ServiceMetrics
    ) -> None:
        self.address = ""
        self._stream = stream
        self._deadline = deadline
        self._left = left
        self._metrics = metrics
        self._result: Any = None
        self._error: HubError | None = None
        self._is_done = False

    @property
    def result(self) -> Any:
        """The reply; waits for it, and throws partial results away that were not read."""
        for _ in self:
            pass
        return self._result

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        if self._is_done:
            raise StopIteration
        try:
            arrived = self._stream.arrived.get(timeout=max(self._deadline - monotonic(), 0.0))
        except queue.Empty:
            self._metrics.count("timeouts")
            raise self._failed(RequestTimeout(f"{self.address} did not answer in time")) from None
        if isinstance(arrived, HubError):
            raise self._failed(arrived)
        form, kind, frame = arrived
        if form == PARTIAL:
            self._stream.taken(len(frame))
        payload = decode_payload(kind, memoryview(frame)[ANSWER.size :], self.address)
        if form == PARTIAL:
            return payload
        self._result = payload
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Want nothing more. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self._stream.leave()

    def __enter__(self) -> "StreamedReply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Somebody left the loop. A finalizer may take no lock, so the next stream that is opened ends this one."""
        if not self._is_done:
            self._left.append(self._stream.leave)

    def _failed(self, error: HubError) -> HubError:
        self._error = error
        self.close()
        return error
