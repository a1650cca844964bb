"""What the broker does about services once the registry has decided: tell watchers, and watch the processes."""

from messagehub.broker.events import Publisher
from messagehub.broker.local_sight import LocalSight
from registry.registry import Registry


def settle(registry: Registry, publisher: Publisher, sight: LocalSight) -> None:
    """Once a turn: everything that happened to services since the last time."""
    services = registry.services
    while happened := services.take_happened():
        for event in happened:
            publisher.announce(event)
            kind, _, worker_id = event.address.partition(":")
            if kind == "id":  # every worker has this address, and none shares it
                sight.forget_worker(registry, worker_id)
                worker = services.get(worker_id)
                if worker is not None and not sight.follow_worker(registry, worker):
                    services.ended(worker_id, event.at)
