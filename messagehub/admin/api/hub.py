"""The hub as a whole: /api/v1/hub says what it is and what it takes of its host, /api/v1/history how it went."""

import os
import time
from functools import partial

import msgspec

from messagehub.admin.api.parameters import NotGiven, Seconds
from messagehub.admin.authentication import caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.metrics.history import POINT_SECONDS, HistoryPoint
from messagehub.admin.metrics.processes import measured
from messagehub.admin.routes import Operations
from messagehub.admin.shared_answers import SharedAnswers
from messagehub.settings import Settings
from messagehub.shm import core
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.identity import host
from messagehub.version import __version__
from registry import commands, replies

FRESH_SECONDS = 1.0
SPACE_SECONDS, SPACE_SHARE = 10.0, 0.01
"""How long it is believed how much the hub's files take; longer where measuring takes more than a share of that."""
operations = Operations()


class SpaceAnswer(msgspec.Struct, kw_only=True):
    """A file system. `used_bytes` is what the hub takes of it."""

    path: str
    total_bytes: int
    free_bytes: int
    used_bytes: int


class ProcessAnswer(msgspec.Struct, kw_only=True):
    cpu_seconds: float
    memory_bytes: int
    threads: int
    open_files: int


class CountsAnswer(msgspec.Struct, kw_only=True):
    channels: int
    producers: int
    consumers: int
    tables: int
    leases: int
    schemas: int
    subjects: int
    topics: int
    services: int
    workers: int
    dead_letters: int


class HubAnswer(msgspec.Struct, kw_only=True):
    """`endpoints` and `directory` are for administrators. `problems` of parts that the hub goes on without."""

    version: str
    broker_version: str
    host: str
    domain: str
    broker_id: str
    pid: int
    http_pid: int
    started_at: float
    uptime_seconds: float
    revision: int
    read_only: bool
    draining: bool
    problems: list[str]
    endpoints: dict[str, str]
    directory: str | None
    counts: CountsAnswer
    disk: SpaceAnswer
    shared_memory: SpaceAnswer
    ring_core: core.Implementation
    processes: dict[str, ProcessAnswer]


class HistoryAnswer(msgspec.Struct):
    interval_seconds: float
    points: list[HistoryPoint]


class _SpaceTaken:
    """How much the files of the hub take."""

    disk_bytes = shared_bytes = 0
    measure_at = 0.0

    def measure(self, settings: Settings, directory: Directory) -> None:
        began = time.monotonic()
        if began >= self.measure_at:
            self.disk_bytes, self.shared_bytes = _bytes_below(str(settings.dir)), _shared_bytes(directory)
            took = time.monotonic() - began
            self.measure_at = began + max(SPACE_SECONDS, took / SPACE_SHARE)


_space_taken = _SpaceTaken()
_answers: SharedAnswers[HubAnswer] = SharedAnswers(seconds=FRESH_SECONDS)


@operations.add("GET", "/api/v1/hub", "observe")
async def hub(backend: BrokerClient) -> HubAnswer:
    """What the hub is, what it serves, and what it takes of its host."""
    backend.callers.check(commands.Stats())
    answer = await _answers.get(None, partial(_ask, backend))
    is_admin = caller.get().rights.is_admin
    settings = backend.hub.settings
    return msgspec.structs.replace(
        answer,
        draining=backend.is_draining,
        endpoints=await _endpoints(backend) if is_admin else {},
        directory=str(settings.dir) if is_admin else None,
    )


@operations.add("GET", "/api/v1/history", "observe", codes=(42202,))
async def history(backend: BrokerClient, after: Seconds | NotGiven = None) -> HistoryAnswer:
    """Requests, errors, latencies, items and bytes of the last five minutes, collected while somebody asks."""
    backend.callers.check(commands.Stats())
    return HistoryAnswer(POINT_SECONDS, backend.history.points(after or 0.0))


async def _ask(backend: BrokerClient) -> HubAnswer:
    report = await backend.ask(commands.Stats(), replies.StatsReport)
    pong = await backend.ask(commands.Ping(), replies.Pong)
    return await backend.run_for_monitor(partial(_describe, backend.hub.settings, report, pong.problems or []))


async def _endpoints(backend: BrokerClient) -> dict[str, str]:
    return (await backend.ask(commands.Hello(client="http"), replies.HelloAck)).endpoints


def _describe(settings: Settings, report: replies.StatsReport, problems: list[str]) -> HubAnswer:
    shared = directory_of(settings)
    _space_taken.measure(settings, shared)
    processes = {"http": measured(os.getpid()), "broker": measured(report.pid)}
    gauges = report.gauges
    return HubAnswer(
        version=__version__,
        broker_version=report.version,
        host=host(),
        domain=shared.domain,
        broker_id=report.broker_id,
        pid=report.pid,
        http_pid=os.getpid(),
        started_at=round(time.time() - report.uptime_seconds, 3),
        uptime_seconds=report.uptime_seconds,
        revision=report.revision,
        read_only=report.read_only,
        draining=False,
        problems=problems,
        endpoints={},
        directory=None,
        counts=CountsAnswer(
            channels=report.channels,
            producers=report.producers,
            consumers=report.consumers,
            leases=report.leases,
            schemas=report.schemas,
            subjects=gauges.get("subjects", 0),
            topics=gauges.get("retained_topics", 0),
            tables=gauges.get("tables", 0),
            services=gauges.get("services", 0),
            workers=gauges.get("workers", 0),
            dead_letters=gauges.get("dead_letters", 0),
        ),
        disk=_space(str(settings.dir), _space_taken.disk_bytes),
        shared_memory=_space(shared.root, _space_taken.shared_bytes),
        ring_core=core.IMPLEMENTATION,
        processes={
            name: ProcessAnswer(
                cpu_seconds=found["process_cpu_seconds_total"],
                memory_bytes=int(found["process_resident_memory_bytes"]),
                threads=int(found["process_threads"]),
                open_files=int(found["process_open_fds"]),
            )
            for name, found in processes.items()
            if found
        },
    )


def _space(path: str, used_bytes: int) -> SpaceAnswer:
    found = os.statvfs(path)
    return SpaceAnswer(
        path=path,
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        used_bytes=used_bytes,
    )


def _shared_bytes(directory: Directory) -> int:
    """Return what the domain takes of the shared memory: its directory, and the rings beside it."""
    domain = os.path.dirname(directory.path)
    used = _bytes_below(domain)
    if directory.gid is None:
        used += sum(_bytes_of(directory.exclusive_block(channel)) for channel in directory.channels())
    return used


def _bytes_below(path: str) -> int:
    used = 0
    for parent, _, names in os.walk(path):
        used += sum(_bytes_of(os.path.join(parent, name)) for name in names)
    return used


def _bytes_of(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0  # gone meanwhile
