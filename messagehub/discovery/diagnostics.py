"""The methods of a hub that tell how its broker is, as the broker says and as this client sees it."""

import time
from typing import Any

from messagehub.client.connection import Connection
from messagehub.discovery.registry_client import RegistryClient
from messagehub.errors import HubError
from registry import commands, replies


class Diagnostics:
    def __init__(self, registry: RegistryClient, connection: Connection) -> None:
        self._registry = registry
        self._connection = connection

    def health(self, *, timeout: float = 1.0) -> dict[str, Any]:
        """Return `healthy`, `degraded` with the problems, or `unavailable` with the reason, within the timeout."""
        started = time.monotonic()
        try:
            pong = self._registry.reply(commands.Ping(priority="high"), replies.Pong, timeout)
        except HubError as error:
            endpoint = self._connection.settings.endpoint
            return {"status": "unavailable", "reason": error.message, "endpoint": endpoint}
        problems = pong.problems or []
        return {
            "status": "degraded" if problems else "healthy",
            "problems": problems,
            "broker_id": pong.broker_id,
            "revision": pong.revision,
            "read_only": pong.read_only,
            "seconds": round(time.monotonic() - started, 6),
        }

    def stats(self, *, timeout: float | None = None) -> replies.StatsReport | None:
        """Return what the broker counts."""
        return self._registry.reply_or_none(commands.Stats(), replies.StatsReport, timeout=timeout)

    def exchanges(self, correlation_id: str | None = None) -> list[dict[str, Any]]:
        """Return this client's side of the newest exchanges, or of one, oldest first. Nobody is asked."""
        return [
            {
                "side": "client",
                "at": at,
                "correlation_id": request_id,
                "request": request,
                "answer": answer,
                "seconds": round(seconds, 7),
            }
            for at, request_id, request, answer, seconds in list(self._connection.exchanges)
            if correlation_id is None or request_id == correlation_id
        ]

    def trace(self, correlation_id: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return both sides of the newest exchanges, or of one: what this client saw and what the broker saw."""
        own = self.exchanges(correlation_id)
        asked = commands.Trace(correlation_id=correlation_id, limit=limit)
        report = self._registry.reply_or_none(asked, replies.TraceReport)
        theirs = report.exchanges if report else []
        return sorted([*own[-limit:], *theirs], key=lambda exchange: exchange["at"])
