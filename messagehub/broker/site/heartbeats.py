"""Heartbeats of a host's clients, which go to the leader many at a time: it would serve little else in a large site.

Rule 1: a heartbeat waits for others GATHER_SECONDS at most, and a quarter of the time that its client waits for the
answer, which has the notices. One request has MOST_GATHERED at most.
Rule 2: each is a forwarded request of its own, with its deadline. They share a message there and a message back.
"""

from time import monotonic

import msgspec

from messagehub import protocol
from messagehub.broker.site.forwarding import Forwarded
from registry import commands
from registry.events import AnyEvent
from registry.registry import Registry

GATHER_SECONDS = 0.2
MOST_GATHERED = 500
_encode = msgspec.msgpack.Encoder().encode
_leases_decoder = msgspec.msgpack.Decoder(list[str])


class GatheredHeartbeats:
    def __init__(self) -> None:
        self._waiting: list[Forwarded] = []
        self._due_at = 0.0

    def add(self, heartbeat: Forwarded, *, interval_seconds: float) -> None:
        """`interval_seconds` is how often clients send one, and how long each waits for its answer."""
        if not self._waiting:
            self._due_at = monotonic() + min(GATHER_SECONDS, interval_seconds / 4)
        self._waiting.append(heartbeat)

    def seconds_to_send(self) -> float:
        """Return the seconds until there is something to be sent; many if nothing waits."""
        return max(self._due_at - monotonic(), 0.0) if self._waiting else 1.0

    def take(self) -> tuple[Forwarded, bytes] | None:
        """Return the heartbeat that the others are sent with, and the body of the request, when it is time."""
        if not self._waiting or (monotonic() < self._due_at and len(self._waiting) < MOST_GATHERED):
            return None
        taken, self._waiting = self._waiting[:MOST_GATHERED], self._waiting[MOST_GATHERED:]
        first = taken[0]
        first.gathered = taken
        return first, _encode([each.lease for each in taken])


def renew(body: bytes, registry: Registry, *, now: float) -> tuple[bytes, list[AnyEvent]]:
    """Renew the leases that another hub names. Return the answers, and what happened.

    Raise msgspec.DecodeError for what is no such request.
    """
    payloads: list[bytes] = []
    happened: list[AnyEvent] = []
    for lease in _leases_decoder.decode(body):
        reply, events = registry.apply(commands.Heartbeat(lease=lease), now=now)
        payloads.append(protocol.encode_reply(reply, None))
        happened += events
    return _encode(payloads), happened
