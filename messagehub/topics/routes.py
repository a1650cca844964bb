"""Who gets which message: the subscriptions of one process, found by topic.

Rule 1: a publisher's numbers are compared only while its topic is heard without a break, so that what nobody here
subscribed to is never taken for lost.
Rule 2: what comes from the broker's own socket (retained) and what publishers push have numbers and pieces of their
own, so that no publisher can pass for a retained topic.
"""

import threading
import weakref

from messagehub.protocol.topic_frames import HEAD, PIECE, group_mark
from messagehub.topics.messages import decode
from messagehub.topics.pieces import Pieces
from messagehub.topics.subscriptions import Subscription
from registry.errors import InvalidName
from registry.topics.patterns import check_topic

MOST_TOPICS = 65_536
MOST_PUBLISHERS = 4_096
MOST_REMEMBERED = 262_144
HEAD_BYTES = HEAD.size


Reference = weakref.ref[Subscription]
"""Weak, so that a subscription that its user forgets is collected."""


class _Route:
    __slots__ = ("next_numbers", "next_offsets", "subscriptions", "topic")

    def __init__(self, topic: str, subscriptions: list[Reference]) -> None:
        self.topic = topic
        self.subscriptions = subscriptions
        self.next_numbers: dict[bytes, int] = {}
        self.next_offsets: dict[bytes, int] = {}


class TopicRoutes:
    """The subscriptions of one process. Any thread may call any method."""

    def __init__(self) -> None:
        self.malformed = 0
        self._references: list[Reference] = []
        self._routes: dict[bytes, _Route] = {}
        self._heard: tuple[bytes, ...] = ()  # how the topics begin that are subscribed to
        self._woken: set[Subscription] = set()
        self._remembered = 0
        self._pieces, self._retained_pieces = Pieces(), Pieces()
        self._lock = threading.RLock()  # delivering may end a subscription, which removes it

    @property
    def subscriptions(self) -> list[Subscription]:
        return [subscription for reference in self._references if (subscription := reference()) is not None]

    def add(self, subscription: Subscription) -> None:
        """Have the subscription get messages, unless it was closed meanwhile."""
        with self._lock:
            if subscription.is_closed:
                return
            self._references = [*self._references, subscription.reference]
            self._heard = tuple({prefix for other in self.subscriptions for prefix in other.prefixes})
            for route in self._routes.values():
                if subscription.matches(route.topic):
                    route.subscriptions = [*route.subscriptions, subscription.reference]

    def remove(self, subscription: Subscription) -> bool:
        """Remove the subscription. Return False if it was not here, or not any more."""
        with self._lock:
            reference = subscription.reference
            if not any(other is reference for other in self._references):
                return False
            self._references = [other for other in self._references if other is not reference]
            heard = self._heard = tuple({prefix for other in self.subscriptions for prefix in other.prefixes})
            heard_still = {name: route for name, route in self._routes.items() if (name + b"\0").startswith(heard)}
            for route in heard_still.values():
                route.subscriptions = [other for other in route.subscriptions if other is not reference]
            self._routes = heard_still
            return True

    def deliver(self, frame: bytes, *, is_retained: bool = False, is_of_site: bool = False) -> None:
        """Put the message into the buffers of all subscriptions that match. `is_of_site`: it is of another host.

        Call `wake` when no more messages are at hand.
        """
        end = frame.find(0)
        with self._lock:
            if end + HEAD_BYTES < len(frame) and frame[end + HEAD_BYTES] & PIECE:  # the kind is the last of the head
                try:
                    whole = (self._retained_pieces if is_retained else self._pieces).add(frame, end)
                except ValueError:
                    self.malformed += 1
                    return
                if whole is None:
                    return
                frame = whole
            route = self._routes.get(frame[:end]) or self._new_route(frame[:end])
            message = decode(frame, end, route.topic, is_retained) if route is not None and end > 0 else None
            if route is None or message is None:
                self.malformed += 1
                return
            number, numbers = message.number, route.next_offsets if is_retained else route.next_numbers
            expected = numbers.get(message.publisher)
            if expected is None:
                self._remember_one_more()
                expected = number
            missed = number - expected
            numbers[message.publisher] = number + 1
            for reference in route.subscriptions:
                subscription = reference()
                if subscription is None or (is_of_site and not subscription.hears_site):
                    continue
                if missed > 0:
                    subscription.miss(missed)
                if subscription.offer(message):
                    self._woken.add(subscription)
            if len(numbers) > MOST_PUBLISHERS:
                del numbers[next(iter(numbers))]

    def mark(self, frame: bytes, *, is_retained: bool) -> None:
        """Tell the members of a group where its shares change."""
        mark = group_mark(frame)
        if mark is None:
            self.malformed += 1
            return
        with self._lock:
            for subscription in self.subscriptions:
                if subscription.hear_mark(mark, is_retained=is_retained):
                    self._woken.add(subscription)

    def _remember_one_more(self) -> None:
        """Forget all numbers when they are too many, since any process can publish under any number of names."""
        self._remembered += 1
        if self._remembered > MOST_REMEMBERED:
            self._remembered = 1
            for route in self._routes.values():
                route.next_numbers.clear()
                route.next_offsets.clear()

    def wake(self) -> None:
        with self._lock:
            woken, self._woken = self._woken, set()
        for subscription in woken:
            subscription.wake()

    def _new_route(self, name: bytes) -> _Route | None:
        try:
            topic = check_topic(name.decode("ascii"))
        except (UnicodeDecodeError, InvalidName):
            return None
        route = _Route(topic, [each.reference for each in self.subscriptions if each.matches(topic)])
        if (name + b"\0").startswith(self._heard):  # else it comes late, after the last of its subscribers left
            if len(self._routes) >= MOST_TOPICS:
                del self._routes[next(iter(self._routes))]
            self._routes[name] = route
        return route
