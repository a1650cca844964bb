"""Raw events by topic prefix, for whoever needs no view of channels: callbacks on the I/O thread."""

from collections.abc import Callable

from messagehub.client.connection import Connection
from registry import replies

OnEvent = Callable[[bytes | None], None]


class Taps:
    """A callback gets each event's bytes, and None when events may have been missed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._taps: list[tuple[bytes, OnEvent]] = []

    def add(self, prefix: bytes, on_event: OnEvent) -> Callable[[], None]:
        """Start; the returned function ends it."""
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
            on_event(None)

    def on_event(self, topic: bytes, payload: bytes) -> None:
        for prefix, on_event in self._taps:
            if topic.startswith(prefix):
                on_event(payload)

    def tick(self, now: float) -> float:
        return now + 60.0
