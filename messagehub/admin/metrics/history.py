"""The last minutes as a series: requests, errors and latencies of the broker and of HTTP, items and bytes of channels.

Rule: points are collected only while somebody asks for them, once for all who ask, and end some seconds later.
"""

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from messagehub.admin.metrics.http import answered
from messagehub.errors import HubError
from messagehub.runtime.metrics import BUCKETS, Histogram
from registry import commands, replies

if TYPE_CHECKING:
    from messagehub.admin.broker_client import BrokerClient

log = logging.getLogger("messagehub.http")

POINT_SECONDS = 2.0
KEPT_POINTS = 150
IDLE_SECONDS = 30.0
ASK_SECONDS = 1.5


class HistoryPoint(msgspec.Struct, kw_only=True):
    """What happened in the `POINT_SECONDS` before `at`. Latencies are upper bounds, null where nothing was asked."""

    at: float
    broker_up: bool
    requests_per_second: float = 0.0
    errors_per_second: float = 0.0
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    http_requests_per_second: float = 0.0
    http_errors_per_second: float = 0.0
    items_per_second: float = 0.0
    bytes_per_second: float = 0.0


class _Counted(msgspec.Struct):
    """Counters at one moment."""

    at: float
    broker_id: str
    requests: Histogram
    http: int
    http_errors: int


class History:
    """Used in the event loop."""

    def __init__(self, backend: "BrokerClient") -> None:
        self._backend = backend
        self._points: deque[HistoryPoint] = deque(maxlen=KEPT_POINTS)
        self._asked_at = 0.0
        self._collecting: asyncio.Task[None] | None = None
        self._before: _Counted | None = None

    def points(self, after: float) -> list[HistoryPoint]:
        """Return the points that are newer, and collect more from now on, for a while."""
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        if self._collecting is None or self._collecting.done():
            self._points.clear()
            self._before = None
            self._collecting = loop.create_task(self._collect())
        return [point for point in self._points if point.at > after]

    async def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        while loop.time() - self._asked_at < IDLE_SECONDS:
            try:
                await self._add_point()
            except Exception:  # a defect of ours: the next point may be better
                log.exception("a point of the history could not be made")
            due_at = max(due_at + POINT_SECONDS, loop.time())
            await asyncio.sleep(due_at - loop.time())

    async def _add_point(self) -> None:
        report: replies.StatsReport | None = None
        try:
            asked = self._backend.hub.ask_async(commands.Stats(), timeout=ASK_SECONDS)
            found = await asyncio.wait_for(asked, ASK_SECONDS)
            report = found if isinstance(found, replies.StatsReport) else None
        except (HubError, TimeoutError):
            pass  # said by `broker_up`
        sample = await self._backend.flow.sample()
        now = _counted(report)
        before, self._before = self._before, now
        if before is None:
            return  # it counts from here
        elapsed = now.at - before.at
        point = HistoryPoint(
            at=time.time(),
            broker_up=report is not None,
            http_requests_per_second=_rate(now.http - before.http, elapsed),
            http_errors_per_second=_rate(now.http_errors - before.http_errors, elapsed),
            items_per_second=round(sample.totals.items_per_second, 1),
            bytes_per_second=round(sample.totals.bytes_per_second, 1),
        )
        if report is not None and before.broker_id == now.broker_id:
            asked_since = _difference(now.requests, before.requests)
            point.requests_per_second = _rate(asked_since.count, elapsed)
            point.errors_per_second = _rate(asked_since.errors, elapsed)
            if asked_since.count:
                point.p50_seconds, point.p99_seconds = asked_since.quantile(0.5), asked_since.quantile(0.99)
        self._points.append(point)


def _counted(report: replies.StatsReport | None) -> _Counted:
    requests = Histogram()
    for numbers in report.requests.values() if report is not None else ():
        requests.count += numbers["count"]
        requests.errors += numbers["errors"]
        for bound, count in numbers["buckets"].items():
            requests.buckets[int(bound).bit_length() - 1] += count
    http = list(answered.by_label.items())
    return _Counted(
        at=time.monotonic(),
        broker_id=report.broker_id if report is not None else "",
        requests=requests,
        http=sum(histogram.count for _, histogram in http),
        http_errors=sum(histogram.count for (_, _, status), histogram in http if status >= 500),
    )


def _difference(now: Histogram, before: Histogram) -> Histogram:
    found = Histogram()
    found.count, found.errors = now.count - before.count, now.errors - before.errors
    found.buckets = [now.buckets[n] - before.buckets[n] for n in range(BUCKETS)]
    return found


def _rate(count: int, seconds: float) -> float:
    return round(max(count, 0) / seconds, 2) if seconds > 0 else 0.0
