"""How a caller connects to a worker: both prove that they know the worker's key before a request is sent."""

import socket
from time import monotonic

from messagehub.errors import RouteError, SendTimeout
from messagehub.services.frames import (
    ANSWER,
    CHALLENGE,
    LENGTH,
    MAX_GREETING_BYTES,
    SCHEME,
    WELCOME,
    Frames,
    Greeting,
    NotAFrame,
    Proof,
    decode_challenge,
    greeting,
    is_proof,
    key_id,
    new_nonce,
    proof_of,
)
from messagehub.shm.locks import open_files_limited
from registry.records import Worker


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
