"""The thread of a client that reads retained topics for its subscriptions, while one of them is behind and has room.

It also asks now and then which topics match and how far they are: what was announced while the connection to the topic
proxy was away, or was dropped on the way, is found so.
"""

import logging
import threading
import time
import weakref
from collections.abc import Iterable
from functools import partial

from messagehub.client.connection import Connection
from messagehub.client.pages import pages
from messagehub.errors import BrokerUnavailable, Forbidden, HomeHostUnavailable, HubError, TopicNotFound, Unauthorized
from messagehub.topics.retained.positions import with_known_ends
from messagehub.topics.retained.subscriptions import RetainedSubscription
from registry import commands, replies
from registry.records import PublisherProcess, RetainedTopic

log = logging.getLogger("messagehub.topics")

LOOK_SECONDS = 1.0
RETRY_SECONDS = 0.05
RETRY_HOME_SECONDS = 0.1
ASK_SECONDS = 2.0
CLOSE_SECONDS = 5.0
NOT_ALLOWED = (Forbidden, Unauthorized)
"""The right was taken away: asking again would not help."""
Asking = tuple[str, PublisherProcess]
"""A publisher that asks: its id, and its process."""


class RetainedFollower:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._references: list[weakref.ref[RetainedSubscription]] = []  # weakly: a forgotten one is to be collected
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def subscriptions(self) -> list[RetainedSubscription]:
        return [subscription for reference in self._references if (subscription := reference()) is not None]

    def add(self, subscription: RetainedSubscription, *, timeout: float) -> None:
        """Begin to read for a subscription. Raise if there is no broker, or a topic that is not retained."""
        topics = self._known_topics(subscription.patterns, time.monotonic() + timeout)
        subscription.follow(topics)
        if subscription.failure is not None:
            raise subscription.failure
        with self._lock:
            self._references = [*self._references, weakref.ref(subscription)]
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="messagehub-retained", daemon=True)
                self._thread.start()
        self._wanted.set()

    def _known_topics(self, patterns: Iterable[str], deadline: float) -> list[RetainedTopic]:
        """Return the topics that match, when it is known of all how far they are."""
        away: HomeHostUnavailable | None = None
        while True:
            try:
                return with_known_ends(self.topics(patterns, timeout=max(deadline - time.monotonic(), 0.001)))
            except HomeHostUnavailable as error:
                away = error
            except BrokerUnavailable:
                if away is None:
                    raise
            if time.monotonic() + RETRY_HOME_SECONDS > deadline:
                raise away
            time.sleep(RETRY_HOME_SECONDS)

    def remove(self, subscription: RetainedSubscription) -> None:
        with self._lock:
            self._references = [other for other in self._references if other() not in (None, subscription)]

    def want(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._wanted.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def topics(self, patterns: Iterable[str], *, timeout: float, asked_by: Asking | None = None) -> list[RetainedTopic]:
        """Return the retained topics that match any of the patterns; for a publisher, who names itself."""
        deadline = time.monotonic() + timeout
        found: dict[str, RetainedTopic] = {}
        for pattern in patterns:
            for page in pages(partial(self._page, pattern, asked_by), timeout=deadline - time.monotonic()):
                found |= {topic.name: topic for topic in page.topics}
        return list(found.values())

    def _page(self, pattern: str, asked_by: Asking | None, after: str, seconds: float) -> replies.TopicList:
        publisher, process = asked_by or (None, None)
        command = commands.ListTopics(pattern=pattern, after=after, publisher=publisher, process=process)
        return self._connection.ask(command, replies.TopicList, timeout=seconds, is_patient=True)

    # -- on the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        look_at = time.monotonic() + LOOK_SECONDS
        while not self._is_closed:
            self._wanted.wait(max(look_at - time.monotonic(), 0.0))
            self._wanted.clear()
            is_due = time.monotonic() >= look_at
            if is_due:
                look_at = time.monotonic() + LOOK_SECONDS
            try:
                self._look(is_due=is_due)
                while not self._is_closed and self._read():
                    if time.monotonic() >= look_at:
                        break
            except BrokerUnavailable:
                look_at = time.monotonic() + RETRY_SECONDS  # it comes back, or the hub is closed
            except HubError as unable:  # asked again at the next look
                log.warning("retained topics cannot be read now: %s", unable.message)
            except Exception:  # a defect must not end the reading for good; the next look is in a second
                log.exception("retained topics could not be read")
                self._connection.count_defect()

    def _look(self, *, is_due: bool) -> None:
        wanting = [one for one in self.subscriptions if is_due or one.wants_topics]
        for patterns in {one.patterns for one in wanting}:
            asking = [one for one in wanting if one.patterns == patterns]
            try:
                found = self.topics(patterns, timeout=ASK_SECONDS)
            except NOT_ALLOWED as refused:
                for one in asking:
                    one.refuse(refused)
                continue
            for one in asking:
                one.follow(found)

    def _read(self) -> bool:
        """Read a page for each subscription that is behind and has room. Return False if there is none."""
        has_read = False
        for subscription in self.subscriptions:
            wanted = subscription.next_read()
            if wanted is None or self._is_closed:
                continue
            topic, offset, since, room = wanted
            asked = commands.ReadTopic(topic=topic, offset=offset, since=since, limit=min(room, 1000))
            try:
                page = self._connection.ask(asked, replies.TopicPage, timeout=ASK_SECONDS)
            except TopicNotFound:
                subscription.wants_topics = True
                self._wanted.set()
                continue
            except BrokerUnavailable:
                raise
            except NOT_ALLOWED as refused:
                subscription.refuse(refused)
                continue
            except HubError as refused:  # of this topic; the others go on, and this one is tried again at the next look
                log.warning("topic %r cannot be read now: %s", topic, refused.message)
                continue
            subscription.take_page(page)
            has_read = True
        return has_read
