"""What every HTTP connection is held to: a request arrives whole, in time, and is not endless."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from messagehub.admin.callers import counters
from messagehub.admin.errors import error_answer
from messagehub.admin.hardening import hardened, new_request_id

HEAD_SECONDS = 10.0
BODY_SECONDS = 10.0
MAX_HEAD_BYTES = 64 << 10
MAX_REQUEST_BYTES = 16 << 20
"""As it comes over the wire: a body in small chunks takes many times what is in it."""
MAX_CONNECTIONS = 1000


class PatientProtocol(HttpToolsProtocol):
    """Patient, but not for ever: the head of a request has its deadline, then its body."""

    _deadline: asyncio.TimerHandle | None = None
    _is_head = True
    _is_whole = False
    _request_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            counters["http_connections"] += 1
            self._end(503, f"there are {MAX_CONNECTIONS} connections: try again in a moment")
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        self._request_bytes += len(data)
        super().data_received(data)
        if self._request_bytes > MAX_HEAD_BYTES:
            self._check_size()
        if self.transport.is_closing() or (self._is_whole and not self.cycle.response_complete):
            self._cancel()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_head, self._is_whole = True, False

    def on_headers_complete(self) -> None:
        self._is_head = False
        self._cancel()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_whole, self._request_bytes = True, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(400, msg)

    def _check_size(self) -> None:
        limit = MAX_HEAD_BYTES if self._is_head else MAX_REQUEST_BYTES
        if self._request_bytes > limit:
            counters["http_large_requests"] += 1
            status, what = (431, "the head of the request") if self._is_head else (413, "the request")
            self._end(status, f"{what} is larger than {limit} bytes")

    def _expect(self) -> None:
        is_head = self._is_head or self._is_whole
        self._deadline = self.loop.call_later(HEAD_SECONDS if is_head else BODY_SECONDS, self._give_up, is_head)

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
            self._end(408, f"the body did not arrive in {BODY_SECONDS:g} s")

    def _end(self, status: int, message: str) -> None:
        """Answer what never becomes a request to the application, unless another answer is under way, and hang up."""
        if self.transport.is_closing():
            return
        if self._is_next():
            answer = error_answer(status, status, message, {"connection": "close"})
            headers = hardened(answer.raw_headers, new_request_id(), is_tls=self.scheme == "https")
            lines = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(answer.body))
        self.transport.close()

    def _is_next(self) -> bool:
        """Whether what arrives now is the one that has to be answered next."""
        cycle = self.cycle
        if self._is_head:
            return cycle is None or cycle.response_complete
        return not self.pipeline and not cycle.response_started
