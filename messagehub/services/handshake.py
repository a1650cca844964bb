"""How a caller and a worker meet: both prove that they know the worker's key before a request is sent."""

import socket
from collections.abc import Callable
from time import monotonic

from messagehub.errors import RouteError, SendTimeout
from messagehub.protocol.stream_frames import LENGTH, Frames, NotAFrame
from messagehub.services.between_hosts.relay import HostRelay
from messagehub.services.frames import (
    ANSWER,
    CALL,
    CHALLENGE,
    GREETING,
    MAX_GREETING_BYTES,
    SCHEME,
    WELCOME,
    Challenge,
    Greeting,
    Proof,
    challenge,
    decode_challenge,
    decode_greeting,
    decode_proof,
    greeting,
    is_proof,
    key_id,
    new_nonce,
    proof_of,
)
from messagehub.services.server_connections import ServerConnection
from messagehub.shm.locks import open_files_limited
from registry.records import Worker

REACH_SECONDS, REACH_ONE_SECONDS = 2.0, 5.0
"""How long a worker of another host has to greet: where another one may be tried, and where there is none."""

# -- the caller's side -------------------------------------------------------------------------------------


def connect(worker: Worker, sender: str, deadline: float) -> socket.socket:
    """Return a connection on which requests may be sent, as `sender`; or raise SendTimeout or RouteError."""
    where = {"endpoint": worker.endpoint, "worker_id": worker.worker_id}
    if not worker.endpoint.startswith(SCHEME):
        raise RouteError(f"worker {worker.worker_id!r} is at {worker.endpoint!r}, which cannot be reached", **where)
    with open_files_limited():
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(max(deadline - monotonic(), 0.001))
        connection.connect("\0" + worker.endpoint.removeprefix(SCHEME))
        _shake_hands(connection, worker, sender, deadline)
        connection.setblocking(False)
    except TimeoutError:
        connection.close()
        raise SendTimeout(f"worker {worker.worker_id!r} did not take the connection in time", **where) from None
    except (OSError, ValueError, RecursionError, NotAFrame) as error:
        connection.close()
        raise RouteError(f"worker {worker.worker_id!r} cannot be reached: {error}", **where) from None
    except BaseException:
        connection.close()
        raise
    return connection


def _shake_hands(connection: socket.socket, worker: Worker, sender: str, deadline: float) -> None:
    """Prove that the registry sent us, after the worker has proven that it is the one that registered.

    Anybody may listen under the name of a worker that has ended: without its key nobody learns anything from us.
    """
    frames = Frames(ANSWER, MAX_GREETING_BYTES)
    nonce = new_nonce()
    connection.settimeout(max(deadline - monotonic(), 0.001))
    connection.sendall(greeting(Greeting(worker.worker_id, key_id(worker.key), sender, nonce)))
    said = decode_challenge(_next_frame(connection, frames, CHALLENGE, deadline)[ANSWER.size :])
    if not is_proof(said.proof, proof_of("worker", worker.key, nonce, said.nonce)):
        raise NotAFrame("another has its place")
    connection.sendall(greeting(Proof(proof_of("caller", worker.key, nonce, said.nonce))))
    _next_frame(connection, frames, WELCOME, deadline)


def _next_frame(connection: socket.socket, frames: Frames, form: int, deadline: float) -> bytes:
    """One frame of this form. Nothing follows it before we say something."""
    while True:
        connection.settimeout(max(deadline - monotonic(), 0.001))
        data = connection.recv(MAX_GREETING_BYTES)
        if not data:
            raise NotAFrame("it does not know us: another has its place")
        found = frames.feed(data)
        if found:
            if len(found) > 1 or found[0][LENGTH] != form:
                raise NotAFrame("it speaks something else")
            return found[0]
        if monotonic() >= deadline:
            raise TimeoutError


def connect_elsewhere(
    worker: Worker, sender: str, deadline: float, *, is_only: bool, host: str, relay: HostRelay
) -> socket.socket:
    """As `connect`, to a worker of another host, the only one of its address or not; `host` is the name of this one."""
    endpoint, key = worker.tcp_endpoint or "", worker.tcp_key or ""
    where = {"endpoint": endpoint, "worker_id": worker.worker_id, "host": worker.host, "from_host": host}
    said = f"worker {worker.worker_id!r} on host {worker.host!r} cannot be reached from host {host!r} at {endpoint}"
    until = min(deadline, monotonic() + (REACH_ONE_SECONDS if is_only else REACH_SECONDS))
    connection, link = relay.dial(endpoint, key)
    try:
        _shake_hands(connection, worker, sender, until)
        connection.setblocking(False)
    except TimeoutError:
        connection.close()
        kind = SendTimeout if until == deadline else RouteError
        raise kind(
            f"{said}: it does not answer. Is the link up, and does a firewall let it through?", **where
        ) from None
    except (OSError, ValueError, RecursionError, NotAFrame) as error:
        connection.close()
        raise RouteError(f"{said}: {link.why or error}", **where) from None
    except BaseException:
        connection.close()
        raise
    return connection


# -- the worker's side -------------------------------------------------------------------------------------


def challenge_caller(caller: ServerConnection, frame: bytes, key_of: Callable[[Greeting], str | None]) -> bool:
    """Answer who wants a worker with a proof that it is here, and a nonce; False for what is no greeting of it."""
    if frame[4] != GREETING:
        return False
    try:
        said = decode_greeting(memoryview(frame)[CALL.size :])
    except (ValueError, RecursionError):
        return False
    key = key_of(said)
    if key is None:
        return False
    caller.greeting, caller.nonce, caller.key = said, new_nonce(), key
    caller.send(challenge(Challenge(caller.nonce, proof_of("worker", key, said.nonce, caller.nonce))))
    return True


def is_proven(caller: ServerConnection, said: Greeting, frame: bytes) -> bool:
    """Whether the frame proves that a caller that was challenged knows the worker's key."""
    if frame[4] != GREETING:
        return False
    try:
        proof = decode_proof(memoryview(frame)[CALL.size :]).proof
    except (ValueError, RecursionError):
        return False
    return is_proof(proof, proof_of("caller", caller.key, said.nonce, caller.nonce))
