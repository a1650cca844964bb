"""A worker: a handler behind an address, which stays registered until it is closed."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import Any

from messagehub.arguments import checks_arguments
from messagehub.client.registration import Registration
from messagehub.errors import HandlerFailed, HubError, MailboxClosed, RequestCancelled
from messagehub.payloads.arrow_values import PLAIN_TYPES
from messagehub.payloads.encoding import check_size, encode_payload
from messagehub.runtime.callbacks import is_async
from messagehub.runtime.handler_loop import HandlerLoop
from messagehub.runtime.signals import ended_by_signal, ended_by_signal_async
from messagehub.services.context import Asks, ServiceContext, ServiceMessage, handler_failed
from messagehub.services.frames import EXPIRED, FAILED, PARTIAL, REPLY, SEND, STREAM, answer, failure
from messagehub.services.keys import WorkerKeys
from messagehub.services.mailbox import Job, Mailbox, Overflow
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.payloads import PayloadEncoder
from messagehub.services.server import ServiceServer
from registry.records import Priority

log = logging.getLogger("messagehub.services")

DRAIN_SECONDS = 5.0
Handler = Callable[[ServiceMessage, ServiceContext], Any]
_handling: "ContextVar[ServiceWorker | None]" = ContextVar("messagehub_handling", default=None)
OnDropped = Callable[["ServiceWorker", Job, HubError], None]


class ServiceWorker:
    """A handler that serves an address. What it returns is the reply, and what it raises is raised at the caller."""

    def __init__(
        self,
        address: str,
        worker_id: str,
        handler: Handler,
        *,
        concurrency: int,
        mailbox: int,
        overflow: Overflow | Mapping[Priority, Overflow] | None,
        metrics: ServiceMetrics,
        server: ServiceServer,
        asks: Asks,
        on_dropped: OnDropped,
        loop: asyncio.AbstractEventLoop | None,
        own_loop: HandlerLoop,
        encoder: PayloadEncoder,
    ) -> None:
        self.address = address
        self.worker_id = worker_id
        self.keys = WorkerKeys()
        self.mailbox = Mailbox(mailbox, concurrency, overflow, self.expire)
        self.registration: Registration | None = None
        self.keeps: object = None  # lives as long as this does
        self._handler = handler
        self._metrics = metrics
        self._server = server
        self.asks = asks
        self._on_dropped = on_dropped
        self._encoder = encoder
        self._own_loop = own_loop
        self._loop = (loop or own_loop.get()) if is_async(handler) else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def is_async(self) -> bool:
        """Whether messages are handled in an event loop, so that no thread is busy with them."""
        return self._loop is not None

    @property
    def is_registered(self) -> bool:
        """Whether the broker knows of it now; after a restart of the broker it does again in a moment."""
        return bool(self.registration)

    def handle(self, job: Job) -> None:
        """Handle one message, on one of the server's threads."""
        message, context = self._opened(job)
        token = _handling.set(self)
        try:
            result = self._handler(message, context)
            if inspect.isgenerator(result):
                result = _stream_all(result, message, context)
            elif inspect.isawaitable(result) or inspect.isasyncgen(result):  # which its signature does not say
                finished = _finish_async(result, message, context)
                result = asyncio.run_coroutine_threadsafe(finished, self._own_loop.get()).result()
        except BaseException as error:  # noqa: BLE001  also an exit: it ends this message, not our thread
            self._failed(message, context, error)
        else:
            self._returned(message, context, result)
        finally:
            _handling.reset(token)

    def start(self, job: Job, on_done: Callable[[], None]) -> bool:
        """Have one message handled in the handler's event loop.

        Return False if that loop was closed. Then this worker takes no more messages and refuses this one, so that its
        sender can try another worker.
        """
        loop = self._loop
        assert loop is not None

        def begin() -> None:
            task = loop.create_task(self._handle_async(job))
            self._tasks.add(task)
            task.add_done_callback(end)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            on_done()

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            why = f"{self.address} is served no more: the event loop of its handler was closed"
            if not self.mailbox.is_closed:
                log.error("%s", why)
            self._refuse(job, why)
            self.stop_taking(timeout=DRAIN_SECONDS)
            return False
        return True

    async def _handle_async(self, job: Job) -> None:
        message, context = self._opened(job)
        _handling.set(self)
        try:
            result = await _finish_async(self._handler(message, context), message, context)
        except BaseException as error:  # noqa: BLE001  also a cancelled task: it ends this message, not the loop
            self._failed(message, context, error)
            return
        if type(result) in PLAIN_TYPES:
            self._returned(message, context, result)
        else:  # a large array, frame or table takes a while to copy
            await asyncio.to_thread(self._returned, message, context, result)

    def _opened(self, job: Job) -> tuple[ServiceMessage, ServiceContext]:
        self._metrics.count("handled")
        message = ServiceMessage(self.address, job)
        return message, ServiceContext(message, job, self)

    def _returned(self, message: ServiceMessage, context: ServiceContext, result: Any) -> None:
        if message.is_request and not context.is_answered and not context.is_deferred:
            context.reply(_cancelled(message) if context.was_told_to_end else result)

    def _failed(self, message: ServiceMessage, context: ServiceContext, error: BaseException) -> None:
        if isinstance(error, HubError):
            self._fail(message, context, _cancelled(message) if context.was_told_to_end else error)
            return
        if isinstance(error, asyncio.CancelledError) and context.is_cancelled:
            self._fail(message, context, _cancelled(message))
            return
        log.error("the handler of %s failed at %r", self.address, message, exc_info=error)
        failed = handler_failed(error, self.address)
        self._fail(message, context, _cancelled(message) if context.was_told_to_end else failed)

    @checks_arguments
    def stop_taking(self, *, timeout: float) -> None:
        """Unregister, and take no more messages."""
        if self.mailbox.is_closed:
            return
        if self.registration is not None:
            self.registration.close(timeout=timeout)
        self.mailbox.close()
        self._server.let_in(self)  # who waited for room is told
        self._server.nudge()

    @checks_arguments
    def close(self, *, timeout: float = DRAIN_SECONDS) -> None:
        """Unregister, then handle what has been taken; what is left at the timeout is refused. Idempotent."""
        deadline = monotonic() + timeout
        self.stop_taking(timeout=timeout)
        if self._is_closed:
            return
        self._is_closed = True
        is_handling = _handling.get() is self  # a handler does not wait for itself
        for job in self.mailbox.drain(max(deadline - monotonic(), 0.0), still_busy=int(is_handling)):
            self._refuse(job, f"{self.address} ended before it came to this message")
        self._server.remove(self)

    def _refuse(self, job: Job, why: str) -> None:
        """Refuse a message that was taken and that no handler has seen: tell its sender, or leave a dead letter."""
        error = MailboxClosed(why, address=self.address)
        self._metrics.count("refused")
        if job.form == SEND:
            self._on_dropped(self, job, error)
        else:
            job.caller.forget(job.number)
            job.caller.send(failure(job.number, 0, error))

    def __enter__(self) -> "ServiceWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """End in a forked child: the worker is the parent's."""
        self.mailbox.is_closed = self._is_closed = True

    @checks_arguments
    async def close_async(self, *, timeout: float = DRAIN_SECONDS) -> None:
        """As `close`, while the event loop goes on."""
        await asyncio.to_thread(self.close, timeout=timeout)

    @checks_arguments
    def run(self, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Serve until this process gets SIGTERM or SIGINT, then close, with so long for what has been taken.

        Only in the main thread. Another signal, a second or more after the first, does what it would without this.
        """
        with ended_by_signal():
            self.close(timeout=drain_seconds)

    @checks_arguments
    async def run_async(self, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        """As `run`, for programs with an event loop."""
        async with ended_by_signal_async():
            await self.close_async(timeout=drain_seconds)

    async def __aenter__(self) -> "ServiceWorker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        state = "closed" if self.mailbox.is_closed else "registered" if self.is_registered else "waiting for a broker"
        return f"<{self.address} by {self.worker_id}: {state}>"

    def _fail(self, message: ServiceMessage, context: ServiceContext, error: HubError) -> None:
        if message.is_request and not context.is_answered:
            context.fail(error)
        elif not isinstance(error, RequestCancelled):
            log.warning("%r failed, and nobody is left to tell: %s", message, error)

    def answer(self, job: Job, payload: Any, is_last: bool) -> None:
        load = max(self.mailbox.load - is_last, 0)
        is_whole = not (is_last and job.form == STREAM) or job.caller.close_stream(job.number)
        if is_last:
            job.caller.forget(job.number)
        if not is_whole or (is_last and isinstance(payload, RequestCancelled)):
            job.caller.send(answer(EXPIRED, 0, job.number, load, b""))
            return
        if isinstance(payload, HubError):
            job.caller.send(failure(job.number, load, payload, FAILED))
            return
        try:
            kind, body = self._encoder.encode(payload) if is_last else encode_payload(payload)
            check_size(len(body))
        except Exception as error:  # also what Arrow raises of a payload of its own
            if not is_last:
                raise
            log.exception("what the handler of %s returned cannot be sent", self.address)
            name = type(error).__name__
            told = HandlerFailed(f"the reply cannot be sent: {error}", error=name, address=self.address)
            job.caller.send(failure(job.number, load, told, FAILED))
            return
        if is_last:
            job.caller.send(answer(REPLY, kind, job.number, load, body))
        else:
            job.caller.stream(job.number, answer(PARTIAL, kind, job.number, load, body), job.deadline)

    async def stream_async(self, job: Job, payload: Any) -> None:
        kind, body = encode_payload(payload)
        check_size(len(body))
        frame = answer(PARTIAL, kind, job.number, self.mailbox.load, body)
        await job.caller.stream_async(job.number, frame, job.deadline)

    def expire(self, job: Job) -> None:
        """Take note that the caller has given up, or is about to."""
        self._metrics.count("expired")
        if job.form == STREAM:
            job.caller.close_stream(job.number)
        job.caller.forget(job.number)
        job.caller.send(answer(EXPIRED, 0, job.number, self.mailbox.load, b""))


Served = ServiceWorker  # its name before 2026-11-18


def _cancelled(message: ServiceMessage) -> RequestCancelled:
    return RequestCancelled(f"nobody waits for the answer to {message!r} any more")


def _stream_all(partials: Generator[Any, Any, Any], message: ServiceMessage, context: ServiceContext) -> Any:
    """Send what a generator yields as partial results, and return what it returns."""
    with contextlib.closing(partials):
        while True:
            try:
                partial = next(partials)
            except StopIteration as ended:
                return ended.value
            if message.is_request:
                context.stream(partial)


async def _finish_async(result: Any, message: ServiceMessage, context: ServiceContext) -> Any:
    """Await what an asynchronous handler gave; what a generator yields is sent as partial results."""
    if not inspect.isasyncgen(result):
        return await result
    async with contextlib.aclosing(result):
        async for partial in result:
            if message.is_request:
                await context.stream_async(partial)
    return None
