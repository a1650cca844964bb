"""Requests, whichever way they came: they are checked, queued by priority, answered and counted.

Rule: a message that is no request, or that its sender may not send, is refused here and goes no further.
"""

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from messagehub import protocol
from messagehub.broker.access.access_control import HOST, AccessControl, ReturnPath
from messagehub.broker.tracing import TraceRing
from messagehub.broker.transports.local_connection import LocalPath
from messagehub.errors import HubError, ProtocolError, is_not_found
from messagehub.runtime.logs import LimitedLog, one_line, reason
from messagehub.runtime.metrics import Metrics
from registry import access, commands, replies
from registry.registry import Registry
from registry.schemas.checks import CheckResult

log = logging.getLogger("messagehub.broker")

MAX_BACKLOG = 16_384
MAX_RATE_LIMITED = 8
"""After so many refusals for rate a turn stops receiving, and after one if a request waits to be served: a peer that
floods must not keep the others waiting."""
UNKNOWN = "unknown"
"""The type under which messages are counted that are no request of any type."""
COUNTERS = ["malformed", "unknown_type", "too_large", "bad_frames", "undeliverable", "not_found"]
_COUNTER_OF_CODE = {"UNKNOWN_TYPE": "unknown_type", "MESSAGE_TOO_LARGE": "too_large"}

Request = tuple[list[bytes], commands.AnyCommand, float, CheckResult | None]
"""The return path, the command, when it was received, and the result of its schema check: a plain tuple, for speed."""


class RequestQueue:
    def __init__(
        self,
        send_by_router: Callable[[list[bytes], bytes], bool],
        access_control: AccessControl | None,
        metrics: Metrics,
        trace: TraceRing,
    ) -> None:
        self.high: deque[Request] = deque()
        self.normal: deque[Request] = deque()
        self.low: deque[Request] = deque()
        self._queues = {"high": self.high, "normal": self.normal, "low": self.low}
        self._send_by_router = send_by_router
        self._access_control = access_control
        self._metrics = metrics
        self._trace = trace
        self._refusals = LimitedLog(log, "refusals")
        self._accounts = {kind: (tag, metrics.requests[tag]) for tag, kind in protocol.COMMANDS_BY_TYPE.items()}

    def answer_by(self, kind: type[list[bytes]], send: Callable[[list[bytes], bytes], bool]) -> None:
        """Send the answers for return paths of this kind another way than by the ROUTER."""
        by_router = self._send_by_router
        self._send_by_router = lambda path, payload: (send if type(path) is kind else by_router)(path, payload)

    @property
    def backlog(self) -> int:
        """Return how many requests wait to be served."""
        return len(self.high) + len(self.normal) + len(self.low)

    def admit(self, path: list[bytes], body: bytes, received_at: float, registry: Registry) -> None:
        """Queue a request by its priority; refuse what is none, or what its sender may not ask for."""
        access_control = self._access_control
        try:
            command = protocol.decode(body) if access_control is None else access_control.decode(path, body, registry)
        except HubError as error:
            self.refuse(path, body, error, received_at)
            return
        priority = command.priority
        if registry.priorities and priority == "normal":
            priority = registry.priorities.get(getattr(command, "channel", ""), "normal")
        self._queues[priority].append((path, command, received_at, None))

    def put_back(self, request: Request) -> None:
        """Queue a request again once its schema check is done."""
        self._queues[request[1].priority].append(request)

    def reply(
        self,
        path: list[bytes],
        command: commands.AnyCommand,
        received_at: float,
        reply: replies.Reply,
        payload: bytes,
        *,
        is_change: bool = False,
    ) -> None:
        """Write the audit record, send the reply, then count it: how long it took, and what it was."""
        if self._access_control is not None:
            self._access_control.note(path, command, reply, is_change=is_change)
        self._send(path, payload)
        elapsed = monotonic() - received_at
        name, histogram = self._accounts[type(command)]
        histogram.record(elapsed)
        answer: Any = type(reply)
        if isinstance(reply, replies.Error):
            answer = reply.code
            if is_not_found(answer):
                self._metrics.count("not_found")
            else:
                histogram.errors += 1
                self._metrics.refuse(answer)
                about = access.about(command) or ""
                self._log_refusal(path, f"{name} {about}" if about else name, answer, reply.message, command.id)
        if log.isEnabledFor(logging.DEBUG):
            said = answer if isinstance(answer, str) else "answered"
            who, request_id = one_line(self._sender(path)), one_line(command.id or "none")
            log.debug("%s of %s, id %s: %s in %.3f ms", name, who, request_id, said, elapsed * 1000)
        peer = path[0] if type(path) is LocalPath else self._peer(path)
        self._trace.append((received_at, command.id, name, answer, elapsed, peer, access.about(command)))

    def _send(self, path: list[bytes], payload: bytes) -> None:
        is_sent = path.connection.reply(payload) if type(path) is LocalPath else self._send_by_router(path, payload)
        if not is_sent:
            self._metrics.count("undeliverable")

    def refuse(self, path: list[bytes], body: bytes, error: HubError, received_at: float) -> None:
        """Refuse a message that is no request, or that its sender may not send."""
        elapsed = monotonic() - received_at
        if isinstance(error, ProtocolError):
            request, request_id = "?", error.request_id
            self._metrics.count(_COUNTER_OF_CODE.get(error.code, "malformed"))
        else:
            request, request_id = protocol.request_head(body)
        if self._access_control is not None:
            self._access_control.refused(path, request, request_id, error)
        histogram = self._metrics.requests.get(request, self._metrics.requests[UNKNOWN])
        histogram.record(elapsed)
        histogram.errors += 1
        self._metrics.refuse(error.code)
        self._log_refusal(path, request, error.code, error.message, request_id)
        self._send(path, protocol.encode_reply(protocol.error_reply(error), request_id))
        self._trace.append((received_at, request_id, request, error.code, elapsed, path[0], None))

    def _log_refusal(self, path: list[bytes], request: str, code: str, said: str, request_id: str | None) -> None:
        who = self._sender(path)
        why = reason(code, said)
        self._refusals.info("refused %s of %s, id %s: %s: %s", request, who, request_id or "none", code, why)

    def _peer(self, path: list[bytes]) -> bytes:
        """Return what a trace shows of a peer: of one for whom another hub asks, its host and its name there."""
        return path.user.encode() if isinstance(path, ReturnPath) and path.user.startswith(HOST) else path[0]

    def _sender(self, path: list[bytes]) -> str:
        if self._access_control is not None:
            return self._access_control.sender(path)
        return path.user if isinstance(path, ReturnPath) else "a local peer"
