"""The readers that hold a writer back: those that keep slots, and those that it must wait for.

Rule 1: a process keeps at most its share of a ring's slots (`share_of`); what it reads beyond that are copies.
Rule 2: all processes together keep at most three quarters of them (`most_of_all`). So values that are kept in lists
never stop the writer, however many processes keep them.
"""

import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_MOST_HELD: Final = 64  # the writer passes over every slot that is held, for each item


@dataclass(frozen=True, slots=True)
class Holder:
    """A reader of a ring, or a group of readers, as its writer sees it."""

    pid: int | None  # None: a group, or a reader of an earlier version
    held: int  # slots that it keeps
    unread: int | None  # items that the writer must keep for it; None: the writer does not wait for it
    group: str | None = None
    members: int | None = None  # of a group: how many are there now
    lag: int = 0  # items that were written after the last one that it read, whether the writer waits for it or not
    position: int = 0  # the last item that it has read; of a group, up to which all is done
    consumer_id: str | None = None  # None: nobody said
    missed: int = 0  # items that were overwritten before it came to them
    shares: int = 1  # it reads one of so many items: those of its share, where it is a member of a group
    host: str | None = None  # where its process is, if not here: a gateway of this host reads for it
    holding_pid: int | None = None  # the process of this host that keeps the slots: its own, or a gateway's

    @property
    def is_left_behind(self) -> bool:
        """Return whether this is a group without members that has not read everything."""
        return self.members == 0 and bool(self.unread)

    def __str__(self) -> str:
        who = f"group {self.group!r}" if self.group else f"process {self.pid or '(unknown)'}"
        who += f" on host {self.host!r}" if self.host else ""
        who += ", which nobody is in," if self.is_left_behind else ""
        parts = [f"holds {_count(self.held, 'slot')}"] if self.held else []
        parts += [f"has not read {_count(self.unread, 'item')}"] if self.unread else []
        return f"{who} {' and '.join(parts) or 'holds nothing'}"


def told(holders: Iterable[Holder], channel: str) -> str:
    """Describe, for a message, the readers and groups that hold the channel's writer back."""
    found = []
    for holder in holders:
        if holder.is_left_behind:
            found.append(f"{holder} (to forget it: messagehub channels delete-group {channel} {holder.group})")
        elif holder.held or holder.unread:
            found.append(str(holder))
    return ", ".join(found) or "values of readers that are closed by now hold them"


def share_of(slot_count: int) -> int:
    """Return how many slots of a ring one process may hold before it gets copies; of one or two slots, none."""
    if slot_count <= 3:
        return max(0, slot_count - 2)
    return max(2, min(slot_count // 4, _MOST_HELD))


def most_of(slot_count: int) -> int:
    """Return how many slots one payload may take: those that remain when one process holds its share. A reader that
    waits for the next item usually still holds the one before."""
    return slot_count - share_of(slot_count)


def slots_for(pieces: int) -> int:
    """Return how many slots a ring needs, so that a payload of `pieces` items may be written to it."""
    found = pieces
    while most_of(found) < pieces:
        found += 1
    return found


def most_of_all(slot_count: int) -> int:
    """Return how many slots of a ring all processes together may hold before they get copies."""
    return slot_count * 3 // 4


class HeldCount:
    """How many slots of one ring this process holds, over all its readers: a word that their cores count in."""

    __slots__ = ("__weakref__", "memory")

    def __init__(self) -> None:
        self.memory = bytearray(8)


_held_counts: "weakref.WeakValueDictionary[str, HeldCount]" = weakref.WeakValueDictionary()


def held_count(block_id: str) -> HeldCount:
    found = _held_counts.get(block_id)
    if found is None:
        found = _held_counts.setdefault(block_id, HeldCount())
    return found


os.register_at_fork(after_in_child=_held_counts.clear)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
