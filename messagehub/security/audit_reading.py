"""The audit logs of a hub, read from their ends: the newest entries of all of them that somebody looks for.

Rule: at most `MAX_READ_BYTES` of each log are read, the newest first. A log that is turned over meanwhile may show an
entry twice or not at all.
"""

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from messagehub.security.audit import ROTATED_FILES

LOGS = {"broker": "audit.log", "http": "audit-http.log", "access": "audit-access.log"}
MAX_READ_BYTES = 16 << 20
_CHUNK_BYTES = 256 << 10
_decode = msgspec.json.Decoder(dict[str, Any]).decode

Entry = dict[str, Any]


def newest_entries(directory: Path, limit: int, is_wanted: Callable[[Entry], bool]) -> list[Entry]:
    """Return the newest entries that are wanted, newest first; `log` says which log an entry is from."""
    found: list[Entry] = []
    for log, name in LOGS.items():
        entries = ({**entry, "log": log} for entry in _entries(directory / name))
        found += islice((entry for entry in entries if is_wanted(entry)), limit)
    return sorted(found, key=_time, reverse=True)[:limit]


def _time(entry: Entry) -> float:
    at = entry.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def _entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a log and of the files that it was turned over to, newest first."""
    left = MAX_READ_BYTES
    for number in range(ROTATED_FILES + 1):
        place = path if number == 0 else path.with_name(f"{path.name}.{number}")
        try:
            with open(place, "rb") as file:
                for line in _lines_backwards(file.fileno(), left):
                    left -= len(line) + 1
                    try:
                        yield _decode(line)
                    except (msgspec.DecodeError, UnicodeError):
                        continue  # cut off by a full disk
        except FileNotFoundError:
            continue
        if left <= 0:
            return


def _lines_backwards(fd: int, most_bytes: int) -> Iterator[bytes]:
    end = os.fstat(fd).st_size
    lowest = max(end - most_bytes, 0)
    rest = b""
    while end > lowest:
        begin = max(end - _CHUNK_BYTES, lowest)
        rest = os.pread(fd, end - begin, begin) + rest
        lines = rest.split(b"\n")
        rest = lines.pop(0)
        yield from (line for line in reversed(lines) if line)
        end = begin
    if rest and not lowest:
        yield rest
