"""Prometheus' text form of what the broker and this process count.

Rule 1: every histogram has the same bounds for every label, always. A sum over labels is wrong as soon as one of them
leaves out a bound that another has.
Rule 2: no label holds a text that a peer chose, except the names of registered channels, whose grammar needs no escape.
"""

from collections.abc import Mapping, Sequence

from messagehub.admin.metrics import help_texts
from messagehub.admin.metrics.channels import RingState
from messagehub.runtime.metrics import BUCKETS
from registry.replies import ChannelSummary, StatsReport

FIRST, LAST = 4, 25
"""Bounds are powers of two: from 16 µs to 33.6 s. What took longer is in +Inf."""
BOUNDS = [(1 << exponent) / 1e6 for exponent in range(FIRST, LAST + 1)]
_COUNTED = {
    "uptime_seconds": "Seconds since the broker started.",
    "revision": "The registry's revision: it grows with every change.",
    "channels": "Channels that are registered.",
    "producers": "Producers that are registered.",
    "consumers": "Consumers that are registered.",
    "leases": "Processes that hold registrations.",
    "schemas": "Schemas that are registered.",
}
_RINGS = {
    "memory_bytes": "Shared memory that the channel's rings on this host take.",
    "slots": "Items that the channel's rings on this host have room for.",
    "readers": "Consumers on this host that are attached to the channel's rings.",
    "lag_items": "Items that the reader of this host who is furthest behind has not read yet. Above the number of slots"
    " it loses items, unless the producer waits for it.",
    "skipped_items": "Items that were not written because readers held every slot, of the rings that are there now.",
}
_PROCESS = {
    "process_cpu_seconds_total": ("counter", "Processor time that the process has used."),
    "process_resident_memory_bytes": ("gauge", "Memory that the process has in RAM."),
    "process_virtual_memory_bytes": ("gauge", "Memory that the process has mapped."),
    "process_start_time_seconds": ("gauge", "When the process started, in seconds since the epoch."),
    "process_open_fds": ("gauge", "Descriptors that the process has open."),
    "process_max_fds": ("gauge", "Descriptors that the process may have open."),
    "process_threads": ("gauge", "Threads of the process."),
}


class Exposition:
    """Collects families of metrics in order; `text` is what a scrape gets."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def add(self, name: str, kind: str, said: str, values: Mapping[str, float]) -> None:
        """Add a family of values by their labels, as `labels` writes them. One without values is left out."""
        if values:
            self._head(name, kind, said)
            self._lines.extend(f"{name}{by} {_number(value)}" for by, value in values.items())

    def add_histogram(self, name: str, said: str, values: Mapping[str, tuple[Sequence[int], float]]) -> None:
        """Add a histogram. `values` are buckets as `metrics.Histogram` has them, and the sum of all seconds."""
        if not values:
            return
        self._head(name, "histogram", said)
        for by, (buckets, seconds) in values.items():
            inside = by[1:-1]
            total = sum(buckets)
            seen = sum(buckets[:FIRST])
            for exponent, bound in zip(range(FIRST, LAST + 1), BOUNDS, strict=True):
                seen += buckets[exponent]
                self._lines.append(f'{name}_bucket{{{inside},le="{bound}"}} {seen}')
            self._lines.append(f'{name}_bucket{{{inside},le="+Inf"}} {total}')
            self._lines.append(f"{name}_sum{by} {_number(seconds)}")
            self._lines.append(f"{name}_count{by} {total}")

    def _head(self, name: str, kind: str, said: str) -> None:
        self._lines += [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]


def labels(**values: object) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in values.items()) + "}"


def add_broker(page: Exposition, report: StatsReport) -> None:
    for name, said in _COUNTED.items():
        page.add(f"messagehub_{name}", "gauge", said, {"": getattr(report, name)})
    page.add("messagehub_read_only", "gauge", "1 while the broker cannot store changes.", {"": int(report.read_only)})
    for name, value in report.gauges.items():
        page.add(f"messagehub_{name}", "gauge", help_texts.of_gauge(name), {"": value})
    add_counters(page, report.counters)
    said = "Transactions that the store has committed."
    page.add("messagehub_store_transactions_total", "counter", said, {"": report.store["transactions"]})
    types = report.requests.items()
    errors = {labels(type=kind): numbers["errors"] for kind, numbers in types}
    page.add("messagehub_request_errors_total", "counter", "Requests that the broker refused, by type.", errors)
    page.add_histogram(
        "messagehub_request_seconds",
        "How long the broker took to answer a request, by type.",
        {labels(type=kind): (_buckets(numbers["buckets"]), numbers["total_seconds"]) for kind, numbers in types},
    )


def add_counters(page: Exposition, counters: Mapping[str, int]) -> None:
    for name, value in counters.items():
        page.add(f"messagehub_{name}_total", "counter", help_texts.of_counter(name), {"": value})


def add_channels(
    page: Exposition,
    channels: list[ChannelSummary],
    items: dict[str, int],
    rings: dict[str, RingState],
    hidden: int,
) -> None:
    said = "Channels that have no metrics of their own here, because there are too many."
    page.add("messagehub_channels_hidden", "gauge", said, {"": hidden})
    named = [(labels(channel=one.channel), one) for one in channels]
    said = "Items written to the channel's rings on this host."
    written = {labels(channel=name): total for name, total in items.items()}
    page.add("messagehub_channel_items_total", "counter", said, written)
    producers = {by: one.producer_count for by, one in named}
    page.add("messagehub_channel_producers", "gauge", "Producers of the channel.", producers)
    consumers = {by: one.consumer_count for by, one in named}
    page.add("messagehub_channel_consumers", "gauge", "Consumers of the channel.", consumers)
    for name, said in _RINGS.items():
        values = {labels(channel=channel): getattr(state, name) for channel, state in rings.items()}
        page.add(f"messagehub_channel_{name}", "gauge", said, values)


def add_processes(page: Exposition, processes: Mapping[str, Mapping[str, float]]) -> None:
    """Add the metrics of processes, by our names for them."""
    for name, (kind, said) in _PROCESS.items():
        found = {labels(process=of): values[name] for of, values in processes.items() if name in values}
        page.add(name, kind, said, found)


def _buckets(reported: Mapping[str, int]) -> list[int]:
    """Return the buckets that STATS reports by upper bound in microseconds, without the empty ones at the end."""
    return [reported.get(str(1 << exponent), 0) for exponent in range(BUCKETS)]


def _number(value: float) -> str:
    return "+Inf" if value == float("inf") else str(value)
