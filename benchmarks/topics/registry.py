"""The schema registry: reads over HTTP, registering, and checks against many versions.

A raw Response is the floor of the reads: the smallest Starlette application on the same server (`http_floor`),
asked by the same wrk.
"""

import itertools
import json
import re
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import httpx
import msgspec

from benchmarks import packages
from benchmarks.brokers import Broker, client_socket, hub_broker, register_channels
from benchmarks.harness import Bench, CannotMeasure, Measure, NotMeasured, PeerMissing, comparison
from benchmarks.native import Native, zmq_clients
from benchmarks.processes import accepts, free_port, running
from benchmarks.topics.throughput import REQUEST
from benchmarks.verdicts import at_least, at_most, beside

CONNECTIONS = 32
SUBJECT = "bench.reads"
JSON = {"content-type": "application/json"}
_fresh = itertools.count()


@dataclass(frozen=True)
class Site:
    url: str
    token: str

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, self.url + path, json=body, headers=headers, timeout=30)
        if answer.status_code != 200:
            raise CannotMeasure(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.content


def version(number: int) -> dict[str, object]:
    """A history that is BACKWARD all along and of one size: each version takes a little more than the one before."""
    properties: dict[str, object] = {f"field{n}": {"type": "number"} for n in range(20)}
    properties["note"] = {"type": "string", "maxLength": 1000 + number}
    return {"type": "object", "properties": properties, "required": ["field0"], "additionalProperties": False}


@comparison("schema registry over HTTP, wrk with 32 connections, requests a second")
def http_reads(bench: Bench) -> None:
    """GET by id, GET latest and lookup, each against a Response to such a request on the same server."""
    try:
        wrk = packages.program("wrk", "wrk")
    except PeerMissing as missing:
        bench.absent("GET by id, GET latest, lookup", str(missing))
        return
    with ExitStack() as stack:
        site = stack.enter_context(_site(bench))
        body = {"schema": json.dumps(version(0)), "schemaType": "JSON"}
        made = msgspec.json.decode(site.ask("POST", f"/subjects/{SUBJECT}/versions", body))
        by_id = f"/schemas/ids/{made['id']}"
        floor = stack.enter_context(_floor(bench, site.ask("GET", by_id)))
        script = bench.directory / "lookup.lua"
        script.write_text(_lua(json.dumps(body)))
        seconds = 1
        ours, raw, raw_post = "GET by id", "raw Response", "raw Response to a POST"
        bench.compare(
            {
                ours: _wrk(wrk, site.url + by_id, seconds),
                raw: _wrk(wrk, f"{floor}/schemas/ids/1", seconds),
                "GET latest": _wrk(wrk, f"{site.url}/subjects/{SUBJECT}/versions/latest", seconds),
                "lookup": _wrk(wrk, f"{site.url}/subjects/{SUBJECT}", seconds, script),
                raw_post: _wrk(wrk, f"{floor}/subjects/{SUBJECT}", seconds, script),
            },
            unit="/s",
            claims=[
                at_least(0.9, ours, raw),
                at_least(0.9, "GET latest", raw),
                at_least(0.9, "lookup", raw_post),
                beside("lookup", raw),
            ],
            repetitions=bench.scaled(7, 5),
        )


@comparison("schema registry over HTTP, one client registering durably, p50")
def http_register(bench: Bench) -> None:
    with _site(bench) as site, httpx.Client(base_url=site.url, timeout=30) as client:
        headers = {"authorization": f"Bearer {site.token}"}

        def register() -> float:
            durations = []
            for _ in range(bench.scaled(40, 10)):
                number = next(_fresh)
                body = {"schema": json.dumps({"title": f"fresh {number}"}), "schemaType": "JSON"}
                began = perf_counter()
                answer = client.post(f"/subjects/bench.fresh{number}/versions", json=body, headers=headers)
                durations.append(perf_counter() - began)
                if answer.status_code != 200:
                    raise CannotMeasure(answer.text[:200])
            return statistics.median(durations) * 1000

        def ping() -> float:
            durations = []
            for _ in range(bench.scaled(40, 10)):
                began = perf_counter()
                client.get("/readyz")
                durations.append(perf_counter() - began)
            return statistics.median(durations) * 1000

        ours = "register (durable)"
        bench.compare({ours: register, "GET /readyz": ping}, unit="ms", claims=[beside(ours, "GET /readyz")])


@comparison("BACKWARD_TRANSITIVE check after warm-up, 150 versions against 10")
def transitive_check(bench: Bench) -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(hub_broker(bench))
        checks: dict[str, Measure | NotMeasured] = {}
        for count in (150, 10):
            _fill(broker, f"bench.v{count}", count)
            ask = stack.enter_context(_checking(broker, f"bench.v{count}", count))
            ask()
            checks[f"{count} versions"] = _median_ms(ask, bench.scaled(9, 3))
        bench.compare(checks, unit="ms", claims=[at_most(3.0, "150 versions", "10 versions")])


@comparison("discovery p99 while a 150-version check runs")
def discovery_beside_checks(bench: Bench) -> None:
    with ExitStack() as stack:
        native = zmq_clients(bench.directory)
        broker = stack.enter_context(hub_broker(bench))
        register_channels(broker.endpoint, 1)
        _fill(broker, "bench.v150", 150)
        ask = stack.enter_context(_checking(broker, "bench.v150", 150))
        ask()

        def beside_checks() -> float:
            is_done = threading.Event()

            def check() -> None:
                while not is_done.is_set():
                    ask()

            checking = threading.Thread(target=check)
            checking.start()
            try:
                return _p99(native, broker, bench)
            finally:
                is_done.set()
                checking.join()

        ours, alone = "while checks run", "without"
        contenders: dict[str, Measure | NotMeasured] = {ours: beside_checks, alone: lambda: _p99(native, broker, bench)}
        bench.compare(contenders, unit="µs", claims=[at_most(2.0, ours, alone)])


def _p99(native: Native, broker: Broker, bench: Bench) -> float:
    expect = '"shm_name":"/pylabhub_bench.c0"'
    found = native.run(
        endpoint=broker.endpoint, request=REQUEST, expect=expect, modulo=1, clients=1, seconds=bench.seconds
    )
    return found.p99_us


def _fill(broker: Broker, subject: str, count: int) -> None:
    with client_socket(broker.endpoint) as socket:

        def send(message: dict[str, object], expect: bytes) -> None:
            socket.send(msgspec.json.encode(message))
            reply = socket.recv()
            if expect not in reply:
                raise CannotMeasure(f"refused: {reply.decode()[:300]}")

        config = {"compatibility": "BACKWARD_TRANSITIVE"}
        send({"type": "SCHEMA_CONFIG_SET", "subject": subject, "config": config}, b"SCHEMA_CONFIG_RESPONSE")
        for number in range(count):
            message: dict[str, object] = {"type": "SCHEMA_REGISTER", "subject": subject, "schema": version(number)}
            send(message, b"SCHEMA_REGISTER_ACK")


@contextmanager
def _checking(broker: Broker, subject: str, count: int) -> Iterator[Callable[[], None]]:
    """Each check has a candidate that was never seen before."""
    with client_socket(broker.endpoint) as socket:

        def ask() -> None:
            candidate = {**version(count), "title": f"candidate {next(_fresh)}"}
            socket.send(msgspec.json.encode({"type": "SCHEMA_CHECK", "subject": subject, "schema": candidate}))
            reply = socket.recv()
            if b'"is_compatible":true' not in reply:
                raise CannotMeasure(f"not compatible: {reply.decode()[:300]}")

        yield ask


def _median_ms(ask: Callable[[], None], times: int) -> Measure:
    def measure() -> float:
        durations = []
        for _ in range(times):
            began = perf_counter()
            ask()
            durations.append(perf_counter() - began)
        return statistics.median(durations) * 1000

    return measure


@contextmanager
def _site(bench: Bench) -> Iterator[Site]:
    """A broker with its HTTP process."""
    port = free_port()
    with hub_broker(bench, http=f"127.0.0.1:{port}") as broker:
        deadline = perf_counter() + 60
        url = f"http://127.0.0.1:{port}"
        while not _is_healthy(url):
            if perf_counter() > deadline:
                raise CannotMeasure("the HTTP process does not answer")
        yield Site(url, (broker.directory / "http.token").read_text().strip())


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def _floor(bench: Bench, payload: bytes) -> Iterator[str]:
    port = free_port()
    file = bench.directory / "floor-payload.json"
    file.write_bytes(payload)
    command = [sys.executable, "-m", "benchmarks.http_floor", str(port), str(file)]
    with running(command, is_ready=accepts(port)):
        yield f"http://127.0.0.1:{port}"


def _wrk(program: str, url: str, seconds: int, script: Path | None = None) -> Measure:
    command = [program, "-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds}s"]
    command += ["-s", str(script)] if script else []

    def measure() -> float:
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=60, check=False)
        found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
        if found is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
            raise CannotMeasure(f"wrk: {(done.stdout + done.stderr)[-300:]}")
        return float(found[1])

    return measure


def _lua(body: str) -> str:
    headers = "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in JSON.items())
    return f'wrk.method = "POST"\n{headers}wrk.body = [=[{body}]=]\n'
