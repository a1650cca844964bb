"""What a hub serves: a handler behind an address, kept registered until it is closed."""

import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from messagehub.client.heartbeats import Registration
from messagehub.errors import HandlerFailed, HubError, MailboxClosed
from messagehub.messaging.service_context import Asks, ServiceContext, ServiceMessage
from messagehub.messaging.service_frames import (
    EXPIRED,
    FAILED,
    PARTIAL,
    PRIORITIES,
    REPLY,
    SEND,
    STREAM,
    answer,
    failure,
)
from messagehub.messaging.service_keys import WorkerKeys
from messagehub.messaging.service_mailbox import Job, Mailbox, Overflow
from messagehub.messaging.service_metrics import ServiceMetrics
from messagehub.messaging.service_server import ServiceServer
from messagehub.messaging.topic_messages import check_size, encode_payload
from registry.records import Priority

log = logging.getLogger("messagehub.services")

DRAIN_SECONDS = 5.0
Handler = Callable[[ServiceMessage, ServiceContext], Any]
OnDropped = Callable[["Served", Job, HubError], None]


class Served:
    """A handler at work. What it returns is the reply; what it raises is raised at the caller's."""

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
    ) -> None:
        self.address = address
        self.worker_id = worker_id
        self.keys = WorkerKeys()
        self.mailbox = Mailbox(mailbox, concurrency, overflow, self.expire)
        self.registration: Registration | None = None
        self._handler = handler
        self._metrics = metrics
        self._server = server
        self._asks = asks
        self._on_dropped = on_dropped

    @property
    def is_registered(self) -> bool:
        """Whether the broker knows of it now; after a restart of the broker it does again in a moment."""
        return bool(self.registration)

    def handle(self, job: Job) -> None:
        """One message, on one of the server's threads."""
        self._metrics.count("handled")
        message = ServiceMessage(
            self.address,
            job.caller.sender,
            PRIORITIES[job.priority],
            job.form != SEND,
            job.kind,
            job.frame,
            (job.headers_at, job.body_at),
        )

        def give(payload: Any, is_last: bool) -> None:
            self._answer(job, payload, is_last)

        context = ServiceContext(
            message,
            worker_id=self.worker_id,
            deadline=inf if job.form == SEND else job.deadline,
            is_streamed=job.form == STREAM,
            answer=give,
            asks=self._asks,
        )
        try:
            result = self._handler(message, context)
        except HubError as error:
            self._fail(message, context, error)
        except BaseException as error:  # also an exit or a cancelled task: it ends this message, not our thread
            log.exception("the handler of %s failed at %r", self.address, message)
            name = type(error).__name__
            self._fail(message, context, HandlerFailed(f"{name}: {_text(error)}", error=name, address=self.address))
        else:
            if message.is_request and not context.is_answered and not context.is_deferred:
                context.reply(result)

    def close(self, *, timeout: float = DRAIN_SECONDS) -> None:
        """Unregister, then handle what has been taken; what is left at the timeout is refused. Idempotent."""
        if self.mailbox.is_closed:
            return
        if self.registration is not None:
            self.registration.close()
        self.mailbox.close()
        self._server.let_in(self)  # who waited for room is told
        self._server.nudge()
        for job in self.mailbox.drain(timeout):
            error = MailboxClosed(f"{self.address} ended before it came to this message", address=self.address)
            self._metrics.count("refused")
            if job.form == SEND:
                self._on_dropped(self, job, error)
            else:
                job.caller.send(failure(job.number, 0, error))
        self._server.remove(self)

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.mailbox.is_closed else "registered" if self.is_registered else "waiting for a broker"
        return f"<{self.address} by {self.worker_id}: {state}>"

    def _fail(self, message: ServiceMessage, context: ServiceContext, error: HubError) -> None:
        if message.is_request and not context.is_answered:
            context.fail(error)
        else:
            log.warning("%r failed, and nobody is left to tell: %s", message, error)

    def _answer(self, job: Job, payload: Any, is_last: bool) -> None:
        load = max(self.mailbox.load - is_last, 0)
        if is_last and job.form == STREAM and not job.caller.close_stream(job.number):
            job.caller.send(answer(EXPIRED, 0, job.number, load, b""))
            return
        if isinstance(payload, HubError):
            job.caller.send(failure(job.number, load, payload, FAILED))
            return
        try:
            kind, body = encode_payload(payload)
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

    def expire(self, job: Job) -> None:
        """Its caller has given up, or is about to."""
        self._metrics.count("expired")
        if job.form == STREAM:
            job.caller.close_stream(job.number)
        job.caller.send(answer(EXPIRED, 0, job.number, self.mailbox.load, b""))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001  of a handler's own making
        return f"its text cannot be had: {type(failed).__name__}"
