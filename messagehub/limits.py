"""Token buckets: so many a second, and a second's worth at once."""

MAX_PEERS = 10_000


class TokenBuckets:
    def __init__(self, rate: float) -> None:
        """0 is without a limit."""
        self.rate = rate
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, peer: str, now: float) -> bool:
        """Whether the peer may, now; then it has one less."""
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
