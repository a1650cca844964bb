"""What peers changed, or were refused, in the audit log.

Rule 1: each is written, unless one peer makes so many that they would push everything else out of the log.
Rule 2: a command is named by its kind, its correlation id and what it is about, never by what it carries.
"""

import threading
from time import monotonic
from typing import Any

from messagehub.errors import HubError, ProtocolError, RateLimited
from messagehub.security.audit import REFUSALS_PER_SECOND, AuditLog
from messagehub.security.rate_limits import TokenBuckets
from messagehub.settings import Settings
from registry import access, commands, names

AUDIT_SECONDS = 1.0
MAX_NOTED = 10_000


class PeerAudit:
    def __init__(self, settings: Settings) -> None:
        self.skipped = 0
        self._log = AuditLog(settings.dir / "audit.log", max_bytes=settings.audit_bytes)
        self._refusals = TokenBuckets(REFUSALS_PER_SECOND)
        self._counting = threading.Lock()
        self._noted_at: dict[tuple[str, str], float] = {}
        self._noted_entries: set[tuple[str, str, str | None]] = set()

    @property
    def lost(self) -> int:
        return self._log.lost

    def reopen(self, settings: Settings) -> None:
        self._log.reopen(max_bytes=settings.audit_bytes)

    def close(self) -> None:
        self._log.close()

    def changed(self, user: str, command: commands.AnyCommand, **more: Any) -> None:
        self._log.write("changed", user, **_what(command), **more)

    def refused_command(self, user: str, command: commands.AnyCommand, code: str) -> None:
        self.refused(user, code=code, **_what(command))

    def refused(self, user: str, **what: Any) -> None:
        self.write(user, "refused", user, **what)

    def refused_request(self, user: str, request: str, request_id: str | None, error: HubError) -> None:
        """What comes too fast, or is no request, is noted once in a while: a peer can send it without end."""
        if isinstance(error, RateLimited | ProtocolError):
            now = monotonic()
            if now < self._noted_at.get((user, error.code), 0.0):
                return
            self._noted_at[user, error.code] = now + AUDIT_SECONDS
        name = error.details.get("name")
        self.refused(user, code=error.code, request=request, correlation_id=request_id, name=name)

    def is_new_entry(self, user: str, command: commands.RegisterProducer | commands.RegisterTable) -> bool:
        """Whether this entry of the directory was not noted yet: it stays, and is looked at again and again."""
        entry = (user, command.channel, getattr(command, "lease", None))
        if entry in self._noted_entries:
            return False
        if len(self._noted_entries) >= MAX_NOTED:
            self._noted_entries.clear()
        self._noted_entries.add(entry)
        return True

    def write(self, peer: str, event: str, who: str, **what: Any) -> None:
        """`peer` is whose share of the log it takes."""
        with self._counting:
            if not self._refusals.take(peer, monotonic()):
                self.skipped += 1
                return
        self._log.write(event, who, **what)


def _what(command: commands.AnyCommand) -> dict[str, Any]:
    name = access.about(command)
    member = access.member(command)
    return {
        "request": str(command.__struct_config__.tag),
        "correlation_id": command.id,
        "name": name[: names.MAX_LENGTH] if name else None,
        "member": member[: names.MAX_LENGTH] if member else None,
    }
