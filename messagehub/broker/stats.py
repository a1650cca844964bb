"""The broker's statistics (STATS), gathered from its parts."""

import os
from collections.abc import Callable
from time import monotonic

from messagehub.runtime.metrics import Metrics
from messagehub.store.commit import GroupCommit
from messagehub.version import __version__
from registry import replies
from registry.registry import Registry


class BrokerStats:
    def __init__(self, broker_id: str, metrics: Metrics, commit: GroupCommit) -> None:
        self._broker_id = broker_id
        self._started_at = monotonic()
        self._metrics = metrics
        self._commit = commit
        self._counters: list[Callable[[], dict[str, int]]] = [metrics.all_counters]
        self._gauges: list[Callable[[], dict[str, int]]] = []
        self.count_leases: Callable[[Registry], int] = lambda registry: len(registry.leases)

    def add(self, counters: Callable[[], dict[str, int]]) -> None:
        """Add counters, which are read each time that statistics are asked for."""
        self._counters.append(counters)

    def add_gauges(self, gauges: Callable[[], dict[str, int]]) -> None:
        """Add gauges: numbers that grow and shrink."""
        self._gauges.append(gauges)

    def stats(self, registry: Registry, *, is_read_only: bool) -> replies.StatsReport:
        channels = registry.channels.values()
        counters: dict[str, int] = {}
        for more in self._counters:
            counters |= more()
        lags = registry.positions.lags()
        gauges: dict[str, int] = {
            "retained_topics": registry.topics.count,
            "services": registry.services.address_count,
            "subjects": registry.schemas.subject_count,
            "tables": sum(channel.table is not None for channel in channels),
            "workers": registry.services.worker_count,
            "dead_letters": len(registry.services.letters),
            "messages_behind": sum(lags),
            "most_messages_behind": max(lags, default=0),
        }
        for more in self._gauges:
            gauges |= more()
        return replies.StatsReport(
            broker_id=self._broker_id,
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=round(monotonic() - self._started_at, 3),
            revision=registry.revision,
            read_only=is_read_only,
            channels=len(channels),
            producers=sum(len(channel.producers) for channel in channels),
            consumers=sum(len(channel.consumers) for channel in channels),
            leases=self.count_leases(registry),
            schemas=len(registry.schemas),
            requests=self._metrics.report(),
            counters=counters,
            gauges=gauges,
            store={"written_revision": self._commit.written, "transactions": self._commit.transactions},
        )
