"""Streamed replies: partial results of a request, sorted by the router of correlated streams.

The thread that reads a link routes what comes; the reader of a stream takes it from the request's own queue.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, ClassVar

from messagehub.errors import HubError, RequestTimeout
from messagehub.messaging.service_frames import ANSWER, EXPIRED, FAILED, PARTIAL, REFUSED, read_failure
from messagehub.messaging.service_link import Link
from messagehub.messaging.service_metrics import ServiceMetrics
from messagehub.messaging.streams import Message, StreamRouter
from messagehub.messaging.topic_messages import decode_payload

PARTIALS, REPLY, FAILURE = "partial", "reply", "failure"
CATEGORIES = {"partials": {PARTIALS}, "end": {REPLY, FAILURE}}


class Streams:
    def __init__(self, metrics: ServiceMetrics) -> None:
        self.router = StreamRouter(CATEGORIES)
        self._metrics = metrics
        self._left: deque[Callable[[], None]] = deque()

    def open(self, link: Link, number: int, frame: bytes, deadline: float) -> "StreamedReply":
        """Registered before it is sent, so that nothing comes too early."""
        while self._left:
            self._left.popleft()()
        request_id = str(number)
        arrived: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.router.register(request_id, dict.fromkeys(CATEGORIES, arrived), now=monotonic())
        try:
            link.post(number, frame, _Routed(self.router, request_id), deadline)
        except BaseException:
            self.router.unregister(request_id)
            raise
        link.leave()  # so that it is read from now on

        def end() -> None:
            self.router.unregister(request_id)
            link.give_up(number)

        return StreamedReply(arrived, deadline, end, self._left, self._metrics)


class _Routed:
    """What comes for one request goes through the router."""

    __slots__ = ("_request_id", "_router")
    reads_itself: ClassVar[bool] = False

    def __init__(self, router: StreamRouter, request_id: str) -> None:
        self._router = router
        self._request_id = request_id

    def take(self, form: int, kind: int, load: int, frame: bytes) -> None:  # noqa: ARG002  a pool's load needs requests
        if form in (REFUSED, FAILED):
            self.lose(read_failure(memoryview(frame)[ANSWER.size :]))
            return
        if form == EXPIRED:
            self.lose(RequestTimeout("the worker did not come to it in time"))
            return
        name = PARTIALS if form == PARTIAL else REPLY
        self._router.route(Message(self._request_id, name, (kind, frame)), now=monotonic())

    def wake(self) -> bool:
        return False  # its reader takes from a queue, not from the link

    def lose(self, error: HubError) -> None:
        self._router.route(Message(self._request_id, FAILURE, error), now=monotonic())


class StreamedReply:
    """Iterate for the partial results; then `result` is the reply. Ends with the error that ended the request."""

    def __init__(
        self,
        arrived: "queue.SimpleQueue[Message]",
        deadline: float,
        end: Callable[[], None],
        left: deque[Callable[[], None]],
        metrics: ServiceMetrics,
    ) -> None:
        self.address = ""
        self._arrived = arrived
        self._deadline = deadline
        self._end = end
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
            message = self._arrived.get(timeout=max(self._deadline - monotonic(), 0.0))
        except queue.Empty:
            self._metrics.count("timeouts")
            raise self._failed(RequestTimeout(f"{self.address} did not answer in time")) from None
        if message.kind == FAILURE:
            raise self._failed(message.body)
        kind, frame = message.body
        payload = decode_payload(kind, memoryview(frame)[ANSWER.size :], self.address)
        if message.kind == PARTIALS:
            return payload
        self._result = payload
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Want nothing more. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self._end()

    def __enter__(self) -> "StreamedReply":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Somebody left the loop. A finalizer may take no lock, so the next stream that is opened ends this one."""
        if not self._is_done:
            self._left.append(self._end)

    def _failed(self, error: HubError) -> HubError:
        self._error = error
        self.close()
        return error
