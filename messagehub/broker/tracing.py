"""The newest exchanges, so that one correlation id shows what the broker saw and answered."""

from collections import deque
from typing import Any, NamedTuple


class Exchange(NamedTuple):
    received_at: float
    correlation_id: str | None
    request: str
    answer: str
    seconds: float
    peer: bytes


class TraceRing:
    """Appending costs a tuple; everything else is paid by whoever asks."""

    def __init__(self, size: int) -> None:
        self._ring: deque[Exchange] = deque(maxlen=size)
        self.append = self._ring.append

    def find(self, correlation_id: str | None, *, limit: int) -> list[dict[str, Any]]:
        """Newest first."""
        found: list[dict[str, Any]] = []
        for exchange in reversed(self._ring):
            if correlation_id is None or exchange.correlation_id == correlation_id:
                found.append(_shown(exchange))
                if len(found) == limit:
                    break
        return found


def _shown(exchange: Exchange) -> dict[str, Any]:
    return {
        "side": "broker",
        "at": exchange.received_at,
        "correlation_id": exchange.correlation_id,
        "request": exchange.request,
        "answer": exchange.answer,
        "seconds": round(exchange.seconds, 7),
        "peer": exchange.peer.hex(),
    }
