"""Collects the messages of one request until it has ended."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from messagehub.streams.router import EXPIRED, StreamMessage, StreamRouter


def execution_state(message: StreamMessage) -> str | None:
    """Jupyter's notion of progress: "busy" when work on the request begins, "idle" when it has ended."""
    return message.body["content"].get("execution_state") if message.kind == "status" else None


@dataclass(frozen=True, slots=True)
class Collected:
    """Everything that came for one request; `is_complete` is False when the timeout ended it."""

    messages: tuple[StreamMessage, ...]
    """What came, in its order."""
    is_complete: bool
    """Whether the request has ended."""


class Collector:
    """Gathers one request's messages until idle follows busy.

    Enter it before sending the request. Leaving the `with` unregisters, whatever happened inside.
    """

    def __init__(
        self,
        router: StreamRouter,
        request_id: str,
        *,
        timeout_seconds: float,
        state_of: Callable[[StreamMessage], str | None] = execution_state,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._request_id = request_id
        self._timeout_seconds = timeout_seconds
        self._state_of = state_of
        self._clock = clock
        self._queue: queue.SimpleQueue[StreamMessage] = queue.SimpleQueue()
        self._messages: list[StreamMessage] = []
        self._is_busy = False
        self._is_complete = False

    def __enter__(self) -> Self:
        queues = dict.fromkeys(self._router.categories, self._queue)
        self._router.register(self._request_id, queues, now=self._clock())
        return self

    def __exit__(self, *_: object) -> None:
        self._router.unregister(self._request_id)

    def collect(self) -> Collected:
        """Wait for the end, at most the timeout from now. A later call goes on where this one stopped.

        StreamExpired when the router dropped the request since nothing came for it.
        """
        deadline = self._clock() + self._timeout_seconds
        while not self._is_complete:
            try:
                message = self._queue.get(timeout=max(0.0, deadline - self._clock()))
            except queue.Empty:
                break
            if message.kind == EXPIRED:
                raise message.body.error()
            self._messages.append(message)
            state = self._state_of(message)
            self._is_complete = self._is_busy and state == "idle"
            self._is_busy = self._is_busy or state == "busy"
        return Collected(tuple(self._messages), self._is_complete)
