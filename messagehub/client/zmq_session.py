"""A session over ZeroMQ: a DEALER for requests and a SUB for events, by ipc or TCP, with or without keys.

libzmq does not reconnect the DEALER behind our back: see rule 1 of `session`.
"""

import socket
import time
from collections.abc import Callable

import zmq

from messagehub import protocol
from messagehub.client.event_socket import Context, EventSocket
from messagehub.client.session import EventSource, say_hello
from messagehub.client.socket_monitor import next_event
from messagehub.errors import BrokerUnavailable, HubError, InternalError, Unauthorized
from messagehub.security.credentials import ClientKeys
from messagehub.shm.locks import check_spare_files
from registry import replies

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED | _REFUSED
_SHAKEN = zmq.EVENT_HANDSHAKE_SUCCEEDED
# The peer speaks ZeroMQ and wants another mechanism, or our keys are wrong; other flaws are those of a stranger's port.
_SECURITY_FLAWS = (
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH,
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC,
    zmq.PROTOCOL_ERROR_ZMTP_INVALID_METADATA,
)
SESSION_FILES = 20
"""How many descriptors a session takes at most: two sockets with their monitors, and libzmq's own threads."""
PROBE_SECONDS = 1.0
# The begin of a ZMTP 3.1 greeting: signature and version. The mechanism follows, and the peer says its own by then.
_GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x01"
# pyzmq's flags are enums; combining them costs as much as a frame.
_NOBLOCK = int(zmq.NOBLOCK)
_MORE_NOBLOCK = int(zmq.SNDMORE) | _NOBLOCK
_RCVMORE = int(zmq.RCVMORE)


class ZmqSession:
    has_received = has_events = False

    def __init__(
        self,
        context: Context,
        endpoint: str,
        *,
        deadline: float,
        hello_id: str,
        keys: ClientKeys | None = None,
        handshake_deadline: float | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect and say HELLO; raises BrokerUnavailable or Unauthorized, at the deadline at the latest.

        libzmq's own thread shakes hands, however busy the broker is: `handshake_deadline` tells soon that a process is
        stopped or a host is gone, and leaves a busy one its time to answer.
        """
        self.endpoint = endpoint
        self._is_greeted = self._is_shaken = False
        self._keys = keys
        self._has_keys = keys is not None and bool(keys.server)
        self._context = context
        check_spare_files(SESSION_FILES)
        self.dealer = _dealer(context, keys)
        self.dealer.setsockopt(zmq.SNDHWM, 0)  # what is in flight is bounded by who asks: thousands of registrations
        self.dealer.setsockopt(zmq.RCVHWM, 0)  # are said again at once after a restart
        self.monitor = self.dealer.get_monitor_socket(_LOST | _SHAKEN)
        self._seen: list[tuple[int, int]] = []
        self._poller = zmq.Poller()
        self._poller.register(self.dealer, zmq.POLLIN)
        self._poller.register(self.monitor, zmq.POLLIN)
        try:
            self.dealer.connect(endpoint)
            shaken_by = deadline if handshake_deadline is None else min(deadline, handshake_deadline)
            self.hello = say_hello(self, hello_id, deadline, shaken_by, is_cancelled)
            self._is_greeted = True
            self.stream: EventSource = EventSocket(context, self.hello.endpoints.get("events", ""), keys)
        except zmq.ZMQError as error:
            self.close()
            raise BrokerUnavailable(f"cannot connect to {endpoint}: {error}", endpoint=endpoint) from None
        except BaseException:
            self.close()
            raise

    @property
    def is_there(self) -> bool:
        return self._is_shaken

    def is_running(self, deadline: float) -> bool:
        """Shake hands once more: libzmq answers for a process even when its own thread is busy."""
        return _shakes_hands(self._context, self.endpoint, deadline=deadline, keys=self._keys)

    def also_poll(self, fd: int) -> None:
        self._poller.register(fd, zmq.POLLIN)

    def pollables(self) -> list[object]:
        return [self.dealer, self.monitor]

    def lend(self) -> None:
        """Events have a socket of their own, and the I/O thread waits for that one only."""

    def take_back(self) -> bool:
        return False

    def abandon(self) -> None:
        """A child process must not touch the parent's sockets, not even by collecting them as garbage."""

    def send(self, payload: bytes) -> None:
        try:
            self.dealer.send(b"", _MORE_NOBLOCK)
            self.dealer.send(payload, _NOBLOCK)
        except zmq.Again:
            raise self._lost() from None

    def poll(self, deadline: float) -> bool:
        remaining = deadline - time.monotonic()
        return bool(self._poller.poll(int(remaining * 1000) + 1 if remaining > 0 else 0))

    def receive_one(self) -> replies.AnyReply | None:
        try:
            frame = self.dealer.recv(_NOBLOCK)
            while self.dealer.get(_RCVMORE):
                frame = self.dealer.recv(_NOBLOCK)
        except zmq.Again:
            return None
        try:
            return protocol.decode_reply(frame)
        except InternalError as unreadable:  # whoever answers so is no broker
            raise BrokerUnavailable(unreadable.message, endpoint=self.endpoint) from None

    def check_lost(self) -> None:
        self._watch()
        if self._seen:
            raise self._lost()

    def close(self) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close(0)

    def _watch(self) -> None:
        """Note what the monitor says."""
        while self.monitor.poll(0):
            event, value = next_event(self.monitor)
            if event == _SHAKEN:
                self._is_shaken = True
            else:
                self._seen.append((event, value))

    def _lost(self) -> HubError:
        self._watch()
        if not self._is_greeted:
            if (refusal := self._refusal()) is not None:
                return Unauthorized(refusal, endpoint=self.endpoint)
            return BrokerUnavailable(f"no broker answers at {self.endpoint}", endpoint=self.endpoint)
        return BrokerUnavailable(f"the connection to the broker at {self.endpoint} is lost", endpoint=self.endpoint)

    def _refusal(self) -> str | None:
        """Why the broker did not let us in, if that is why it is gone."""
        for event, value in self._seen:
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return f"the broker at {self.endpoint} does not list this client's key"
            if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value not in _SECURITY_FLAWS:
                continue  # who listens there does not speak ZeroMQ
            if event & _REFUSED:
                if not self._has_keys:
                    if not _wants_keys(self.endpoint):
                        continue  # a stranger, who hung up on us
                    return f"the broker at {self.endpoint} takes only peers with keys: name yours with key_file"
                return (
                    f"the broker at {self.endpoint} did not complete the handshake:"
                    " server_key is not its public key, or it takes no keys there"
                )
        return None


def _dealer(context: Context, keys: ClientKeys | None) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    if keys is not None:
        keys.secure(dealer)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.RECONNECT_IVL, -1)
    return dealer


