"""Values as a person reads them, in a terminal or in a notebook.

Rule: what a peer chose (hashes, ids, messages) never comes out as control characters.
"""

from datetime import datetime
from typing import Any

SHORT_LENGTH = 12


def shown(value: Any) -> str:
    """One value as a person reads it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{shown(name)}={shown(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "-"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short(text: str | None) -> str | None:
    """Enough of a hash to tell it from others in a list."""
    return text if text is None or len(text) <= SHORT_LENGTH + 1 else f"{text[:SHORT_LENGTH]}…"


def moment(at: float) -> str:
    """Local time, to the second: enough for a list."""
    return instant(at)[:-4]


def instant(at: float) -> str:
    """Local time, to the millisecond."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def size(count: int) -> str:
    """A number of bytes, with three digits and a unit."""
    if count < 1024:
        return f"{count} B"
    number, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if number < 999.5:
            break
        number, unit = number / 1024, larger
    return f"{number:.3g} {unit}"


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    larger, smaller = (
        (f"{days} d", f"{hours} h")
        if days
        else (f"{hours} h", f"{minutes} min")
        if hours
        else (f"{minutes} min", f"{rest} s")
    )
    return larger if smaller.startswith("0 ") else f"{larger} {smaller}"
