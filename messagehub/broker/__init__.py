"""The broker: one thread that owns the registry, its sockets and the order of everything that happens."""

from messagehub.broker.embedded import embedded_broker
from messagehub.broker.loop import Broker

__all__ = ["Broker", "embedded_broker"]
