"""The sockets between relays: a ROUTER for each process with workers, a DEALER for each connection to one.

Rule 1: all of them are encrypted, and watched by libzmq's own thread: it hears that a connection is lost, or silent.
Rule 2: none connects again by itself: what was on a connection is lost with it, and the caller has to know that.
"""

import zmq

from messagehub.security.credentials import KeyPair
from messagehub.services.between_hosts.link import Link
from messagehub.services.frames import MAX_FRAME_BYTES

HEARTBEAT_MS, SILENCE_MS = 1_000, 6_000
HANDSHAKE_MS = 5_000
LINGER_MS = 3_000
NEVER_MS = 2**31 - 1
UNREAD_MESSAGES = 16
"""How many messages of one caller libzmq has in memory: a stranger may send any number."""
_LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


def bound_router(context: Context, host: str, keys: KeyPair) -> tuple[Socket, str]:
    """Return a ROUTER at a free port, and its endpoint. Raise OSError if nothing can listen at that address."""
    router = _socket(context, zmq.ROUTER, keys)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.RCVHWM, UNREAD_MESSAGES)
    try:
        router.bind(f"tcp://{host}:*")
    except zmq.ZMQError as error:
        router.close(0)
        raise OSError(error.errno, error.strerror) from None
    return router, router.getsockopt_string(zmq.LAST_ENDPOINT)


class Dialled:
    """A link that this side began, with a DEALER of its own. `monitor` is readable when the connection is lost."""

    def __init__(self, link: Link, context: Context, endpoint: str, key: str, keys: KeyPair) -> None:
        """Raise ZMQError or ValueError for what is no endpoint, or no key."""
        self.link = link
        self.dealer = _socket(context, zmq.DEALER, keys)
        self.dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)  # with -1 libzmq discards what has come and was not read
        self.monitor: Socket = self.dealer.get_monitor_socket(_LOST)
        try:
            self.dealer.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
            self.dealer.connect(endpoint)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close()


def _socket(context: Context, kind: int, keys: KeyPair) -> Socket:
    made: Socket = context.socket(kind)
    made.setsockopt(zmq.LINGER, LINGER_MS)
    made.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES + 1)
    made.setsockopt(zmq.SNDHWM, 0)  # bounded by the windows of the links
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    made.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    made.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    made.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    made.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    return made
