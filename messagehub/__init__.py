"""MessageHub: where data lives, what schema it has and who is alive.

    from messagehub import MessageHub

    hub = MessageHub.get_instance()
    hub.register_producer("sensor_data", schema_hash="abc", schema_version="1.0.0")
    found = hub.discover("sensor_data")

Every error of `messagehub.errors` can be imported from here too.

Spark's workers, the HTTP process and every command import some part of this package, so each name is loaded when it
is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from messagehub.broker.embedded import embedded_broker
    from messagehub.channels.consumer.consumers import Consumer
    from messagehub.channels.items import ReadItem
    from messagehub.channels.producers import Producer
    from messagehub.client.registration import Registration
    from messagehub.client.watch import Watch
    from messagehub.discovery import Discovery
    from messagehub.errors import *  # noqa: F403  for editors
    from messagehub.errors import HubError
    from messagehub.hub import MessageHub
    from messagehub.services.context import ServiceContext, ServiceMessage
    from messagehub.settings import Settings
    from messagehub.shm.rings.read_results import Gap
    from messagehub.shm.tables.manifests import Retention
    from messagehub.topics.messages import Message
    from messagehub.topics.subscriptions import Subscription
    from messagehub.topics.topic import Topic
    from messagehub.version import __version__
    from registry.records import Keep

_HOMES = {
    "Consumer": "messagehub.channels.consumer.consumers",
    "Discovery": "messagehub.discovery",
    "Gap": "messagehub.shm.rings.read_results",
    "HubError": "messagehub.errors",
    "Keep": "registry.records",
    "Message": "messagehub.topics.messages",
    "MessageHub": "messagehub.hub",
    "Producer": "messagehub.channels.producers",
    "ReadItem": "messagehub.channels.items",
    "Registration": "messagehub.client.registration",
    "Retention": "messagehub.shm.tables.manifests",
    "ServiceContext": "messagehub.services.context",
    "ServiceMessage": "messagehub.services.context",
    "Settings": "messagehub.settings",
    "Subscription": "messagehub.topics.subscriptions",
    "Topic": "messagehub.topics.topic",
    "Watch": "messagehub.client.watch",
    "__version__": "messagehub.version",
    "embedded_broker": "messagehub.broker.embedded",
    "load_ipython_extension": "messagehub.notebook",  # which `%load_ext messagehub` calls
    "unload_ipython_extension": "messagehub.notebook",
}

__all__ = [
    "Consumer",
    "Discovery",
    "Gap",
    "HubError",
    "Keep",
    "Message",
    "MessageHub",
    "Producer",
    "ReadItem",
    "Registration",
    "Retention",
    "ServiceContext",
    "ServiceMessage",
    "Settings",
    "Subscription",
    "Topic",
    "Watch",
    "__version__",
    "embedded_broker",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    value = getattr(import_module(home or "messagehub.errors"), name, None)
    if home is None and not (isinstance(value, type) and issubclass(value, Exception)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
