"""Limits for one peer: so many requests a second (token buckets), and so many at once."""

MAX_PEERS = 10_000


class TokenBuckets:
    def __init__(self, rate: float) -> None:
        """A rate of 0 is without a limit."""
        self.rate = rate
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, peer: str, now: float) -> bool:
        """Take a token of the peer. Return False if it has none now."""
        rate = self.rate
        if not rate:
            return True
        left, at = self._left.get(peer, (rate, now))
        left = min(left + (now - at) * rate, rate)
        is_taken = left >= 1.0
        if peer not in self._left and len(self._left) >= MAX_PEERS:
            del self._left[next(iter(self._left))]
        self._left[peer] = (left - 1.0 if is_taken else left, now)
        return is_taken


class ConcurrencyLimit:
    """So many at once for all peers together. One peer has at most half, so that none keeps the others out."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.of_one = max(most // 2, 1)
        self._held: dict[str, int] = {}
        self._all = 0

    def take(self, peer: str) -> bool:
        held = self._held.get(peer, 0)
        if held >= self.of_one or self._all >= self.most:
            return False
        self._held[peer] = held + 1
        self._all += 1
        return True

    def give_back(self, peer: str) -> None:
        self._all -= 1
        if self._held[peer] == 1:
            del self._held[peer]
        else:
            self._held[peer] -= 1
