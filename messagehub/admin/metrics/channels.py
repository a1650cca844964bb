"""How many items each channel has been given on this host, counted over all its rings, and who reads those.

Rule 1: only channels that the registry lists are shown, at most `MAX_CHANNELS`, the first by name.
Rule 2: a total never goes down while this process lives. A ring that is removed takes nothing away, and one that is
made anew adds what is written to it: the total grows by what each ring's head has grown since the last look.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from messagehub.channels.flow import FlowSample

MAX_CHANNELS = 1000


@dataclass(frozen=True)
class RingState:
    """What the live rings of one channel on this host are like now."""

    memory_bytes: int
    slots: int
    readers: int
    lag_items: int
    skipped_items: int


class ChannelItems:
    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._heads: dict[str, dict[str, int]] = {}
        self._counting = threading.Lock()

    def totals(self, channels: list[str], sample: FlowSample) -> dict[str, int]:
        """Return how many items were written to each channel that has had a ring here."""
        with self._counting:
            self._totals = {name: self._count(name, sample) for name in channels}
            self._heads = {name: heads for name, heads in self._heads.items() if name in self._totals}
            return {name: total for name, total in self._totals.items() if name in self._heads}

    def _count(self, channel: str, sample: FlowSample) -> int:
        total, before = self._totals.get(channel, 0), self._heads.get(channel)
        now = {ring.block_id: ring.head for ring in sample.rings.get(channel, ())}
        if now or before is not None:
            self._heads[channel] = now
        return total + sum(max(head - (before or {}).get(ring, 0), 0) for ring, head in now.items())


def ring_states(channels: Iterable[str], sample: FlowSample) -> dict[str, RingState]:
    """Return the state of each channel that has a live ring here."""
    found = {}
    for channel in channels:
        live = [ring for ring in sample.rings.get(channel, ()) if ring.is_live]
        if live:
            lags = [reader.lag_items for ring in live for reader in ring.readers]
            lags += [group.lag_items for ring in live for group in ring.groups]
            found[channel] = RingState(
                memory_bytes=sum(ring.memory_bytes for ring in live),
                slots=sum(ring.slots for ring in live),
                readers=max(len(ring.readers) for ring in live),
                lag_items=max(lags, default=0),
                skipped_items=sum(ring.skipped_items for ring in live),
            )
    return found
