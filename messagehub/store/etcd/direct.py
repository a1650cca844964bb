"""One connection with a member of etcd for one gRPC call at a time: that which every durable change waits for.

grpcio hands a call to threads of its own and back, which takes longer than etcd does. Here the thread that asks writes
to the socket and reads from it: gRPC over HTTP/2 (RFC 9113), as far as a call that goes well needs it.

Rule 1: a call that goes well ends with a message, and nothing else is understood. Whatever else comes raises NotPlain
or OSError and ends the connection: the caller asks again through grpcio, which says what is wrong.
Rule 2: received headers are not looked at. A gRPC server sends a message only if the method has succeeded.
Rule 3: every wait of `call` has a deadline. `messages` waits for ever, until another thread calls `cancel`.
Rule 4: a PING that comes while calls are made is acknowledged with a request, PING_SECONDS later at the earliest. A
gRPC server sends one with each answer, to measure the connection, unless one of them is not acknowledged yet: so each
call would be two packets more both ways, and one wake-up of this thread and one of the server more.
"""

import socket
import ssl
import struct
from collections.abc import Iterator
from time import monotonic
from urllib.parse import urlsplit

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_PADDED = 8
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE = 1, 2, 4
_FRAME_HEAD, _MESSAGE_HEAD = 9, 5
_FRAME_BYTES = 16_384
"""The largest frame that every server takes."""
_FIRST_WINDOW = 65_535
_WINDOW = 2**31 - 1
_CONNECT_SECONDS = 1.0
PING_SECONDS = 1.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))
"""A host that is gone without a word is noticed after so many seconds, on a connection that nobody writes to."""
_LAST_STREAM = 2**31 - 3
_RECEIVED_AT_ONCE = 1 << 16
_LENGTH, _SETTING = struct.Struct(">I"), struct.Struct(">HI")


class NotPlain(Exception):
    """What came is no answer of a call that goes well."""


