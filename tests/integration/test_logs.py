"""What a hub's log tells whoever runs it: start, stop and why, who connects, what was refused and why."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import ConfigurationError
from messagehub.runtime.logs import PER_SECOND, LimitedLog, one_line
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, server_keys
from messagehub.security.private_files import private_directory
from tests.conftest import QUICK
from tests.integration.harness import Peer, Served, eventually

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
BAD_NAME = {"type": "CHANNEL_CREATE", "channel": "1 is no name", "id": "mine"}


def lines(server: Served, text: str) -> list[str]:
    return [line for line in server.log().splitlines() if text in line]


def test_start_and_stop_are_logged_with_the_reason_and_every_line_has_a_time(served: Callable[..., Served]) -> None:
    server = served(with_http=True, http="127.0.0.1:0")
    pid = server.pid
    with httpx.Client(base_url=server.http, timeout=60) as client:
        eventually(lambda: answers(client), timeout=60)
    (started,) = lines(server, " serves in ")
    assert f"{server.dir} at {server.endpoint}, pid {pid}" in started
    assert lines(server, "0 channels, 0 schemas, revision 0")
    assert lines(server, f"HTTP is at {server.http}")
    eventually(lines, server, "the HTTP process serves")
    assert server.stop() == 0
    assert lines(server, "stopping, because SIGTERM came")
    assert lines(server, f"stopped: dir={server.dir} pid={pid}")
    assert all(TIME.match(line) for line in server.log().splitlines()), server.log()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_refusal_is_logged_with_its_reason_and_what_is_not_found_is_none(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with Peer(server.endpoint) as peer:
        assert peer.ask(BAD_NAME)["code"] == "INVALID_NAME"
        assert peer.ask({"type": "NONSENSE", "id": "other"})["code"] == "UNKNOWN_TYPE"
        assert peer.ask({"type": "CHANNEL_DESCRIBE_REQUEST", "channel": "nobody"})["code"] == "CHANNEL_NOT_FOUND"
    (refused,) = lines(server, "INVALID_NAME")
    assert " INFO messagehub.broker: refused CHANNEL_CREATE 1 is no name of a local peer, id mine: " in refused
    assert "dot-separated components" in refused
    assert "id other: UNKNOWN_TYPE" in lines(server, "UNKNOWN_TYPE")[0]
    assert not lines(server, "NOT_FOUND")


def test_no_peer_can_write_lines_of_its_own_into_the_log(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with Peer(server.endpoint) as peer:
        forged = "x\n2026-01-01 00:00:00,000 INFO messagehub.broker: all is fine\x1b[2J"
        peer.ask({"type": "CHANNEL_CREATE", "channel": forged, "id": forged})
        peer.ask({"type": forged, "id": forged})
    assert not [line for line in server.log().splitlines() if line.startswith("2026-01-01 00:00:00,000")]
    assert "\x1b" not in server.log()
    assert lines(server, r"x\n2026")


def test_no_schema_text_is_logged(served: Callable[..., Served]) -> None:
    server = served(log="DEBUG", **QUICK)
    with Peer(server.endpoint) as peer:
        schema = {"type": "SCHEMA_REGISTER", "subject": "s", "schema": {"type": "object", "title": "topsecret"}}
        assert peer.ask(schema)["type"] == "SCHEMA_REGISTER_ACK"
        for bad in ({"type": "topsecret"}, {"type": "string", "const": "topsecret"}):
            assert peer.ask(schema | {"schema": bad})["code"] in ("INVALID_SCHEMA", "SCHEMA_INCOMPATIBLE")
    assert lines(server, "INVALID_SCHEMA: its sender was told where")
    assert "topsecret" not in server.log()


def test_debug_shows_every_request_and_info_does_not(served: Callable[..., Served], tmp_path: Path) -> None:
    for level, shown in (("DEBUG", 1), ("INFO", 0)):
        server = served(dir=tmp_path / level, log=level, **QUICK)
        with Peer(server.endpoint) as peer:
            peer.ask({"type": "CHANNEL_LIST_REQUEST", "id": "asked"})
        said = "CHANNEL_LIST_REQUEST of a local peer, id asked: answered in "
        if shown:  # it is written after the answer has left
            eventually(lines, server, said)
        found = lines(server, said)
        assert len(found) == shown


def test_a_flood_of_refusals_is_logged_in_part_and_the_rest_is_counted(served: Callable[..., Served]) -> None:
    server = served(**QUICK)
    with Peer(server.endpoint, zmq.DEALER) as peer:
        for _ in range(5000):
            peer.send(BAD_NAME)
        for _ in range(5000):
            peer.receive()

        def tells_of_the_rest() -> bool:
            peer.ask(BAD_NAME)
            return bool(lines(server, "more refusals were left out of this log"))

        eventually(tells_of_the_rest)
    assert PER_SECOND <= len(lines(server, "refused CHANNEL_CREATE")) < 2500


def test_who_connects_with_which_key_is_logged_and_who_is_kept_out(
    served: Callable[..., Served], tmp_path: Path
) -> None:
    directory = tmp_path / "shared"
    private_directory(directory)
    access, server_key = AccessFile(directory / "access.json"), server_keys(directory / "keys").public
    listed, stranger = KeyPair.new(server_key), KeyPair.new(server_key)
    allow_key(access, "camera7", listed.public, ["observe"])
    server = served("--curve", "--endpoint", "tcp://127.0.0.1:0", dir=directory, **QUICK)

    def peer(pair: KeyPair, kind: int = zmq.REQ, endpoint: str = "") -> Peer:
        keys = {"SERVERKEY": server_key, "PUBLICKEY": pair.public, "SECRETKEY": pair.secret}
        options = {f"CURVE_{name}": text.encode() for name, text in keys.items()}
        return Peer(endpoint or server.endpoint, kind, **options)  # type: ignore[arg-type]

    with peer(listed) as camera, peer(stranger):  # who connects, and needs to say nothing
        assert camera.ask({"type": "CHANNEL_CREATE", "channel": "cameras.a"})["code"] == "FORBIDDEN"
        eventually(lambda: lines(server, "it is not listed"))
        allow_key(access, "narrow", (narrow := KeyPair.new(server_key)).public, ["observe:cameras.*"])
        with peer(narrow, zmq.SUB, camera.ask({"type": "HELLO"})["endpoints"]["events"]) as watcher:
            watcher.socket.subscribe(b"channel/other/")
            eventually(lambda: lines(server, "refused key:narrow a subscription to channel/other/"))
    eventually(lines, server, "key:camera7 connects from 127.0.0.1")
    (refused,) = lines(server, "FORBIDDEN")
    assert "refused CHANNEL_CREATE of key:camera7" in refused
    assert f"refused key {stranger.public} from 127.0.0.1 a connection to control" in server.log()
    assert listed.secret not in server.log()


@pytest.mark.parametrize("has_access_log", [True, False])
def test_http_has_an_access_log_by_choice_and_always_logs_refusals(
    served: Callable[..., Served], has_access_log: bool
) -> None:
    server = served(with_http=True, http="127.0.0.1:0", http_access_log=has_access_log)
    token = (server.dir / "http.token").read_text().strip()
    with httpx.Client(base_url=server.http, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        eventually(lambda: answers(client), timeout=60)
        found = client.get("/subjects", params={"subjectPrefix": "not-for-a-log"})
        assert found.status_code == 200
        refused = client.post("/api/v1/channels/1bad", json={})
        assert refused.json()["code"] == "INVALID_NAME"
        assert client.get("/subjects", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/subjects/nobody/versions").status_code == 404
    eventually(lambda: lines(server, "40101"))
    accessed = lines(server, '"GET /subjects" 200')
    assert len(accessed) == has_access_log
    if has_access_log:
        assert re.search(r'http\.access: 127\.0\.0\.1 owner "GET /subjects" 200 [\d.]+ ms ', accessed[0])
        assert found.headers["x-request-id"] in accessed[0]
    assert "not-for-a-log" not in server.log()
    (said,) = lines(server, f"id {refused.headers['x-request-id']}: INVALID_NAME")
    assert "messagehub.http: refused POST /api/v1/channels/1bad of owner, 127.0.0.1" in said
    assert not lines(server, "refused GET /subjects/nobody/versions")
    assert all(TIME.match(line) for line in server.log().splitlines()), server.log()


def test_the_access_log_does_not_depend_on_the_level_of_the_rest(served: Callable[..., Served]) -> None:
    server = served(with_http=True, http="127.0.0.1:0", log="ERROR", http_access_log=True)
    with httpx.Client(base_url=server.http, timeout=60) as client:
        eventually(lambda: answers(client), timeout=60)
    eventually(lambda: lines(server, '"GET /healthz" 200'))
    assert not lines(server, " serves ")


def test_what_is_written_is_bounded_in_length_and_number(caplog: pytest.LogCaptureFixture) -> None:
    assert one_line("a\tb\u202e") == r"a\tb\u202e"
    assert len(one_line("x" * 10_000)) < 1000
    log = logging.getLogger("tests.limited")
    limited = LimitedLog(log, "things")
    with caplog.at_level(logging.INFO, "tests.limited"):
        for number in range(PER_SECOND + 5):
            limited.info("%d %s", number, "a\nb")
    assert PER_SECOND <= len(caplog.messages) <= PER_SECOND + 6  # more where a second has passed
    assert caplog.messages[0] == r"0 a\nb"


# -- in a program that uses the package --------------------------------------------------------------------

CLIENT = """
import logging, sys
from messagehub import MessageHub

