"""Topics: libzmq carries messages to the subscribers, in threads of its own, without Python.

Publishers use a PUSH socket, not a PUB: a PUB discards messages that are sent before it knows the subscriptions, and
does not show that the broker is behind, so a publisher's deadline could not be kept. Messages are dropped in one place
only, the queue of a subscriber that is behind; heartbeats end a stopped subscriber, and with it its queue.

Rule 1: pushed messages and stored messages leave on two sockets. Only the broker can write into the second, so a
subscriber may trust what it receives there of a retained topic.
Rule 2: after a restart the proxy waits for subscribers to come back before it forwards messages. Meanwhile published
messages wait in the queue of the incoming socket. Without that, a message for subscribers that are not back yet would
be lost although its publisher was told that it was sent.
Rule 3: a queue has at most HIGH_WATER_MARK frames of at most MAX_FRAME_BYTES: 650 MiB for each subscriber that is
behind.
Rule 4: in a site, the other hubs subscribe to what was pushed here, and what was pushed there leaves here on a third
socket, to which no hub subscribes. So a message comes to a host once, and never goes on from there. The same holds for
what was stored, on two sockets more.
"""

import logging
from typing import NamedTuple

import zmq

from messagehub.broker.access.authentication import (
    TOPICS_IN,
    TOPICS_OUT,
    TOPICS_RETAINED,
    TOPICS_SITE,
    TOPICS_SITE_RETAINED,
    Authentication,
)
from messagehub.broker.topics.other_hubs import HubTopics, OtherHubs
from messagehub.broker.topics.relay import HIGH_WATER_MARK, Context, Relay
from messagehub.protocol.topic_frames import group_frame
from messagehub.runtime.supervision import Supervisor
from registry.topics.subscriber_groups import Mark

log = logging.getLogger("messagehub.broker")

RETURN_SECONDS = 0.5
"""How long subscribers have to come back; they try to connect at least every 0.2 s (`topic_receiver`)."""
Ends = tuple[str, str, str]
"""The endpoints where publishers push, and where subscribers receive pushed messages and retained topics."""


class SiteEnds(NamedTuple):
    """The endpoints of a member of a site: for the other hubs, and for subscribers here (two ways).

    Of each the first is for what was pushed, the second for what was stored.
    """

    hubs: tuple[str, str]
    subscribers: tuple[str, str]
    local_subscribers: tuple[str, str]


class TopicProxy:
    def __init__(self, authentication: Authentication, supervisor: Supervisor, *, is_member: bool = False) -> None:
        """`is_member`: this hub is a member of a site."""
        self.hubs_endpoint = ""
        """Where the other hubs of the site subscribe to what is pushed here."""
        self.hubs_retained_endpoint = ""
        """Where they subscribe to what is stored here."""
        self._authentication = authentication
        self._context: Context = zmq.Context()
        authentication.start(self._context)
        is_steered = bool(authentication.server_key)
        self._plain = _Entrance(self._context, "plain", supervisor, is_steered=is_steered)
        self._retained = _Entrance(self._context, "retained", supervisor, is_steered=is_steered)
        self._site: tuple[OtherHubs, ...] = ()
        if is_member:
            self._site = (
                OtherHubs(self._context, "site", authentication, supervisor, is_retained=False),
                OtherHubs(self._context, "site-retained", authentication, supervisor, is_retained=True),
            )
        self.retained = self._retained.entrance
        """The socket into which the broker's thread sends stored messages."""

    def start(
        self, ends: Ends, local_ends: Ends, *, is_first: bool, site: SiteEnds | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Bind, begin, and return the endpoints as HELLO_ACK names them, and those for this host.

        `is_first` means that no broker ran here before, so no subscribers have to come back. `site` is what a member of
        a site needs.
        """
        sockets = {
            TOPICS_IN: self._plain.incoming,
            TOPICS_OUT: self._plain.outgoing,
            TOPICS_RETAINED: self._retained.outgoing,
        }
        bound: dict[str, str] = {}
        bound_here: dict[str, str] = {}
        for (domain, socket), end, local in zip(sockets.items(), ends, local_ends, strict=True):
            bound[domain], bound_here[domain] = self._authentication.bind(socket, domain, end, local, or_any_port=True)
        if site is not None:
            bind_for_hubs = self._authentication.bind_for_hubs
            self.hubs_endpoint = bind_for_hubs(self._plain.outgoing, TOPICS_OUT, site.hubs[0], steps=2)
            self.hubs_retained_endpoint = bind_for_hubs(self._retained.outgoing, TOPICS_RETAINED, site.hubs[1], steps=3)
            domains = (TOPICS_SITE, TOPICS_SITE_RETAINED)
            for domain, relay, end, local in zip(
                domains, self._site, site.subscribers, site.local_subscribers, strict=True
            ):
                bound[domain], bound_here[domain] = self._authentication.bind(
                    relay.outgoing, domain, end, local, or_any_port=True
                )
                relay.start("", bound[domain])
        self._plain.start(bound[TOPICS_IN], bound[TOPICS_OUT], wait_seconds=0.0 if is_first else RETURN_SECONDS)
        self._retained.start("", bound[TOPICS_RETAINED])
        return bound, bound_here

    def follow(self, hubs: frozenset[HubTopics]) -> None:
        """Hear what is pushed at these hubs of the site, and let them hear what is pushed here."""
        self._authentication.hub_keys = frozenset(hub.key for hub in hubs)
        for relay in self._site:
            relay.follow(hubs)

    def echo(self, text: bytes) -> None:
        """Send the text to subscribers on both sockets, prefixed with a zero byte, with which no topic begins."""
        for proxy in (self._plain, self._retained):
            try:
                proxy.entrance.send(b"\0" + text, zmq.NOBLOCK)
            except zmq.Again:
                log.debug("an echo is lost: the client asks for it again")

    def mark(self, mark: Mark) -> None:
        """Send a mark to the members of a group, on both sockets, between the messages that they share."""
        self.echo(group_frame(mark)[1:])

    def cut(self) -> None:
        """End the connections from other hosts, so that each is authenticated anew. What is under way may be lost."""
        for proxy in self._proxies:
            proxy.cut()

    def close(self) -> None:
        """Send what waits for subscribers that still read, and close the sockets."""
        for proxy in self._proxies:
            proxy.leave()
        self._context.term()
        for proxy in self._proxies:
            proxy.join()

    @property
    def _proxies(self) -> list[Relay]:
        return [self._plain, self._retained, *self._site]


class _Entrance(Relay):
    """Carries what is pushed, by publishers or by the broker's own thread."""

    def __init__(self, context: Context, name: str, supervisor: Supervisor, *, is_steered: bool) -> None:
        sockets = context.socket(zmq.PULL), context.socket(zmq.PUB)
        super().__init__(context, name, sockets, supervisor, is_steered=is_steered)
        self.incoming.bind(f"inproc://{name}")
        self.entrance = context.socket(zmq.PUSH)  # for the broker's own thread
        self.entrance.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self.entrance.setsockopt(zmq.LINGER, 0)
        self.entrance.connect(f"inproc://{name}")

    def leave(self) -> None:
        self.entrance.close()
        super().leave()
