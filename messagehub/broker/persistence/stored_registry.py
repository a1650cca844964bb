"""The broker's registry, and what of it the store does not have yet.

Rule 1: one place records what happened (`record`): noted as unwritten, published, followed, submitted.
Rule 2: a reply that reveals a change waits until the store has the change, whoever made it.
Rule 3: after a failure of the store, what waits is refused as retryable and the registry goes back to what the store
holds. Revisions that were given out are not given out again. While the store cannot be read either, replies that would
show a change which it may not have are refused too.
"""

from messagehub import protocol
from messagehub.broker.parts import STOP_SECONDS, Parts
from messagehub.broker.persistence.pending_commits import HeldReply, PendingCommits
from messagehub.broker.persistence.restore import load
from messagehub.broker.persistence.stored_copy import StoredCopy
from messagehub.errors import HubError, StoreReadOnly
from messagehub.settings import Settings
from messagehub.store import Saved
from registry.events import AnyEvent
from registry.registry import Registry

_UNCERTAIN = "whether the last change of this was stored is not known, since the store does not answer"


class StoredRegistry:
    def __init__(self, parts: Parts, settings: Settings) -> None:
        self.registry: Registry = parts.registry
        """Another one after a failure of the store."""
        self.unwritten = PendingCommits()
        self.copy = StoredCopy()
        """Used while this hub leads a site."""
        self.settings = settings
        self._commit, self._host_watcher, self._metrics = parts.commit, parts.host_watcher, parts.metrics
        self._publisher, self._requests = parts.publisher, parts.requests
        self._retained = parts.retained if parts.home_commit is None else None  # or else stored elsewhere
        self._now = parts.now

    def record(self, happened: list[AnyEvent]) -> None:
        """Note, publish, follow and submit events, before anything else is read or answered."""
        if happened:
            self.unwritten.note(happened)
            for event in happened:
                if event.published:
                    self._publisher.enqueue(event)
            self._host_watcher.follow(self.registry, happened)
            self.copy.note(happened)
            self._commit.submit(happened)
            self.unwritten.newest = happened[-1].revision

    def hold(self, held: HeldReply) -> None:
        """Send the reply when the store has its revision."""
        if self.unwritten.is_uncertain:
            details = {"site": self.settings.site} if self.settings.site else {}
            self._refuse(held, StoreReadOnly(_UNCERTAIN, **details))
            return
        self.unwritten.hold(held)
        self._metrics.count("held")

    def release(self) -> None:
        """Send the replies and events whose changes the store has."""
        written = self._commit.written
        self._host_watcher.stored(self.registry)
        self._publisher.release(written)
        if self._retained is not None:
            self._retained.release(written)
        self.unwritten.release(written, self._send_reply)

    def refuse_unwritten(self, refused: HubError) -> None:
        """Send the replies whose changes are stored, and refuse the others."""
        self.release()
        for held in self.unwritten.undo():
            self._refuse(held, refused)

    def settle(self) -> None:
        """Go back to what the store holds after a failure, as soon as the store could be read."""
        if self.unwritten.is_uncertain and self._commit.reloaded is not None:
            self._go_back(self._commit.reloaded)
            self.unwritten.settle()

    def reload(self) -> None:
        """Restore the registry from the store after a defect, since it may hold half a change."""
        self._commit.flush(self.unwritten.newest, timeout=STOP_SECONDS)
        self.release()
        self._go_back()
        self.record(self._host_watcher.begin(self.registry, now=self._now()))

    def _go_back(self, saved: Saved | None = None) -> None:
        """Restore the registry from the store, or from what it was found to hold.

        Changes that were not written are undone. Their revisions are not used again: replies may have shown them.
        """
        before = self.registry
        at_least = before.revision
        self.registry, _ = load(self._commit.store, self.settings, now=self._now(), at_least=at_least, saved=saved)
        self.registry.take_over_unstored(before, now=self._now())
        self.unwritten.newest = self.registry.revision
        if self._retained is not None:
            self._retained.reset()
        self._publisher.reset(self.registry.revision)

    def _refuse(self, held: HeldReply, refused: HubError) -> None:
        error = protocol.error_reply(refused)
        payload = protocol.encode_reply(error, held.command.id)
        self._send_reply(held._replace(reply=error, payload=payload, is_change=False))

    def _send_reply(self, held: HeldReply) -> None:
        _, path, command, received_at, reply, payload, is_change = held
        self._requests.reply(path, command, received_at, reply, payload, is_change=is_change)
