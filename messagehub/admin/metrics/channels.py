"""How many items each channel has been given on this host, counted over all its rings.

Rule 1: only channels that the registry lists are shown, at most `MAX_CHANNELS`, the first by name.
Rule 2: a total never goes down while this process lives. A ring that is removed takes nothing away, and one that is
made anew adds what is written to it: the total grows by what each ring's head has grown since the last look.
"""

import threading

from messagehub.channels.inventory import rings_written
from messagehub.shm.directory import Directory
from messagehub.shm.errors import DataBlockError

MAX_CHANNELS = 1000


class ChannelItems:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._totals: dict[str, int] = {}
        self._heads: dict[str, dict[str, int]] = {}
        self._counting = threading.Lock()

    def totals(self, channels: list[str]) -> dict[str, int]:
        """Return how many items were written to each channel that has had a ring here."""
        with self._counting:
            self._totals = {name: self._count(name) for name in channels}
            self._heads = {name: heads for name, heads in self._heads.items() if name in self._totals}
            return {name: total for name, total in self._totals.items() if name in self._heads}

    def _count(self, channel: str) -> int:
        total, before = self._totals.get(channel, 0), self._heads.get(channel)
        try:
            now = rings_written(self._directory, channel)
        except DataBlockError:
            return total  # cannot be read now; what it grows by is counted at the next look
        if now or before is not None:
            self._heads[channel] = now
        return total + sum(max(head - (before or {}).get(ring, 0), 0) for ring, head in now.items())
