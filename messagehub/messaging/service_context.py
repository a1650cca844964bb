"""What a handler is given: the message, and a context to answer and to ask others in turn."""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Protocol

from messagehub.errors import HubError, InvalidRequest, MalformedRequest
from messagehub.messaging.topic_messages import decode_headers, decode_payload
from messagehub.topic_frames import BYTES
from registry.records import Priority


class Asks(Protocol):
    """The hub's own way to send and to ask."""

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None: ...

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any: ...


class ServiceMessage:
    """A request or a message as the worker got it; the payload is decoded anew at each look."""

    __slots__ = ("_body_at", "_frame", "_headers", "_kind", "address", "is_request", "priority", "sender")

    def __init__(
        self,
        address: str,
        sender: str,
        priority: Priority,
        is_request: bool,
        kind: int,
        frame: bytes,
        headers: tuple[int, int],
    ) -> None:
        self.address = address
        self.sender = sender
        self.priority = priority
        self.is_request = is_request
        self._kind = kind
        self._frame = frame
        self._headers, self._body_at = headers

    @property
    def payload(self) -> Any:
        """Bytes, what the JSON says, or an Arrow record batch or table, as it was sent."""
        if self._kind == BYTES:
            return self._frame[self._body_at :]
        return decode_payload(self._kind, memoryview(self._frame)[self._body_at :], self.address)

    @property
    def headers(self) -> dict[str, Any]:
        try:
            return decode_headers(memoryview(self._frame)[self._headers : self._body_at])
        except (ValueError, RecursionError) as error:  # whatever a stranger sent
            raise MalformedRequest(f"the headers of a message to {self.address} cannot be read: {error}") from None

    def __repr__(self) -> str:
        return f"<{'request' if self.is_request else 'message'} to {self.address} from {self.sender}>"


class ServiceContext:
    """Answers one message; also from another thread, and after the handler has returned when it `defer`s."""

    __slots__ = ("_answer", "_asks", "_message", "deadline", "is_answered", "is_deferred", "is_streamed", "worker_id")

    def __init__(
        self,
        message: ServiceMessage,
        *,
        worker_id: str,
        deadline: float,
        is_streamed: bool,
        answer: Callable[[Any, bool], None],
        asks: Asks,
    ) -> None:
        self.worker_id = worker_id
        self.deadline = deadline
        self.is_streamed = is_streamed
        self.is_answered = False
        self.is_deferred = False
        self._message = message
        self._answer = answer
        self._asks = asks

    @property
    def remaining_seconds(self) -> float:
        """Until the caller gives up, not below 0; of what was only sent, without end."""
        return max(self.deadline - monotonic(), 0.0)

    def reply(self, payload: Any) -> None:
        """Answer now, while the handler goes on; what it returns then does not matter."""
        self._end(payload)

    def fail(self, error: HubError) -> None:
        """Answer with an error, which is raised at the caller's."""
        self._end(error)

    def stream(self, payload: Any) -> None:
        """A partial result, ahead of the reply. Whoever asked by `hub.request` gets the reply alone.

        Waits while the caller has 8 MiB of earlier ones to read; RequestTimeout when that lasts until its deadline.
        """
        self._check_open()
        if self.is_streamed:
            self._answer(payload, False)

    def defer(self) -> None:
        """The handler's return is no answer: `reply` or `fail` comes later, from whatever thread."""
        self._check_open()
        self.is_deferred = True

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None:
        """As `hub.send`; at most as long as the caller waits."""
        self._asks.send(address, payload, timeout=self._limited(timeout), **options)

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """As `hub.request`; at most as long as the caller waits."""
        return self._asks.request(address, payload, timeout=self._limited(timeout), **options)

    def _end(self, answer: Any) -> None:
        self._check_open()
        self.is_answered = True
        self._answer(answer, True)

    def _check_open(self) -> None:
        if not self._message.is_request:
            raise InvalidRequest(f"{self._message!r} wants no answer")
        if self.is_answered:
            raise InvalidRequest(f"{self._message!r} has been answered already")

    def _limited(self, timeout: float | None) -> float | None:
        if self.deadline == inf:
            return timeout
        return self.remaining_seconds if timeout is None else min(timeout, self.remaining_seconds)
