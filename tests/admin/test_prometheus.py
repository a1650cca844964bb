"""Metrics, read as a monitor reads them: by a real Prometheus, with PromQL."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagehub import MessageHub
from messagehub.admin.metrics import channels as channel_metrics
from tests.admin.conftest import Web
from tests.debian import program_or_skip
from tests.faults.chaos.storm import command_line, descendants
from tests.integration.harness import ROOT, eventually
from tests.ports import own_ports

PAGE = ROOT / "docs" / "howto" / "monitoring.md"
ITEM = b"one item"


class MonitoredWeb(Web):
    """A hub in the domain of this process, whose HTTP lets nobody look without a token."""

    def __init__(self, directory: Path, *lines: str) -> None:
        directory.mkdir(mode=0o700)
        (directory / "messagehub.toml").write_text("\n".join(['http_anonymous = ""', *lines, ""]))
        super().__init__(directory)
        self.domain = f"pytest-{os.getpid()}-{directory.name}"

    def hub(self) -> MessageHub:
        return MessageHub(dir=self.directory, domain=self.domain)

    def samples(self, name: str) -> dict[str, float]:
        """The values of one metric by their labels."""
        lines = self.ask("GET", "/metrics").text.splitlines()
        found = (re.fullmatch(rf"{name}(\{{.*\}})? (\S+)", line) for line in lines)
        return {match[1] or "": float(match[2]) for match in found if match}


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredWeb]:
    running = MonitoredWeb(tmp_path_factory.mktemp("prometheus") / "monitored")
    yield running
    running.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[MonitoredWeb]:
    """A hub for one test, which fills it with channels or counts every request."""
    running = MonitoredWeb(tmp_path / "own")
    yield running
    running.close()


class Prometheus:
    """A Prometheus that scrapes the hub as docs/howto/monitoring.md says, five times a second."""

    def __init__(self, program: str, place: Path, web: MonitoredWeb) -> None:
        (configuration,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        address, token = web.url.removeprefix("http://"), web.directory / "http.token"
        configuration = configuration.replace("127.0.0.1:8081", address).replace(
            "/srv/hub/prometheus.token", str(token)
        )
        assert address in configuration
        assert str(token) in configuration
        (place / "prometheus.yml").write_text(f"global: {{scrape_interval: 200ms}}\n{configuration}")
        (port,) = own_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._log = (place / "prometheus.log").open("w")
        arguments = [f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
        self._process = subprocess.Popen(
            [program, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=self._log, stderr=self._log
        )

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every sample that the expression gives now."""
        try:
            answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        except httpx.TransportError:
            assert self._process.poll() is None, Path(self._log.name).read_text()
            return []
        if answer.status_code == 503:
            return []  # it starts
        assert answer.status_code == 200, answer.text
        return [(one["metric"], float(one["value"][1])) for one in answer.json()["data"]["result"]]

    def value(self, expression: str) -> float:
        """Of the one sample that the expression gives; not a number while it gives none."""
        found = self.query(expression)
        return found[0][1] if len(found) == 1 else float("nan")

    def known(self, expression: str) -> float:
        """The value, as soon as there is one: a scrape that takes too long ends all samples until the next."""
        return float(eventually(lambda: str(found) if (found := self.value(expression)) == found else "", timeout=60))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[MonitoredWeb]:
    """Whose ordinary requests wait for the broker much longer than any test may take."""
    running = MonitoredWeb(tmp_path / "patient", "request_timeout_seconds = 300")
    yield running
    running.close()


@pytest.fixture
def prometheus(tmp_path: Path, monitored: MonitoredWeb) -> Iterator[Prometheus]:
    running = Prometheus(program_or_skip("prometheus", "prometheus"), tmp_path, monitored)
    yield running
    running.close()


