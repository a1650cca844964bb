"""When to try the broker again: soon at first, then less and less often, never all clients at once."""

import random
import time

from messagehub.settings import Settings


class Patience:
    def __init__(self, settings: Settings) -> None:
        self._first = settings.reconnect_first_seconds
        self._most = settings.reconnect_max_seconds
        self.reset()

    def reset(self) -> None:
        """There is a connection."""
        self._attempts = 0
        self._between_looks = self._first
        self.retry_at = 0.0

    def back_off(self) -> None:
        """An attempt failed, or the connection was lost."""
        wait = min(self._first * 2**self._attempts, self._most) * random.uniform(0.5, 1.0)
        self._attempts = min(self._attempts + 1, 30)
        self.retry_at = time.monotonic() + wait

    def look_less_often(self) -> None:
        """Looking for a broker that is not there costs little, but not nothing."""
        self._between_looks = min(2 * self._between_looks, self._most)

    def next_look(self) -> float:
        return max(self.retry_at, time.monotonic() + self._between_looks)
