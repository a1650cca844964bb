"""Authentication: libzmq asks here whether a peer may connect (ZAP), before anything of it reaches the broker.

Rule 1: who a peer is comes from the kernel (the user at the other end of an ipc socket) or from its CURVE key, never
from what it says of itself.
Rule 2: each socket asks with its own domain, since publishing needs other rights than reading.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

import zmq
from zmq.utils import z85

from messagehub.broker.instance_lock import InstanceLock
from messagehub.errors import BrokerAlreadyRunning, ConfigurationError
from messagehub.runtime.supervision import Supervisor
from messagehub.security.credentials import KeyPair, server_keys
from messagehub.security.private_files import private_umask
from messagehub.settings import Settings

log = logging.getLogger("messagehub.broker")

HANDSHAKE_MS = 5_000
REBIND_SECONDS = 2.0
TELL_SECONDS = 1.0
_LATER = (b"300", b"try again", b"")
"""With 300 libzmq closes the connection and the peer tries again; after 400 it would never try again."""
CONTROL, EVENTS = "control", "events"
TOPICS_IN, TOPICS_OUT, TOPICS_RETAINED = "topics_in", "topics_out", "topics_retained"
TOPICS_SITE, TOPICS_SITE_RETAINED, HUBS = "topics_site", "topics_site_retained", "hubs"
SERVICES_SITE = "services_site"
_WORDS = {2: "two", 3: "three"}
Context = zmq.Context[zmq.Socket[bytes]]
Identify = Callable[[str, str, str, str], str | None]
"""Takes domain, mechanism, peer address and public key, and returns the name of the peer, or None to refuse it."""


class TryAgainLater(Exception):
    """The peer is known, but must try again in a moment."""


class Authentication:
    """Binds the broker's sockets, with keys if the settings ask for them, and authenticates their peers."""

    def __init__(
        self, settings: Settings, place: InstanceLock, identify: Identify | None, supervisor: Supervisor | None = None
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._place = place
        self._identify = identify
        self._keys: KeyPair | None = server_keys(settings.keys_path) if settings.curve else None
        self._site_keys: KeyPair | None = server_keys(settings.keys_path) if settings.site else None
        self.hub_keys: frozenset[str] = frozenset()
        """The keys of the other hubs of the site."""

    @property
    def server_key(self) -> str:
        return self._keys.public if self._keys else ""

    def start(self, context: Context) -> None:
        """Authenticate every peer of the context's sockets from now on, until the context ends."""
        if self._identify is not None or self._site_keys is not None:
            handler = context.socket(zmq.REP)
            handler.setsockopt(zmq.LINGER, 0)
            handler.bind("inproc://zeromq.zap.01")
            self._supervisor.start("messagehub-authentication", partial(_answer, handler, self._name))

    def _name(self, domain: str, mechanism: str, address: str, key: str) -> str | None:
        """As `Identify`."""
        if domain == HUBS:
            if key not in self.hub_keys:
                raise TryAgainLater  # it may be published in a moment
            return HUBS
        return self._identify(domain, mechanism, address, key) if self._identify is not None else None

    def bind(
        self, socket: "zmq.Socket[bytes]", domain: str, endpoint: str, local: str = "", *, or_any_port: bool = False
    ) -> tuple[str, str]:
        """Bind the socket, and return its endpoint and the one for this host.

        In a hub with keys `local` is bound too; its peers need no key.
        """
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if self._identify is not None:
            socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        if self._keys is None:
            bound = self._bind(socket, endpoint, or_any_port)
            return bound, bound
        bound_locally = self._bind(socket, local, or_any_port)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret.encode())
        return self._bind(socket, endpoint, or_any_port), bound_locally

    def bind_for_hubs(self, socket: "zmq.Socket[bytes]", domain: str, endpoint: str, *, steps: int) -> str:
        """Bind a socket of this domain for the other hubs of the site too, and return its endpoint, which is so many
        ports above that of the hub.

        This comes after `bind`: in a hub without keys, what is bound afterwards would be for hubs only.
        """
        assert self._site_keys is not None
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.ZAP_DOMAIN, HUBS.encode())
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._site_keys.secret.encode())
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigurationError(
                f"cannot listen at {endpoint}, {_WORDS[steps]} ports above --site-endpoint, where other hubs hear the"
                f" topics of this one: {error.strerror}. Free that port, or choose another --site-endpoint"
            ) from None
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())  # for `rebind`
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def secure_for_hub(self, socket: "zmq.Socket[bytes]", key: str) -> None:
        """Have what the socket connects to next be a hub of the site that has this key."""
        assert self._site_keys is not None
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._site_keys.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._site_keys.secret.encode())
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())

    def _bind(self, socket: "zmq.Socket[bytes]", endpoint: str, or_any_port: bool) -> str:
        try:
            with private_umask():
                socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            if not (or_any_port and endpoint.startswith("tcp://")):
                raise BrokerAlreadyRunning(
                    f"{endpoint} is in use, perhaps by another broker: stop it or choose another --endpoint"
                ) from None
            socket.bind(f"{endpoint.rpartition(':')[0]}:0")
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._place.share(bound)
        return bound


def rebind(socket: "zmq.Socket[bytes]", endpoint: str) -> None:
    """End the TCP connections of a socket. Peers connect again by themselves, and are authenticated anew."""
    if not endpoint.startswith("tcp://"):
        return
    socket.unbind(endpoint)
    deadline = time.monotonic() + REBIND_SECONDS
    while True:
        socket.poll(1, zmq.POLLIN | zmq.POLLOUT)  # libzmq ends connections when the socket is used
        try:
            socket.bind(endpoint)
            return
        except zmq.ZMQError as error:
            if time.monotonic() > deadline:
                log.error("cannot listen on %s again: %s; start the hub anew", endpoint, error)
                return
        time.sleep(0.001)


def user_of(address: str) -> int | None:
    """Return the user at the other end of an ipc socket. The address is the kernel's: `localhost:UID:GID:PID`."""
    parts = address.split(":")
    return int(parts[1]) if len(parts) == 4 and parts[0] == "localhost" and parts[1].isdigit() else None


def _answer(handler: "zmq.Socket[bytes]", identify: Identify) -> None:
    tell_at = 0.0
    try:
        while True:
            asked = handler.recv_multipart()
            try:
                _, _, domain, address, _, mechanism, *credentials = asked
                key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
                user = identify(domain.decode(), mechanism.decode(), address.decode(), key)
                status = (b"200", b"OK", user.encode()) if user is not None else (b"400", b"not listed", b"")
            except TryAgainLater:
                status = _LATER
            except Exception:  # a defect must let nobody in, nor keep out other peers
                if time.monotonic() >= tell_at:
                    tell_at = time.monotonic() + TELL_SECONDS
                    log.exception("a peer cannot be authenticated, because of an internal error")
                status = _LATER
            handler.send_multipart([*asked[:2], *status, b""])
    except zmq.ContextTerminated:
        handler.close(0)
