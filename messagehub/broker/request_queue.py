"""The control socket: requests are received, checked and queued; answers are sent and counted.

Rule: nothing that arrives can end the loop. A message that is no request, or that its sender may not send, is refused
here and goes no further.
"""

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

import zmq

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.event_subscriptions import hang_up
from messagehub.broker.tracing import TraceRing
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
MAX_SKIPPED = 1024
"""How many frames of a message that has too many are discarded at a time; then the connection is ended."""
COUNTERS = ["malformed", "unknown_type", "too_large", "bad_frames", "undeliverable", "not_found"]
_COUNTER_OF_CODE = {"UNKNOWN_TYPE": "unknown_type", "MESSAGE_TOO_LARGE": "too_large"}

# pyzmq's flags are enums, and combining or comparing enums costs as much as receiving a frame.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_NOBLOCK = int(zmq.SNDMORE) | _NOBLOCK
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_RCVMORE = int(zmq.RCVMORE)

Request = tuple[list[bytes], commands.AnyCommand, float, CheckResult | None]
"""The return path, the command, when it was received, and the result of its schema check: a plain tuple, for speed."""


class RequestQueue:
    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        access_control: AccessControl | None,
        metrics: Metrics,
        trace: TraceRing,
    ) -> None:
        self.socket = _router(context)
        self.high: deque[Request] = deque()
        self.normal: deque[Request] = deque()
        self.low: deque[Request] = deque()
        self._queues = {"high": self.high, "normal": self.normal, "low": self.low}
        self._is_skipping = False
        self._access_control = access_control
        self._metrics = metrics
        self._trace = trace
        self._refusals = LimitedLog(log, "refusals")
        self._is_logging = False
        self._accounts = {kind: (tag, metrics.requests[tag]) for tag, kind in protocol.COMMANDS_BY_TYPE.items()}

    @property
    def backlog(self) -> int:
        """Return how many requests wait to be served."""
        return len(self.high) + len(self.normal) + len(self.low)

    def receive(self, limit: int, registry: Registry) -> None:
        """Receive messages, queue requests by priority, and refuse what is no request."""
        router, queues, priorities, access_control = (
            self.socket,
            self._queues,
            registry.priorities,
            self._access_control,
        )
        get: Callable[[int], Any] = router.get
        limited = 0
        self._is_logging = log.isEnabledFor(logging.DEBUG)
        for count in range(min(limit, MAX_BACKLOG - self.backlog)):
            if count == 1 and not get(_EVENTS) & _POLLIN:
                return  # the usual single request: asking is cheaper than the exception below
            if limited and (limited == MAX_RATE_LIMITED or self.backlog):
                return
            if self._is_skipping and not self._skip():
                return
            try:
                frames = _received(router.recv, get) if access_control is None else access_control.receive(router)
            except zmq.Again:
                return
            received_at = monotonic()
            if len(frames) > protocol.MAX_FRAMES:
                self._metrics.count("bad_frames")
                self._is_skipping = True
                continue
            if len(frames) == 3 and not frames[1]:
                body = frames.pop()
                path = frames
            else:
                split = protocol.split(frames)
                if split is None:
                    self._metrics.count("bad_frames")
                    continue
                path, body = split if access_control is None else access_control.named(frames, split)
            if access_control is not None and access_control.is_too_fast(path):
                limited += 1
                self._refuse(path, body, access_control.too_fast, received_at)
                continue
            try:
                command = (
                    protocol.decode(body) if access_control is None else access_control.decode(path, body, registry)
                )
            except HubError as error:
                self._refuse(path, body, error, received_at)
                continue
            priority = command.priority
            if priorities and priority == "normal":
                priority = priorities.get(getattr(command, "channel", ""), "normal")
            queues[priority].append((path, command, received_at, None))

    def _skip(self) -> bool:
        """Discard the rest of a message that has too many frames; False if more of it is to come."""
        get: Callable[[int], Any] = self.socket.get
        for _ in range(MAX_SKIPPED):
            if not get(_RCVMORE):
                self._is_skipping = False
                return True
            frame = self.socket.recv(_NOBLOCK, copy=False)
        hang_up(frame)
        return False

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
        if self._is_logging:
            said = answer if isinstance(answer, str) else "answered"
            who, request_id = one_line(self._sender(path)), one_line(command.id or "none")
            log.debug("%s of %s, id %s: %s in %.3f ms", name, who, request_id, said, elapsed * 1000)
        self._trace.append((received_at, command.id, name, answer, elapsed, path[0]))

    def _send(self, path: list[bytes], payload: bytes) -> None:
        send = self.socket.send
        try:
            for frame in path:
                send(frame, _MORE_NOBLOCK)
            send(payload, _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            self._metrics.count("undeliverable")

    def _refuse(self, path: list[bytes], body: bytes, error: HubError, received_at: float) -> None:
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
        self._trace.append((received_at, request_id, request, error.code, elapsed, path[0]))

    def _log_refusal(self, path: list[bytes], request: str, code: str, said: str, request_id: str | None) -> None:
        who = self._sender(path)
        why = reason(code, said)
        self._refusals.info("refused %s of %s, id %s: %s: %s", request, who, request_id or "none", code, why)

    def _sender(self, path: list[bytes]) -> str:
        return "a local peer" if self._access_control is None else self._access_control.sender(path)


def _received(recv: Callable[[int], bytes], get: Callable[[int], Any]) -> list[bytes]:
    """Receive a message, or the beginning of one that has too many frames. A ROUTER's first frame is never the last."""
    frames = [recv(_NOBLOCK), recv(_NOBLOCK)]
    while len(frames) <= protocol.MAX_FRAMES and get(_RCVMORE):
        frames.append(recv(_NOBLOCK))
    return frames


def _router(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_FRAME_BYTES)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, MAX_BACKLOG)  # so that all requests that one peer may have in flight can be answered
    router.setsockopt(zmq.LINGER, 1000)
    return router
