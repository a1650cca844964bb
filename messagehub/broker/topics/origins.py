"""Where messages come from: which process publishes under an id, and which request stored which messages.

Rule 1: nothing is done for a message. Publishers name their process when they ask whether a topic is retained, now
and then while they publish; of what is stored, one entry is made for each request.
Rule 2: both are bounded, in memory alone, and looked through only when somebody asks.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from registry import commands
from registry.events import AnyEvent, MessagesRetained
from registry.records import PublisherProcess

MOST_PUBLISHERS: Final = 10_000
MOST_REQUESTS: Final = 10_000
SEPARATOR: Final = "."
"""Between the id of a client and what a publisher of a retained topic adds to it."""
_PUBLISHING = str(commands.PublishMessages.__struct_config__.tag)


class StoredBy(NamedTuple):
    """A request that stored messages of a retained topic: `messages` of them, from `offset` on."""

    topic: str
    incarnation: int
    offset: int
    messages: int
    publisher: str | None
    correlation_id: str | None
    at: float


class MessageOrigins:
    def __init__(self) -> None:
        self._processes: dict[str, PublisherProcess] = {}
        """By the publisher's id; the one that asked last at the end."""
        self._stored: deque[StoredBy] = deque(maxlen=MOST_REQUESTS)

    def note_publisher(self, publisher: str, process: PublisherProcess) -> None:
        self._processes.pop(publisher, None)
        self._processes[publisher] = process
        if len(self._processes) > MOST_PUBLISHERS:
            del self._processes[next(iter(self._processes))]

    def note_stored(self, happened: Sequence[AnyEvent], correlation_id: str | None) -> None:
        for event in happened:
            if isinstance(event, MessagesRetained):
                count = len(event.messages)
                self._stored.append(
                    StoredBy(
                        event.name, event.incarnation, event.offset, count, event.publisher, correlation_id, event.at
                    )
                )

    def process_of(self, publisher: str | None) -> PublisherProcess | None:
        return None if publisher is None else self._processes.get(publisher.partition(SEPARATOR)[0])

    def stored_by(self, topic: str, incarnation: int, offset: int) -> StoredBy | None:
        """Return the request that stored a message; None for one before the newest requests."""
        for each in reversed(self._stored):
            if each.topic == topic and each.incarnation == incarnation and each.offset <= offset:
                return each if offset < each.offset + each.messages else None
        return None

    def add_offsets(self, exchanges: list[dict[str, Any]]) -> None:
        """Add to the exchanges that stored messages where these are: `offset` and `messages`."""
        publishing = {one["correlation_id"]: one for one in exchanges if one["request"] == _PUBLISHING}
        publishing.pop(None, None)
        if publishing:
            for each in reversed(self._stored):
                exchange = publishing.get(each.correlation_id)
                if exchange is not None and exchange["name"] == each.topic:
                    exchange["offset"], exchange["messages"] = each.offset, each.messages
