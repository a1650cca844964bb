"""The connection with etcd that durable changes go by: what it does well it does itself, and all else ends it soon."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from messagehub.store.etcd import direct, messages
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient, StreamBroken
from messagehub.store.etcd.direct import DirectConnection, NotPlain, tls_context
from tests.etcd_server import EtcdMember, enable_authentication, etcd, key_values
from tests.site.test_etcd_store import certificates

SECONDS = 10.0


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd(1) as members:
        yield members[0]


@pytest.fixture
def connection(member: EtcdMember) -> Iterator[DirectConnection]:
    with contextlib.closing(DirectConnection(member.url, None)) as made:
        yield made


def put(key: str, value: bytes) -> bytes:
    request = messages.TxnRequest(success=[messages.put(key.encode(), value)])
    return bytes(request.SerializeToString())


def test_more_is_sent_over_time_than_fits_into_a_window(member: EtcdMember, connection: DirectConnection) -> None:
    for number in range(100):
        answer = connection.call(messages.TXN.path, put(f"many/{number}", b"x" * 30_000), "", SECONDS)
        assert answer is not None
        assert messages.TXN.response.FromString(answer).succeeded
    assert {len(value) for value in key_values(member, "many/").values()} == {30_000}


def test_a_request_that_is_larger_than_a_window_is_not_sent(member: EtcdMember, connection: DirectConnection) -> None:
    assert connection.call(messages.TXN.path, put("large", b"x" * 100_000), "", SECONDS) is None
    assert connection.call(messages.TXN.path, put("small", b"x"), "", SECONDS) is not None
    assert set(key_values(member, "large")) == set()


def test_large_transactions_are_carried_out_all_the_same(member: EtcdMember) -> None:
    client = EtcdClient(EtcdAccess(endpoints=(member.url,)))
    for size in (10, 200_000, 20):
        request = messages.TxnRequest(success=[messages.put(b"sized", b"x" * size)])
        assert client.commit(request).succeeded
        assert len(key_values(member, "sized")["sized"]) == size
    client.close()


def test_what_etcd_refuses_ends_the_connection(connection: DirectConnection) -> None:
    with pytest.raises(NotPlain):
        connection.call("/etcdserverpb.KV/Nothing", b"", "", SECONDS)


def test_changes_are_heard_in_order_until_the_stream_is_cancelled(member: EtcdMember) -> None:
    client = EtcdClient(EtcdAccess(endpoints=(member.url,)))
    stream = client.stream(messages.WATCH, messages.watch(b"watched", after=0))
    heard: list[bytes] = []
    ended = threading.Event()

    def listen() -> None:
        with contextlib.suppress(StreamBroken):
            for response in stream:
                heard.extend(event.kv.value for event in response.events)
        ended.set()

    listening = threading.Thread(target=listen)
    listening.start()
    values = [b"%d " % number + b"x" * 20_000 for number in range(50)]
    for value in values:
        client.commit(messages.TxnRequest(success=[messages.put(b"watched", value)]))
    deadline = time.monotonic() + SECONDS
    while len(heard) < len(values) and time.monotonic() < deadline:
        ended.wait(0.01)
    stream.cancel()
    assert ended.wait(SECONDS)
    listening.join(SECONDS)
    assert heard == values
    client.close()


def test_a_pause_of_etcd_is_waited_for_no_longer_than_asked(member: EtcdMember, connection: DirectConnection) -> None:
    assert connection.call(messages.TXN.path, put("before", b""), "", SECONDS) is not None
    member.pause()
    try:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.call(messages.TXN.path, put("paused", b""), "", 0.2)
        assert time.monotonic() - started < SECONDS
    finally:
        member.go_on()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\x08\x07\0\0\0\0\0" + b"\0" * 8])
def test_a_server_of_something_else_is_an_error_at_once(said: bytes) -> None:
    """One that hangs up, one of HTTP/1, and one that says GOAWAY."""
    with _server(lambda connection: connection.sendall(said)) as url:
        made = DirectConnection(url, None)
        with pytest.raises((OSError, NotPlain)):
            made.call(messages.TXN.path, put("k", b"v"), "", SECONDS)
        made.close()


@pytest.mark.parametrize(("seconds", "acknowledged"), [(3600.0, [0, 0, 0]), (0.0, [0, 1, 1])])
def test_a_ping_that_comes_with_an_answer_is_acknowledged_with_a_later_request(
    monkeypatch: pytest.MonkeyPatch, seconds: float, acknowledged: list[int]
) -> None:
    monkeypatch.setattr(direct, "PING_SECONDS", seconds)
    found: list[int] = []

    def serve(connection: socket.socket) -> None:
        frames = _frames(connection)
        for _ in acknowledged:
            found.append(_read_request(frames))
            connection.sendall(_frame(0, b"\0\0\0\0\1x", stream=2 * len(found) - 1) + _PING)
            connection.sendall(_frame(1, b"", flags=5, stream=2 * len(found) - 1))

    with _server(serve, reads=False) as url, contextlib.closing(DirectConnection(url, None)) as made:
        assert [made.call("/a", b"asked", "", SECONDS) for _ in acknowledged] == [b"x"] * len(acknowledged)
    assert found == acknowledged


def test_a_ping_on_a_stream_is_acknowledged_at_once() -> None:
    def serve(connection: socket.socket) -> None:
        frames = _frames(connection)
        _read_request(frames)
        connection.sendall(_PING)
        while not _is_acknowledgement(next(frames)):
            pass
        connection.sendall(_frame(0, b"\0\0\0\0\1x"))

    with _server(serve, reads=False) as url, contextlib.closing(DirectConnection(url, None)) as made:
        assert next(made.messages("/a", b"asked", "")) == b"x"


def test_user_and_password_over_tls(tmp_path: Path) -> None:
    certificates(tmp_path)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    trust = ssl.create_default_context(cafile=cert)
    trust.check_hostname = False
    (tmp_path / "password").write_text("right")
    with etcd(1, "--cert-file", str(cert), "--key-file", str(key), tls=trust) as (member,):
        token = enable_authentication(member, "hub", "right", "/messagehub/s/")
        trusting = tls_context(cert.read_bytes(), None, None)
        with contextlib.closing(DirectConnection(member.url, trusting)) as secure, pytest.raises(NotPlain):
            secure.call(messages.TXN.path, put("/messagehub/s/a", b"1"), "", SECONDS)
        with contextlib.closing(DirectConnection(member.url, trusting)) as secure:
            assert secure.call(messages.TXN.path, put("/messagehub/s/a", b"1"), token, SECONDS) is not None
        with pytest.raises(ssl.SSLError):
            DirectConnection(member.url, tls_context(None, None, None))


@contextlib.contextmanager
def _server(serve: Callable[[socket.socket], None], *, reads: bool = True) -> Iterator[str]:
    """The address of a server that reads what comes first, unless `serve` does, does this and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.settimeout(SECONDS)
                if reads:
                    accepted.recv(65_536)
                serve(accepted)

        serving = threading.Thread(target=run)
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        serving.join(SECONDS)


def _frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


_PING = _frame(6, b"measured", stream=0)


def _frames(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """Kind and flags of each frame that comes."""
    received = connection.makefile("rb")
    received.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    while head := received.read(9):
        received.read(int.from_bytes(head[:3], "big"))
        yield head[3], head[4]


def _is_acknowledgement(frame: tuple[int, int]) -> bool:
    return frame == (6, 1)


def _read_request(frames: Iterator[tuple[int, int]]) -> int:
    """Read until the end of a request, and return how many PINGs were acknowledged meanwhile."""
    count = 0
    for kind, flags in frames:
        count += _is_acknowledgement((kind, flags))
        if kind == 0 and flags & 1:
            break
    return count
