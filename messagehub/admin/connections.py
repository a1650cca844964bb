"""The limits of HTTP connections: a request arrives whole, in time and within a size; its answer is read in time."""

import asyncio
import socket
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from messagehub.admin.authentication import counters, log_of_refusals
from messagehub.admin.errors import error_answer
from messagehub.admin.metrics.http import OTHER, answered
from messagehub.admin.security_headers import SecurityHeaders, hardened, new_request_id

HEAD_SECONDS = 10.0
BODY_SECONDS = 10.0
READ_SECONDS = 10.0
READ_BYTES = 10_000
"""How much of its answer a caller has to take in READ_SECONDS. Who takes less is cut off."""
LAST_SECONDS = 2.0
"""How long a server that stops waits for the first request of a connection."""
MAX_HEAD_BYTES = 64 << 10
MAX_REQUEST_BYTES = 16 << 20
"""Counted as they come over the wire: a body in small chunks takes many times its content."""
MAX_PIPELINED = 1000
"""Requests that wait for the one before them. Reading stops with the first, but what was read may hold thousands."""
MAX_JOINED_BYTES = 64 << 10
"""A larger body is written after the head, because copying it would cost more than another write."""
MAX_CONNECTIONS = 1000
MAX_TOLD = 100
"""How many connections above the limit are answered with 503. Further ones are closed at once."""


class PatientProtocol(HttpToolsProtocol):
    """A connection with deadlines for the head of a request, for its body, and for the reading of its answer."""

    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _answers: "AnswerWriter"
    _is_head = True
    _is_whole = False
    _is_last = False
    _request_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._answers = AnswerWriter(transport)
        self._expect()
        # We look at the reading of what is much. Less than that, read by nobody, would keep even a closed one open.
        link = transport.get_extra_info("socket")
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(READ_SECONDS * 1000))
        if len(self.connections) > MAX_CONNECTIONS + MAX_TOLD:
            counters["http_connections"] += 1
            transport.abort()
        elif len(self.connections) > MAX_CONNECTIONS:
            self.app = SecurityHeaders(_busy, is_tls=self.scheme == "https")

    def data_received(self, data: bytes) -> None:
        self._request_bytes += len(data)
        super().data_received(data)
        if self._request_bytes > MAX_HEAD_BYTES:
            self._check_size()
        if self._is_whole or self.transport.is_closing():
            self._cancel()
            if not self.transport.is_closing() and self.cycle.response_complete:
                self._keep_alive()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._stop_looking()
        if isinstance(exc, TimeoutError):
            counters["http_slow_readers"] += 1
        super().connection_lost(exc)
        running = self._answers.running  # uvicorn tells the last one that came, which may still wait for its turn
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def shutdown(self) -> None:
        """Stop serving this connection: end a stream without an end, finish every other answer, and answer a request
        that is on its way, also the first one of a connection that was just made."""
        self._is_last = True
        if self.cycle is None or (self.cycle.response_complete and self._request_bytes):
            self._cancel()
            self._deadline = self.loop.call_later(LAST_SECONDS, self.transport.close)
        else:
            super().shutdown()
        running = self._answers.running
        end_stream = running.scope.get("end_stream") if running is not None else None
        if callable(end_stream):
            end_stream()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_head, self._is_whole = True, False

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # or it fails: a head that means nothing
        self._is_head = False
        self.cycle.transport = self._answers
        self._cancel()
        if self._is_last:
            self.cycle.keep_alive = False
        if not self.pipeline:
            self._answers.running = self.cycle
        elif len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("more requests than may wait")  # which ends the parsing, as what is not HTTP does

    def on_message_complete(self) -> None:
        self._is_whole, self._request_bytes = True, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answers.running = self.pipeline[-1][0]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        counters["http_malformed"] += 1
        self._end(400, msg)

    def _check_size(self) -> None:
        limit = MAX_HEAD_BYTES if self._is_head else MAX_REQUEST_BYTES
        if self._request_bytes > limit:
            counters["http_large_requests"] += 1
            status, what = (431, "the head of the request") if self._is_head else (413, "the request")
            self._end(status, f"{what} is larger than {limit} bytes")

    def _expect(self) -> None:
        is_head = self._is_head
        self._deadline = self.loop.call_later(HEAD_SECONDS if is_head else BODY_SECONDS, self._give_up, is_head)

    def _keep_alive(self) -> None:
        """Wait for the next request, after the rest of one that is answered already."""
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self, is_head: bool) -> None:
        self._deadline = None
        if is_head:
            counters["http_slow_headers"] += 1
            self.transport.close()
        else:
            counters["http_slow_bodies"] += 1
            self.cycle.scope["is_late"] = True  # type: ignore[typeddict-unknown-key]
            self._end(408, f"the body did not arrive in {BODY_SECONDS:g} s")

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(READ_SECONDS, self._look_at_reading, unread)

    def _look_at_reading(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - READ_BYTES:
            counters["http_slow_readers"] += 1
            self.transport.abort()
        else:
            self._expect_reading()

    def _stop_looking(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _end(self, status: int, message: str) -> None:
        """Answer what never becomes a request to the application, unless another answer is under way, and hang up."""
        if self.transport.is_closing():
            return
        if self._is_next():
            answer = error_answer(status, status, message, {"connection": "close"})
            headers = hardened(answer.raw_headers, new_request_id(), is_tls=self.scheme == "https")
            lines = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(answer.body))
            answered.record(OTHER, OTHER, status, 0.0)
            address = self.client[0] if self.client else "an unknown address"
            log_of_refusals.info("refused what %s sent: %d: %s", address, status, message)
        self.transport.close()

    def _is_next(self) -> bool:
        """Return whether the request that arrives now has to be answered next."""
        cycle = self.cycle
        if self._is_head:
            return cycle is None or cycle.response_complete
        return not self.pipeline and not cycle.response_started


class AnswerWriter(asyncio.Transport):
    """Writes an answer of a known length at once, head and body: one system call, and one packet if it is small.

    uvicorn writes them one after the other, and nothing comes between them. One writer serves a connection: one for
    each request would be in a circle with it, which only the garbage collector takes apart.
    """

    __slots__ = ("_answered", "_head", "_transport", "running")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self._answered: RequestResponseCycle | None = None
        self.running: RequestResponseCycle | None = None

    def write(self, data: Any) -> None:
        running = self.running
        if self._head:
            head, self._head = self._head, b""
            if len(data) > MAX_JOINED_BYTES:
                self._transport.write(head)
            else:
                data = head + data
        elif running is not None and running.response_started and running is not self._answered:
            self._answered = running
            if running.expected_content_length and running.scope["method"] != "HEAD":
                self._head = data
                return
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


async def _busy(scope: Scope, receive: Receive, send: Send) -> None:
    counters["http_connections"] += 1
    said = f"more than {MAX_CONNECTIONS} connections are open: try again in a moment"
    await error_answer(503, 503, said, {"connection": "close"})(scope, receive, send)
