"""The gateways of other hosts for one hub: made when the first consumer needs them."""

import threading
from typing import TYPE_CHECKING

from messagehub.client.connection import Connection
from messagehub.discovery.registry_client import RegistryClient
from registry import commands, replies

if TYPE_CHECKING:
    from messagehub.flight.client import Gateways


class GatewayAccess:
    def __init__(self, registry: RegistryClient, connection: Connection) -> None:
        self._registry = registry
        self._connection = connection
        self._making = threading.Lock()
        self._made: Gateways | None = None

    @property
    def is_in_site(self) -> bool:
        """Whether the hub is a member of a site, as far as it has said so."""
        hello = self._connection.hello
        return hello is not None and bool(hello.site)

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

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def abandon(self) -> None:
        if self._made is not None:
            self._made.abandon()

    def _ask(self, command: commands.RequestGateway, timeout: float) -> replies.GatewayFound:
        return self._registry.reply(command, replies.GatewayFound, timeout)
