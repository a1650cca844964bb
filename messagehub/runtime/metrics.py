"""Counters and latency histograms, cheap enough for every message.

A histogram's bucket n holds latencies below 2^n microseconds. Labels come from our own tables, never from a peer.
"""

from typing import Any

BUCKETS = 32


class Histogram:
    __slots__ = ("buckets", "count", "errors", "total_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self.total_seconds = 0.0
        self.buckets = [0] * BUCKETS

    def record(self, seconds: float) -> None:
        self.count += 1
        self.total_seconds += seconds
        self.buckets[min(int(seconds * 1e6).bit_length(), BUCKETS - 1)] += 1

    def quantile(self, share: float) -> float:
        """An upper bound in seconds of the share's latency."""
        wanted = self.count * share
        seen = 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return float(1 << bucket) / 1e6
        return 0.0

    def report(self) -> dict[str, Any]:
        last = max((n for n, count in enumerate(self.buckets) if count), default=-1)
        return {
            "count": self.count,
            "errors": self.errors,
            "total_seconds": round(self.total_seconds, 6),
            "p50_seconds": self.quantile(0.5),
            "p99_seconds": self.quantile(0.99),
            "buckets": {str(1 << n): self.buckets[n] for n in range(last + 1)},
        }


class Metrics:
    """Histograms by request type, made beforehand, named counters, and refusals by our own codes."""

    def __init__(self, types: list[str], counters: list[str]) -> None:
        self.requests = {name: Histogram() for name in types}
        self.counters = dict.fromkeys(counters, 0)
        self.refusals: dict[str, int] = {}

    def count(self, name: str, by: int = 1) -> None:
        self.counters[name] += by

    def refuse(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def all_counters(self) -> dict[str, int]:
        return self.counters | {f"refused_{code.lower()}": count for code, count in self.refusals.items()}

    def report(self) -> dict[str, Any]:
        return {name: histogram.report() for name, histogram in self.requests.items() if histogram.count}
