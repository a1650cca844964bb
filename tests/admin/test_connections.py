"""What never becomes a request is answered as everything is, and costs nobody else anything."""

import contextlib
import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from messagehub.admin.api.events import MAX_STREAMS
from messagehub.admin.connections import (
    BODY_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    MAX_REQUEST_BYTES,
    MAX_TOLD,
    READ_SECONDS,
)
from tests.admin.conftest import Web
from tests.integration.harness import eventually

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
POST = b"POST /subjects/there HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with closing(Web(tmp_path_factory.mktemp("connections") / "hub")) as running:
        yield running


def connected(web: Web, *, buffer: int = 0) -> socket.socket:
    host, port = web.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    return connection


def answered(connection: socket.socket) -> tuple[int, dict[str, str], dict[str, object]]:
    """Status, headers and body of the one answer, after which the connection ends."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return int(status.split()[1]), headers, json.loads(body)


def asked(web: Web, data: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    with connected(web) as connection:
        connection.sendall(data)
        return answered(connection)


def metric(web: Web, name: str) -> float:
    text = web.ask("GET", "/metrics").text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name)))


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nno colon here\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET http://localhost HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=["tls", "bytes-in-path", "no-colon", "two-lengths", "version", "connect", "url", "chunk", "no-path"],
)
def test_what_is_not_http_is_answered_in_our_form(web: Web, garbage: bytes) -> None:
    status, headers, body = asked(web, garbage)
    assert (status, body["error_code"]) == (400, 400)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]


@pytest.mark.parametrize("path", [b"/healthz", b"/no/such/path"])
def test_an_answer_of_a_known_length_comes_whole(web: Web, path: bytes) -> None:
    """In one write: whoever waits for it is not woken by its head alone."""
    with connected(web) as connection:
        for _ in range(50):
            connection.sendall(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
            head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"
            assert body


def test_the_answer_to_head_is_a_head(web: Web) -> None:
    with connected(web) as connection:
        for _ in range(2):
            connection.sendall(b"HEAD /schemas/types HTTP/1.1\r\nhost: localhost\r\n\r\n")
            head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ")
            assert not body


def test_a_head_that_is_too_large_is_refused(web: Web) -> None:
    before = metric(web, "messagehub_http_large_requests_total")
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: "
    status, _, body = asked(web, head + b"a" * (MAX_HEAD_BYTES + 1 - len(head)))
    assert (status, body["error_code"]) == (431, 431)
    assert str(MAX_HEAD_BYTES) in str(body["message"])
    assert metric(web, "messagehub_http_large_requests_total") == before + 1


def test_a_body_without_end_is_refused_and_then_hung_up_on(web: Web) -> None:
    before = metric(web, "messagehub_http_large_requests_total")
    chunk = b"%x\r\n%s\r\n" % (1 << 18, b"a" * (1 << 18))
    with connected(web) as connection:
        connection.sendall(POST + b"transfer-encoding: chunked\r\n\r\n" + 5 * chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 422")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(chunk * (4 * MAX_REQUEST_BYTES // len(chunk)))
    assert metric(web, "messagehub_http_large_requests_total") == before + 1


def test_requests_that_follow_each_other_are_counted_each(web: Web) -> None:
    """More than a head may have, in many requests over one connection, some of them in one piece."""
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-pad: " + b"a" * 10_000 + b"\r\n\r\n"
    with connected(web) as connection:
        for data in (one, 3 * one, one[:5000], one[5000:] + 4 * one):
            connection.sendall(data)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 9:
            chunk = connection.recv(65536)
            assert chunk, received[-500:]
            received += chunk


def test_a_head_that_means_nothing_is_not_answered_in_the_place_of_a_request_before_it(web: Web) -> None:
    with connected(web) as connection:
        connection.sendall(HEALTH.replace(b"close", b"keep-alive") + b"GET http://localhost HTTP/1.1\r\n\r\n")
        assert b" 400 " not in connection.recv(65536)


def test_a_body_that_comes_after_its_answer_is_not_late(web: Web) -> None:
    before = metric(web, "messagehub_http_slow_bodies_total")
    with connected(web) as connection:
        connection.sendall(POST + b"authorization: Bearer wrong\r\ncontent-length: 2\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(65536)
        assert b" 401 " in received
        connection.sendall(b"{}")
        connection.settimeout(BODY_SECONDS + 1)
        with pytest.raises(TimeoutError):
            connection.recv(65536)  # nothing comes, and it stays open
        connection.sendall(HEALTH)
        assert answered(connection)[0] == 200
    assert metric(web, "messagehub_http_slow_bodies_total") == before


def test_a_stream_ends_with_its_connection_also_when_more_was_asked_for(web: Web) -> None:
    listening = (
        f"GET /api/v1/events?prefix=schema/ HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {web.token}\r\n"
    )

    def has_room() -> bool:
        with connected(web) as connection:
            connection.sendall(listening.encode() + b"\r\n")
            return b" 200 " in connection.recv(65536)

    with ExitStack() as listeners:
        for _ in range(MAX_STREAMS // 2):
            connection = listeners.enter_context(connected(web))
            connection.sendall(listening.encode() + b"\r\n")
            assert b" 200 " in connection.recv(65536)
            connection.sendall(HEALTH)
        assert not has_room()
    numbers = itertools.count()

    def has_room_after_an_event() -> bool:
        """Nothing more is read of such a connection, so that it is gone is noticed when something is sent."""
        assert web.register(f"event-{next(numbers)}", {"type": "object"}).status_code == 200
        return has_room()

    eventually(has_room_after_an_event)


def test_so_many_requests_wait_for_one_before_them_and_no_more(web: Web) -> None:
    before = metric(web, "messagehub_http_malformed_total")
    asking = b"GET / HTTP/1.1\r\n\r\n"
    listening = f"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {web.token}\r\n\r\n"
    with connected(web) as connection:
        connection.sendall(listening.encode())
        assert b" 200 " in connection.recv(65536)
        connection.sendall(asking * (MAX_PIPELINED + 100))  # little enough to be read at once
        eventually(lambda: metric(web, "messagehub_http_malformed_total") == before + 1)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(65536):
                continue


def test_an_answer_that_nobody_reads_does_not_keep_its_connection(web: Web) -> None:
    """Also one that the kernel takes from us: what is left of it would be in the way of closing."""
    before = metric(web, "messagehub_http_slow_readers_total")
    with connected(web, buffer=2048) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        eventually(lambda: metric(web, "messagehub_http_slow_readers_total") == before + 1, timeout=3 * READ_SECONDS)
        with pytest.raises(ConnectionResetError), connection.makefile("rb") as answer:
            answer.read()


def test_too_many_connections_are_refused_while_the_first_are_served(tmp_path: Path) -> None:
    with closing(Web(tmp_path / "hub")) as web, ExitStack() as stack:
        assert web.client.get("/healthz").status_code == 200  # its connection stays
        for _ in range(MAX_CONNECTIONS - 1):
            stack.enter_context(connected(web))
        status, headers, body = asked(web, HEALTH)
        assert (status, body["error_code"]) == (503, 503)
        assert headers["x-frame-options"] == "deny"
        assert web.client.get("/healthz").status_code == 200
        assert metric(web, "messagehub_http_connections_total") == 1
        for _ in range(MAX_TOLD):
            stack.enter_context(connected(web))
        with connected(web) as one_more, contextlib.suppress(ConnectionResetError):
            assert one_more.recv(1) == b""
        assert metric(web, "messagehub_http_connections_total") == 2
        stack.close()
        eventually(lambda: asked(web, HEALTH)[0] == 200)
