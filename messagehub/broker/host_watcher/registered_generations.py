"""Which generations of the tables here the registry has had, so that what it has no more is known to have ended.

Rule 1: a hub on its own remembers that while it runs, and writes nothing. The hub of a site keeps it in a file beside
the table (`registered_mark`), since others change the registry while it is down.
Rule 2: only what is stored is noted: a leader may lose what it has decided, and that was never registered.
Rule 3: a registry that is older than the mark was restored from a snapshot. The mark is removed before anything is
decided by it: when the registry has reached its revision again, it would be about another history.
"""

import logging
from collections.abc import Callable

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.tables.registered_mark import RegisteredMark, read_mark, remove_mark, write_mark
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")


class RegisteredGenerations:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._while_running: dict[str, int] = {}
        self._site_id: Callable[[], str] | None = None

    def keep_for(self, site_id: Callable[[], str]) -> None:
        """Keep it for a site, whose id is final when something was written to the site."""
        self._site_id = site_id

    @property
    def is_kept(self) -> bool:
        return self._site_id is not None

    def newest(self, registry: Registry, channel: str) -> int:
        """Return the newest generation here that the registry is known to have had, or 0."""
        if self._site_id is None:
            return self._while_running.get(channel, 0)
        mark = self._read(channel)
        if mark is None or mark.site_id != self._site_id():
            return 0
        if mark.revision > registry.revision:
            self.forget(channel)
            return 0
        return mark.generation

    def note(self, channel: str, generation: int, revision: int) -> bool:
        """Note that the registry has a generation, stored with this revision or an earlier one. False: not possible."""
        if self._site_id is None:
            self._while_running[channel] = generation
            return True
        site_id, mark = self._site_id(), self._read(channel)
        if mark is not None and (mark.site_id, mark.generation) == (site_id, generation):
            return True
        try:
            new = RegisteredMark(site_id=site_id, generation=generation, revision=revision)
            write_mark(self._directory.tables_path(channel), new)
        except (DataBlockError, OSError) as error:
            log.warning("that the table of channel %r is registered cannot be noted: %s", channel, error)
            return False
        return True

    def forget(self, channel: str) -> None:
        self._while_running.pop(channel, None)
        if self._site_id is not None:
            try:
                remove_mark(self._directory.tables_path(channel))
            except (DataBlockError, OSError) as error:
                log.warning("the mark of the table of channel %r cannot be removed: %s", channel, error)

    def _read(self, channel: str) -> RegisteredMark | None:
        try:
            return read_mark(self._directory.tables_path(channel))
        except (DataBlockError, OSError) as error:
            log.debug("the mark of the table of channel %r cannot be read: %s", channel, error)
            return None
