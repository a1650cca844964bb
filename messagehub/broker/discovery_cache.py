"""Discoveries encoded once and answered many times: only the id differs."""

import msgspec

from messagehub.protocol import encode
from registry.replies import Discovered

MAX_KEPT = 50_000
_HEAD = b'{"type":"DISCOVERY_RESPONSE",'


class EncodedDiscoveries:
    """The registry gives the same reply object until the channel changes; so long its bytes are good."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Discovered, bytes]] = {}

    def payload(self, reply: Discovered, request_id: str | None) -> bytes:
        kept = self._kept.get(reply.channel)
        if kept is None or kept[0] is not reply:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            reply.id = msgspec.UNSET
            kept = self._kept[reply.channel] = (reply, encode(reply)[len(_HEAD) :])
        if request_id is None:
            return _HEAD + kept[1]
        return b'%s"id":%s,%s' % (_HEAD, encode(request_id), kept[1])
