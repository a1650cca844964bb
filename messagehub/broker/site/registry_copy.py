"""The copy of the site's registry that a hub holds while another one leads: changed by what the leader has written.

Rule 1: the copy shows what is stored, and only moves forward.
Rule 2: whoever watches this hub hears of a change when the copy has it, as if it had been decided here.
"""

from messagehub.broker.parts import Parts
from messagehub.broker.persistence.stored_registry import StoredRegistry
from messagehub.broker.site.copied_leases import CopiedLeases
from registry.events import AnyEvent
from registry.registry import Registry


class RegistryCopy:
    def __init__(self, parts: Parts, stored: StoredRegistry, view: Registry) -> None:
        """`view` is what the host watcher takes for the registry."""
        self.leases = CopiedLeases(stored.registry.channels.values(), stored.registry.services.workers())
        self._parts, self._stored, self._view = parts, stored, view

    def follow(self, happened: list[AnyEvent], revision: int) -> None:
        """Apply one transaction of the leader, and publish it."""
        registry, parts = self._stored.registry, self._parts
        for event in happened:
            registry.follow(event)
            self.leases.follow(event)
        registry.log.revision = revision
        parts.commit.follow(revision)
        self._end_leases()
        for event in happened:
            if event.published:
                parts.publisher.enqueue(event)
        parts.host_watcher.follow(self._view, happened)
        parts.publisher.release(revision)

    def replace(self, registry: Registry) -> None:
        """Go on with a copy that was loaded anew. All its changes are stored."""
        parts, unwritten = self._parts, self._stored.unwritten
        registry.take_over_unstored(self._stored.registry, now=parts.now())
        registry.topics.limit_bytes = self._stored.registry.topics.limit_bytes
        self._stored.registry = registry
        unwritten.settle()
        unwritten.newest = registry.revision
        parts.commit.resume(written=registry.revision)
        parts.host_watcher.registry_replaced()
        parts.publisher.reset(registry.revision)
        self.leases = CopiedLeases(registry.channels.values(), registry.services.workers(), self.leases)
        self._end_leases()

    def _end_leases(self) -> None:
        """Forget who owned leases that have ended; the leader's registry would tell by itself."""
        ended = self.leases.take_ended()
        if ended and self._parts.access_control is not None:
            local = self._stored.registry.leases
            self._parts.access_control.leases_ended([lease for lease in ended if local.get(lease) is None])
