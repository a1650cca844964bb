"""The interface that heartbeats, watches, caches and event listeners implement to follow a connection."""

from typing import Protocol

from registry import replies


class ConnectionListener(Protocol):
    """Called on the connection's I/O thread. The connection is kept up while one of its listeners is active."""

    def is_active(self) -> bool: ...

    def topics(self) -> set[bytes]: ...

    def on_connected(self, hello: replies.HelloAck) -> None: ...

    def on_disconnected(self) -> None: ...

    def on_event(self, topic: bytes, payload: bytes) -> None: ...

    def tick(self, now: float) -> float:
        """Do what is due and return when more will be."""
