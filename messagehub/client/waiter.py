"""A request on its way, and who waits for it."""

import threading
import time
from collections.abc import Callable

from messagehub.errors import HubError
from registry import replies

Done = Callable[[replies.AnyReply | None, HubError | None], None]


class Waiter:
    """A thread blocks on it, or `done` is called on the I/O thread."""

    __slots__ = ("_answered", "deadline", "done", "error", "payload", "reply", "request_id")

    def __init__(self, request_id: str, payload: bytes, deadline: float, done: Done | None) -> None:
        self.request_id = request_id
        self.payload = payload
        self.deadline = deadline
        self.done = done
        self.reply: replies.AnyReply | None = None
        self.error: HubError | None = None
        self._answered: threading.Lock | None = None

    def share(self) -> "Waiter":
        """Before another thread may finish it. A caller that drives the wire itself never needs this."""
        self._answered = threading.Lock()
        self._answered.acquire()
        return self

    def finish(self, reply: replies.AnyReply | None, error: HubError | None = None) -> None:
        self.reply, self.error = reply, error
        if self.done is not None:
            self.done(reply, error)
        else:
            assert self._answered is not None
            self._answered.release()

    def wait(self) -> bool:
        assert self._answered is not None
        return self._answered.acquire(timeout=max(self.deadline - time.monotonic(), 0.0))
