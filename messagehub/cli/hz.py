"""`messagehub hz`: how fast a channel is written."""

import time
from typing import Annotated, Any

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Channel, Dir, Endpoint, Json, seconds
from messagehub.cli.output import echo, echo_json_line
from messagehub.cli.session import TURN_SECONDS, check_known, interrupt
from messagehub.display.values import duration, size


class Window:
    """What came in one period."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.items = self.bytes = self.missed = 0
        self.intervals: list[float] = []
        self.ages: list[float] = []
        self._last: dict[str | None, tuple[int, float]] = {}

    def add(self, item: Any, now: float) -> None:
        self.items += 1
        self.bytes += _bytes_of(item.value)
        if not item.written_at:
            return
        self.ages.append(max(now - item.written_at, 0.0))
        number, at = self._last.get(item.producer_id, (0, 0.0))
        if at and item.sequence == number + 1:
            self.intervals.append(max(item.written_at - at, 0.0))
        self._last[item.producer_id] = item.sequence, item.written_at

    def summary(self) -> dict[str, Any]:
        elapsed = time.monotonic() - self.began_at
        return {
            "seconds": round(elapsed, 3),
            "items": self.items,
            "bytes": self.bytes,
            "missed": self.missed,
            "items_per_second": round((self.items + self.missed) / elapsed, 3),
            "bytes_per_second": round(self.bytes * (1 + self.missed / max(self.items, 1)) / elapsed, 3),
            "interval_seconds": _spread(self.intervals),
            "age_seconds": _spread(self.ages),
        }


def hz(
    channel: Channel,
    *,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", parser=seconds, help="How many seconds each line covers.")
    ] = 1.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many lines.")] = None,
    domain: Domain = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Print how fast a channel is written, a line a second: items, bytes, the time between items and their age.

    The age is how long after its writing an item was read here. No producer waits for this reader.
    """
    from messagehub.hub import MessageHub
    from messagehub.shm.rings.read_results import Gap

    lines = items = 0
    with (
        MessageHub(endpoint=endpoint, dir=dir, domain=domain) as hub,
        interrupt() as interrupted,
        hub.consumer(channel, on_lag="gap", lossless=False) as consumer,
    ):
        started_at = time.time()
        while not interrupted.has_come and lines != count:
            window = Window()
            while not interrupted.has_come and (left := window.began_at + every - time.monotonic()) > 0:
                item = consumer.read_item(timeout=min(left, TURN_SECONDS))
                if isinstance(item, Gap):
                    if window.items or lines:  # else perhaps from before
                        window.missed += item.last - item.first + 1
                elif item is not None and not 0 < item.written_at < started_at:
                    window.add(item, time.time())
            if not interrupted.has_come:
                lines += 1
                items += window.items + window.missed
                found = window.summary()
                echo_json_line({"channel": channel, **found}) if as_json else echo(_line(found))
        if not items and consumer.source is None:
            check_known(hub, channel)


def _line(found: dict[str, Any]) -> str:
    if not found["items"] and not found["missed"]:
        return f"nothing was written for {duration(found['seconds'])}"
    rate = found["items_per_second"]
    said = [
        f"{rate:,.0f} items/s" if rate >= 100 else f"{rate:.3g} items/s",
        f"{size(round(found['bytes_per_second']))}/s",
    ]
    if found["interval_seconds"]:
        least, mean, most = (duration(found["interval_seconds"][name]) for name in ("least", "mean", "most"))
        said.append(f"every {mean} ({least}…{most})")
    if found["age_seconds"]:
        said.append(f"age {duration(found['age_seconds']['mean'])}")
    if found["missed"]:
        said.append(f"{found['missed']:,} missed")
    return ", ".join(said)


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}


def _bytes_of(value: Any) -> int:
    return int(value.nbytes) if hasattr(value, "nbytes") else len(value)
