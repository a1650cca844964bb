"""What stands on a connection: heartbeats, watches, caches, taps."""

from typing import Protocol

from registry import replies


class Part(Protocol):
    """Something that lives on the I/O thread and keeps the connection wanted while it is active."""

    def is_active(self) -> bool: ...

    def topics(self) -> set[bytes]: ...

    def on_connected(self, hello: replies.HelloAck) -> None: ...

    def on_disconnected(self) -> None: ...

    def on_event(self, topic: bytes, payload: bytes) -> None: ...

    def tick(self, now: float) -> float:
        """Do what is due and return when more will be."""
