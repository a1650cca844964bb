"""What a member of a group tells the gateway of a ring: how far it is done.

Rule 1: one call at a time, on a thread of its own, so nobody who reads waits for it. What is done meanwhile goes with
the next call: a number stands for all before it.
Rule 2: what cannot be told now is told later, by a call or by the ticket of the next stream. What was never told comes
again, here or at another member.
"""

import threading
from collections.abc import Callable

from messagehub.errors import HubError
from messagehub.runtime.supervision import Supervisor

PAUSE_SECONDS = 0.2


class RemoteAcknowledgements:
    def __init__(self, send: Callable[[int], None], *, on_refusal: Callable[[HubError], bool]) -> None:
        """`send` tells the gateway, with a deadline. `on_refusal` takes what it raises, and returns whether that is the
        end."""
        self.done = 0
        """All of the share up to this item is done."""
        self._send = send
        self._on_refusal = on_refusal
        self._told = 0
        self._is_closing = self._is_over = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, sequence: int) -> None:
        with self._changed:
            if sequence <= self.done or self._is_closing:
                return
            self.done = sequence
            if self._thread is None:
                self._thread = Supervisor().start("messagehub-flight-done", self._run)
            self._changed.notify_all()

    def was_told(self, sequence: int) -> None:
        """Take note that a ticket has said so."""
        with self._changed:
            self._told = max(self._told, sequence)
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Tell what is left to tell, within so many seconds."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(self._is_settled, seconds)
            self._is_over = True
            self._changed.notify_all()

    def _is_settled(self) -> bool:
        return self._is_over or self._told >= self.done or self._thread is None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._is_closing or self.done > self._told)
                done = self.done
                if self._is_over or done <= self._told:
                    return
            try:
                self._send(done)
            except HubError as error:
                self._pause(error)
            else:
                self.was_told(done)

    def _pause(self, error: HubError) -> None:
        """Wait a moment before it is said again, if it ever is."""
        with self._changed:
            self._is_over |= self._on_refusal(error)
            self._changed.wait_for(lambda: self._is_over or self._told >= self.done, PAUSE_SECONDS)
