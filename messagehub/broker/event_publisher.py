"""Publishes events in revision order, and beacons while nothing happens: by an XPUB as `[topic, json]`, and to clients
of the local socket on their own connections.

Rule 1: an event leaves only when the store has it, and never before an older one.
Rule 2: a beacon names the newest revision that has left on its topic, so a subscriber that missed one can tell.
Rule 3: at most FRAMES_PER_TURN frames of subscribers are read at a time, whatever they are. With access control each
frame is checked by itself and charged to its peer, and the connection of a peer that sends too many is ended.
Rule 4: a new subscription is echoed by a beacon; what a snapshot holds after the echo and what comes later overlap
but leave no gap.
Rule 5: a frame is a subscription, or the end of one, when it begins with 1 or 0, wherever in a message it stands. That
is how libzmq decides. Do not ask which frame of a message it is: libzmq may drop the last frame of a message, and the
next frame, perhaps of another peer, would then seem to belong to that message.
"""

from collections import deque
from typing import NamedTuple

import zmq

from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.authentication import EVENTS, Authentication, rebind
from messagehub.broker.access.event_subscriptions import Subscriptions, hang_up, number_of
from messagehub.broker.polling import PolledSocket
from messagehub.broker.transports.local_connection import LocalConnection
from messagehub.broker.transports.local_subscriptions import LocalSubscriptions
from messagehub.protocol import Beacon, encode
from messagehub.protocol.stream_frames import MAX_TOPIC_BYTES, event_frame
from registry.events import AnyEvent, AnySchemaEvent, AnyTopicEvent, ServiceChanged, subject_of
from registry.registry import Registry

BEACONS_PER_TURN = 256
FRAMES_PER_TURN = 256
SEND_HIGH_WATER_MARK = 10_000
RECEIVE_HIGH_WATER_MARK = 4
"""How many frames of one connection libzmq takes each time it looks at its connections. It puts them into a queue
without a bound: if it took more, a peer that floods would fill that queue faster than we read it."""


class WaitingEvent(NamedTuple):
    revision: int
    previous: int
    topic: str
    payload: bytes


