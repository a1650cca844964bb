"""A session with a broker, from HELLO to its loss: what a connection asks of its transport.

Two transports implement it: ZeroMQ (`zmq_session`), and the broker's unix socket on this host (`local_session`).

Rule 1: a session is never repaired. When the broker goes, what was queued goes with the session, so nothing old
reaches a new broker.
Rule 2: one thread at a time, the owner, sends, polls and receives. The I/O thread alone uses `events`.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from messagehub import protocol
from messagehub.errors import BrokerUnavailable
from messagehub.version import __version__
from registry import commands, replies

LOOK_SECONDS = 0.1
REPLIES_AT_ONCE = 1000
"""How many are received before a deadline is looked at: a broker may send what nobody asked for without end."""
_WILDCARDS = ("0.0.0.0", "[::]", "*")


class EventSource(Protocol):
    """Events that the broker sends without being asked; used by the I/O thread only."""

    is_shared: bool
    """Whether events come on the session's own connection, so that its owner receives them."""

    def follow(self, topics: set[bytes]) -> None:
        """Be subscribed to just these; to none where the broker's HELLO offers no events."""

    def pollables(self) -> list[object]:
        """Return what is readable when there is something to do here: descriptors, and sockets of ZeroMQ."""

    def events(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield topic and payload of what has come, so many at a time. Whoever handles one may close this."""

    def has_hung_up(self) -> bool:
        """Return whether the broker did, as far as can be told from here, since the last time."""

    def close(self) -> None: ...


class Session(Protocol):
    endpoint: str
    hello: replies.HelloAck
    stream: EventSource

    @property
    def is_there(self) -> bool:
        """Whether the process at the other end runs, however busy it is."""

    @property
    def has_received(self) -> bool:
        """Whether replies are here already, so that nothing is to be waited for."""

    @property
    def has_events(self) -> bool:
        """Whether whoever received replies received events too, for the I/O thread to hand out."""

    def also_poll(self, fd: int) -> None: ...

    def pollables(self) -> list[object]:
        """Return what is readable when `receive_one` has something to do."""

    def send(self, payload: bytes) -> None: ...

    def poll(self, deadline: float) -> bool:
        """Wait until something may be received or another polled fd is ready; False at the deadline."""

    def receive_one(self) -> replies.AnyReply | None: ...

    def check_lost(self) -> None:
        """Raise when the broker is gone, and no reply of it is left."""

    def lend(self) -> None:
        """A caller drives from now on: do not wake the I/O thread for what comes."""

    def take_back(self) -> bool:
        """No caller drives any more; return whether events, or replies for others, came that are not handed out yet."""

    def is_running(self, deadline: float) -> bool:
        """Find out whether the process at the other end runs."""

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: the parent's session goes on."""


def receive(session: Session) -> list[replies.AnyReply]:
    """Return replies that have come, at most REPLIES_AT_ONCE; raises when the broker is gone and none is left."""
    received: list[replies.AnyReply] = []
    while len(received) < REPLIES_AT_ONCE and (reply := session.receive_one()) is not None:
        received.append(reply)
    if not received:
        session.check_lost()
    return received


def say_hello(
    session: Session, hello_id: str, deadline: float, there_by: float, is_cancelled: Callable[[], bool]
) -> replies.HelloAck:
    """Return the broker's answer; raises BrokerUnavailable at the deadline, or at `there_by` if nobody runs there."""
    hello = commands.Hello(id=hello_id, client=f"messagehub-python/{__version__}")
    hello.priority = "high"  # it has little time, and others may just be registering thousands of channels again
    session.send(protocol.encode(hello))
    while not is_cancelled():
        now = time.monotonic()
        limit = deadline if now >= there_by and session.is_there else min(there_by, deadline)
        if session.poll(min(limit, now + LOOK_SECONDS)):
            for reply in receive(session):
                answer = protocol.unwrap(reply)
                if isinstance(answer, replies.HelloAck):
                    protocol.negotiate([answer.version])
                    return _sensible(answer, session.endpoint)
        if now >= limit:  # also while something else than a HELLO comes without end
            break
    raise BrokerUnavailable(f"no broker answers at {session.endpoint}", endpoint=session.endpoint)


def _sensible(hello: replies.HelloAck, endpoint: str) -> replies.HelloAck:
    if not (hello.heartbeat_seconds > 0 and hello.beacon_seconds > 0 and hello.lease_seconds > 0):
        raise BrokerUnavailable(f"the HELLO of {endpoint} makes no sense", endpoint=endpoint)
    hello.endpoints = reachable(hello.endpoints, endpoint)
    return hello


def reachable(endpoints: dict[str, str], connected: str) -> dict[str, str]:
    """Put the host that we connected to in place of wildcards: a broker cannot know by which address we reach it."""
    host = connected.rpartition(":")[0]
    return {name: _at(endpoint, host) for name, endpoint in endpoints.items()}


def _at(endpoint: str, host: str) -> str:
    own, _, port = endpoint.rpartition(":")
    return f"{host}:{port}" if own.removeprefix("tcp://") in _WILDCARDS else endpoint