@pytest.mark.timeout(600)  # the package may have to be installed
def test_a_real_prometheus_computes_what_happened(monitored: MonitoredWeb, prometheus: Prometheus) -> None:
    eventually(lambda: prometheus.value('up{job="messagehub"}') == 1.0, timeout=60)
    with monitored.hub() as hub:
        for _ in range(200):
            hub.health(timeout=30.0)
        hub.register_schema("prom.slow", {"type": "object", "properties": {f"p{n}": {} for n in range(2000)}})
        asked = 'messagehub_request_seconds_bucket{type=~"PING|SCHEMA_REGISTER"}'
        eventually(lambda: prometheus.value(f'sum({asked[:-1]},le="+Inf"}})') >= 201, timeout=60)
        computed = prometheus.known(f"histogram_quantile(0.9, sum by (le) ({asked}))")
        stats = hub.stats()
        assert stats is not None
        assert computed <= stats.requests["PING"]["p99_seconds"], "nine tenths and more are pings"
        types = prometheus.known("count(messagehub_request_seconds_count)")
        bounds = eventually(lambda: prometheus.query("count by (le) (messagehub_request_seconds_bucket)"), timeout=60)
        assert {count for _, count in bounds} == {types}, "every type has every bound"

        monitored.register("prom.web", {"type": "object"})
        monitored.ask("GET", "/subjects/nobody/versions")
        by_route = "sum by (method, route, status) (messagehub_http_request_seconds_count)"

        def counted(**wanted: str) -> bool:
            return any(wanted.items() <= labels.items() and value >= 1 for labels, value in prometheus.query(by_route))

        for wanted in (
            {"method": "POST", "route": "/subjects/{subject}/versions", "status": "200"},
            {"method": "GET", "route": "/subjects/{subject}/versions", "status": "404"},
        ):
            eventually(lambda wanted=wanted: counted(**wanted), timeout=60)

        with hub.producer("prom.ring", page_size=64) as producer:
            rate = 'rate(messagehub_channel_items_total{channel="prom.ring"}[10s])'

            def grows() -> bool:
                producer.write(ITEM)
                return prometheus.value(rate) > 0

            eventually(grows, timeout=60)
        for name in ("resident_memory_bytes", "open_fds", "start_time_seconds", "cpu_seconds_total"):
            assert prometheus.known(f'process_{name}{{process="broker"}} > 0') > 0
            assert prometheus.known(f'process_{name}{{process="http"}} > 0') > 0


@pytest.mark.timeout(600)
def test_promtool_finds_nothing_wrong_with_the_metrics(monitored: MonitoredWeb) -> None:
    program = program_or_skip("promtool", "prometheus")
    monitored.ask("GET", "/subjects")
    text = monitored.ask("GET", "/metrics").text
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), text