class Publisher:
    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        broker_id: str,
        beacon_seconds: float,
        access_control: AccessControl | None = None,
        counts_services_apart: bool = True,
    ) -> None:
        """In a site revisions of services are those of the registry; a hub on its own counts them apart."""
        self._access_control = access_control
        self._counts_services_apart = counts_services_apart
        self._endpoint = ""
        self.socket = context.socket(zmq.XPUB)
        self.socket.setsockopt(zmq.XPUB_VERBOSE if access_control is None else zmq.XPUB_MANUAL, 1)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_TOPIC_BYTES + 1)
        self.polled = PolledSocket(self.socket)
        self.local = LocalSubscriptions()
        self.published = 0
        self._broker_id = broker_id
        self._beacon_seconds = beacon_seconds
        self._beacons_at = 0.0
        self._due: deque[bytes] = deque()
        self._subscriptions = Subscriptions(context, self.socket) if access_control is not None else None
        self._watched: dict[bytes, int] = self._subscriptions.topics if self._subscriptions is not None else {}
        self._waiting: deque[WaitingEvent] = deque()
        self._group_revisions = {b"": 0, b"channel/": 0, b"schema/": 0, b"topic/": 0, b"service/": 0}

    def bind(self, authentication: Authentication, endpoint: str, local: str) -> tuple[str, str]:
        self._endpoint, bound_locally = authentication.bind(self.socket, EVENTS, endpoint, local)
        return self._endpoint, bound_locally

    def close(self) -> None:
        if self._subscriptions is not None:
            self._subscriptions.close()
        self.socket.close()

    @property
    def monitor(self) -> PolledSocket | None:
        """The socket that is readable when `read_connections` has something to do."""
        return self._subscriptions.polled if self._subscriptions is not None else None

    @property
    def subscriptions(self) -> int:
        """The number of watched topics; in a shared hub a topic counts once for each connection that watches it."""
        return len(self._watched if self._subscriptions is None else self._subscriptions) + len(self.local)

    def held_by(self, user: str) -> int:
        """Return how many subscriptions a user of a shared hub has, over all connections."""
        return self.local.held_by(user) + (self._subscriptions.held_by(user) if self._subscriptions is not None else 0)

    def read_connections(self) -> None:
        if self._subscriptions is not None:
            self._subscriptions.read_monitor()

    def cut(self) -> None:
        """End the connections from other hosts, so that each is authenticated anew."""
        if self._subscriptions is not None:
            self._subscriptions.end_remote()
        self.polled.is_used = True
        rebind(self.socket, self._endpoint)

    def reset(self, revision: int) -> None:
        """Start at a revision, or start again after a failure of the store: discard events that were not written."""
        self._waiting.clear()
        services = self._group_revisions[b"service/"] if self._counts_services_apart else revision
        self._group_revisions = dict.fromkeys(self._group_revisions, revision) | {b"service/": services}

    def enqueue(self, event: AnyEvent) -> None:
        """Queue the event until the store has it. It is encoded now, if anybody watches: its record may change."""
        payload = encode(event) if self._watched or self.local.topics else b""
        self._waiting.append(WaitingEvent(event.revision, event.previous, event.topic, payload))

    def release(self, written: int) -> None:
        while self._waiting and self._waiting[0].revision <= written:
            waiting = self._waiting.popleft()
            topic = waiting.topic.encode()
            self._group_revisions[b""] = waiting.revision
            self._group_revisions[topic[: topic.index(b"/") + 1]] = waiting.revision
            if waiting.payload:
                self._send(topic, waiting.payload)
                self.published += 1

    def announce(self, event: ServiceChanged) -> None:
        """Send an event about a service at once: services are not stored, and have their own topics and revisions."""
        self._group_revisions[b"service/"] = event.revision
        if self._watched or self.local.topics:
            self._send(event.topic.encode(), encode(event))
            self.published += 1

    def _send(self, topic: bytes, payload: bytes) -> None:
        if self._watched:
            self._send_by_zmq(topic, payload)
        if self.local.topics:
            self.local.publish(topic, payload)

    def _send_by_zmq(self, topic: bytes, payload: bytes) -> None:
        self.polled.is_used = True
        self.socket.send(topic, zmq.SNDMORE)
        self.socket.send(payload)

    def read_subscriptions(self, registry: Registry) -> None:
        """Read subscriptions, a bounded number at a time: a peer that floods must not keep the others waiting."""
        self.polled.is_used = True
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = self.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            flag, topic = frame.bytes[:1], frame.bytes[1:]
            if flag not in (b"\x00", b"\x01"):
                flag = b""  # part of a message, not a subscription
            if self._access_control is not None and self._subscriptions is not None:
                if self._admit(self._access_control, self._subscriptions, flag, topic, frame):
                    self._echo_by_zmq(topic, registry)
            elif flag == b"\x01":
                self._watched[topic] = 1
                self._echo_by_zmq(topic, registry)
            elif flag == b"\x00":
                self._watched.pop(topic, None)

    def _admit(
        self, access_control: AccessControl, subscriptions: Subscriptions, flag: bytes, topic: bytes, frame: zmq.Frame
    ) -> bool:
        """Apply a frame of a subscriber, and return whether it subscribes its peer."""
        try:
            user = access_control.name_of(str(frame.get("User-Id")))
            connection = subscriptions.connection(number_of(frame), user)
        except zmq.ZMQError:
            return False  # libzmq made the frame, for a peer that is gone
        if connection is None or connection.is_cut:
            return False  # libzmq reads ahead, so frames of a connection that was ended still arrive
        if not access_control.may_say_more(user):
            if subscriptions.is_only_user(number_of(frame)) and hang_up(frame):
                connection.is_cut = True
                access_control.hung_up(user)
            return False
        if flag == b"\x00":
            subscriptions.remove(connection, topic)
            self.socket.setsockopt(zmq.UNSUBSCRIBE, topic)
        if flag != b"\x01" or not access_control.may_watch(user, topic, others=self.held_by(user)):
            return False
        subscriptions.add(connection, topic)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        return True

    def beacons(self, registry: Registry, *, now: float) -> float:
        """Send the beacons that are due, a bounded number at a time, and return the seconds until the next ones."""
        if not self._due and now >= self._beacons_at:
            self._beacons_at = now + self._beacon_seconds
            self._due.extend(self._watched.keys() | self.local.topics.keys())
        for _ in range(min(BEACONS_PER_TURN, len(self._due))):
            topic = self._due.popleft()
            beacon = self._beacon(topic, registry)
            if beacon is not None:
                if topic in self._watched:
                    self._send_by_zmq(topic, beacon)
                if topic in self.local.topics:
                    self.local.send_beacon(topic, beacon)
        return 0.0 if self._due else self._beacons_at - now

    def echo(self, connection: LocalConnection, topic: bytes, registry: Registry) -> None:
        """Confirm a subscription on the local socket."""
        beacon = self._beacon(topic, registry)
        if beacon is not None:
            connection.put(event_frame(topic, beacon))

    def _echo_by_zmq(self, topic: bytes, registry: Registry) -> None:
        beacon = self._beacon(topic, registry)
        if beacon is not None:
            self._send_by_zmq(topic, beacon)

    def _beacon(self, topic: bytes, registry: Registry) -> bytes | None:
        """Return None for a topic of which nothing can be said."""
        revision = self._newest(topic, registry)
        return None if revision is None else encode(Beacon(revision=revision, broker_id=self._broker_id))

    def _newest(self, topic: bytes, registry: Registry) -> int | None:
        """Return the newest revision that was sent on a topic: the one before the first that waits for the store."""
        if topic in self._group_revisions:
            return self._group_revisions[topic]
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            return None
        for waiting in self._waiting:
            if waiting.topic == name:
                return waiting.previous
        kind, _, rest = name.partition("/")
        if kind == "channel":
            channel = registry.channels.get(rest.removesuffix("/"))
            return channel.revision if channel else 0
        if kind == "topic":
            return registry.topics.revision(rest.removesuffix("/"))
        if kind == "service":
            return registry.services.revision_of(rest.removesuffix("/"))
        return registry.schemas.revision(subject_of(rest.removesuffix("/"))) if kind == "schema" else None


def key(event: AnyEvent) -> str:
    """Return the name of the event's record. Channels and subjects share one name space."""
    if isinstance(event, AnyTopicEvent | ServiceChanged):
        return event.topic
    return event.subject if isinstance(event, AnySchemaEvent) else event.channel
