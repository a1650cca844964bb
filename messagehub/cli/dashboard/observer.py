"""What `messagehub top` knows of a hub: asked of the broker, else of the directory of this host.

Rule 1: one call of `look` or `describe` takes a bounded time, whatever the broker does: no question waits longer than
`ANSWER_SECONDS`, and when the broker has not answered one, it is not asked another.
Rule 2: channels and their members come by events, so that looking costs the broker the same however many there are.
Where that view is not complete (the first moments, or rights to some names only) the channels are listed.
Rule 3: rates and lag come from shared memory (`channels.flow`). There are none of other hosts.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from messagehub.broker.site.site_problem import OLD_SECONDS
from messagehub.channels.flow import ChannelFlow, FlowSample, FlowSampler, FlowTotals, RingFlow
from messagehub.cli.hosts import UNKNOWN, role
from messagehub.discovery.via_directory import ViaFiles
from messagehub.errors import HubError
from messagehub.hub import MessageHub
from messagehub.settings import Settings
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import host
from registry import commands, replies
from registry.events import AnyChannelEvent
from registry.records import Channel

ANSWER_SECONDS = 1.0
MAX_LISTED = 1000
"""Channels of the directory that are looked at without a broker: each is read from its files."""
MAX_EVENTS = 500
Part = Literal["channels", "hosts", "services", "events"]


class ChannelLine(msgspec.Struct, kw_only=True, frozen=True):
    """A channel as the registry has it, and its `flow` where it has rings on this host."""

    channel: str
    status: str
    producers: int
    consumers: int
    schema_version: str | None
    flow: ChannelFlow | None = None


class HostLine(msgspec.Struct, kw_only=True):
    """Who is on a host. Rates are known only of this one; `health` and `role` only of the hosts of a site."""

    host: str
    is_this_host: bool
    health: str | None = None
    role: str | None = None
    channels: int = 0
    producers: int = 0
    consumers: int = 0
    stalled: int = 0
    tables: int = 0


class HubEvent(msgspec.Struct, kw_only=True, frozen=True):
    """An event of a channel, or that the hub went or came back, in which case `event` is None."""

    at: float
    event: AnyChannelEvent | None = None
    said: str = ""


class HubSnapshot(msgspec.Struct, kw_only=True):
    """All that one screen shows. `health` is unavailable when no broker answers; `reason` says why.

    `pid`, uptime and requests are None for who may not observe everything. `left_out` counts channels that are not in
    `channels`, `unsampled` those without rates because there are too many.
    """

    at: float
    endpoint: str
    directory: str
    host: str
    health: str
    reason: str | None = None
    problems: list[str] = []
    uptime_seconds: float | None = None
    pid: int | None = None
    requests_per_second: float | None = None
    refused_per_second: float | None = None
    channels: list[ChannelLine] = []
    left_out: int = 0
    unsampled: int = 0
    totals: FlowTotals
    has_rates: bool
    shared_total_bytes: int = 0
    shared_free_bytes: int = 0
    hosts: list[HostLine] = []
    services: list[replies.ServiceSummary] | None = None
    events: list[HubEvent] = []

    @property
    def is_answered(self) -> bool:
        return self.health != "unavailable"


class ChannelDetail(msgspec.Struct, kw_only=True):
    """One channel. `found` is None when it is gone, or when nobody could say."""

    channel: str
    found: Channel | None
    status: str | None
    rings: list[RingFlow]
    events: list[HubEvent]


class HubObserver:
    """Used by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        directory = directory_of(settings)
        self._settings = settings
        self._hub = MessageHub(settings)
        self._directory = directory
        self._files = ViaFiles(directory, shm_prefix=settings.shm_prefix)
        self._sampler = FlowSampler(directory)
        self._watch = self._hub.watch()
        self._events: deque[HubEvent] = deque(maxlen=MAX_EVENTS)
        self._was_answered: bool | None = None
        self._counted: tuple[str, float, int, int] | None = None

    def close(self) -> None:
        self._sampler.close()
        self._hub.close()

    def look(self, part: Part = "channels", *, max_age_seconds: float = 0.0) -> HubSnapshot:
        """`part` says what else is asked for besides the channels."""
        sample = self._sampler.sample(max_age_seconds=max_age_seconds)
        snapshot = self._snapshot(sample)
        self._note(snapshot)
        channels = self._known_channels() if snapshot.is_answered else None
        if channels is not None:
            snapshot.channels = [_line_of(channel, sample) for channel in channels]
        else:
            snapshot.channels = [_summary_line(one, sample) for one in self._listed(snapshot)]
        if part == "hosts":
            snapshot.hosts = _hosts(channels or (), snapshot, self._site_hosts(snapshot))
        if part == "services" and snapshot.is_answered:
            snapshot.services = self._answer(lambda: self._hub.services(timeout=ANSWER_SECONDS))
        snapshot.events = list(reversed(self._events))
        return snapshot

    def describe(self, channel: str) -> ChannelDetail:
        sample = self._sampler.sample(channel, max_age_seconds=0.5)
        found = self._described(channel)
        return ChannelDetail(
            channel=channel,
            found=found.channel if found else None,
            status=found.status if found else None,
            rings=sample.rings.get(channel, []),
            events=[one for one in reversed(self._events) if one.event is not None and one.event.channel == channel],
        )

    def _snapshot(self, sample: FlowSample) -> HubSnapshot:
        health = self._hub.health(timeout=ANSWER_SECONDS)
        is_answered = health["status"] != "unavailable"
        stats = self._answer(lambda: self._hub.stats(timeout=ANSWER_SECONDS)) if is_answered else None
        answered, refused = self._request_rates(stats)
        space = os.statvfs(self._directory.root)
        return HubSnapshot(
            at=time.time(),
            endpoint=self._settings.endpoint,
            directory=str(self._settings.dir),
            host=host(),
            health="read-only" if health.get("read_only") else health["status"],
            reason=health.get("reason"),
            problems=health.get("problems", []),
            uptime_seconds=stats.uptime_seconds if stats else None,
            pid=stats.pid if stats else None,
            requests_per_second=answered,
            refused_per_second=refused,
            unsampled=sample.hidden,
            totals=sample.totals,
            has_rates=sample.interval_seconds > 0,
            shared_total_bytes=space.f_blocks * space.f_frsize,
            shared_free_bytes=space.f_bavail * space.f_frsize,
        )

    def _request_rates(self, stats: replies.StatsReport | None) -> tuple[float | None, float | None]:
        """Return requests and refusals a second since the look before; None before the second, and for a new broker."""
        before, self._counted = self._counted, None
        if stats is None:
            return None, None
        count = sum(one["count"] for one in stats.requests.values())
        refused = sum(one["errors"] for one in stats.requests.values())
        self._counted = now = (stats.broker_id, stats.uptime_seconds, count, refused)
        if before is None or before[0] != now[0] or now[1] <= before[1]:
            return None, None
        elapsed = now[1] - before[1]
        return round((count - before[2]) / elapsed, 3), round((refused - before[3]) / elapsed, 3)

    def _note(self, snapshot: HubSnapshot) -> None:
        """Take what happened since the last look, and note whether the hub went or came back."""
        if self._was_answered is not None and self._was_answered != snapshot.is_answered:
            said = "the hub answers again" if snapshot.is_answered else f"the hub is gone: {snapshot.reason}"
            self._events.append(HubEvent(at=snapshot.at, said=said))
        is_first, self._was_answered = self._was_answered is None, snapshot.is_answered
        if is_first and snapshot.is_answered:
            self._watch.wait_current(ANSWER_SECONDS)
        for _ in range(MAX_EVENTS * 20):
            event = self._watch.get(0)
            if event is None:
                return
            self._events.append(HubEvent(at=event.at, event=event))

    def _site_hosts(self, snapshot: HubSnapshot) -> replies.HostList | None:
        """Return the hosts of the site, whether or not anybody is registered there."""
        if not snapshot.is_answered:
            return None
        found = self._answer(lambda: self._hub.ask(commands.ListHosts(), timeout=ANSWER_SECONDS))
        return found if isinstance(found, replies.HostList) else None

    def _known_channels(self) -> list[Channel] | None:
        return sorted(self._watch.channels.values(), key=lambda one: one.name) if self._watch.is_current else None

    def _listed(self, snapshot: HubSnapshot) -> list[replies.ChannelSummary]:
        """Return the channels by the broker's list or, where none answers, by the directory."""
        if snapshot.is_answered:
            try:
                return self._hub.channels(timeout=ANSWER_SECONDS)
            except HubError as error:  # of a key with rights to some names only
                snapshot.problems = [*snapshot.problems, error.message]
                return []
        snapshot.left_out = max(len(self._directory.channels()) - MAX_LISTED, 0)
        page = self._of_directory(commands.ListChannels(limit=MAX_LISTED))
        return page.channels if isinstance(page, replies.ChannelList) else []

    def _described(self, channel: str) -> replies.ChannelDescription | None:
        command = commands.DescribeChannel(channel=channel)
        reply: Any = None
        if self._hub.is_connected:
            reply = self._answer(lambda: self._hub.ask(command, timeout=ANSWER_SECONDS))
        if reply is None and not self._was_answered:
            reply = self._of_directory(command)
        return reply if isinstance(reply, replies.ChannelDescription) else None

    def _of_directory(self, command: commands.Command) -> replies.Reply | None:
        try:
            return self._files.ask(command, timeout=0.0)
        except (HubError, DataBlockError):
            return None

    def _answer(self, ask: Callable[[], Any]) -> Any:
        """Return what the broker says; None where it does not answer, or may not say."""
        try:
            return ask()
        except HubError:
            return None


