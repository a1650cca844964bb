"""Discovery through the broker: from the cache while a channel is watched, else by asking."""

from collections.abc import Callable

from messagehub.client.connection import Connection
from messagehub.client.discovery_cache import DiscoveryCache
from messagehub.discovery import Discovery
from messagehub.errors import ChannelNotFound
from registry import commands, replies


class ViaBroker:
    def __init__(self, connection: Connection) -> None:
        self.cache: DiscoveryCache[Discovery] = DiscoveryCache(connection, lambda found: Discovery.of(found, "broker"))
        self._connection = connection

    def ask(self, command: commands.Command, *, timeout: float) -> replies.Reply:
        return self._connection.request(command, timeout=timeout)

    def discover(
        self,
        channel: str,
        *,
        timeout: float,
        expected_schema_hash: str | None = None,
        otherwise: Callable[[], Discovery | None] = lambda: None,
    ) -> Discovery | None:
        """Return None if nobody has registered the channel. Raise BrokerUnavailable if no broker answers.

        `otherwise` is asked when the broker takes longer than a moment; what it finds is the answer.
        """
        self._connection.check_presence()
        try:
            command = commands.Discover(channel=channel, expected_schema_hash=expected_schema_hash)
            reply = self._connection.ask_or(command, replies.Discovered, otherwise, timeout=timeout)
        except ChannelNotFound:
            return None
        if isinstance(reply, Discovery):
            return reply
        found = Discovery.of(reply, "broker")
        if expected_schema_hash is None:
            self.cache.follow(reply.channel, found, reply.revision)
        return found
