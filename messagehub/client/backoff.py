"""When to try the broker again: soon at first, then less and less often, never all clients at once."""

import random
import time

from messagehub.settings import Settings

BUSY_SECONDS = 5.0
"""So long a broker that runs may take to answer, whatever callers have to spare."""


class Backoff:
    def __init__(self, settings: Settings) -> None:
        self._first = settings.reconnect_first_seconds
        self._most = settings.reconnect_max_seconds
        self._hello_first = settings.hello_timeout_seconds
        self.most_seconds = max(settings.request_timeout_seconds, BUSY_SECONDS)
        self.reset()

    def reset(self) -> None:
        """There is a connection."""
        self._attempts = 0
        self._unanswered = 0
        self._between_looks = self._first
        self.retry_at = 0.0

    def back_off(self) -> None:
        """An attempt failed, or the connection was lost."""
        wait = min(self._first * 2**self._attempts, self._most) * random.uniform(0.5, 1.0)
        self._attempts = min(self._attempts + 1, 30)
        self.retry_at = time.monotonic() + wait

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt failed, or the connection was lost."""
        return self._attempts > 0

    def deadlines(self, deadline: float, *, is_patient: bool, in_background: bool) -> tuple[float, float]:
        """Until when the peer has to have shaken hands, and until when to have answered the HELLO.

        A broker that shook hands is there, and gets all the time that a caller has. One that did not may be stopped:
        only a caller that is patient, since nobody else can help it, waits on. After an attempt without an answer,
        callers wait but a moment, and the I/O thread longer with each attempt.
        """
        now = time.monotonic()
        if in_background:
            longer = min(self._hello_first * 2**self._unanswered, self.most_seconds)
            return now + longer, deadline if not self._unanswered else now + longer
        if self._unanswered:
            moment = min(deadline, now + 2 * self._hello_first)
            return moment, moment
        return deadline if is_patient else min(deadline, now + self._hello_first), deadline

    def no_hello(self) -> None:
        """Somebody is there, and did not answer a HELLO."""
        self._unanswered = min(self._unanswered + 1, 30)

    def look_less_often(self) -> None:
        """Looking for a broker that is not there costs little, but not nothing."""
        self._between_looks = min(2 * self._between_looks, self._most)

    def next_look(self) -> float:
        return max(self.retry_at, time.monotonic() + self._between_looks)
