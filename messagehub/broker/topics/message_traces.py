"""What became of one message of a topic: put together, when somebody asks, from what is known anyway.

Rule 1: the broker keeps nothing of a message. Who published it is known from publishers and requests (origins.py), who
got it from the processes that subscribe, which are asked with the answer to their next report (subscriptions.py), and
how far a durable name is from the registry.
"""

from collections.abc import Callable

import msgspec

from messagehub.broker.topics.origins import MessageOrigins
from messagehub.broker.topics.subscriptions import ReportedSubscriptions
from messagehub.protocol.topic_frames import incarnation_bytes
from registry import commands, replies
from registry.errors import InvalidRequest
from registry.records import AskedMessage
from registry.registry import Registry
from registry.topics.patterns import check_topic


class MessageTraces:
    def __init__(self, subscriptions: ReportedSubscriptions, origins: MessageOrigins, now: Callable[[], float]) -> None:
        """`now` is the registry's time."""
        self._subscriptions = subscriptions
        self._origins = origins
        self._now = now

    def trace(self, command: commands.TraceMessage, _: list[bytes], registry: Registry) -> replies.Reply:
        return self.trace_here(command, registry)

    def trace_here(
        self, command: commands.TraceMessage, registry: Registry, home: str | None = None
    ) -> replies.MessageTrace:
        """Return what this hub knows of a message. `home`: the other host that has the messages of the topic, so that
        how far the topic is, and who reads it under which name, is known there only."""
        check_topic(command.topic)
        positions: list[replies.TracedPosition] = []
        stored, publisher = None, command.publisher
        if command.offset is not None and command.publisher is None and command.number is None:
            topic = registry.topics.get(command.topic)
            if home is None and not 1 <= command.offset < topic.next_offset:
                raise InvalidRequest(
                    f"topic {topic.name!r} has no message at offset {command.offset}: its messages have 1 to"
                    f" {topic.next_offset - 1}",
                    topic=topic.name,
                    offset=command.offset,
                    next_offset=topic.next_offset,
                )
            number, life = command.offset, incarnation_bytes(topic.incarnation).hex()
            asked = AskedMessage(topic=topic.name, publisher=life, number=number, retained=True)
            stored = self._origins.stored_by(topic.name, topic.incarnation, number)
            publisher = stored.publisher if stored is not None else None
            if home is None:
                positions = registry.trace_positions(topic.name, number, now=self._now())
        elif command.offset is None and command.publisher is not None and command.number is not None:
            asked = AskedMessage(topic=command.topic, publisher=command.publisher, number=command.number)
        else:
            raise InvalidRequest("a message is named by `offset` (of a retained topic), or by `publisher` and `number`")
        subscriptions = [
            replies.TracedSubscription(
                outcome=fate.outcome if fate is not None else "not_reported",
                reason=fate.reason if fate is not None else None,
                **msgspec.structs.asdict(one),
            )
            for one, fate in self._subscriptions.ask(asked)
            if one.kind != "durable"
        ]
        return replies.MessageTrace(
            topic=asked.topic,
            publisher=asked.publisher,
            number=asked.number,
            offset=asked.number if asked.retained else None,
            published_by=self._origins.process_of(publisher),
            published_at=stored.at if stored is not None else None,
            correlation_id=stored.correlation_id if stored is not None else None,
            subscriptions=subscriptions,
            positions=positions,
            ended=self._subscriptions.ended(asked.topic),
            home=home,
            is_complete=all(one.outcome != "not_reported" for one in subscriptions),
        )
