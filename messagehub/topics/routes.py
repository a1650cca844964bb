"""Who gets which message: the subscriptions of one process, found by topic.

Rule 1: a publisher's numbers are compared only while its topic is heard without a break, so that what nobody here
subscribed to is never taken for lost.
Rule 2: what comes from the broker's own socket (retained) and what publishers push have numbers and pieces of their
own, so that no publisher can pass for a retained topic.
"""

import threading
import time
import weakref

from messagehub.protocol.topic_frames import HEAD, PIECE, group_mark
from messagehub.topics.message_fates import MOST_STARTS, Fate, Heard, Source
from messagehub.topics.messages import decode
from messagehub.topics.pieces import Pieces
from messagehub.topics.subscriptions import Subscription
from registry.errors import InvalidName
from registry.records import AskedMessage
from registry.topics.patterns import check_topic

MOST_TOPICS = 65_536
MOST_PUBLISHERS = 4_096
MOST_REMEMBERED = 262_144
HEAD_BYTES = HEAD.size


Reference = weakref.ref[Subscription]
"""Weak, so that a subscription that its user forgets is collected."""


class _Route:
    __slots__ = ("firsts", "next_numbers", "next_offsets", "subscriptions", "topic")

    def __init__(self, topic: str, subscriptions: list[Reference]) -> None:
        self.topic = topic
        self.subscriptions = subscriptions
        self.next_numbers: dict[bytes, int] = {}
        self.next_offsets: dict[bytes, int] = {}
        self.firsts: dict[tuple[bytes, bool], tuple[int, bool]] = {}
        """For a publisher, and whether it is a retained topic: the first number heard, and if it is of another host."""

    def numbers(self, *, is_retained: bool) -> dict[bytes, int]:
        return self.next_offsets if is_retained else self.next_numbers


class TopicRoutes:
    """The subscriptions of one process. Any thread may call any method."""

    def __init__(self) -> None:
        self.malformed = 0
        self._references: list[Reference] = []
        self._routes: dict[bytes, _Route] = {}
        self._heard: tuple[bytes, ...] = ()  # how the topics begin that are subscribed to
        self._woken: set[Subscription] = set()
        self._remembered = 0
        self._forgot_at = 0.0  # when numbers were forgotten last, or a topic that is still subscribed to
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
            subscription.starts = self._numbers_for(subscription, (False, True))

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
                route.firsts[message.publisher, is_retained] = (number, is_of_site)
            missed = number - expected
            numbers[message.publisher] = number + 1
            for reference in route.subscriptions:
                subscription = reference()
                if subscription is None or (is_of_site and not subscription.hears_site):
                    continue
                if missed > 0:
                    subscription.miss(missed, message)
                if subscription.offer(message):
                    self._woken.add(subscription)
            if len(numbers) > MOST_PUBLISHERS:
                oldest = next(iter(numbers))
                del numbers[oldest]
                route.firsts.pop((oldest, is_retained), None)
                self._forgot_at = time.time()

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
                if subscription.has_new_share:
                    subscription.share_starts(self._numbers_for(subscription, (is_retained,)))

    def fates(self, subscription: Subscription, asked: list[AskedMessage]) -> list[Fate]:
        """Return what became of messages that match the subscription. Nothing is delivered meanwhile."""
        with self._lock:
            return [subscription.fate_of(one, self._heard_of(one, subscription.began_at)) for one in asked]

    def _heard_of(self, asked: AskedMessage, began_at: float) -> Heard | None:
        route, publisher = self._routes.get(asked.topic.encode()), bytes.fromhex(asked.publisher)
        following = route.numbers(is_retained=asked.retained).get(publisher) if route is not None else None
        if route is None or following is None:
            return None
        first, is_of_site = route.firsts[publisher, asked.retained]
        return Heard(first, following, is_first_certain=began_at > self._forgot_at, is_of_site=is_of_site)

    def _numbers_for(self, subscription: Subscription, kinds: tuple[bool, ...]) -> dict[Source, int] | None:
        """Return the next number of each publisher that the subscription may hear; None if they are too many."""
        found: dict[Source, int] = {}
        for route in self._routes.values():
            if (route.next_numbers or route.next_offsets) and subscription.matches(route.topic):
                for kind in kinds:
                    numbers = route.numbers(is_retained=kind)
                    if len(found) + len(numbers) > MOST_STARTS:
                        return None
                    found |= {(route.topic, publisher, kind): number for publisher, number in numbers.items()}
        return found

    def _remember_one_more(self) -> None:
        """Forget all numbers when they are too many, since any process can publish under any number of names."""
        self._remembered += 1
        if self._remembered > MOST_REMEMBERED:
            self._remembered = 1
            self._forgot_at = time.time()
            for route in self._routes.values():
                route.firsts.clear()
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
                self._forgot_at = time.time()
            self._routes[name] = route
        return route
