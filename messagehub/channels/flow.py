"""Rates and lag of the channels of this host, from what their rings and readers have in shared memory.

Rule 1: watching costs those who write and read nothing: rings are looked at from outside (`shm.ring_probe`).
Rule 2: there is one sampler for all who ask, and it has no thread. Whoever asks when the last sample is older than
`SAMPLE_SECONDS` takes the next one, the others get it too. `close` lets go of all files; the next sample begins anew.
Rule 3: a rate is what was written or read since a sample before, at least half of `SAMPLE_SECONDS` ago. There is none
before the second sample, nor after a pause of `STALE_SECONDS`.
Rule 4: it is bounded: channels that are asked for by name, and then the first by name, up to `MAX_CHANNELS`.
Rule 5: bytes are estimates: items times the mean size of the items that are in the ring now.
"""

import os
import threading
import time
from collections.abc import Iterable

import msgspec

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.rings.holders import Holder
from messagehub.shm.rings.ring import ring_paths
from messagehub.shm.rings.ring_probe import RingProbe, RingSeen
from registry.channels.leases import default_owner

SAMPLE_SECONDS = 1.0
LATE_SECONDS = 2.0
STALE_SECONDS = 10.0
MAX_CHANNELS = 2000
FOCUS_SECONDS = 30.0
_RECENT_NS = 50_000_000
"""A directory that changed so lately may change again without a new time of its change."""


class ReaderFlow(msgspec.Struct, kw_only=True, gc=False):
    """A reader of a ring. `lag_seconds`: how long the oldest item that it has not read has been there.

    `items_per_second` counts what it read itself: not what it missed, nor what other members of its group read.
    `late_since`: since when it has been seen to be behind for `LATE_SECONDS` or more, or to miss items, at every look.
    """

    consumer_id: str | None
    pid: int | None
    is_waited_for: bool
    position: int
    items_per_second: float
    lag_items: int
    lag_bytes: int
    lag_seconds: float
    held_slots: int
    missed_items: int
    missed_per_second: float
    late_since: float | None
    host: str | None = None
    """Where its process is, if not on this host: it reads through the gateway."""


class GroupFlow(msgspec.Struct, kw_only=True, gc=False):
    """A consumer group, by its slowest member."""

    group: str
    members: int
    position: int
    lag_items: int
    lag_bytes: int
    lag_seconds: float


class RingFlow(msgspec.Struct, kw_only=True):
    """One ring. `fill`: the part of its slots that the furthest reader has not read, or that are held."""

    shm_name: str
    block_id: str
    producer_id: str
    pid: int | None
    is_live: bool
    format: str
    when_full: str
    slots: int
    head: int
    written_at: float | None
    items_per_second: float
    bytes_per_second: float
    mean_item_bytes: float
    fill: float
    held_slots: int
    skipped_items: int
    is_waiting: bool
    memory_bytes: int
    readers: list[ReaderFlow]
    groups: list[GroupFlow]

    @property
    def is_held_back(self) -> bool:
        return self.is_live and (self.is_waiting or self.held_slots >= self.slots)


class ChannelFlow(msgspec.Struct, kw_only=True):
    """The rings of one channel together. The lag is that of the reader or group that is furthest behind, `slowest`;
    `most_missed_by` is the reader that misses most items a second now."""

    channel: str
    items_per_second: float = 0.0
    bytes_per_second: float = 0.0
    items: int = 0
    memory_bytes: int = 0
    rings: int = 0
    readers: int = 0
    lag_items: int = 0
    lag_bytes: int = 0
    lag_seconds: float = 0.0
    skipped_items: int = 0
    missed_items: int = 0
    missed_per_second: float = 0.0
    is_held_back: bool = False
    slowest: str | None = None
    most_missed_by: str | None = None
    late_since: float | None = None


