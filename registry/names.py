"""The one grammar of channel and role names.

A name is dot-separated components, each a letter followed by letters, digits, `_` or `-`, at most 64 characters;
the whole at most 200. Channels may not start with `hub` or `sys`: those are ours.
A display name carries ` | pid:<pid>-<n>` behind the logical name; look-ups drop it, registrations refuse it.
"""

import re

from registry.errors import InvalidName

MAX_LENGTH = 200
RULE = (
    "dot-separated components of [A-Za-z][A-Za-z0-9_-]{0,63}, at most 200 characters"
    " (channels: the first component is not hub or sys)"
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}(?:\.[A-Za-z][A-Za-z0-9_-]{0,63})*\Z", re.ASCII)
_MARKER = re.compile(r" \| pid:[0-9]{1,20}-[0-9]{1,20}\Z", re.ASCII)
_RESERVED = ("hub", "sys")
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)


def logical(name: str) -> str:
    """Return the name without a display marker: `x` for `x | pid:1-0`."""
    return _MARKER.sub("", name) if " | pid:" in name else name


def check_channel(name: str) -> str:
    _check("channel", name)
    if name.split(".", 1)[0] in _RESERVED:
        raise InvalidName(f"channel name {name!r} starts with a reserved component", name=name, rule=RULE)
    return name


def check_role(kind: str, name: str) -> str:
    return _check(kind, name)


def check_shm(name: str) -> str:
    """Check a name below the shared-memory directory: it is absolute, and does not lead out of that."""
    parts = name.split("/")
    if parts[0] or len(parts) < 2 or "\0" in name or any(part in ("", ".", "..") for part in parts[1:]):
        raise InvalidName(
            f"shm_name {name!r} must start with '/' and name a file below the shared-memory directory",
            name=name,
        )
    return name


def to_role(text: str) -> str:
    """Return a role name made from any text, such as a host name. Equal texts give equal names."""
    cleaned = _NOT_ALLOWED.sub("-", text)[:60].strip("-")
    return cleaned if cleaned[:1].isalpha() else f"r-{cleaned}"


def _check(kind: str, name: str) -> str:
    if len(name) > MAX_LENGTH or not _NAME.match(name):
        shown = name if len(name) <= MAX_LENGTH else name[:40] + "…"
        raise InvalidName(f"{kind} name {shown!r} breaks the rule: {RULE}", name=shown, rule=RULE)
    return name
