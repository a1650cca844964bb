"""Streamed replies: partial results of a request, as far ahead of their reader as the worker may be.

The thread that reads a connection puts what comes into the queue of the request; the reader of the stream takes it from
there, and tells the worker how much it has taken, so that at most WINDOW_BYTES are on their way or wait to be read.

Rule 1: the connection holds the call, and the user holds the reply. Dropping the reply cancels the call.
Rule 2: a request is tried again only as long as none of its partial results has come.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from time import monotonic
from typing import Any

from messagehub.errors import HubError, NoResponse, RequestCancelled, RequestTimeout
from messagehub.payloads.encoding import decode_payload, from_block
from messagehub.protocol.topic_frames import IN_BLOCK
from messagehub.runtime.event_loop import LoopShare, wake
from messagehub.services.connection import ServiceConnection
from messagehub.services.frames import (
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
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.outgoing_requests import Outgoing
from messagehub.services.payloads import attached
from messagehub.services.replies import Attempt, Calls

TELL_BYTES = WINDOW_BYTES // 4
MOST_HELD_BYTES = 8 * WINDOW_BYTES
Arrived = tuple[int, int, bytes, Any] | BaseException | None
"""Form, payload kind, frame, and the table that the frame refers to; or why nothing more comes. None: it was closed."""


class StreamCall:
    """One request, its attempts, and the queue of what was received for the reader of the stream."""

    def __init__(self, outgoing: Outgoing, calls: Calls) -> None:
        self.outgoing = outgoing
        self.reads_itself = False
        self.arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self.on_arrival: Callable[[], None] | None = None
        self.has_ended = False
        self._calls = calls
        self._lock = threading.Lock()
        self._connection: ServiceConnection | None = None
        self._number = 0
        self._attempt: Attempt | None = None
        self._failure: HubError | None = None
        self._bytes_in = self._bytes_out = self._bytes_told = 0  # each written by one side only

    # -- attempts ------------------------------------------------------------------------------------------

    def post(self, connection: ServiceConnection, number: int, frame: bytes, deadline: float) -> ServiceConnection:
        self._begin(connection, number)
        connection.post(number, frame, self, deadline)
        return connection

    def post_at_once(self, connection: ServiceConnection, number: int, frame: bytes) -> bool:
        self._begin(connection, number)
        return connection.post_at_once(number, frame, self)

    def posted(self, attempt: Attempt) -> None:
        with self._lock:
            self._attempt = attempt
        if self.has_ended:
            self._leave()
        elif self._failure is not None:  # it came before we were told that the message was sent
            self._settle()
        else:
            attempt.connection.leave()  # so that it is read from now on

    def end(self, error: BaseException | None) -> bool:
        with self._lock:
            if self.has_ended:
                return False
            self.has_ended = True
        if error is not None:
            self._put(error)
        return True

    def cancel(self) -> None:
        """Tell the worker that the reader wants nothing more, and a reader that waits that nothing more comes."""
        if self.end(None):
            self._leave()
            self._put(None)

    def _begin(self, connection: ServiceConnection, number: int) -> None:
        self._connection, self._number, self._failure = connection, number, None

    def _leave(self) -> None:
        connection, number = self._connection, self._number
        if connection is not None and connection.give_up(number):
            self._calls.tell(connection, more(number, EVERYTHING), self.outgoing.deadline)

    def _settle(self) -> None:
        with self._lock:
            attempt, failure = self._attempt, self._failure
            if attempt is None or failure is None:
                return
            self._attempt = self._failure = None
        self._calls.settled(self, attempt, failure, None)

    # -- by whoever reads the connection -------------------------------------------------------------------------

    def take(self, form: int, kind: int, load: int, frame: bytes) -> None:  # noqa: ARG002  a pool's load needs requests
        if form == REFUSED:
            self.lose(read_failure(memoryview(frame)[ANSWER.size :]))
        elif form == EXPIRED:
            self.lose(RequestTimeout(self.why_late("the worker", "did not come to it in time")))
        elif form == FAILED:  # by its handler, so that it is not tried again
            self.end(read_failure(memoryview(frame)[ANSWER.size :]))
        else:
            self.outgoing.idempotent = False
            self._bytes_in += len(frame)
            if self._bytes_in - self._bytes_out > MOST_HELD_BYTES:
                self.end(NoResponse("the worker sends partial results faster than they are read, and does not wait"))
                self._leave()
                return
            self._put((form, kind, frame, attached(kind, frame, ANSWER.size, "a reply")))
            if form != PARTIAL:
                self.has_ended = True

    def why_late(self, who: str, what: str) -> str:
        """Return why the deadline passed: who did not do what, or another text if the stream had begun."""
        if not self._bytes_in:
            attempt = self._attempt
            return f"{who}{attempt.connection.where if attempt is not None else ''} {what}"
        return f"the stream of {self.outgoing.address} had not ended at its deadline: read it faster, or give it longer"

    def wake(self) -> bool:
        return False  # its reader takes from a queue, not from the connection

    def lose(self, error: HubError) -> None:
        self._failure = error
        self._settle()

    def _put(self, arrived: Arrived) -> None:
        self.arrived.put(arrived)
        if (on_arrival := self.on_arrival) is not None:
            on_arrival()

    # -- by the reader of the stream -----------------------------------------------------------------------

    def taken(self, size_bytes: int) -> None:
        """Tell the worker how much the reader has taken, so that it sends more."""
        self._bytes_out += size_bytes
        amount = self._bytes_out - self._bytes_told
        if amount >= TELL_BYTES and self._connection is not None:
            self._bytes_told = self._bytes_out
            self._calls.tell(self._connection, more(self._number, amount), self.outgoing.deadline)


class StreamedReply:
    """Iterate (also `async for`) for the partial results; then `result`, or `await`, is the reply.

    Ends with the error that ended the request. Leaving it, or closing it, cancels the request: whoever iterates then
    comes to the end, and `result` raises RequestCancelled.
    """

    def __init__(
        self, call: StreamCall, on_left: Callable[[Callable[[], None]], None], metrics: ServiceMetrics
    ) -> None:
        """`on_left` takes what is to be done when the reply is dropped, and may be called by a finalizer."""
        self.address = call.outgoing.address
        self._call = call
        self._deadline = call.outgoing.deadline
        self._on_left = on_left
        self._metrics = metrics
        self._result: Any = None
        self._has_result = False
        self._error: BaseException | None = None
        self._is_done = False
        self._share = LoopShare()
        self.keeps: object = None  # lives as long as this does

    @property
    def result(self) -> Any:
        """Wait for the reply and return it. Partial results that were not read are dropped."""
        for _ in self:
            pass
        return self._reply()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._check_open(StopIteration)
        try:
            arrived = self._call.arrived.get(timeout=max(self._deadline - monotonic(), 0.0))
        except queue.Empty:
            raise self._too_late() from None
        return self._given(arrived, StopIteration)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._check_open(StopAsyncIteration)
        if self._share.is_due():
            await self._share
        while True:
            try:
                arrived = self._call.arrived.get_nowait()
            except queue.Empty:
                await self._arrival()
                self._share.restart()
            else:
                return self._given(arrived, StopAsyncIteration)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_async().__await__()

    def close(self) -> None:
        """Cancel the request if it has not ended. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self._call.cancel()

    def __enter__(self) -> "StreamedReply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "StreamedReply":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Cancel a call whose reply was dropped. A finalizer may take no lock, so the reading thread does it."""
        if not self._is_done:
            self._on_left(self._call.cancel)

    # -- inside --------------------------------------------------------------------------------------------

    async def _wait_async(self) -> Any:
        async for _ in self:
            pass
        return self._reply()

    def _reply(self) -> Any:
        if not self._has_result:
            raise RequestCancelled(f"the stream of {self.address} was closed before its reply came")
        return self._result

    async def _arrival(self) -> None:
        """Wait until something is in the queue, or until the deadline."""
        call, loop = self._call, asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        call.on_arrival = lambda: wake(loop, future)
        try:
            if call.arrived.empty():
                async with asyncio.timeout(max(self._deadline - monotonic(), 0.0)):
                    await future
        except TimeoutError:
            raise self._too_late() from None
        finally:
            call.on_arrival = None

    def _check_open(self, end: type[Exception]) -> None:
        if self._error is not None:
            raise self._error
        if self._is_done:
            raise end

    def _given(self, arrived: Arrived, end: type[Exception]) -> Any:
        """Return the partial result. Raise `end` after the reply, and the error that ended the request."""
        if isinstance(arrived, BaseException):
            raise self._failed(arrived)
        if arrived is None:
            raise end
        form, kind, frame, block = arrived
        if form == PARTIAL:
            self._call.taken(len(frame))
        if block is not None:
            payload = from_block(block, kind & ~IN_BLOCK)
        else:
            payload = decode_payload(kind, memoryview(frame)[ANSWER.size :], self.address)
        if form == PARTIAL:
            return payload
        self._result, self._has_result = payload, True
        self.close()
        raise end

    def _too_late(self) -> BaseException:
        self._metrics.count("timeouts")
        return self._failed(RequestTimeout(self._call.why_late(self.address, "did not answer in time")))

    def _failed(self, error: BaseException) -> BaseException:
        self._error = error
        self.close()
        return error
