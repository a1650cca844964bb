"""A second registry beside that of a leader, which has only what the store has confirmed.

When the store stops answering in the middle of a write, nobody knows what became of the last changes, and they cannot
be taken back out of a registry. Reads go on from this one then.

Rule 1: it has exactly the changes up to `GroupCommit.written`: what clients were shown, and nothing else.
Rule 2: there is none (`take` returns None) until the records were loaded once after the leadership began.
"""

from collections import deque
from collections.abc import Iterable

from registry.events import AnyEvent, AnyTopicEvent, TopicDeleted, TopicRetained
from registry.registry import Registry


class StoredCopy:
    def __init__(self) -> None:
        self._registry: Registry | None = None
        self._revision: int | None = None
        """At which the leadership began; None while this hub does not lead."""
        self._waiting: deque[AnyEvent] = deque()

    def begin(self, revision: int) -> None:
        """Note what happens from now on, for the records that `loaded` brings."""
        self._registry, self._revision = None, revision
        self._waiting.clear()

    def loaded(self, registry: Registry) -> None:
        """Begin with these records, unless they are older than the leadership."""
        if self._revision is not None and registry.revision >= self._revision:
            self._registry = registry

    def note(self, happened: Iterable[AnyEvent]) -> None:
        """Take events that are given to the store."""
        if self._revision is not None:
            self._waiting.extend(happened)

    def follow(self, written: int) -> None:
        """Apply what the store has by now."""
        registry, waiting = self._registry, self._waiting
        if registry is None:
            return
        while waiting and waiting[0].revision <= written:
            event = waiting.popleft()
            if event.revision > registry.revision and _is_of_site(event):
                registry.follow(event)
        registry.log.revision = max(registry.revision, written)

    def take(self, written: int) -> Registry | None:
        """Return the registry as of `written`, and end."""
        self.follow(written)
        registry, self._registry, self._revision = self._registry, None, None
        self._waiting.clear()
        return registry


def _is_of_site(event: AnyEvent) -> bool:
    """Return whether other hubs hear of this event; messages of retained topics stay on their host."""
    return not isinstance(event, AnyTopicEvent) or isinstance(event, TopicRetained | TopicDeleted)