class DirectConnection:
    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        """Connect; raise OSError or NotPlain."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        made: socket.socket = socket.create_connection((parts.hostname, parts.port or 0), _CONNECT_SECONDS)
        self._socket = made
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
            if tls is not None:
                self._socket = made = tls.wrap_socket(made, server_hostname=parts.hostname)
                if made.selected_alpn_protocol() != "h2":
                    raise NotPlain("no HTTP/2")
            self._scheme = b"\x87" if tls is not None else b"\x86"
            self._authority = parts.netloc.encode()
            self._heads: dict[tuple[str, str], bytes] = {}
            self._received = bytearray()
            self._stream = -1
            self._to_send = self._window_of_stream = _FIRST_WINDOW
            self._unacknowledged = 0
            self._pings = b""
            """Acknowledgements of PINGs, to be sent from `_answer_pings_at` on."""
            self._answer_pings_at = 0.0
            settings = ((_HEADER_TABLE_SIZE, 0), (_ENABLE_PUSH, 0), (_INITIAL_WINDOW_SIZE, _WINDOW))
            made.sendall(
                _PREFACE
                + _frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings))
                + _frame(_WINDOW_UPDATE, 0, 0, _LENGTH.pack(_WINDOW - _FIRST_WINDOW))
            )
        except BaseException:
            made.close()
            raise

    def call(self, path: str, request: bytes, token: str, seconds: float) -> bytes | None:
        """Return the message that answers; None, with nothing sent, if the request is larger than may be sent at once.

        After an exception the connection is of no use any more.
        """
        deadline = monotonic() + seconds
        self._take_waiting()
        if not self._send(path, request, token):
            return None
        message = bytearray()
        while True:
            kind, flags, payload = self._next(deadline)
            if kind == _DATA:
                message += payload
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                break
        self._replenish(of_stream=False)
        if len(message) < _MESSAGE_HEAD or message[0] or _LENGTH.unpack_from(message, 1)[0] != len(message) - 5:
            raise NotPlain("no single message")
        return bytes(memoryview(message)[_MESSAGE_HEAD:])

    def messages(self, path: str, request: bytes, token: str) -> Iterator[bytes]:
        """Give the messages that answer, until the connection ends or `cancel`: then it raises."""
        if not self._send(path, request, token):
            raise NotPlain("a large request")
        pending = bytearray()
        while True:
            kind, flags, payload = self._next(None)
            if kind == _DATA:
                pending += payload
                self._replenish(of_stream=True)
                while len(pending) >= _MESSAGE_HEAD:
                    end = _MESSAGE_HEAD + _LENGTH.unpack_from(pending, 1)[0]
                    if pending[0]:
                        raise NotPlain("a compressed message")
                    if len(pending) < end:
                        break
                    yield bytes(memoryview(pending)[_MESSAGE_HEAD:end])
                    del pending[:end]
            if flags & _END_STREAM and kind in (_DATA, _HEADERS):
                raise NotPlain("the stream has ended")

    def cancel(self) -> None:
        """Have whoever waits for `messages` get an exception. From any thread."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # that of TLS would have the reader go on without it
        except OSError:
            return  # it has ended

    def close(self) -> None:
        self._socket.close()

    # -- sending -------------------------------------------------------------------------------------------

    def _send(self, path: str, request: bytes, token: str) -> bool:
        size = _MESSAGE_HEAD + len(request)
        if size > min(self._to_send, self._window_of_stream):
            return False
        if self._stream >= _LAST_STREAM:
            raise NotPlain("all streams of the connection are used up")
        self._stream += 2
        self._to_send -= size
        head = self._heads.get((path, token))
        if head is None:
            self._heads = {(path, token): (head := self._head(path, token))}
        body = b"\0" + _LENGTH.pack(len(request)) + request
        frames = [self._due_pings(), _frame(_HEADERS, _END_HEADERS, self._stream, head)]
        for start in range(0, size, _FRAME_BYTES):
            is_last = start + _FRAME_BYTES >= size
            frames.append(_frame(_DATA, _END_STREAM * is_last, self._stream, body[start : start + _FRAME_BYTES]))
        self._socket.sendall(b"".join(frames))
        return True

    def _due_pings(self) -> bytes:
        if not self._pings or monotonic() < self._answer_pings_at:
            return b""
        due, self._pings = self._pings, b""
        return due

    def _head(self, path: str, token: str) -> bytes:
        """Return the headers of a request (RFC 7541), by numbers of its static table where there are some."""
        post, named_path, named_authority, named_content_type = b"\x83", b"\x04", b"\x01", b"\x0f\x10"
        head = post + self._scheme + named_path + _text(path.encode()) + named_authority + _text(self._authority)
        head += named_content_type + _text(b"application/grpc") + b"\0" + _text(b"te") + _text(b"trailers")
        return head + (b"\0" + _text(b"token") + _text(token.encode()) if token else b"")

    # -- receiving -----------------------------------------------------------------------------------------

    def _take_waiting(self) -> None:
        """Take what came while nobody called, such as a ping or the end of the connection."""
        self._socket.settimeout(0.0)
        try:
            while True:
                self._receive()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            self._socket.settimeout(_CONNECT_SECONDS)
        while (frame := self._frame_received()) is not None:
            self._handle(*frame)

    def _next(self, deadline: float | None) -> tuple[int, int, bytes]:
        """Return the next frame of the current stream: its kind, flags and payload."""
        while True:
            while (frame := self._frame_received()) is None:
                if deadline is None:
                    self._socket.settimeout(None)
                elif (left := deadline - monotonic()) > 0:
                    self._socket.settimeout(left)
                else:
                    raise TimeoutError("no answer in time")
                self._receive()
            is_of_stream = self._handle(*frame)
            if deadline is None and self._pings:  # nothing else may ever be sent here
                pings, self._pings = self._pings, b""
                self._socket.sendall(pings)
            if is_of_stream:
                kind, flags, _, payload = frame
                return kind, flags, payload

    def _receive(self) -> None:
        data = self._socket.recv(_RECEIVED_AT_ONCE)
        if not data:
            raise ConnectionResetError("the connection has ended")
        self._received += data

    def _frame_received(self) -> tuple[int, int, int, bytes] | None:
        received = self._received
        if len(received) < _FRAME_HEAD:
            return None
        end = _FRAME_HEAD + int.from_bytes(received[:3], "big")
        if len(received) < end:
            return None
        kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9], "big")
        payload = bytes(memoryview(received)[_FRAME_HEAD:end])
        del received[:end]
        return kind, flags, stream, payload

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> bool:
        """Do what a frame asks for, and return whether it is one of the current stream's."""
        if kind == _DATA:
            self._unacknowledged += len(payload)
            if flags & _PADDED:
                raise NotPlain("padding")
        elif kind == _PING and not flags & _ACK:
            if not self._pings:
                self._answer_pings_at = monotonic() + PING_SECONDS
            self._pings += _frame(_PING, _ACK, 0, payload)
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in _SETTING.iter_unpack(payload):
                if name == _INITIAL_WINDOW_SIZE:
                    self._window_of_stream = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _WINDOW_UPDATE and not stream:
            self._to_send += _LENGTH.unpack(payload)[0]
        elif kind == _GOAWAY or (kind == _RESET and stream == self._stream):
            raise NotPlain("the server ends it")
        return stream == self._stream and kind in (_DATA, _HEADERS)

    def _replenish(self, *, of_stream: bool) -> None:
        """Let the server send on, on this connection and on a stream that lasts."""
        if self._unacknowledged > _WINDOW // 2:
            more = _LENGTH.pack(self._unacknowledged)
            on_stream = _frame(_WINDOW_UPDATE, 0, self._stream, more) if of_stream else b""
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, 0, more) + on_stream)
            self._unacknowledged = 0


def tls_context(ca: bytes | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.decode() if ca else None)
    context.set_alpn_protocols(["h2"])
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _LENGTH.pack(len(payload))[1:] + bytes((kind, flags)) + _LENGTH.pack(stream) + payload


def _text(value: bytes) -> bytes:
    """Return a string of a header: its length in bits of 7 (RFC 7541, 5.1), and its bytes."""
    length = len(value)
    if length < 127:
        return bytes([length]) + value
    coded, length = bytearray([127]), length - 127
    while length >= 128:
        coded.append(length & 127 | 128)
        length >>= 7
    coded.append(length)
    return bytes(coded) + value
