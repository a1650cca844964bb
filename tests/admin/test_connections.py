"""What never becomes a request is answered as everything is, and costs nobody else anything."""

import contextlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from messagehub.admin.connections import MAX_CONNECTIONS, MAX_HEAD_BYTES, MAX_REQUEST_BYTES, MAX_TOLD
from tests.admin.conftest import Web
from tests.integration.harness import eventually

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
POST = b"POST /subjects/there HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with closing(Web(tmp_path_factory.mktemp("connections") / "hub")) as running:
        yield running


def connected(web: Web) -> socket.socket:
    host, port = web.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 30)


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
    ],
    ids=["tls", "bytes-in-path", "no-colon", "two-lengths", "version", "connect", "url", "chunk"],
)
def test_what_is_not_http_is_answered_in_our_form(web: Web, garbage: bytes) -> None:
    status, headers, body = asked(web, garbage)
    assert (status, body["error_code"]) == (400, 400)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]


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
