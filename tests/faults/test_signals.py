"""SIGHUP reloads what can change and kills nothing; SIGUSR1 and SIGUSR2 do nothing; SIGTERM ends open streams."""

import itertools
import json
import os
import pty
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagehub import MessageHub
from messagehub.errors import RateLimited
from messagehub.security.private_files import write_private
from tests import preloaded
from tests.access.shared import SharedHub
from tests.access.test_http_rights import SecureWeb, certificate
from tests.admin.conftest import Web
from tests.faults.chaos.storm import command_line, descendants
from tests.faults.test_http_process import answers, http_pid, is_gone
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Peer, Served, clean_environment, eventually, producer

pytestmark = pytest.mark.usefixtures("no_leaks", "more_processes")


@pytest.fixture
def more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that reloads starts HTTP anew."""
    monkeypatch.setenv(preloaded.MORE, "2")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "hub", "--http", "127.0.0.1:0", with_http=True) as served:
        yield served


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=PATIENCE_SECONDS, **options)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_is_no_order_to_stop_stops_nothing(hub: Served, number: int) -> None:
    with MessageHub(dir=hub.dir, hello_timeout_seconds=5.0) as client:
        assert client.register_producer("kept", schema_hash="h")
        for _ in range(3):
            hub.signal(number)
            assert client.health(timeout=10.0)["status"] == "healthy"
        assert client.discover("kept") is not None
        assert client.metrics()["reconnects"] == 0
        eventually(answers, hub)
    if number == signal.SIGHUP:
        eventually(lambda: "reloaded settings" in hub.log())
    assert hub.stop() == 0
    assert "Traceback" not in hub.log()


def test_settings_that_can_change_are_taken_over_and_others_are_named(tmp_path: Path) -> None:
    with Served(tmp_path / "hub", audit=True, trace_size=10) as served, Peer(served.endpoint) as peer:
        file = served.dir / "messagehub.toml"
        file.write_text("audit = true\ntrace_size = 20\nkept_limit_bytes = 1\n")
        served.signal(signal.SIGHUP)
        eventually(lambda: "trace_size changed, which takes effect when the hub is started again" in served.log())

        eventually(is_no_topic_taken, peer, itertools.count())


def is_no_topic_taken(peer: Peer, numbers: Iterator[int]) -> bool:
    """Whether a `kept_limit_bytes` of 1 is in force; each time a new topic is tried."""
    topic = f"orders.{next(numbers)}"
    keep = {"type": "TOPIC_KEEP", "topic": topic, "keep": {"messages": 1, "size_bytes": 1000}}
    return peer.ask(keep).get("code") == "TOPIC_LIMIT_EXCEEDED"


def test_the_level_of_the_log_is_taken_over(tmp_path: Path) -> None:
    with (
        Served(tmp_path / "hub", audit=True, log="INFO", registrations_per_peer=1, trace_size=10) as served,
        Peer(served.endpoint) as peer,
    ):
        file = served.dir / "messagehub.toml"
        settings = file.read_text()
        assert peer.ask(producer("a"))["type"] == "PRODUCER_REGISTER_ACK"
        assert peer.ask(producer("b"))["code"] == "TOO_MANY_REGISTRATIONS"
        file.write_text(
            settings.replace("INFO", "WARNING").replace("trace_size = 10", "trace_size = 20") + "kept_limit_bytes = 1\n"
        )
        served.signal(signal.SIGHUP)
        eventually(lambda: "trace_size changed" in served.log())
        eventually(is_no_topic_taken, peer, itertools.count())  # which is taken over after the level
        assert peer.ask(producer("c"))["code"] == "TOO_MANY_REGISTRATIONS"
        file.write_text(settings)
        served.signal(signal.SIGHUP)
        eventually(lambda: "reloaded settings" in served.log())
        assert peer.ask(producer("d"))["code"] == "TOO_MANY_REGISTRATIONS"
        assert served.stop() == 0
        assert served.log().count("refused PRODUCER_REGISTER") == 2
        assert served.log().count("reloaded settings") == 1


def test_limits_of_a_peer_and_of_the_audit_log_are_taken_over(tmp_path: Path) -> None:
    shared = SharedHub(tmp_path / "hub")
    with (
        Served(shared.dir, endpoint="tcp://127.0.0.1:0", curve=True) as served,
        shared.peer("writer", endpoint=served.endpoint) as peer,
    ):
        with (served.dir / "messagehub.toml").open("a") as file:
            file.write("requests_per_second = 1\nregistrations_per_peer = 1\naudit_bytes = 1\n")
        assert all(peer.ask(producer(f"before{number}"))["type"] == "PRODUCER_REGISTER_ACK" for number in range(3))
        served.signal(signal.SIGHUP)
        eventually(lambda: peer.ask({"type": "PING"}).get("code") == "RATE_LIMITED")
        eventually(lambda: peer.ask(producer("after")).get("code") == "TOO_MANY_REGISTRATIONS")
        eventually((served.dir / "audit.log.1").exists)


def test_what_http_answers_and_logs_is_taken_over(hub: Served) -> None:
    token = (hub.dir / "http.token").read_text().strip()
    headers = {"origin": "https://lab.example", "authorization": f"Bearer {token}"}

    def allowed() -> str | None:
        answer = get(f"{hub.http}/subjects", headers=headers)
        assert answer.status_code == 200
        return answer.headers.get("access-control-allow-origin")

    assert allowed() is None
    assert "messagehub.http.access" not in hub.log()
    elsewhere = {"x-forwarded-for": "10.9.8.7", "x-forwarded-proto": "https"}
    assert get(f"{hub.http}/subjects", headers=elsewhere).status_code == 401
    eventually(lambda: "of anonymous, 127.0.0.1" in hub.log())
    assert "10.9.8.7" not in hub.log()
    (hub.dir / "messagehub.toml").write_text(
        'http_cors = "https://lab.example"\nhttp_access_log = true\nhttp_trusted_proxies = "127.0.0.1"\n'
    )
    hub.signal(signal.SIGHUP)
    eventually(lambda: allowed() == "https://lab.example")
    eventually(lambda: "messagehub.http.access" in hub.log())
    # Asked again until it is noted: the log takes only so many refusals a second.
    eventually(
        lambda: (
            get(f"{hub.http}/subjects", headers=elsewhere).status_code == 401 and "of anonymous, 10.9.8.7" in hub.log()
        )
    )


def test_a_reload_that_is_refused_changes_nothing(hub: Served) -> None:
    file = hub.dir / "messagehub.toml"
    file.write_text('http_anonymous = "nope"\n')
    hub.signal(signal.SIGHUP)
    eventually(lambda: f"SIGHUP changed nothing: bad setting in {file}" in hub.log())
    assert answers(hub)
    file.write_text('http_anonymous = ""\n')
    assert get(f"{hub.http}/subjects").status_code == 200
    hub.signal(signal.SIGHUP)
    eventually(lambda: get(f"{hub.http}/subjects").status_code == 401)


@pytest.mark.parametrize("content", ['{"tok', None], ids=["damaged", "open to others"])
def test_a_reload_with_a_bad_list_of_tokens_changes_nothing(hub: Served, content: str | None) -> None:
    access = hub.dir / "access.json"
    access.write_text(content or "{}")
    access.chmod(0o600 if content else 0o644)
    (hub.dir / "messagehub.toml").write_text('http_anonymous = ""\n')
    hub.signal(signal.SIGHUP)
    eventually(lambda: f"SIGHUP changed nothing: {access}" in hub.log())
    assert "Traceback" not in hub.log()
    assert get(f"{hub.http}/subjects").status_code == 200
    access.unlink()
    hub.signal(signal.SIGHUP)
    eventually(lambda: get(f"{hub.http}/subjects").status_code == 401)


def test_the_path_that_a_proxy_serves_the_hub_under_is_taken_over(hub: Served) -> None:
    assert get(f"{hub.http}/lab/healthz").status_code == 404
    (hub.dir / "messagehub.toml").write_text('http_prefix = "/lab"\n')
    hub.signal(signal.SIGHUP)
    eventually(lambda: get(f"{hub.http}/lab/healthz").status_code == 200)


def test_no_request_is_dropped_while_http_is_started_anew(hub: Served) -> None:
    """Each comes over a connection of its own, which the process that ends may have accepted a moment before."""
    is_over = threading.Event()

    def ask() -> int:
        asked = 0
        while not is_over.is_set():
            assert httpx.get(f"{hub.http}/healthz", timeout=30).status_code in (200, 404)
            asked += 1
        return asked

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for number in range(3):
                (hub.dir / "messagehub.toml").write_text(f'http_prefix = "/lab{number}"\n')
                hub.signal(signal.SIGHUP)
                eventually(lambda n=number: hub.log().count("HTTP serves with the settings as they are now") > n)
        finally:
            is_over.set()
        assert all(done.result() for done in asking)


def test_the_audit_log_goes_on_in_a_new_file_after_the_old_one_was_moved(tmp_path: Path) -> None:
    with Served(tmp_path / "hub", audit=True) as served, Peer(served.endpoint) as peer:
        log = served.dir / "audit.log"
        peer.ask({"type": "CHANNEL_CREATE", "channel": "a"})
        log.rename(served.dir / "audit.log.moved")
        served.signal(signal.SIGHUP)

        def is_written_anew() -> bool:
            peer.ask({"type": "CHANNEL_DESTROY", "channel": "a"})
            peer.ask({"type": "CHANNEL_CREATE", "channel": "a"})
            return log.exists() and '"changed"' in log.read_text()

        eventually(is_written_anew)


def fingerprint(url: str) -> str:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return ssl.get_server_certificate(("127.0.0.1" if host == "0.0.0.0" else host, int(port)), timeout=30)


def test_a_new_certificate_is_served_after_sighup(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    web = SecureWeb(tmp_path / "hub", cert, "--http-cert", str(cert), "--http-key", str(key))
    try:
        before = fingerprint(web.url)
        (tmp_path / "new").mkdir()
        new_cert, new_key = certificate(tmp_path / "new")
        new_cert.replace(cert)
        new_key.replace(key)
        assert fingerprint(web.url) == before
        web.process.send_signal(signal.SIGHUP)
        eventually(lambda: fingerprint(web.url).strip() == cert.read_text().strip())
    finally:
        web.close()


def test_sigterm_ends_a_hub_with_an_open_event_stream_at_once(tmp_path: Path) -> None:
    web = Web(tmp_path / "hub")
    with web.client.stream("GET", "/api/v1/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": connected"
        web.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        for _ in lines:
            pass  # it ends as it should; an answer that is cut off would raise
        assert time.monotonic() - began < 4.0  # a reader that is waited for costs five seconds, one that is told none
    web.close()
    said = json.dumps([path.name for path in web.directory.iterdir()])
    assert "broker.json" not in said


def test_a_hub_in_a_terminal_ends_when_the_terminal_is_closed(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    serve = [sys.executable, "-m", "messagehub", "serve", "--dir", str(tmp_path / "hub"), "--no-http"]
    command = ["env", "--default-signal=HUP", *serve]  # the tests may run under nohup
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=log,
            env=clean_environment(),
            cwd=ROOT,
            text=True,
        )
    os.close(terminal)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "ready" in ready, (tmp_path / "log").read_text()
        pid = int(ready.split("pid=")[1].split()[0])
        os.kill(pid, signal.SIGHUP)
        eventually(lambda: "reloaded settings" in (tmp_path / "log").read_text())
        os.close(controller)
        controller = -1
        eventually(lambda: "stopped: dir=" in (tmp_path / "log").read_text())
        process.wait(30)
    finally:
        if controller >= 0:
            os.close(controller)
        if process.poll() is None:
            process.kill()
            process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def test_a_hub_that_drains_goes_on_draining_after_a_reload(hub: Served) -> None:
    token = (hub.dir / "http.token").read_text().strip()
    with httpx.Client(base_url=hub.http, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
        assert client.post("/api/v1/drain").status_code == 200
    before = http_pid(hub)
    hub.signal(signal.SIGHUP)
    eventually(is_gone, before)
    assert get(f"{hub.http}/healthz").json()["draining"] is True
    with httpx.Client(base_url=hub.http, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
        assert client.post("/api/v1/channels/a", json={}).status_code == 503
        assert client.delete("/api/v1/drain").status_code == 200
    before = http_pid(hub)
    hub.signal(signal.SIGHUP)
    eventually(is_gone, before)
    assert "draining" not in get(f"{hub.http}/healthz").json()


def test_an_http_process_that_dies_after_a_refused_reload_is_started_with_the_settings_in_force(hub: Served) -> None:
    file = hub.dir / "messagehub.toml"
    file.write_text("audit_bytes = -5\n")
    hub.signal(signal.SIGHUP)
    eventually(lambda: "SIGHUP changed nothing" in hub.log())
    os.kill(http_pid(hub), signal.SIGKILL)
    eventually(lambda: "starting it again" in hub.log())
    eventually(answers, hub)
    assert "Traceback" not in hub.log()


def test_a_hub_whose_token_was_removed_reloads_and_lets_nobody_in(hub: Served) -> None:
    file = hub.dir / "http.token"
    token = file.read_text()
    headers = {"authorization": f"Bearer {token.strip()}"}
    assert get(f"{hub.http}/api/v1/dead-letters", headers=headers).status_code == 200
    file.unlink()
    before = http_pid(hub)
    hub.signal(signal.SIGHUP)
    eventually(is_gone, before)
    assert get(f"{hub.http}/api/v1/dead-letters", headers=headers).status_code == 401
    os.kill(http_pid(hub), signal.SIGKILL)
    eventually(lambda: "starting it again" in hub.log())
    eventually(answers, hub)
    assert get(f"{hub.http}/api/v1/dead-letters", headers=headers).status_code == 401
    write_private(file, token.encode())
    assert get(f"{hub.http}/api/v1/dead-letters", headers=headers).status_code == 200
    assert "Traceback" not in hub.log()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for more descriptors than `select` can name, here and in the hub that is started."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 4096:
        pytest.skip("no process may have so many descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def busy_hub(many_descriptors: None, hub: Served) -> Iterator[Served]:
    """A hub with more than a thousand connections."""
    with ExitStack() as closing:
        for _ in range(1100):
            link = closing.enter_context(socket.socket(socket.AF_UNIX))
            link.connect(hub.endpoint.removeprefix("ipc://"))
            link.recv(1)
        yield hub


def test_a_hub_with_a_thousand_connections_reloads(busy_hub: Served) -> None:
    before = http_pid(busy_hub)
    (busy_hub.dir / "messagehub.toml").write_text('http_anonymous = ""\n')
    busy_hub.signal(signal.SIGHUP)
    eventually(is_gone, before)
    assert get(f"{busy_hub.http}/subjects").status_code == 401
    assert "Traceback" not in busy_hub.log()


def test_schemas_are_checked_again_by_a_hub_with_a_thousand_connections(busy_hub: Served) -> None:
    worker = next(pid for pid in descendants(busy_hub.pid) if "schema_worker" in command_line(pid))
    with MessageHub(dir=busy_hub.dir) as client:
        os.kill(worker, signal.SIGKILL)
        eventually(is_gone, worker)

        def is_registered() -> bool:
            with suppress(RateLimited):
                return client.register_schema("orders", '{"type": "object"}', timeout=30.0).version == 1
            return False

        eventually(is_registered)
    assert "Traceback" not in busy_hub.log()