class FlowTotals(msgspec.Struct, kw_only=True):
    channels: int = 0
    rings: int = 0
    readers: int = 0
    items_per_second: float = 0.0
    bytes_per_second: float = 0.0
    memory_bytes: int = 0


class FlowSample(msgspec.Struct, kw_only=True):
    """`interval_seconds`: what rates are over; 0 where there was no sample before. `hidden`: channels
    that were not looked at, because there are too many."""

    at: float
    interval_seconds: float
    hidden: int
    totals: FlowTotals
    channels: dict[str, ChannelFlow]
    """By name, in order."""
    rings: dict[str, list[RingFlow]]
    """By channel."""


class FlowSampler:
    """Any thread may call any method."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._channels: dict[str, _WatchedChannel] = {}
        self._names: list[str] = []
        self._listed_ns = -1
        self._focus: dict[str, float] = {}
        self._before: dict[str, int] = {}  # how far each ring and each reader was at `_before_at`
        self._before_at: float | None = None
        self._late: dict[str, float] = {}  # since when each reader that is behind has been seen so
        self._last: FlowSample | None = None
        self._last_at = 0.0

    def sample(self, focus: str | None = None, *, max_age_seconds: float = SAMPLE_SECONDS) -> FlowSample:
        """Return the last sample or, where that is too old, a new one. `focus` is a channel that must be in it."""
        with self._lock:
            now = time.monotonic()
            is_new = focus is not None and focus not in self._focus and focus not in self._channels
            if focus is not None:
                self._focus[focus] = now
            if self._last is not None and now - self._last_at < max_age_seconds and not is_new:
                return self._last
            return self._take(now)

    def close(self) -> None:
        """Let go of all files. Who was late is remembered for the next look."""
        with self._lock:
            for watched in self._channels.values():
                watched.close()
            self._channels, self._names, self._listed_ns = {}, [], -1
            self._focus, self._before, self._before_at, self._last = {}, {}, None, None

    def _take(self, now: float) -> FlowSample:
        elapsed = 0.0 if self._before_at is None else now - self._before_at
        if elapsed >= STALE_SECONDS:
            elapsed, self._before_at = 0.0, None
        names, hidden = self._chosen(now)
        for name in self._channels.keys() - set(names):
            self._channels.pop(name).close()
        progress = _Progress(self._before if elapsed else {}, elapsed, self._late)
        rings: dict[str, list[RingFlow]] = {}
        for name in names:
            watched = self._channels.get(name)
            if watched is None:
                watched = self._channels[name] = _WatchedChannel(self._directory, name)
            found = [
                _ring_flow(self._directory, name, probe, seen, progress) for probe, seen in watched.look(time.time_ns())
            ]
            if found:
                rings[name] = found
        channels = {name: _channel_flow(name, found) for name, found in rings.items()}
        if self._before_at is None or elapsed >= SAMPLE_SECONDS / 2:
            self._before, self._before_at = progress.reached, now
        self._late = progress.late
        self._last_at = now
        self._last = FlowSample(
            at=time.time(),
            interval_seconds=round(elapsed, 3),
            hidden=hidden,
            totals=totals_of(channels.values()),
            channels=channels,
            rings=rings,
        )
        return self._last

    def _chosen(self, now: float) -> tuple[list[str], int]:
        """Return the channels to look at, by name, and how many there are besides."""
        self._list_channels()
        self._focus = {name: at for name, at in self._focus.items() if now - at < FOCUS_SECONDS}
        if len(self._names) <= MAX_CHANNELS:
            return self._names, 0
        focused = self._focus.keys() & set(self._names)
        rest = [name for name in self._names[:MAX_CHANNELS] if name not in focused]
        return sorted([*focused, *rest[: MAX_CHANNELS - len(focused)]]), len(self._names) - MAX_CHANNELS

    def _list_channels(self) -> None:
        try:
            changed_ns = os.stat(self._directory.path).st_mtime_ns
        except FileNotFoundError:
            self._names, self._listed_ns = [], -1
            return
        if changed_ns != self._listed_ns:
            self._names = self._directory.channels()
            self._listed_ns = changed_ns if changed_ns < time.time_ns() - _RECENT_NS else -1


class _WatchedChannel:
    """The rings of one channel, with their files open."""

    def __init__(self, directory: Directory, channel: str) -> None:
        self._directory = directory
        self._channel = channel
        self._path = directory.channel_path(channel)
        self._listed_ns = -1
        self._paths: list[str] = []
        self._probes: dict[str, RingProbe] = {}

    def look(self, now_ns: int) -> list[tuple[RingProbe, RingSeen]]:
        try:
            changed_ns = os.stat(self._path).st_mtime_ns
            if changed_ns != self._listed_ns:
                self._list_rings()
                self._listed_ns = changed_ns if changed_ns < now_ns - _RECENT_NS else -1
        except (FileNotFoundError, DataBlockError):
            self.close()
            return []
        found = []
        for path in self._paths:
            looked = self._look_at(path) or self._look_at(path)  # once more, if it was replaced
            if looked is not None:
                found.append(looked)
        return found

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()
        self._probes, self._paths, self._listed_ns = {}, [], -1

    def _list_rings(self) -> None:
        self._paths = ring_paths(self._directory, self._channel)
        for path in self._probes.keys() - set(self._paths):
            self._probes.pop(path).close()

    def _look_at(self, path: str) -> tuple[RingProbe, RingSeen] | None:
        try:
            probe = self._probes.get(path)
            if probe is None:
                probe = RingProbe(path)
                if (
                    probe.header.channel != self._channel
                ):  # somebody registered a block of another channel as one of this
                    probe.close()
                    return None
                self._probes[path] = probe
            seen = probe.look()
        except (DataBlockError, OSError):
            return None  # gone, damaged (which `messagehub doctor` reports), or no descriptor is left
        if seen is None:
            self._probes.pop(path).close()
            return None
        return probe, seen


class _Progress:
    """How far rings and readers are, and were at the sample before."""

    def __init__(self, before: dict[str, int], elapsed: float, late: dict[str, float]) -> None:
        self.reached: dict[str, int] = {}
        self.late: dict[str, float] = {}
        self._late = late
        self._before = before
        self._elapsed = elapsed

    def rate(self, key: str, reached: int) -> float:
        self.reached[key] = reached
        before = self._before.get(key)
        if before is None or not self._elapsed:
            return 0.0
        return round(max(reached - before, 0) / self._elapsed, 3)

    def late_since(self, key: str, *, is_late: bool) -> float | None:
        """Return since when a reader has been late at every look; a first look after a pause knows no rates."""
        if not is_late and (self._elapsed or key not in self._late):
            return None
        self.late[key] = self._late.get(key, time.time())
        return self.late[key]


def _ring_flow(directory: Directory, channel: str, probe: RingProbe, seen: RingSeen, progress: _Progress) -> RingFlow:
    header, block_id = probe.header, probe.header.block_id
    slots, mean = header.geometry.slot_count, seen.mean_item_bytes
    rate = progress.rate(block_id, seen.head)
    now_ns = time.time_ns()
    readers = []
    for number, (holder, _) in enumerate(seen.readers):
        key = f"{block_id}/{holder.consumer_id or holder.pid}/{number if holder.consumer_id is None else ''}"
        passed = progress.rate(key, holder.position) / holder.shares
        missed = progress.rate(f"{key} missed", holder.missed)
        lag_seconds = _lag_seconds(probe, holder, now_ns)
        readers.append(
            ReaderFlow(
                consumer_id=holder.consumer_id,
                pid=holder.pid,
                host=holder.host,
                is_waited_for=holder.unread is not None,
                position=holder.position,
                items_per_second=round(max(passed - missed, 0.0), 3),
                lag_items=holder.lag,
                lag_bytes=round(holder.lag * mean),
                lag_seconds=lag_seconds,
                held_slots=holder.held,
                missed_items=holder.missed,
                missed_per_second=missed,
                late_since=progress.late_since(key, is_late=missed > 0 or lag_seconds >= LATE_SECONDS),
            )
        )
    groups = [
        GroupFlow(
            group=holder.group or "",
            members=holder.members or 0,
            position=holder.position,
            lag_items=holder.lag,
            lag_bytes=round(holder.lag * mean),
            lag_seconds=_lag_seconds(probe, holder, now_ns),
        )
        for holder in seen.groups
    ]
    furthest = max((holder.lag for holder in (*(holder for holder, _ in seen.readers), *seen.groups)), default=0)
    return RingFlow(
        shm_name="/" + directory.relative(probe.path),
        block_id=block_id,
        producer_id=seen.producer_id or default_owner(channel),
        pid=seen.writer_pid if seen.has_writer else None,
        is_live=seen.has_writer,
        format=header.payload_format.name.lower(),
        when_full=header.when_full.name.lower(),
        slots=slots,
        head=seen.head,
        written_at=seen.written_ns / 1e9 if seen.written_ns else None,
        items_per_second=rate,
        bytes_per_second=round(rate * mean, 1),
        mean_item_bytes=round(mean, 1),
        fill=round(min(max(furthest, seen.held) / slots, 1.0), 4),
        held_slots=seen.held,
        skipped_items=seen.skipped,
        is_waiting=seen.is_waiting,
        memory_bytes=header.geometry.file_bytes,
        readers=readers,
        groups=groups,
    )


def _lag_seconds(probe: RingProbe, holder: Holder, now_ns: int) -> float:
    if not holder.lag:
        return 0.0
    written_ns = probe.time_of(holder.position + 1)
    if written_ns is None:  # it was overwritten: the next one that is there
        written_ns = next(filter(None, map(probe.time_of, probe.oldest_after(holder.position))), None)
    return round(max(now_ns - written_ns, 0) / 1e9, 4) if written_ns else 0.0


def _channel_flow(channel: str, rings: list[RingFlow]) -> ChannelFlow:
    flow = ChannelFlow(channel=channel, rings=len(rings))
    most_missed = 0.0
    for ring in rings:
        flow.items_per_second += ring.items_per_second
        flow.bytes_per_second += ring.bytes_per_second
        flow.items += ring.head
        flow.memory_bytes += ring.memory_bytes
        flow.skipped_items += ring.skipped_items
        flow.readers = max(flow.readers, len(ring.readers))
        flow.is_held_back |= ring.is_held_back
        for reader in ring.readers:
            _take_if_slower(flow, reader, reader.consumer_id)
            flow.missed_items += reader.missed_items
            flow.missed_per_second += reader.missed_per_second
            if reader.missed_per_second > most_missed:
                most_missed, flow.most_missed_by = reader.missed_per_second, reader.consumer_id
            if reader.late_since is not None:
                flow.late_since = min(flow.late_since or reader.late_since, reader.late_since)
        for group in ring.groups:
            _take_if_slower(flow, group, group.group)
    return flow


def _take_if_slower(flow: ChannelFlow, found: ReaderFlow | GroupFlow, name: str | None) -> None:
    if found.lag_items > flow.lag_items:
        flow.lag_items, flow.lag_bytes, flow.lag_seconds = found.lag_items, found.lag_bytes, found.lag_seconds
        flow.slowest = name


def totals_of(channels: Iterable[ChannelFlow]) -> FlowTotals:
    totals = FlowTotals()
    for flow in channels:
        totals.channels += 1
        totals.rings += flow.rings
        totals.readers += flow.readers
        totals.items_per_second += flow.items_per_second
        totals.bytes_per_second += flow.bytes_per_second
        totals.memory_bytes += flow.memory_bytes
    return totals
