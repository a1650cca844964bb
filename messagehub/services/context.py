"""What a handler is given: the message, and a context to answer and to ask others in turn."""

from math import inf
from time import monotonic
from typing import Any, Protocol

from messagehub.arguments import seconds
from messagehub.errors import (
    ConfigurationError,
    HandlerFailed,
    HubError,
    InvalidRequest,
    MalformedRequest,
    RequestCancelled,
)
from messagehub.payloads.encoding import decode_headers, decode_payload, from_block
from messagehub.protocol.topic_frames import BYTES, IN_BLOCK
from messagehub.services.frames import PRIORITIES, REQUEST, SEND, STREAM
from messagehub.services.mailbox import Job
from registry.records import Priority


class Asks(Protocol):
    """How a context sends and asks through its hub."""

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None: ...

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any: ...

    async def ask_async(
        self, form: int, address: str, payload: Any, *, timeout: float | None = None, **options: Any
    ) -> Any: ...


class AnsweringWorker(Protocol):
    """The worker that sends a context's answers."""

    worker_id: str
    asks: Asks

    def answer(self, job: Job, payload: Any, is_last: bool) -> None: ...

    async def stream_async(self, job: Job, payload: Any) -> None: ...


class ServiceMessage:
    """A request or a message as the worker got it. Its payload is decoded at each access."""

    __slots__ = ("_job", "address", "is_request", "priority", "sender")

    def __init__(self, address: str, job: Job) -> None:
        self.address = address
        """The address that it was sent to."""
        self.sender = job.caller.sender
        """The id of whoever sent it."""
        self.priority: Priority = PRIORITIES[job.priority]
        """high, normal or low: what waits in a mailbox is handled in that order."""
        self.is_request = job.form != SEND
        """Whether somebody waits for an answer."""
        self._job = job

    @property
    def payload(self) -> Any:
        """Bytes, what the JSON says, or an Arrow record batch or table, as it was sent.

        DataLost where it was put into shared memory that was removed before the message came here.
        """
        job = self._job
        if job.kind == BYTES:
            return job.frame[job.body_at :]
        if job.block is not None:
            return from_block(job.block, job.kind & ~IN_BLOCK)
        return decode_payload(job.kind, memoryview(job.frame)[job.body_at :], self.address)

    @property
    def headers(self) -> dict[str, Any]:
        """What the sender said beside the payload."""
        try:
            return decode_headers(memoryview(self._job.frame)[self._job.headers_at : self._job.body_at])
        except (ValueError, RecursionError) as error:  # whatever a stranger sent
            raise MalformedRequest(f"the headers of a message to {self.address} cannot be read: {error}") from None

    def __repr__(self) -> str:
        return f"<{'request' if self.is_request else 'message'} to {self.address} from {self.sender}>"


class ServiceContext:
    """Answers one message; also from another thread, and after the handler has returned when it `defer`s."""

    __slots__ = (
        *("_job", "_message", "_worker", "deadline", "worker_id"),
        *("is_answered", "is_deferred", "is_streamed", "was_told_to_end"),
    )

    def __init__(self, message: ServiceMessage, job: Job, worker: AnsweringWorker) -> None:
        self.worker_id = worker.worker_id
        """The id of this worker."""
        self.deadline = inf if job.form == SEND else job.deadline
        """When the caller gives up, on `time.monotonic`'s clock; without end for what was only sent."""
        self.is_streamed = job.form == STREAM
        """Whether the caller takes partial results."""
        self.is_answered = False
        """Whether an answer was sent."""
        self.is_deferred = False
        """Whether the answer comes after the handler has returned."""
        self.was_told_to_end = False
        """Whether `is_cancelled` has said so."""
        self._message = message
        self._job = job
        self._worker = worker

    @property
    def remaining_seconds(self) -> float:
        """How long the caller still waits, not below 0. For a message that wants no reply it is infinite."""
        return max(self.deadline - monotonic(), 0.0)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more.

        Whoever asked has cancelled the request, left the stream, ended, or its deadline has passed. What a handler
        returns or raises once it was told so is no answer: a caller whose own deadline is about to pass gets
        RequestTimeout, and not half of a result.
        """
        self.was_told_to_end = self.was_told_to_end or self._has_left() or self.deadline <= monotonic()
        return self.was_told_to_end

    def reply(self, payload: Any) -> None:
        """Answer now, while the handler goes on; what it returns then does not matter."""
        self._end(payload)

    def fail(self, error: BaseException) -> None:
        """Answer with an exception, as if the handler had raised it: the caller gets a HubError as it is, any other as
        HandlerFailed with its text."""
        if not isinstance(error, BaseException):
            raise ConfigurationError(
                f"fail takes an exception, not {error!r}: write context.fail(ValueError(…)), or reply with a value"
            )
        self._end(error if isinstance(error, HubError) else handler_failed(error, self._message.address))

    def stream(self, payload: Any) -> None:
        """Send a partial result ahead of the reply. A caller of `hub.request` gets the reply alone.

        Waits while the caller has 8 MiB of earlier ones to read; RequestTimeout when that lasts until its deadline,
        RequestCancelled when nobody waits for the answer any more.
        """
        if self._is_to_be_streamed():
            self._worker.answer(self._job, payload, False)

    async def stream_async(self, payload: Any) -> None:
        """As `stream`, for handlers that are coroutines."""
        if self._is_to_be_streamed():
            await self._worker.stream_async(self._job, payload)

    def defer(self) -> None:
        """Answer later, by `reply` or `fail` from any thread: what the handler returns is not the reply."""
        self._check_open()
        self.is_deferred = True

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None:
        """As `hub.send`; at most as long as the caller waits."""
        self._worker.asks.send(address, payload, timeout=self._limited(timeout), **options)

    async def send_async(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None:
        """As `send`, for handlers that are coroutines."""
        await self._worker.asks.ask_async(SEND, address, payload, timeout=self._limited(timeout), **options)

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """As `hub.request`; at most as long as the caller waits."""
        return self._worker.asks.request(address, payload, timeout=self._limited(timeout), **options)

    async def request_async(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """As `request`, for handlers that are coroutines."""
        return await self._worker.asks.ask_async(REQUEST, address, payload, timeout=self._limited(timeout), **options)

    def _end(self, answer: Any) -> None:
        self._check_open()
        self.is_answered = True
        self._worker.answer(self._job, answer, True)

    def _is_to_be_streamed(self) -> bool:
        """Whoever asked by `hub.request` gets the reply alone."""
        self._check_open()
        if self._has_left():
            raise RequestCancelled(f"nobody waits for the answer to {self._message!r} any more")
        return self.is_streamed

    def _check_open(self) -> None:
        if not self._message.is_request:
            raise InvalidRequest(f"{self._message!r} wants no answer")
        if self.is_answered:
            raise InvalidRequest(f"{self._message!r} has been answered already")

    def _has_left(self) -> bool:
        caller = self._job.caller
        return self._message.is_request and (caller.is_gone or caller.has_cancelled(self._job.number))

    def _limited(self, timeout: float | None) -> float | None:
        if self.deadline == inf:
            return timeout
        return self.remaining_seconds if timeout is None else min(seconds(timeout), self.remaining_seconds)


def handler_failed(error: BaseException, address: str) -> HandlerFailed:
    """Return the error that a caller gets for an exception that is not a HubError."""
    name = type(error).__name__
    return HandlerFailed(f"{name}: {_text(error)}", error=name, address=address)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001  of a handler's own making
        return f"its text cannot be had: {type(failed).__name__}"
