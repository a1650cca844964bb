"""The members of a group that live in one process: whom one of them waits for at the end of a stream.

Rule 1: nobody waits for itself: what a member has to do that nobody reads now is left out of the wait, and so is what
the waiting thread or task has read itself. Whoever reads one member after the other gets to the end of each.
Rule 2: a member that another thread or task reads is waited for, also while that one works on an item: when it fails,
somebody has to be left who takes over.
Rule 3: a member takes a new share only when it is read; for one that nobody reads, whoever waits has it look.
"""

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from messagehub.shm.rings.groups import MemberShare

ShareIn = Callable[[str], MemberShare | None]
"""What a member reads of the ring at this path."""
Reader = threading.Thread | asyncio.Task[Any] | None
"""Who reads a member; None: nobody that could be named."""


class GroupName(NamedTuple):
    directory: str
    channel: str
    group: str


class GroupMate:
    """One member, as the others of its process see it."""

    def __init__(self, name: GroupName, keep_up: Callable[[], ShareIn | None]) -> None:
        """`keep_up`, a method, has the member take the share that holds now; None while somebody reads it."""
        self._name = name
        self._keep_up = weakref.WeakMethod(keep_up)  # whoever forgets a consumer has it collected at once
        self._read_by: weakref.ref[Any] | None = None
        self._process = os.getpid()
        _living[next(_numbers)] = self

    def is_read_by(self, reader: Reader) -> None:
        self._read_by = None if reader is None else weakref.ref(reader)

    def others_unread(self) -> list[ShareIn]:
        """Return the shares of the others that nobody else reads, brought up to date."""
        found = [(mate._keep_up(), mate._reader()) for mate in self._others()]
        kept_up = [keep_up() for keep_up, reader in found if keep_up is not None and reader is None]
        return [share_in for share_in in kept_up if share_in is not None]

    def others_read_by(self) -> list[str]:
        """Return the names of the threads and tasks of this process that read other members."""
        readers = [mate._reader() for mate in self._others()]
        return [
            reader.name if isinstance(reader, threading.Thread) else reader.get_name() for reader in readers if reader
        ]

    def _others(self) -> list["GroupMate"]:
        mates = [reference() for reference in _living.valuerefs()]
        here = (mate for mate in mates if mate is not None and mate._process == os.getpid())
        return [mate for mate in here if mate is not self and mate._name == self._name]

    def _reader(self) -> threading.Thread | asyncio.Task[Any] | None:
        """Return the thread or task that read this member last, if it is not the caller and may come back."""
        reader = self._read_by() if self._read_by is not None else None
        if isinstance(reader, threading.Thread):
            return reader if reader.is_alive() and reader is not threading.current_thread() else None
        if isinstance(reader, asyncio.Task):
            return reader if not reader.done() and reader is not _current_task() else None
        return None


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # no event loop runs in this thread


_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, GroupMate] = weakref.WeakValueDictionary()
