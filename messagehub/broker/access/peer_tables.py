"""How many tables one peer has registered.

Tables have no lease, so they do not end by themselves: without a bound one peer could fill the registry. A channel with
a table takes a place, which is free again when the channel has no table any more. Such places are searched for only
when all are taken, and at most once a second.
"""

from messagehub.errors import TooManyRegistrations
from registry.channels.state import Channels

LOOK_SECONDS = 1.0


class PeerTables:
    def __init__(self, limit: int) -> None:
        """`limit` 0 means no limit."""
        self.limit = limit
        self._places: dict[str, set[str]] = {}
        self._look_at: dict[str, float] = {}

    def take(self, user: str, channel: str, channels: Channels, now: float) -> None:
        places = self._places.setdefault(user, set())
        if not self.limit or channel in places:
            return
        if len(places) >= self.limit and now >= self._look_at.get(user, 0.0):
            self._look_at[user] = now + LOOK_SECONDS
            places.intersection_update([name for name in places if name in channels and channels[name].table])
        if len(places) >= self.limit:
            said = f"this peer has registered {len(places)} tables, and one may have {self.limit}: drop some"
            raise TooManyRegistrations(said, limit=self.limit)
        places.add(channel)
