"""The newest exchanges, so that one correlation id shows what the broker saw and answered."""

import re
from collections import deque
from typing import Any

Exchange = tuple[float, str | None, str, Any, float, bytes, str | None]
"""Received at (monotonic), correlation id, request type, reply class or error code, seconds, peer, what it is about."""
_LOCAL = re.compile(rb"(\d+):\d+")
"""A peer of the local socket: its process, and the number of its connection."""


class TraceRing:
    """Appending costs a tuple; the rest of the work is done when a trace is asked for."""

    def __init__(self, size: int, *, wall_offset: float) -> None:
        self._ring: deque[Exchange] = deque(maxlen=size)
        self._wall_offset = wall_offset
        self.append = self._ring.append

    def find(self, correlation_id: str | None, *, limit: int) -> list[dict[str, Any]]:
        """Return the exchanges with this correlation id, or all, newest first."""
        found: list[dict[str, Any]] = []
        for exchange in reversed(self._ring):
            if correlation_id is None or exchange[1] == correlation_id:
                found.append(self._shown(exchange))
                if len(found) == limit:
                    break
        return found

    def _shown(self, exchange: Exchange) -> dict[str, Any]:
        received_at, request_id, request, answer, seconds, peer, name = exchange
        return {
            "side": "broker",
            "at": received_at + self._wall_offset,
            "correlation_id": request_id,
            "request": request,
            "name": name,
            "answer": answer if isinstance(answer, str) else answer.__struct_config__.tag,
            "seconds": round(seconds, 7),
            "peer": _shown_peer(peer),
        }


def _shown_peer(peer: bytes) -> str:
    """A process where one is known, else the identity of a socket: as text if that is what it is."""
    local = _LOCAL.fullmatch(peer)
    if local is not None:
        return f"pid {local[1].decode()}"
    return peer.decode() if peer.isascii() and peer.decode("ascii").isprintable() else peer.hex()
