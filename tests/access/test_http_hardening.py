"""HTTP: what every answer carries, and what slow, huge and many callers get."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from messagehub import MessageHub
from messagehub.admin import event_history
from messagehub.admin.api import events as event_routes
from messagehub.admin.app import create_app
from messagehub.admin.authentication import Caller, HttpAuthentication, caller
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.connections import MAX_CONNECTIONS
from messagehub.security.credentials import AccessFile
from messagehub.security.rate_limits import ConcurrencyLimit
from registry.access import ADMIN
from tests.access.test_http_rights import SCHEMA, WebOfMany
from tests.admin.conftest import Web
from tests.conftest import QUICK
from tests.integration.harness import PATIENCE_SECONDS, Peer, checked_broker, eventually

SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebOfMany]:
    running = WebOfMany(tmp_path_factory.mktemp("hardening") / "hub")
    running.register("there", {"type": "object"})
    yield running
    running.close()


@contextmanager
def connected(web: Web, sent: bytes = b"", *, buffer: int = 0) -> Iterator[socket.socket]:
    host, port = web.url.removeprefix("http://").split(":")
    with socket.socket() as link:
        if buffer:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        link.settimeout(PATIENCE_SECONDS)
        link.connect((host, int(port)))
        link.sendall(sent)
        yield link


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *headers, "", "")).encode()


def answer_to(link: socket.socket) -> httpx.Response:
    """Status and headers of a raw answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = link.recv(65536)
        assert more, received
        received += more
    status, *lines = received.split(b"\r\n\r\n")[0].decode().split("\r\n")
    return httpx.Response(int(status.split()[1]), headers=[tuple(line.split(": ", 1)) for line in lines])


def is_hardened(answer: httpx.Response) -> None:
    assert SECURITY.items() <= answer.headers.items()
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert len(answer.headers["x-request-id"]) == 16
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


def counted(web: WebOfMany, name: str) -> int:
    (line,) = [line for line in web.ask("GET", "/metrics").text.splitlines() if line.startswith(f"messagehub_{name} ")]
    return int(line.split()[1])