def _shakes_hands(context: Context, endpoint: str, *, deadline: float, keys: ClientKeys | None) -> bool:
    """Return whether the process there runs: libzmq answers for it even when its own thread is busy."""
    dealer = _dealer(context, keys)
    monitor = dealer.get_monitor_socket(_LOST | _SHAKEN)
    try:
        dealer.connect(endpoint)
        remaining = max(deadline - time.monotonic(), 0.0)
        return bool(monitor.poll(int(remaining * 1000) + 1)) and next_event(monitor)[0] == _SHAKEN
    except zmq.ZMQError:
        return False
    finally:
        dealer.disable_monitor()
        monitor.close(0)
        dealer.close(0)


def connected(
    context: Context,
    endpoint: str,
    *,
    deadline: float,
    hello_id: str,
    keys: ClientKeys | None = None,
    handshake_deadline: float | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> ZmqSession:
    """Connect, a second time after a refusal: a broker that dies during the handshake looks like one that refuses."""

    def connect() -> ZmqSession:
        return ZmqSession(
            context,
            endpoint,
            deadline=deadline,
            hello_id=hello_id,
            keys=keys,
            handshake_deadline=handshake_deadline,
            is_cancelled=is_cancelled,
        )

    try:
        return connect()
    except Unauthorized:
        return connect()


def _wants_keys(endpoint: str) -> bool:
    """Whether a ZeroMQ peer with keys listens there. libzmq hangs up on us without a word, and so do strangers; but a
    ZeroMQ peer first says in its greeting which mechanism it wants."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    deadline = time.monotonic() + PROBE_SECONDS
    greeting = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS) as probe:
            probe.sendall(_GREETING)
            while len(greeting) < 32 and (left := deadline - time.monotonic()) > 0:
                probe.settimeout(left)
                part = probe.recv(64)
                if not part:
                    break
                greeting += part
    except (OSError, ValueError):
        return False
    return greeting[:1] == b"\xff" and greeting[9:10] == b"\x7f" and greeting[12:32].rstrip(b"\0") == b"CURVE"
