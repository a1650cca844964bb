"""Lists of the retained topics of a site: which there are says the own copy, how far they are say their home hosts.

Rule: a list is answered within LIST_SECONDS. Of a topic whose home host does not answer in time `next_offset` is 0:
not known. Nothing remembered stands in for it, since a subscriber that begins with the newest message would begin too
early.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from messagehub import protocol
from messagehub.broker.parts import Parts
from messagehub.broker.request_queue import Request
from messagehub.broker.site.home_topics import HomeTopics
from messagehub.errors import HubError
from registry import commands, replies
from registry.records import RetainedTopic

LIST_SECONDS = 1.0

AskHome = Callable[[str, bytes, float, Callable[[bytes | None], None]], bool]


class TopicLists:
    def __init__(self, home: HomeTopics, parts: Parts, host: str, ask: AskHome) -> None:
        """`ask` sends a request to another home, and returns False if that makes no sense now."""
        self._home, self._parts, self._host, self._ask = home, parts, host, ask

    def serve(self, request: Request) -> None:
        """Answer another hub about the topics of this host."""
        command = request[1]
        assert isinstance(command, commands.ListTopics)
        reply, _ = self._home.registry.apply(command, now=self._parts.now())
        self._home.reply(request, reply, waits_for=self._home.newest)

    def answer(self, request: Request, reply: replies.TopicList) -> None:
        """Send a list when all homes have said how far its topics are, or their time is up."""
        command = request[1]
        assert isinstance(command, commands.ListTopics)
        reply.topics = [msgspec.structs.replace(topic, next_offset=0, total_bytes=0) for topic in reply.topics]
        self._fill(reply, [saved.topic for saved in self._home.registry.topics.every()])
        others = {topic.home for topic in reply.topics if topic.home not in (None, self._host)}
        waiting = set(others)
        asked = msgspec.structs.replace(command, plain=False)
        body = protocol.encode(asked)

        def heard(host: str, payload: bytes | None) -> None:
            if payload is not None:
                self._take(reply, payload)
            waiting.discard(host)
            if not waiting:
                self._home.reply(request, reply, waits_for=self._home.newest)

        for host in sorted(home for home in others if home is not None):
            if not self._ask(host, body, LIST_SECONDS, partial(heard, host)):
                waiting.discard(host)
        if not waiting:
            self._home.reply(request, reply, waits_for=self._home.newest)

    def _take(self, reply: replies.TopicList, payload: bytes) -> None:
        try:
            told = protocol.decode_reply(payload)
        except HubError:
            return
        if isinstance(told, replies.TopicList):
            self._fill(reply, told.topics)

    def _fill(self, reply: replies.TopicList, found: list[RetainedTopic]) -> None:
        by_incarnation = {topic.incarnation: topic for topic in found}
        for topic in reply.topics:
            known = by_incarnation.get(topic.incarnation)
            if known is not None:
                topic.next_offset, topic.total_bytes = known.next_offset, known.total_bytes