def bounds_by_label(samples: dict[str, float]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for labels in samples:
        by, bound = re.fullmatch(r'\{(.*),le="([^"]+)"\}', labels).groups()  # type: ignore[union-attr]
        found.setdefault(by, []).append(bound)
    return found


@pytest.mark.parametrize("name", ["messagehub_request_seconds", "messagehub_http_request_seconds"])
def test_every_histogram_has_the_same_bounds_for_every_label(monitored: MonitoredWeb, name: str) -> None:
    monitored.register("bounds", {"type": "object"})  # takes longer than the rest
    for path in ("/subjects", "/nowhere", "/subjects/none/versions"):
        monitored.ask("GET", path)
    bounds = bounds_by_label(monitored.samples(f"{name}_bucket"))
    assert len(bounds) >= 3
    assert len({tuple(of_one) for of_one in bounds.values()}) == 1
    assert bounds.popitem()[1][-1] == "+Inf"


def test_http_requests_are_counted_by_template_never_by_what_a_caller_wrote(own: MonitoredWeb) -> None:
    made = own.register("counted", {"title": "counted"}).json()
    for _ in range(3):  # the later ones are answered from memory
        own.ask("GET", f"/schemas/ids/{made['id']}")
        own.ask("GET", "/subjects/counted/versions/latest")
        own.ask("POST", "/subjects/counted", {"schema": '{"title": "counted"}', "schemaType": "JSON"})
    own.client.get("/evil-path-of-a-caller")
    own.client.request("EVIL", "/subjects")
    own.client.get("/subjects/counted/versions")
    with socket.create_connection(("127.0.0.1", int(own.url.rpartition(":")[2]))) as link:
        link.sendall(b"NOPE\r\n\r\n")
        link.recv(100)
    counts = own.samples("messagehub_http_request_seconds_count")
    found = {tuple(re.findall(r'="([^"]*)"', labels)): int(count) for labels, count in counts.items()}
    assert found["GET", "/schemas/ids/{id}", "200"] == 3
    assert found["GET", "/subjects/{subject}/versions/{version}", "200"] == 3
    assert found["POST", "/subjects/{subject}", "200"] == 3
    assert found["GET", "/subjects/{subject}/versions", "401"] == 1
    assert found["GET", "other", "404"] == 1
    assert found["other", "other", "400"] >= 1
    assert "evil" not in json.dumps(list(counts)).lower()


def test_items_of_a_channel_are_counted_over_producers_that_come_and_go(monitored: MonitoredWeb) -> None:
    label = '{channel="items.shared"}'

    def items() -> float:
        return monitored.samples("messagehub_channel_items_total").get(label, 0.0)

    with monitored.hub() as hub:
        options: dict[str, Any] = {"page_size": 64, "access": "shared"}
        with hub.producer("items.shared", producer_id="a", **options) as first:
            for _ in range(3):
                first.write(ITEM)
            eventually(lambda: items() == 3)
            with hub.producer("items.shared", producer_id="b", **options) as second:
                second.write(ITEM)
                eventually(lambda: items() == 4)
            first.write(ITEM)
            eventually(lambda: items() == 5)
        assert monitored.samples("messagehub_channel_producers").get(label, 0.0) <= 1.0


def test_at_most_so_many_channels_are_shown(own: MonitoredWeb) -> None:
    most = channel_metrics.MAX_CHANNELS
    with own.hub() as hub:
        for number in range(most + 3):
            hub.create_channel(f"many.c{number:05}")
    # The broker has less than a second to list them.
    eventually(lambda: len(own.samples("messagehub_channel_producers")) == most)
    eventually(lambda: own.samples("messagehub_channels_hidden") == {"": 3.0})


def test_a_stuck_broker_is_reported_as_down_and_the_rest_is_still_there(monitored: MonitoredWeb) -> None:
    eventually(lambda: monitored.samples("messagehub_broker_up") == {"": 1.0})
    os.kill(monitored.process.pid, signal.SIGSTOP)
    try:
        assert monitored.samples("messagehub_broker_up") == {"": 0.0}
        assert monitored.samples("process_open_fds").keys() == {'{process="http"}'}
        assert monitored.samples("process_cpu_seconds_total")['{process="http"}'] > 0
    finally:
        os.kill(monitored.process.pid, signal.SIGCONT)
    eventually(lambda: monitored.samples("messagehub_broker_up") == {"": 1.0}, timeout=60)


def test_ready_says_so_in_time_while_the_broker_is_stuck_and_all_threads_wait_for_it(patient: MonitoredWeb) -> None:
    def ask() -> None:
        with httpx.Client(base_url=patient.url, timeout=60) as client:
            client.get("/subjects", headers={"authorization": f"Bearer {patient.token}"})

    waiting = [threading.Thread(target=ask) for _ in range(60)]
    os.kill(patient.process.pid, signal.SIGSTOP)
    try:
        for thread in waiting:
            thread.start()
        started = time.monotonic()
        for _ in range(3):
            answer = patient.ask("GET", "/readyz")
            assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
            assert answer.json()["reason"]
        assert time.monotonic() - started < 30.0  # a second each is promised; any other request takes 300
    finally:
        os.kill(patient.process.pid, signal.SIGCONT)
        for thread in waiting:
            thread.join(60)
    eventually(lambda: patient.ask("GET", "/readyz").status_code == 200, timeout=60)


def test_metrics_come_in_time_while_many_requests_wait_for_slow_checks(own: MonitoredWeb) -> None:
    """Also compressed, as Prometheus asks for them. No request waits for the others."""
    headers = {"authorization": f"Bearer {own.token}"}

    def register(number: int) -> None:
        body = {"schema": json.dumps({"title": str(number)}), "schemaType": "JSON"}
        with httpx.Client(base_url=own.url, timeout=60) as client:
            client.post(f"/subjects/slow-{number}/versions", headers=headers, json=body)

    def connections() -> float:
        return own.samples("process_open_fds")['{process="http"}']

    with own.hub() as hub:
        for number in range(500):
            hub.create_channel(f"measured.channel{number}")
    # A probe has a second for the broker, which may be busy with those channels on a loaded machine.
    eventually(lambda: len(own.ask("GET", "/metrics").content) > 64 << 10)
    worker = next(pid for pid in descendants(own.process.pid) if "schema_worker" in command_line(pid))
    waiting = [threading.Thread(target=register, args=(number,)) for number in range(60)]
    before = connections()
    os.kill(worker, signal.SIGSTOP)
    try:
        for thread in waiting:
            thread.start()
        eventually(lambda: connections() >= before + len(waiting))
        assert own.ask("GET", "/subjects").status_code == 200

        def is_up() -> bool:
            started = time.monotonic()
            answer = own.ask("GET", "/metrics", headers={"accept-encoding": "gzip"})
            assert time.monotonic() - started < 5.0  # each check has ten seconds
            assert answer.headers["content-encoding"] == "gzip"
            return "messagehub_broker_up 1\n" in answer.text

        eventually(is_up, timeout=5.0)  # the broker has less than a second to say so
    finally:
        with suppress(ProcessLookupError):  # it was replaced, because a check took too long
            os.kill(worker, signal.SIGCONT)
        for thread in waiting:
            thread.join(60)
