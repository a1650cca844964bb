"""Opens a session with a broker by the best transport that reaches it; nobody else knows which one that is."""

from collections.abc import Callable

from messagehub.client.event_socket import Context
from messagehub.client.local_session import LocalSession, NoLocalSocket
from messagehub.client.session import Session
from messagehub.client.zmq_session import connected
from messagehub.errors import HubError
from messagehub.security.credentials import ClientKeys
from messagehub.settings import local_socket_of


def open_session(
    endpoint: str,
    context: Callable[[], Context],
    *,
    transport: str,
    deadline: float,
    handshake_deadline: float | None,
    hello_id: str,
    keys: ClientKeys | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Session:
    """Return a session; by the local socket where there is one, else (an older hub, TCP) by ZeroMQ.

    Raises BrokerUnavailable or Unauthorized, at the deadline at the latest. `context` is called if ZeroMQ is needed.
    """
    local = local_socket_of(endpoint) if transport == "auto" else None

    def by_local_socket() -> Session | None:
        if local is None:
            return None
        try:
            return LocalSession(
                local,
                endpoint,
                deadline=deadline,
                handshake_deadline=handshake_deadline,
                hello_id=hello_id,
                is_cancelled=is_cancelled,
            )
        except NoLocalSocket:
            return None

    session = by_local_socket()
    if session is not None:
        return session
    by_zmq = connected(
        context(),
        endpoint,
        deadline=deadline,
        handshake_deadline=handshake_deadline,
        hello_id=hello_id,
        keys=keys,
        is_cancelled=is_cancelled,
    )
    try:
        session = by_local_socket()  # a broker that was still starting listens there by now, since it has answered
    except HubError:
        return by_zmq  # which is better than none
    if session is None:
        return by_zmq
    by_zmq.close()
    return session
