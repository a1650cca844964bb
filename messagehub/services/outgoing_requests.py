"""A message as its sender has it: encoded once, sent as often as it takes, a dead letter when it is given up."""

import base64
import time
from typing import Any, Literal

from messagehub.arguments import whole_from
from messagehub.errors import (
    AddressNotFound,
    BrokerRequired,
    ConfigurationError,
    HubError,
    MailboxClosed,
    MailboxFull,
    PoolEmpty,
    RouteError,
    SendTimeout,
)
from messagehub.payloads.encoding import arrow_kind, check_size, decode_headers, encode_headers, encode_payload
from messagehub.protocol.topic_frames import IN_BLOCK
from messagehub.services.frames import PRIORITIES, SEND, call
from messagehub.services.mailbox import Job
from messagehub.services.payloads import PayloadEncoder, is_too_large, prepared
from registry.records import DeadLetter, Priority
from registry.services.dead_letters import MOST_PAYLOAD_BYTES

MOST_RETRIES = 2**31 - 1

CERTAINLY_NOT_HANDLED = (AddressNotFound, PoolEmpty, RouteError, MailboxFull, MailboxClosed)
"""Errors after which a message may be sent again: no handler has seen it."""
UNDELIVERABLE = (*CERTAINLY_NOT_HANDLED, SendTimeout, BrokerRequired)
"""Errors for which a message is given up: its sender reports it as a dead letter."""
_KINDS: tuple[Literal["bytes", "json", "arrow_batch", "arrow_table"], ...] = (
    *("bytes", "json"),
    *("arrow_batch", "arrow_table"),
)
_PRIORITY = {name: number for number, name in enumerate(PRIORITIES)}


class Outgoing:
    __slots__ = (
        *("address", "attempts", "body", "deadline", "form", "headers"),
        *("encoder", "has_met_the_end", "idempotent", "is_reported", "kind", "large", "priority", "retries"),
    )

    def __init__(
        self,
        form: int,
        address: str,
        payload: Any,
        *,
        deadline: float,
        encoder: PayloadEncoder,
        headers: dict[str, Any] | None = None,
        priority: Priority = "normal",
        retries: int = 0,
        idempotent: bool = False,
        is_reported: bool = True,
    ) -> None:
        """With `is_reported` it becomes a dead letter when it is given up."""
        if priority not in _PRIORITY:
            raise ConfigurationError(f"priority is one of {', '.join(PRIORITIES)}, not {priority!r}")
        payload = prepared(payload)
        self.large = payload if is_too_large(payload) else None
        self.encoder = encoder
        self.kind, self.body = encode_payload(payload) if self.large is None else (arrow_kind(payload), b"")
        self.headers = encode_headers(headers) if headers else b""
        check_size(len(self.headers) + len(self.body))
        self.form = form
        self.address = address
        self.priority = _PRIORITY[priority]
        self.deadline = deadline
        self.retries = whole_from(retries, "retries", 0, MOST_RETRIES)
        self.idempotent = idempotent
        self.is_reported = is_reported
        self.attempts = 0
        self.has_met_the_end = False
        """Whether a worker that was known has refused it, because it has ended."""

    def frame(self, number: int, target: bytes) -> bytes:
        kind, body = (self.kind, self.body) if self.large is None else self.encoder.encode(self.large)
        return call(self.form, self.priority, kind, number, self.deadline, target, self.headers, body)

    def letter(self, sender: str, error: HubError) -> DeadLetter:
        form: Literal["request", "send"] = "send" if self.form == SEND else "request"
        body, size_bytes = (self.body, len(self.body)) if self.large is None else (None, self.large.nbytes)
        return _letter(self.address, form, sender, error, self.attempts, self.headers, self.kind, body, size_bytes)


def letter_of(address: str, job: Job, error: HubError) -> DeadLetter:
    """Return the dead letter of a message that a worker took and will not handle."""
    headers = job.frame[job.headers_at : job.body_at]
    body: bytes | None = job.frame[job.body_at :]
    size_bytes = len(body or b"")
    if job.kind & IN_BLOCK:  # which is gone when somebody sends the letter again
        body, size_bytes = None, getattr(job.block, "nbytes", 0)
    return _letter(address, "send", job.caller.sender, error, 1, headers, job.kind & ~IN_BLOCK, body, size_bytes)


def _letter(
    address: str,
    form: Literal["request", "send"],
    sender: str,
    error: HubError,
    attempts: int,
    headers: bytes,
    kind: int,
    body: bytes | None,
    size_bytes: int,
) -> DeadLetter:
    try:
        said = decode_headers(headers) if len(headers) <= MOST_PAYLOAD_BYTES else {}
    except (ValueError, RecursionError):
        said = {}  # whatever a stranger sent
    return DeadLetter(
        address=address[:1024],
        code=error.code,
        reason=error.message[:1024],
        form=form,
        sender=sender[:1024],
        attempts=attempts,
        headers=said,
        payload_kind=_KINDS[kind],
        payload_base64=base64.b64encode(body).decode()
        if body is not None and size_bytes <= MOST_PAYLOAD_BYTES
        else None,
        payload_bytes=size_bytes,
        at=time.time(),
    )
