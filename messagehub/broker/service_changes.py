"""Follows changes of services and subscribers: events for their watchers, and a watch on their processes."""

from messagehub.broker.event_publisher import Publisher
from messagehub.broker.host_watcher.watcher import HostWatcher
from messagehub.broker.topics.proxy import TopicProxy
from registry.registry import Registry


def apply_changes(
    registry: Registry, publisher: Publisher, host_watcher: HostWatcher, topics: TopicProxy, *, now: float
) -> None:
    """Apply what happened to services and subscribers since the last call; the loop calls it once a turn."""
    services = registry.services
    while happened := services.take_happened():
        for event in happened:
            publisher.announce(event)
            kind, _, worker_id = event.address.partition(":")
            if kind == "id":  # every worker has this address, and none shares it
                host_watcher.forget_worker(registry, worker_id)
                worker = services.get(worker_id)
                if worker is not None and not host_watcher.follow_worker(registry, worker):
                    services.ended(worker_id, event.at)
    subscribers = registry.subscribers
    while changed := subscribers.take_changed():
        for member_id in changed:
            host_watcher.forget_subscriber(registry, member_id)
            subscriber = subscribers.get(member_id)
            if subscriber is not None and not host_watcher.follow_subscriber(registry, subscriber):
                subscribers.ended(member_id, now)
    for mark in subscribers.groups.take_marks():
        topics.mark(mark)
