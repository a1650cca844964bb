"""Health, readiness, draining and metrics: what monitors and load balancers ask.

Rule: whoever monitors is answered in time, also while the broker is stuck or slow. A question to the broker is given up
after `PROBE_SECONDS`, and all that needs a thread has threads of its own (`BrokerClient.run_for_monitor`).
"""

import os
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin.authentication import counters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import answer
from messagehub.admin.metrics import prometheus
from messagehub.admin.metrics.channels import MAX_CHANNELS, ChannelItems
from messagehub.admin.metrics.http import answered
from messagehub.admin.metrics.processes import measured
from messagehub.admin.metrics.prometheus import Exposition, labels
from messagehub.errors import HubError, is_unable
from messagehub.shm.location import directory_of
from registry import commands, replies

DRAIN = "/api/v1/drain"
PROBE_SECONDS = 0.8


class StatusAnswer(msgspec.Struct, omit_defaults=True):
    status: str
    revision: int | None = None
    reason: str | None = None
    draining: bool = False
    degraded: bool = False


class DrainAnswer(msgspec.Struct):
    draining: bool


class HealthPaths:
    def __init__(self, backend: BrokerClient) -> None:
        self._backend = backend
        self._items = ChannelItems(directory_of(backend.hub.settings))

    async def health(self, _: Request) -> Response:
        """This process lives."""
        return answer(200, StatusAnswer("healthy", draining=self._backend.is_draining))

    async def ready(self, _: Request) -> Response:
        """The broker answers, and writes are taken. `degraded`: a part of the hub fails; `messagehub status` names it.

        Such a hub is ready all the same, and what fails is told only to those who may ask the broker.
        """
        is_draining = self._backend.is_draining
        try:
            pong = await self._backend.probe(commands.Ping(priority="high"), replies.Pong, seconds=PROBE_SECONDS)
        except HubError as error:
            if not is_unable(error):
                raise
            return answer(503, StatusAnswer("unavailable", reason=error.message, draining=is_draining))
        status = "read_only" if pong.read_only else "draining" if is_draining else "ready"
        said = StatusAnswer(status, pong.revision, draining=is_draining, degraded=bool(pong.problems))
        return answer(200 if status == "ready" else 503, said)

    async def drain(self, _: Request) -> Response:
        """Take no more writes over HTTP and say so in /readyz; reads, and clients of the broker, go on.

        A reload of the hub changes nothing about that. A hub or an HTTP process that is started again takes writes.
        """
        self._backend.is_draining = True
        self._backend.callers.note_change("DRAIN")
        return answer(200, DrainAnswer(True))

    async def end_drain(self, _: Request) -> Response:
        """Take writes again."""
        self._backend.is_draining = False
        self._backend.callers.note_change("DRAIN_END")
        return answer(200, DrainAnswer(False))

    async def stats(self, _: Request) -> Response:
        return answer(200, await self._backend.ask(commands.Stats(), replies.StatsReport))

    async def metrics(self, _: Request) -> Response:
        """Without a broker that answers, what this process counts, and `messagehub_broker_up 0`."""
        try:
            report = await self._backend.probe(commands.Stats(), replies.StatsReport, seconds=PROBE_SECONDS)
            command = commands.ListChannels(limit=MAX_CHANNELS)
            shown = await self._backend.probe(command, replies.ChannelList, seconds=PROBE_SECONDS)
        except HubError as error:
            if not is_unable(error):
                raise
            text = self._page(None).text
        else:
            text = await self._backend.run_for_monitor(partial(self._text, report, shown.channels))
        return Response(text, 200, None, "text/plain; version=0.0.4")

    def _text(self, report: replies.StatsReport, channels: list[replies.ChannelSummary]) -> str:
        page = self._page(report)
        items = self._items.totals([one.channel for one in channels])
        prometheus.add_channels(page, channels, items, max(report.channels - len(channels), 0))
        return page.text

    def _page(self, report: replies.StatsReport | None) -> Exposition:
        page = Exposition()
        page.add("messagehub_broker_up", "gauge", "1 while the broker answers.", {"": int(report is not None)})
        said = "1 while writes over HTTP are refused because the hub is drained."
        page.add("messagehub_http_draining", "gauge", said, {"": int(self._backend.is_draining)})
        if report is not None:
            prometheus.add_broker(page, report)
        prometheus.add_counters(page, counters, "the HTTP process")
        page.add_histogram(
            "messagehub_http_request_seconds",
            "How long an HTTP request took to be answered, by method, route and status.",
            {
                labels(method=method, route=route, status=status): (histogram.buckets, histogram.total_seconds)
                for (method, route, status), histogram in sorted(answered.by_label.items())
            },
        )
        processes = {"http": measured(os.getpid())}
        if report is not None:
            processes["broker"] = measured(report.pid)
        prometheus.add_processes(page, processes)
        return page


ENDPOINTS = (
    Endpoint("GET", "/healthz", HealthPaths.health, None, returns=StatusAnswer),
    Endpoint("GET", "/readyz", HealthPaths.ready, None, codes=(503,), returns=StatusAnswer),
    Endpoint("GET", "/metrics", HealthPaths.metrics, "observe", media="text/plain", returns=str),
    Endpoint("GET", "/api/v1/stats", HealthPaths.stats, "observe", returns=replies.StatsReport),
    Endpoint("POST", DRAIN, HealthPaths.drain, "admin", writes=True, returns=DrainAnswer),
    Endpoint("DELETE", DRAIN, HealthPaths.end_drain, "admin", writes=True, returns=DrainAnswer),
)
