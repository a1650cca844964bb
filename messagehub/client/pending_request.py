"""A request on its way, and who waits for it."""

import logging
import threading
import time
from collections.abc import Callable

from messagehub.errors import HubError
from registry import replies

log = logging.getLogger("messagehub.client")

Done = Callable[[replies.AnyReply | None, HubError | None], None]


class PendingRequest:
    """A thread blocks on it, or `done` is called on the I/O thread."""

    __slots__ = ("_answered", "deadline", "done", "error", "is_patient", "is_sent", "payload", "reply", "request_id")

    def __init__(self, request_id: str, payload: bytes, deadline: float, done: Done | None) -> None:
        self.request_id = request_id
        self.payload = payload
        self.deadline = deadline
        self.done = done
        self.is_sent = False
        self.is_patient = False
        self.reply: replies.AnyReply | None = None
        self.error: HubError | None = None
        self._answered: threading.Lock | None = None

    def has_reply(self) -> bool:
        return self.reply is not None

    def share(self) -> "PendingRequest":
        """Before another thread may finish it. A caller that drives the wire itself never needs this."""
        self._answered = threading.Lock()
        self._answered.acquire()
        return self

    def finish(self, reply: replies.AnyReply | None, error: HubError | None = None) -> None:
        self.reply, self.error = reply, error
        if self.done is None:
            assert self._answered is not None
            self._answered.release()
            return
        try:
            self.done(reply, error)
        except Exception:  # it may run in the thread of a caller that has nothing to do with it
            log.exception("the answer to %s could not be used", self.request_id)

    def is_answered(self, until: float) -> bool:
        """Wait until then at most."""
        assert self._answered is not None
        if not self._answered.acquire(timeout=max(until - time.monotonic(), 0.0)):
            return False
        self._answered.release()  # it stays answered
        return True
