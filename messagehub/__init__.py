"""MessageHub: where data lives, what schema it has and who is alive.

from messagehub import MessageHub
hub = MessageHub.get_instance()
hub.register_producer("sensor_data", schema_hash="abc", schema_version="1.0.0")
found = hub.discover("sensor_data")
"""

from messagehub.broker import embedded_broker
from messagehub.client.heartbeats import Registration
from messagehub.client.watch import Watch
from messagehub.discovery import Discovery
from messagehub.errors import HubError
from messagehub.hub import MessageHub
from messagehub.settings import Settings
from messagehub.version import __version__
from registry.records import Keep

__all__ = [
    "Discovery",
    "HubError",
    "Keep",
    "MessageHub",
    "Registration",
    "Settings",
    "Watch",
    "__version__",
    "embedded_broker",
]
