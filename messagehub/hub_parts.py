"""The parts of a hub over one connection: what there is, in which order it is made and how it ends.

A hub that was disconnected, and that of a forked child, gets parts of its own. So no part refers to the hub: it would
keep it from being forgotten.
"""

import itertools
from collections.abc import Callable

from messagehub.channels.gateways import GatewayAccess
from messagehub.channels.members import ChannelMembers
from messagehub.channels.tables import ChannelTables
from messagehub.client.connection import Connection
from messagehub.client.event_listeners import EventListeners
from messagehub.client.group_changes import GroupChanges
from messagehub.client.heartbeats import Heartbeats
from messagehub.client.identity import ClientIdentity
from messagehub.client.unregistered_tables import UnregisteredTables
from messagehub.client.watch import Watches
from messagehub.discovery.catalog import Catalog
from messagehub.discovery.chain import Chain
from messagehub.discovery.diagnostics import Diagnostics
from messagehub.discovery.listings import Listings
from messagehub.discovery.registry_client import RegistryClient
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_directory import ViaFiles
from messagehub.discovery.via_shm_name import ViaShmName
from messagehub.discovery.waiting import ChannelWaiter
from messagehub.runtime.background import BackgroundThreads
from messagehub.services.hub_calls import ServiceCalls
from messagehub.services.services import Services
from messagehub.settings import Settings
from messagehub.shm.channel_directory.location import directory_of
from messagehub.topics.hub_calls import TopicCalls
from messagehub.topics.topics import Topics


class HubParts:
    def __init__(
        self, settings: Settings, number: int, roles: "itertools.count[int]", *, hub: Callable[[], object]
    ) -> None:
        """`number` and `roles` name this hub (ClientIdentity); `hub` gives what all that is made here keeps alive."""
        directory = directory_of(settings)
        timeout = settings.request_timeout_seconds
        identity = ClientIdentity(number, roles)
        self.lease = identity.lease
        self.background = BackgroundThreads()
        self.connection = connection = Connection(settings, name=identity.connection_name)
        files = ViaFiles(directory, shm_prefix=settings.shm_prefix)
        self._listings = Listings(files, timeout=timeout)
        self.heartbeats = Heartbeats(connection, lease=self.lease, when_alone=self._listings.enter)
        self.watches = Watches(connection)
        self.event_listeners = EventListeners(connection)
        unregistered_tables = UnregisteredTables(connection, directory)
        group_changes = GroupChanges(connection)

        via_broker = ViaBroker(connection)
        self.cache = via_broker.cache
        chain = Chain(via_broker, files, ViaShmName(directory))
        self.registry = RegistryClient(
            connection, self.heartbeats, chain, self._listings, self.background, timeout=timeout
        )
        self.waiter = ChannelWaiter(self.registry, self.cache, connection, self.background)
        self.catalog = Catalog(self.registry)
        self.diagnostics = Diagnostics(self.registry, connection)

        self._gateways = GatewayAccess(self.registry, connection)
        self.members = ChannelMembers(
            self.registry,
            connection,
            self.heartbeats,
            group_changes,
            self.background,
            identity,
            self._gateways,
            hub=hub,
            spin_us=settings.spin_us,
        )
        self.tables = ChannelTables(self.registry, unregistered_tables, self._gateways, host=identity.host)
        self.topics = Topics(connection, self.heartbeats, owner=identity.owner, background=self.background)
        self.publisher = self.topics.publisher
        self.topic_calls = TopicCalls(self.topics, self.background, limit=self.registry.limit, hub=hub)
        self.services = Services(
            connection,
            self.heartbeats,
            sender=identity.role("hub"),
            owner=identity.owner,
            default_timeout=timeout,
            background=self.background,
        )
        self.service_calls = ServiceCalls(
            self.services, self.registry, self.publisher, self.background, identity, hub=hub
        )
        connection.listeners = (
            self.heartbeats,
            self.cache,
            self.watches,
            self.event_listeners,
            unregistered_tables,
            group_changes,
            self.services.requests.directory,
            self.topics.reports,
        )

    def close(self) -> None:
        """Unregister everything, and release sockets and threads."""
        self.services.close()
        self.background.close()
        self.topics.close_shared()
        unconfirmed = self.heartbeats.end_all()
        self.members.close_all()
        self._gateways.close()
        self.watches.close_all()
        self.topics.close()
        self.connection.close()
        self.cache.end_waits()
        self._listings.close(unconfirmed)  # at last: the I/O thread may have been entering some

    def abandon(self) -> None:
        """In a forked child: all of it is the parent's."""
        self.heartbeats.forget_parent()
        self.watches.forget_parent()
        self.topics.abandon()
        self.services.abandon()
        self.background.abandon()
        self._gateways.abandon()
        self.connection.abandon()
