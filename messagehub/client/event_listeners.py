"""Raw events by topic prefix, for whoever needs no view of channels: callbacks on the I/O thread."""

import logging
from collections.abc import Callable

from messagehub.client.connection import Connection
from registry import replies

log = logging.getLogger("messagehub.client")

OnEvent = Callable[[bytes | None], None]


class EventListeners:
    """A callback gets each event's bytes, and None when events may have been missed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._taps: list[tuple[bytes, OnEvent]] = []

    def add(self, prefix: bytes, on_event: OnEvent) -> Callable[[], None]:
        """Start; the returned function ends it."""
        self._connection.check_open()
        tap = (prefix, on_event)
        self._taps = [*self._taps, tap]
        self._connection.wake()

        def remove() -> None:
            self._taps = [other for other in self._taps if other is not tap]
            self._connection.wake()

        return remove

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._taps)

    def topics(self) -> set[bytes]:
        return {prefix for prefix, _ in self._taps}

    def on_connected(self, hello: replies.HelloAck) -> None:  # noqa: ARG002  every part has this signature
        self.on_disconnected()

    def on_disconnected(self) -> None:
        for _, on_event in self._taps:
            self._call(on_event, None)

    def on_event(self, topic: bytes, payload: bytes) -> None:
        for prefix, on_event in self._taps:
            if topic.startswith(prefix):
                self._call(on_event, payload)

    def tick(self, now: float) -> float:
        return now + 60.0

    def _call(self, on_event: OnEvent, payload: bytes | None) -> None:
        try:
            on_event(payload)
        except BaseException:  # also an exit: it concerns this callback and this event, not our thread
            self._connection.count_defect()
            log.exception("a callback of `tap` failed at %r", payload)
