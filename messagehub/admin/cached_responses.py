"""A cache of whole responses, bounded in number and in bytes."""

import time
from collections.abc import Hashable
from dataclasses import dataclass

from starlette.responses import Response

FRESH_PART = 0.8
"""After this part of a response's life one caller asks anew, while the others are still given the cached one."""
OVERHEAD_BYTES = 1000
"""What an entry takes besides its texts, estimated generously."""


@dataclass(slots=True)
class CachedResponse:
    payload: bytes
    headers: list[tuple[bytes, bytes]]
    renew_at: float
    until: float
    size: int

    @classmethod
    def of(cls, answer: Response, seconds: float, key_bytes: int) -> "CachedResponse":
        payload, now = bytes(answer.body), time.monotonic()
        size = key_bytes + len(payload) + OVERHEAD_BYTES
        return cls(payload, answer.raw_headers, now + seconds * FRESH_PART, now + seconds, size)


class CachedResponses:
    """When it is full it is emptied: what is asked for often is soon back."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.bytes = 0
        self._responses: dict[Hashable, CachedResponse] = {}

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, key: Hashable) -> CachedResponse | None:
        found = self._responses.get(key)
        if found is None:
            return None
        now = time.monotonic()
        if now >= found.renew_at:
            found.renew_at = found.until
            return None
        return found if now < found.until else None

    def put(self, key: Hashable, cached: CachedResponse) -> None:
        if cached.size > self.max_bytes:
            return
        before = self._responses.pop(key, None)
        if before is not None:
            self.bytes -= before.size
        if len(self._responses) >= self.max_entries or self.bytes + cached.size > self.max_bytes:
            self.clear()
        self._responses[key] = cached
        self.bytes += cached.size

    def clear(self) -> None:
        self._responses.clear()
        self.bytes = 0
