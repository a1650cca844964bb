"""Health, readiness, draining and metrics: what monitors and load balancers ask.

Rule: whoever monitors is answered in time, also while the broker is stuck or slow. A question to the broker is given up
after `PROBE_SECONDS`, and all that needs a thread has threads of its own (`BrokerClient.run_for_monitor`).
"""

import os
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from messagehub.admin.api.parameters import Limit
from messagehub.admin.authentication import caller, counters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import HandlerResult
from messagehub.admin.metrics import prometheus
from messagehub.admin.metrics.channels import MAX_CHANNELS, ChannelItems, ring_states
from messagehub.admin.metrics.http import answered
from messagehub.admin.metrics.processes import measured
from messagehub.admin.metrics.prometheus import Exposition, labels
from messagehub.admin.routes import DRAIN, Operations
from messagehub.channels.flow import FlowSample
from messagehub.errors import HubError, is_unable
from registry import commands, replies

PROBE_SECONDS = 0.8
operations = Operations()


class StatusAnswer(msgspec.Struct, omit_defaults=True):
    status: str
    revision: int | None = None
    reason: str | None = None
    draining: bool = False
    degraded: bool = False


class DrainAnswer(msgspec.Struct):
    draining: bool


@operations.add("GET", "/healthz", None)
async def health(backend: BrokerClient) -> StatusAnswer:
    """This process lives."""
    return StatusAnswer("healthy", draining=backend.is_draining)


@operations.add("GET", "/readyz", None, codes=(503,))
async def ready(backend: BrokerClient) -> HandlerResult[StatusAnswer]:
    """The broker answers, and writes are taken. `degraded`: a part of the hub fails; `messagehub status` names it.

    Such a hub is ready all the same, and what fails is told only to those who may ask the broker.
    """
    is_draining = backend.is_draining
    try:
        pong = await backend.probe(commands.Ping(priority="high"), replies.Pong, seconds=PROBE_SECONDS)
    except HubError as error:
        if not is_unable(error):
            raise
        return HandlerResult(StatusAnswer("unavailable", reason=error.message, draining=is_draining), 503)
    status = "read_only" if pong.read_only else "draining" if is_draining else "ready"
    said = StatusAnswer(status, pong.revision, draining=is_draining, degraded=bool(pong.problems))
    return HandlerResult(said, 200 if status == "ready" else 503)


@operations.add("GET", "/metrics", "observe", media="text/plain")
async def metrics(backend: BrokerClient) -> Response:
    """Without a broker that answers, what this process counts, and `messagehub_broker_up 0`."""
    try:
        report = await backend.probe(commands.Stats(), replies.StatsReport, seconds=PROBE_SECONDS)
        command = commands.ListChannels(limit=MAX_CHANNELS)
        shown = await backend.probe(command, replies.ChannelList, seconds=PROBE_SECONDS)
    except HubError as error:
        if not is_unable(error):
            raise
        text = _page(None, is_draining=backend.is_draining).text
    else:
        sample = await backend.flow.sample(max_age_seconds=0.0)
        make = partial(_text, report, shown.channels, backend.channel_items, sample, is_draining=backend.is_draining)
        text = await backend.run_for_monitor(make)
    return Response(text, 200, None, "text/plain; version=0.0.4")


@operations.add("GET", "/api/v1/stats", "observe")
async def stats(backend: BrokerClient) -> replies.StatsReport:
    return await backend.ask(commands.Stats(), replies.StatsReport)


@operations.add("GET", "/api/v1/traces", "observe", codes=(42202,))
async def traces(backend: BrokerClient, id: str = "", limit: Limit = 100) -> list[dict[str, Any]]:
    """Exchanges with the broker, newest first, as it saw them and, of its own requests, as this process did.

    An id is the broker's, or that of a request over HTTP (`x-request-id`): either finds both, where the request
    changed something.
    """
    changes = backend.callers.changes(id or None)
    ids = [id, *(one["led_to"] for one in changes if one["led_to"] not in (None, id))] if id else [None]
    found, asked = list(changes[-limit:]), set()
    for each in ids:
        command = commands.Trace(correlation_id=each, limit=limit)
        found += (await backend.ask(command, replies.TraceReport)).exchanges
        asked.add(command.id)
        found += backend.hub.exchanges(each)[-limit:]
    found = [one for one in found if one["correlation_id"] not in asked]
    if not caller.get().rights.is_admin:
        found = [one | {"peer": None} if one["side"] == "http" else one for one in found]
    return sorted(found, key=lambda exchange: exchange["at"], reverse=True)[:limit]


@operations.add("POST", DRAIN, "admin", writes=True)
async def drain(backend: BrokerClient) -> DrainAnswer:
    """Take no more writes over HTTP and say so in /readyz; reads, and clients of the broker, go on.

    A reload of the hub changes nothing about that. A hub or an HTTP process that is started again takes writes.
    """
    backend.is_draining = True
    backend.callers.note_change("DRAIN")
    return DrainAnswer(True)


@operations.add("DELETE", DRAIN, "admin", writes=True)
async def end_drain(backend: BrokerClient) -> DrainAnswer:
    """Take writes again."""
    backend.is_draining = False
    backend.callers.note_change("DRAIN_END")
    return DrainAnswer(False)


def _text(
    report: replies.StatsReport,
    channels: list[replies.ChannelSummary],
    items: ChannelItems,
    sample: FlowSample,
    *,
    is_draining: bool,
) -> str:
    page = _page(report, is_draining=is_draining)
    totals = items.totals([one.channel for one in channels], sample)
    hidden = max(report.channels - len(channels), 0)
    prometheus.add_channels(page, channels, totals, ring_states(totals, sample), hidden)
    return page.text


def _page(report: replies.StatsReport | None, *, is_draining: bool) -> Exposition:
    page = Exposition()
    page.add("messagehub_broker_up", "gauge", "1 while the broker answers.", {"": int(report is not None)})
    said = "1 while writes over HTTP are refused because the hub is drained."
    page.add("messagehub_http_draining", "gauge", said, {"": int(is_draining)})
    if report is not None:
        prometheus.add_broker(page, report)
    prometheus.add_counters(page, counters)
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