KINDS = {
    "found": (200, head("GET", "/healthz")),
    "docs": (200, head("GET", "/docs")),
    "openapi": (200, head("GET", "/openapi.json")),
    "events": (200, head("GET", "/api/v1/events", "authorization: Bearer TOKEN")),
    "metrics": (200, head("GET", "/metrics", "authorization: Bearer TOKEN")),
    "no token": (401, head("GET", "/subjects")),
    "wrong password": (401, head("GET", "/subjects", "authorization: Basic dTp3cm9uZw==")),
    "no path": (404, head("GET", "/nowhere")),
    "no subject": (404, head("GET", "/subjects/none/versions", "authorization: Bearer TOKEN")),
    "no method": (405, head("PATCH", "/subjects")),
    "media": (406, head("GET", "/subjects", "accept: image/png", "authorization: Bearer TOKEN")),
    "no json": (400, head("PUT", "/config", "content-length: 1", "authorization: Bearer TOKEN") + b"{"),
    "large": (
        422,
        head("PUT", "/config", "content-length: 9999999", "authorization: Bearer TOKEN") + b"x" * ((1 << 20) + 1),
    ),
    "chunked": (
        422,
        head("PUT", "/config", "transfer-encoding: chunked", "authorization: Bearer TOKEN")
        + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 17,
    ),
    "websocket": (401, head("GET", "/subjects", "connection: upgrade", "upgrade: websocket")),
    "no http": (400, b"NOPE\r\n\r\n"),
    "bad header": (400, head("GET", "/healthz", "a b: c")),
    "bad path": (400, b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n"),
    "other origin": (
        405,
        head("OPTIONS", "/subjects", "origin: https://evil.example", "access-control-request-method: GET"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_answer_is_hardened_and_has_a_request_id(many: WebOfMany, kind: str) -> None:
    status, request = KINDS[kind]
    with connected(many, request.replace(b"TOKEN", many.token.encode())) as link:
        answer = answer_to(link)
    assert answer.status_code == status
    is_hardened(answer)


def test_the_callers_own_request_id_is_taken_if_it_may_stand_in_a_log(many: WebOfMany) -> None:
    assert many.client.get("/healthz", headers={"x-request-id": "mine-7"}).headers["x-request-id"] == "mine-7"
    for bad in ("a b", "x" * 65, "a\tb"):
        assert many.client.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_a_defect_is_told_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("what nobody should read")

    with checked_broker(**QUICK) as endpoint, MessageHub(dir=tmp_path / "hub", endpoint=endpoint) as hub:
        app = create_app(hub, HttpAuthentication(AccessFile(tmp_path / "access.json"), token=None, anonymous=ADMIN))
        monkeypatch.setattr(hub, "ask_async", fail)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get("/subjects")

        answer = asyncio.run(ask())
    assert (answer.status_code, answer.json()["message"]) == (500, "internal error: RuntimeError")
    is_hardened(answer)


def test_slow_bodies_headers_and_readers_are_ended(many: WebOfMany) -> None:
    posting = head("POST", "/subjects/there", "content-length: 100", f"authorization: Bearer {many.tokens['observe']}")
    asking = head("GET", "/openapi.json") * 300  # more than the kernel keeps for who reads nothing
    started = time.monotonic()
    with (
        connected(many, b"GET /healthz HTTP/1.1\r\nhost: x\r\n") as headers,
        connected(many, posting + b"{") as body,
        connected(many, asking, buffer=4096),
    ):
        assert many.client.get("/healthz").status_code == 200  # others are served meanwhile
        assert answer_to(body).status_code == 408
        assert headers.recv(4096) == b""
        eventually(lambda: counted(many, "http_slow_readers_total") == 1, timeout=PATIENCE_SECONDS)
    assert time.monotonic() - started < 2 * PATIENCE_SECONDS
    assert counted(many, "http_slow_bodies_total") == 1
    assert counted(many, "http_slow_headers_total") >= 1
    assert "408" in {entry.get("code") for entry in many.audit()}


def test_one_caller_takes_half_of_the_places_for_bodies_at_most(many: WebOfMany) -> None:
    posting = head("POST", "/subjects/there", "content-length: 100", f"authorization: Bearer {many.tokens['observe']}")

    def status(role: str) -> int:
        return many.try_with(many.tokens[role], "POST", "/subjects/there", SCHEMA).status_code

    with ExitStack() as senders:
        for _ in range(32):
            senders.enter_context(connected(many, posting))
        eventually(lambda: status("observe") == 429)
        assert many.try_with(many.tokens["observe"], "POST", "/subjects/there", SCHEMA).json()["error_code"] == 42901
        assert status("produce") == 200
        assert counted(many, "http_open_bodies_total") >= 2
        refused = many.try_with(many.tokens["observe"], "POST", "/subjects/there", SCHEMA)
        assert (refused.status_code, refused.headers.get("retry-after")) == (429, "1")
        assert "42901" in {entry.get("code") for entry in many.audit()}
    eventually(lambda: status("observe") == 200)


def test_one_caller_takes_half_of_the_event_streams_at_most(many: WebOfMany) -> None:
    listening = head("GET", "/api/v1/events", f"authorization: Bearer {many.tokens['observe']}")
    with ExitStack() as listeners:
        for _ in range(50):
            link = listeners.enter_context(connected(many, listening))
            assert answer_to(link).status_code == 200
        refused = many.try_with(many.tokens["observe"], "GET", "/api/v1/events")
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_SUBSCRIPTIONS")
        with connected(many, listening.replace(many.tokens["observe"].encode(), many.token.encode())) as other:
            assert answer_to(other).status_code == 200
        assert counted(many, "http_event_streams_total") == 1

    def is_open_again() -> bool:
        with connected(many, listening) as link:
            return answer_to(link).status_code == 200

    eventually(is_open_again)


def test_what_is_open_at_once_is_bounded_for_all_and_for_each() -> None:
    limit = ConcurrencyLimit(4)
    assert [limit.take(peer) for peer in ("a", "a", "a", "b", "c", "c")] == [True, True, False, True, True, False]
    limit.give_back("b")
    assert [limit.take("a"), limit.take("d"), limit.take("b")] == [False, True, False]


def test_more_connections_than_there_may_be_are_told_so(many: WebOfMany) -> None:
    with ExitStack() as idle:
        for _ in range(MAX_CONNECTIONS):
            idle.enter_context(connected(many))
        with connected(many, head("GET", "/healthz")) as link:
            answer = answer_to(link)
            assert (answer.status_code, answer.headers["connection"]) == (503, "close")
            is_hardened(answer)
    eventually(lambda: many.client.get("/healthz").status_code == 200)
    assert counted(many, "http_connections_total") >= 1


def test_guessing_tokens_is_limited_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    web = WebOfMany(tmp_path / "hub", settings="requests_per_second = 5\n")
    try:
        codes = [web.try_with(f"guess-{number}", "GET", "/subjects").status_code for number in range(100)]
        assert set(codes) == {401, 429}
        assert web.try_with(web.tokens["observe"], "GET", "/subjects").status_code == 200
        assert web.client.get("/healthz").status_code == 200
    finally:
        web.close()


def test_a_caller_that_asks_too_much_still_gets_its_probes_answered(tmp_path: Path) -> None:
    web = WebOfMany(tmp_path / "hub", settings="requests_per_second = 5\n")
    try:

        def status(path: str) -> int:
            return web.try_with(web.tokens["observe"], "GET", path).status_code

        assert 429 in [status("/subjects") for _ in range(100)]
        assert status("/healthz") == 200
        eventually(lambda: status("/readyz") == 200)  # the broker has less than a second to answer it
        assert 429 in [status("/healthz") for _ in range(100)]  # they have a limit too
    finally:
        web.close()


def test_what_is_not_a_command_is_written_down_too(many: WebOfMany) -> None:
    drained = many.ask("POST", "/api/v1/drain")
    refused = many.ask("PUT", "/config", {"compatibility": "NONE"})
    many.ask("DELETE", "/api/v1/drain")
    entries = {entry["request_id"]: entry for entry in many.audit()}
    assert (entries[drained.headers["x-request-id"]]["event"], refused.status_code) == ("changed", 503)
    noted = {"event": "refused", "who": "owner", "code": "503", "request": "PUT /config"}
    assert noted.items() <= entries[refused.headers["x-request-id"]].items()


async def event_stream(hub: MessageHub, directory: Path) -> AsyncIterator[str | bytes | memoryview]:
    """What `GET /api/v1/events` sends to an anonymous caller who may do everything."""
    callers = HttpAuthentication(AccessFile(directory / "access.json"), token=None, anonymous=ADMIN)
    caller.set(Caller("anonymous", ADMIN, ""))
    return aiter((await event_routes.events(BrokerClient(hub, callers), "channel/")).body_iterator)


def test_a_stream_whose_reader_is_behind_is_told_of_the_gap_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "MAX_EVENTS", 3)

    async def read(hub: MessageHub, peer: Peer) -> list[bytes]:
        """What the stream says after more events came than are remembered, while nobody read it, and after one more."""
        stream = await event_stream(hub, tmp_path)
        assert bytes(await anext(stream)).startswith(b": connected\n")
        heard: list[bytes] = []
        end = hub.tap(b"channel/", lambda event: heard.append(event) if event and b"BEACON" not in event else None)
        for number in range(1000):
            peer.ask({"type": "CHANNEL_CREATE", "channel": f"c{number}"})
            await asyncio.sleep(0.01)  # until events come at all, and are more than may wait
            if len(heard) > 5:
                break
        end()
        gap = bytes(await anext(stream))
        peer.ask({"type": "CHANNEL_CREATE", "channel": "last"})
        said = [gap, bytes(await anext(stream))]
        while b'"last"' not in said[-1]:
            said.append(bytes(await anext(stream)))
        return said

    with (
        checked_broker(**QUICK) as endpoint,
        Peer(endpoint) as peer,
        MessageHub(dir=tmp_path / "hub", endpoint=endpoint) as hub,
    ):
        gap, *later = asyncio.run(read(hub, peer))
    assert gap.startswith(b"event: gap\nid: ")
    assert gap.endswith(b"\ndata: {}\n\n")
    assert all(event.startswith((b"id: ", b"event: gap\n", b": alive")) for event in later)


def test_a_stream_shows_that_it_is_alive_though_only_beacons_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(hub: MessageHub) -> None:
        stream = await event_stream(hub, tmp_path)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await anext(stream) != b": alive\n\n":
                continue
        await stream.aclose()  # type: ignore[attr-defined]

    with (
        checked_broker(**QUICK | {"beacon_seconds": 0.1}) as endpoint,
        MessageHub(dir=tmp_path / "hub", endpoint=endpoint) as hub,
    ):
        beacons = threading.Semaphore(0)
        end = hub.tap(b"channel/", lambda event: beacons.release() if event and b"BEACON" in event else None)
        assert beacons.acquire(timeout=PATIENCE_SECONDS)  # they come from now on
        monkeypatch.setattr(event_routes, "KEEP_ALIVE_SECONDS", 1.0)
        asyncio.run(read(hub))
        end()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["host: HOST"], 200),
        (["host: localhost"], 200),
        (["host: [::1]:8081"], 200),
        (["host: HOST", "origin: http://HOST"], 200),
        (["host: evil.example:8081"], 401),
        (["host: 127.0.0.1.evil.example"], 401),
        (["host: HOST", "origin: https://evil.example"], 401),
        (["host: HOST", "origin: null"], 401),
        (["host: evil.example", "origin: http://evil.example"], 401),
        (["host: evil.example", "authorization: Bearer TOKEN"], 200),
        (["host: HOST", "origin: https://lab.example"], 200),
    ],
)
def test_a_web_page_cannot_use_what_its_visitor_may_without_a_token(
    local_web: Web, headers: list[str], status: int
) -> None:
    """By another name for this host (DNS rebinding), or from another origin: not even where no token is asked for."""
    request = "\r\n".join(("GET /subjects HTTP/1.1", *headers, "", ""))
    host = local_web.url.removeprefix("http://")
    with connected(local_web, request.replace("HOST", host).replace("TOKEN", local_web.token).encode()) as link:
        assert answer_to(link).status_code == status


def test_a_web_page_cannot_write_where_no_token_is_asked_for(tmp_path: Path) -> None:
    """What browsers send to other origins without asking first: a POST whose body has no type."""
    web = Web(tmp_path / "hub", "--http-open")
    try:
        lines = ("POST /api/v1/drain HTTP/1.1", f"host: {web.url.removeprefix('http://')}", "content-length: 0")
        for origin, status in (("https://evil.example", 401), (web.url, 200)):
            with connected(web, "\r\n".join((*lines, f"origin: {origin}", "", "")).encode()) as link:
                assert answer_to(link).status_code == status
    finally:
        web.close()


@pytest.fixture(scope="module")
def local_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Whoever is on this host may look; one other origin may too."""
    directory = tmp_path_factory.mktemp("local") / "hub"
    directory.mkdir(mode=0o700)
    (directory / "messagehub.toml").write_text('http_cors = "https://lab.example"\n')
    running = Web(directory)
    yield running
    running.close()