if len(sys.argv) > 2:
    logging.basicConfig(level=sys.argv[2], format="%(levelname)s %(name)s")
with MessageHub(dir=sys.argv[1]) as hub:
    hub.discover("nobody")
"""


def said_by_client(tmp_path: Path, level: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "MESSAGEHUB_LOG"}
    if level is not None:
        environment["MESSAGEHUB_LOG"] = level
    command = [sys.executable, "-c", CLIENT, str(tmp_path), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("level", "is_quiet"), [(None, False), ("WARNING", False), ("error", True), ("CRITICAL", True)]
)
def test_the_level_counts_for_a_client_too(tmp_path: Path, level: str | None, is_quiet: bool) -> None:
    for configured in ((), ("DEBUG",)):
        ran = said_by_client(tmp_path, level, *configured)
        assert ran.returncode == 0, ran.stderr
        said = [line for line in ran.stderr.splitlines() if "asyncio" not in line]
        assert (said == []) == is_quiet, ran.stderr


def test_an_unknown_level_is_refused_by_name(tmp_path: Path) -> None:
    ran = said_by_client(tmp_path, "loud")
    assert ran.returncode == 1
    said = "bad setting in the environment variable MESSAGEHUB_LOG: log = 'loud' is not one of DEBUG, INFO, WARNING"
    assert said in ran.stderr
    with pytest.raises(ConfigurationError, match="log = 'quiet' is not one of DEBUG"):
        MessageHub(dir=tmp_path, log="quiet")


def test_the_argument_counts_for_a_client_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("messagehub")
    before = log.level
    try:
        with MessageHub(dir=tmp_path, log="ERROR") as hub:
            hub.discover("nobody")
        assert caplog.messages == []
    finally:
        log.setLevel(before)
