"""The gateways of other hosts for one hub: made when the first consumer needs them."""

import logging
import threading
from typing import TYPE_CHECKING

from messagehub.client.connection import Connection
from messagehub.discovery.registry_client import RegistryClient
from messagehub.errors import HubError
from messagehub.shm.identity import host as this_host
from registry import commands, replies
from registry.records import SiteHost

if TYPE_CHECKING:
    from messagehub.flight.client import Gateways

log = logging.getLogger("messagehub")


class GatewayAccess:
    def __init__(self, registry: RegistryClient, connection: Connection) -> None:
        self._registry = registry
        self._connection = connection
        self._making = threading.Lock()
        self._made: Gateways | None = None
        settings = connection.settings
        self._was_in_site = settings.is_local and settings.site_path.exists()

    @property
    def is_in_site(self) -> bool:
        """Whether the hub is a member of a site, as far as it has said so; while it is away, what it said last."""
        hello = self._connection.hello
        if hello is not None:
            self._was_in_site = bool(hello.site)
        return self._was_in_site

    @property
    def is_of_one_host(self) -> bool:
        """Whether the hub has said that it is a member of no site."""
        hello = self._connection.hello
        return hello is not None and not hello.site

    def get(self) -> "Gateways":
        from messagehub.flight.client import Gateways

        with self._making:
            if self._made is None:
                self._made = Gateways(self._ask)
            return self._made

    def other_hosts(self, timeout: float) -> list[SiteHost]:
        """Return the hosts of the site but for this one; none where the hub does not say."""
        try:
            found = self._registry.reply(commands.ListHosts(), replies.HostList, timeout)
        except HubError as error:
            log.debug("the hub does not tell who the hosts of its site are: %s", error)
            return []
        return [each for each in found.hosts if each.host != this_host()]

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def abandon(self) -> None:
        if self._made is not None:
            self._made.abandon()

    def _ask(self, command: commands.RequestGateway, timeout: float) -> replies.GatewayFound:
        return self._registry.reply(command, replies.GatewayFound, timeout)
