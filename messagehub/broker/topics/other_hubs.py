"""What was pushed or stored at other hubs of the site, for the subscribers of this one.

Rule 1: libzmq tells the other hubs what somebody here subscribes to, and they send nothing else, each message once.
Rule 2: what comes from another hub is never sent to a third one.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

import zmq

from messagehub.broker.access.authentication import Authentication
from messagehub.broker.topics.relay import HEARTBEAT_MS, SILENCE_MS, Context, Relay
from messagehub.runtime.supervision import Supervisor

log = logging.getLogger("messagehub.broker")

RECONNECT_MS, RECONNECT_MAX_MS = 20, 100  # so that a hub is back before a restarted one sends anything
HANDSHAKE_MS = 1_000
"""A hub whose key was not known yet tries again after that at the latest: libzmq may leave it waiting."""


class HubTopics(NamedTuple):
    """Where another hub of the site sends what was pushed there, its key, and where it sends what was stored there."""

    endpoint: str
    key: str
    retained: str = ""


class OtherHubs(Relay):
    def __init__(
        self, context: Context, name: str, authentication: Authentication, supervisor: Supervisor, *, is_retained: bool
    ) -> None:
        """`is_retained`: for what the other hubs stored, instead of what was pushed there."""
        sockets = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
        super().__init__(context, name, sockets, supervisor, is_steered=True)
        self._is_retained = is_retained
        self._secure = authentication.secure_for_hub
        self.incoming.setsockopt(zmq.SNDHWM, 0)  # subscriptions beyond this mark are lost without a word
        self.incoming.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.incoming.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.incoming.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self.incoming.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.incoming.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        self._wanted: frozenset[HubTopics] = frozenset()
        self._connected: frozenset[HubTopics] = frozenset()

    def follow(self, hubs: frozenset[HubTopics]) -> None:
        if self._is_retained:
            hubs = frozenset(HubTopics(hub.retained, hub.key) for hub in hubs if hub.retained)
        self._wanted = hubs
        self._pause()

    def _between(self) -> None:
        super()._between()
        wanted, before = self._wanted, self._connected
        self._connected = wanted  # one that cannot be connected to is not tried again before its endpoint changes
        for hub in before - wanted:
            self._try(hub, self.incoming.disconnect)
        for hub in wanted - before:
            self._try(hub, self.incoming.connect)

    def _try(self, hub: HubTopics, change: Callable[[str], object]) -> None:
        try:
            self._secure(self.incoming, hub.key)
            change(hub.endpoint)
        except (zmq.ZMQError, ValueError) as error:  # what another hub says of itself is input
            log.warning("topics of the hub at %s cannot be heard, or not any more: %s", hub.endpoint, error)
