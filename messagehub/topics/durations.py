"""Durations as people write them: 30s, 10m, 12h, 7d."""

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RULE = "a time such as 30s, 10m, 12h or 7d"


def seconds_of(text: str) -> float:
    """Return the seconds that a text says; a number alone counts seconds. Raise ValueError for any other text."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is not {RULE}")
    return float(found[1]) * _UNITS[found[2]]
