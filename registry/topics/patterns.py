"""Names of topics and the patterns that subscribers give.

A topic is dot-separated components. In a pattern `*` stands for exactly one component, and a last `>` for one or
more: `sensors.*` matches `sensors.a` only, `sensors.>` also `sensors.a.b`, and neither matches `sensors`.
"""

import re
from collections.abc import Sequence
from typing import Any

from registry.errors import InvalidName

MAX_LENGTH = 200
RULE = "dot-separated components of 1 to 64 letters, digits, `_` or `-`, at most 200 characters"
PATTERN_RULE = f"{RULE}; `*` for any one component, `>` at the end for one or more"
END = b"\0"
"""Stands behind the topic on the wire, so that a subscription to all of a name matches no longer one."""

_COMPONENT = r"[A-Za-z0-9_-]{1,64}"
_TOPIC = re.compile(rf"{_COMPONENT}(?:\.{_COMPONENT})*\Z", re.ASCII)
_PATTERN = re.compile(rf"(?:>|(?:\*|{_COMPONENT})(?:\.(?:\*|{_COMPONENT}))*(?:\.>)?)\Z", re.ASCII)


def check_topic(topic: str) -> str:
    if not isinstance(topic, str):
        raise _no_text("a topic", topic, RULE)
    if len(topic) > MAX_LENGTH or not _TOPIC.match(topic):
        raise InvalidName(f"topic {topic[:MAX_LENGTH]!r} breaks the rule: {RULE}", name=topic[:MAX_LENGTH], rule=RULE)
    return topic


def check_pattern(text: str) -> str:
    if not isinstance(text, str):
        raise _no_text("a pattern", text, PATTERN_RULE)
    if len(text) > MAX_LENGTH or not _PATTERN.match(text):
        shown = text[:MAX_LENGTH]
        raise InvalidName(f"pattern {shown!r} breaks the rule: {PATTERN_RULE}", name=shown, rule=PATTERN_RULE)
    return text


def is_match(pattern: str, components: list[str]) -> bool:
    """Return whether a topic of these components matches, without compiling a pattern that is looked at once."""
    parts = pattern.split(".")
    if parts[-1] == ">":
        parts.pop()
        if len(components) <= len(parts):
            return False
    elif len(parts) != len(components):
        return False
    return all(part in ("*", component) for part, component in zip(parts, components, strict=False))


class Pattern:
    def __init__(self, text: str) -> None:
        self.text = check_pattern(text)
        components = text.split(".")
        wild = next((at for at, component in enumerate(components) if component in ("*", ">")), None)
        literal = ".".join(components[:wild])
        self.prefix = literal.encode() + (END if wild is None else b"." if wild else b"")
        """What every matching topic starts with on the wire: libzmq filters by it, `matches` does the rest."""
        parts = [_COMPONENT if c == "*" else ".+" if c == ">" else re.escape(c) for c in components]
        self.matches = re.compile(r"\.".join(parts)).fullmatch


class Patterns:
    """One pattern or several: a topic matches when any of them does."""

    def __init__(self, patterns: str | Sequence[str]) -> None:
        if not isinstance(patterns, str | list | tuple) or not patterns:
            raise _no_text("a pattern", patterns, PATTERN_RULE)
        texts = [patterns] if isinstance(patterns, str) else patterns
        every = [Pattern(text) for text in texts]
        found = {pattern.text: pattern for pattern in every}
        self.texts = tuple(found)
        self.text = ", ".join(self.texts)
        self.topics = tuple(text for text in self.texts if "*" not in text and ">" not in text)
        """Those that name one topic."""
        self.prefixes = tuple({pattern.prefix for pattern in found.values()})
        self._every = [pattern.matches for pattern in found.values()]

    def matches(self, topic: str) -> bool:
        return any(matches(topic) for matches in self._every)


def _no_text(what: str, given: Any, rule: str) -> InvalidName:
    return InvalidName(f"{what} is text ({rule}), not {given!r:.100}", name=f"{given!r:.100}", rule=rule)
