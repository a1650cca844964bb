"""Correlated streams: many requests in flight, each gets its own messages and no others."""

from messagehub.streams.collector import Collected, Collector, execution_state
from messagehub.streams.router import (
    EXPIRED,
    JUPYTER_CATEGORIES,
    AmbiguousKind,
    CategoryMismatch,
    Cleanup,
    DuplicateRequest,
    RequestExpired,
    Routed,
    Sink,
    StreamExpired,
    StreamLimits,
    StreamMessage,
    StreamRouter,
    StreamStats,
    Tap,
)

__all__ = [
    "EXPIRED",
    "JUPYTER_CATEGORIES",
    "AmbiguousKind",
    "CategoryMismatch",
    "Cleanup",
    "Collected",
    "Collector",
    "DuplicateRequest",
    "RequestExpired",
    "Routed",
    "Sink",
    "StreamExpired",
    "StreamLimits",
    "StreamMessage",
    "StreamRouter",
    "StreamStats",
    "Tap",
    "execution_state",
]