def _line_of(channel: Channel, sample: FlowSample) -> ChannelLine:
    return ChannelLine(
        channel=channel.name,
        status=_status(channel),
        producers=len(channel.producers),
        consumers=len(channel.consumers),
        schema_version=channel.schema_version,
        flow=sample.channels.get(channel.name),
    )


def _summary_line(found: replies.ChannelSummary, sample: FlowSample) -> ChannelLine:
    return ChannelLine(
        channel=found.channel,
        status=found.status,
        producers=found.producer_count,
        consumers=found.consumer_count,
        schema_version=found.schema_version,
        flow=sample.channels.get(found.channel),
    )


def _status(channel: Channel) -> str:
    while True:
        try:
            return channel.status()
        except RuntimeError:  # an event changed its members meanwhile
            continue


def _hosts(channels: Iterable[Channel], snapshot: HubSnapshot, of_site: replies.HostList | None) -> list[HostLine]:
    """Return a line for each host of the site, and for each other one that has members or tables, this host first."""
    here = snapshot.host
    found = {here: HostLine(host=here, is_this_host=True)}
    known: Counter[str] = Counter()
    for channel in channels:
        hosts: set[str] = set()
        for producer in list(channel.producers.values()):
            line = _host_line(found, producer.host, hosts)
            line.producers += 1
            line.stalled += producer.status == "stalled"
        for consumer in list(channel.consumers.values()):
            line = _host_line(found, consumer.host, hosts)
            line.consumers += 1
            line.stalled += consumer.status == "stalled"
        if channel.table is not None:
            _host_line(found, channel.table.host, hosts).tables += 1
        known.update(hosts)
    for name, count in known.items():
        found[name].channels = count
    if not known:
        found[here].channels = len(snapshot.channels)
        found[here].producers = sum(one.producers for one in snapshot.channels)
        found[here].consumers = sum(one.consumers for one in snapshot.channels)
    is_known = of_site is not None and of_site.age_seconds < OLD_SECONDS
    for each in of_site.hosts if of_site is not None else ():
        line = found.setdefault(each.host, HostLine(host=each.host, is_this_host=False))
        line.health, line.role = (each.health, role(each)) if is_known else (UNKNOWN, None)
    return sorted(found.values(), key=lambda one: (not one.is_this_host, one.host))


def _host_line(found: dict[str, HostLine], name: str | None, seen: set[str]) -> HostLine:
    named = name or "unknown"
    seen.add(named)
    return found.setdefault(named, HostLine(host=named, is_this_host=False))
