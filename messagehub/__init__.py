"""MessageHub: where data lives, what schema it has and who is alive.

from messagehub import MessageHub
hub = MessageHub.get_instance()
hub.register_producer("sensor_data", schema_hash="abc", schema_version="1.0.0")
found = hub.discover("sensor_data")

Spark's workers, the HTTP process and every command import some part of this package, so each name is loaded when it
is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from messagehub.broker.embedded import embedded_broker
    from messagehub.client.heartbeats import Registration
    from messagehub.client.watch import Watch
    from messagehub.discovery import Discovery
    from messagehub.errors import HubError
    from messagehub.hub import MessageHub
    from messagehub.settings import Settings
    from messagehub.shm.manifests import Retention
    from messagehub.version import __version__
    from registry.records import Keep

_HOMES = {
    "Discovery": "messagehub.discovery",
    "HubError": "messagehub.errors",
    "Keep": "registry.records",
    "MessageHub": "messagehub.hub",
    "Registration": "messagehub.client.heartbeats",
    "Retention": "messagehub.shm.manifests",
    "Settings": "messagehub.settings",
    "Watch": "messagehub.client.watch",
    "__version__": "messagehub.version",
    "embedded_broker": "messagehub.broker.embedded",
}

__all__ = [
    "Discovery",
    "HubError",
    "Keep",
    "MessageHub",
    "Registration",
    "Retention",
    "Settings",
    "Watch",
    "__version__",
    "embedded_broker",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
