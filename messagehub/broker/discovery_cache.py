"""Cache of encoded discovery replies: one is encoded once and sent many times, with another id each time."""

import msgspec

from messagehub.protocol import encode
from registry.replies import Discovered

MAX_CACHED = 50_000
_HEAD = b'{"type":"DISCOVERY_RESPONSE",'


class EncodedDiscoveries:
    """The registry returns the same reply object until the channel changes; its bytes are valid as long as it does."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[Discovered, bytes]] = {}

    def payload(self, reply: Discovered, request_id: str | None) -> bytes:
        cached = self._cached.get(reply.channel)
        if cached is None or cached[0] is not reply:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            reply.id = msgspec.UNSET
            cached = self._cached[reply.channel] = (reply, encode(reply)[len(_HEAD) :])
        if request_id is None:
            return _HEAD + cached[1]
        return b'%s"id":%s,%s' % (_HEAD, encode(request_id), cached[1])
