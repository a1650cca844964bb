"""What can be wrong with a set-up: each module looks at one part of it and changes nothing."""

from typing import Literal

from msgspec import Struct

Severity = Literal["ok", "info", "warning", "error"]


class Finding(Struct, frozen=True):
    """One thing that was looked at. `fix` says what to do about it; only what is fine has none."""

    check: str
    severity: Severity
    message: str
    fix: str | None = None

    @property
    def is_trouble(self) -> bool:
        return self.severity in ("warning", "error")
