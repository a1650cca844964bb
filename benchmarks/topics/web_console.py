"""The web console: what watching costs those who are watched and the hub, and how soon a large page can be used.

Open consoles repeat what real pages asked for (`console_visitors`): an overview, a channel and the map, in turns.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec

from benchmarks.brokers import hub_broker, register_channels
from benchmarks.console_visitors import OPEN_SECONDS, Visit, record
from benchmarks.harness import Bench, CannotMeasure, Measure, comparison
from benchmarks.hub_processes import fresh_place, hub_row
from benchmarks.placement import CORES, Placement
from benchmarks.processes import free_port, spawn
from benchmarks.verdicts import at_least, at_most
from tools.browser import chromium, chromium_path

VIEWS = ("overview", "channels/stream", "map")
FEW, MANY = 5, 20
CHANNELS = 10_000
WATCHED_SECONDS, CPU_SECONDS = 2.0, 4.0
PAGE_SECONDS = 60.0
USABLE = f"""() => document.querySelectorAll("tbody tr:not(.spacer)").length > 5
  && document.querySelector(".heading [role=status]")?.textContent.startsWith("{CHANNELS:,}")"""
SINCE_FIRST_BYTE = "() => performance.now() - performance.getEntriesByType('navigation')[0].responseStart"


class Visitors:
    """A process that has consoles open."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def open(self, count: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n".encode())
        self._process.stdin.flush()
        if self._process.stdout.readline() != f"open {count}\n".encode():
            raise CannotMeasure("the consoles could not be opened; the error is above")


@comparison("a stream of 1 KiB items while five consoles are open", placements=(Placement.TWO_CORES, Placement.FREE))
def watched_stream(bench: Bench) -> None:
    """Items a second. On two cores producer and consumer have one of them, hub and consoles the other."""
    with ExitStack() as stack:
        place, url, token = stack.enter_context(_hub(bench))
        core = CORES[0] if bench.placement is Placement.TWO_CORES else None
        row = stack.enter_context(hub_row(bench.directory, "stream-1k", at=place, core=core))
        row.measure(0.1)
        visitors = stack.enter_context(_visitors(bench, url, token))

        def measure(consoles: int) -> Measure:
            def items_a_second() -> float:
                visitors.open(consoles)
                return 1e6 / row.measure(WATCHED_SECONDS)

            return items_a_second

        watched, alone = f"{FEW} consoles open", "no console"
        claims = [at_least(0.98, watched, alone)]
        bench.compare({watched: measure(FEW), alone: measure(0)}, unit="/s", claims=claims)


@comparison("the HTTP process with twenty consoles open")
def console_load(bench: Bench) -> None:
    """The part of a core that it takes, while a stream is written and read."""
    with ExitStack() as stack:
        place, url, token = stack.enter_context(_hub(bench))
        row = stack.enter_context(hub_row(bench.directory, "stream-1k", at=place))
        row.measure(0.1)
        visitors = stack.enter_context(_visitors(bench, url, token))
        pid = int(httpx.get(f"{url}/api/v1/hub", headers={"authorization": f"Bearer {token}"}).json()["http_pid"])

        def share() -> float:
            visitors.open(MANY)
            before, began = _cpu_seconds(pid), time.monotonic()
            row.measure(CPU_SECONDS)
            return (_cpu_seconds(pid) - before) / (time.monotonic() - began)

        busy, core = f"HTTP process, {MANY} consoles", "one core"
        bench.compare({busy: share, core: lambda: 1.0}, unit="cores", claims=[at_most(0.25, busy, core)], repetitions=5)


@comparison("the console's table of 10,000 channels, from the first byte until all of them can be used")
def large_table(bench: Bench) -> None:
    with ExitStack() as stack:
        browser = stack.enter_context(chromium(chromium_path()))
        port = free_port()
        broker = stack.enter_context(hub_broker(bench, http=f"127.0.0.1:{port}"))
        url = f"http://127.0.0.1:{port}"
        _await(url)
        register_channels(broker.endpoint, CHANNELS)

        def usable() -> float:
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            try:
                page = context.new_page()
                page.goto(f"{url}/console/#/channels")
                page.wait_for_function(USABLE, polling="raf", timeout=PAGE_SECONDS * 1000)
                return float(page.evaluate(SINCE_FIRST_BYTE))
            finally:
                context.close()

        ours, second = f"table of {CHANNELS:,} channels", "one second"
        bench.compare({ours: usable, second: lambda: 1000.0}, unit="ms", claims=[at_most(1.0, ours, second)])


@contextmanager
def _hub(bench: Bench) -> Iterator[tuple[Path, str, str]]:
    """A hub with HTTP at a place where rows can be measured; its directory, address and token."""
    with fresh_place(bench.directory) as place:
        port = free_port()
        settings = {"MESSAGEHUB_DOMAIN": place.name}
        with hub_broker(bench, directory=place, http=f"127.0.0.1:{port}", is_local=True, environment=settings):
            url = f"http://127.0.0.1:{port}"
            _await(url)
            yield place, url, (place / "http.token").read_text().strip()


def _await(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise CannotMeasure("the HTTP process does not answer")


@contextmanager
def _visitors(bench: Bench, url: str, token: str) -> Iterator[Visitors]:
    with chromium(chromium_path()) as browser:
        recordings = record(browser, url, token, VIEWS)
    if not all(one.requests for one in recordings) or not any(one.streams for one in recordings):
        raise CannotMeasure("a page asked for nothing")
    file = bench.directory / "console-visits.json"
    file.write_bytes(msgspec.json.encode(Visit(url, token, recordings)))
    command = [sys.executable, "-m", "benchmarks.console_visitors", str(file)]
    process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Visitors(process)
    finally:
        process.stdin.close()
        try:
            process.wait(OPEN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        file.unlink()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
