"""Waiting until somebody produces a channel: it is asked for again when its events come and, where none would come,
now and then."""

from functools import partial
from time import monotonic

from messagehub.client.connection import Connection
from messagehub.client.discovery_cache import DiscoveryCache
from messagehub.discovery import Discovery
from messagehub.discovery.registry_client import RegistryClient
from messagehub.errors import ChannelNotReady
from messagehub.runtime.background import BackgroundThreads
from registry import names

WAIT_SECONDS = 0.25


class ChannelWaiter:
    def __init__(
        self,
        registry: RegistryClient,
        cache: DiscoveryCache[Discovery],
        connection: Connection,
        background: BackgroundThreads,
    ) -> None:
        self._registry = registry
        self._cache = cache
        self._connection = connection
        self._background = background

    def look(self, channel: str, deadline: float) -> Discovery | None:
        """Ask once, and follow the channel from now on. Where it is not active, wait until it is worth asking again."""
        heard = self._cache.heard
        found = self._ask(channel, max(deadline - monotonic(), 0.0))
        if not is_active(found) and (remaining := deadline - monotonic()) > 0:
            self._cache.wait(self._until_next_look(channel, remaining), heard)
        return found

    async def look_async(self, channel: str, deadline: float) -> Discovery | None:
        """As `look`, to be awaited.

        It waits in the event loop, since a background thread would be held all that time.
        """
        heard = self._cache.heard
        found = await self._background.call(partial(self._ask, channel), timeout=max(deadline - monotonic(), 0.0))
        if not is_active(found) and (remaining := deadline - monotonic()) > 0:
            await self._cache.wait_async(self._until_next_look(channel, remaining), heard)
        return found

    def _ask(self, channel: str, timeout: float) -> Discovery | None:
        self._cache.follow(names.logical(channel))
        return self._registry.discover(channel, timeout, required=False)

    def _until_next_look(self, channel: str, remaining: float) -> float:
        """Return how many seconds to wait for news of a channel before it is asked for again."""
        is_told = self._connection.hello is not None and self._cache.follows(names.logical(channel))
        return remaining if is_told else min(WAIT_SECONDS, remaining)


def is_active(found: Discovery | None) -> bool:
    return found is not None and found.is_active


def in_time(channel: str, found: Discovery | None, *, required: bool) -> Discovery | None:
    """Return what was found of a channel that was waited for; raise ChannelNotReady where it has to be active."""
    if required and not is_active(found):
        logical = names.logical(channel)
        raise ChannelNotReady(f"channel {logical!r} did not become active in time", channel=logical)
    return found
