"""Follows the tables in the directory of this host: registers those that their writer could not, ends those removed.

Rule 1: a table is registered by the command that its writer would send, so both have the same effect.
Rule 2: the schema of a table is checked elsewhere (`entry_checks`) before the table is registered.
Rule 3: a dropped table is not registered again while its files are being removed.
Rule 4: a table that one of another host came after does not come back when that one ends: its rows are older. It is
removed then, unless it may be newer by another clock: kept in memory, it would be read here, and be registered again
by the next hub of this host.
"""

import logging
import os
import time
from typing import NamedTuple

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.host_watcher.entry_checks import Adoption, EntryChecks, LookAgain
from messagehub.errors import HubError, ProtocolError
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import block_path, newest_table
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import host
from messagehub.shm.tables import manifests
from messagehub.shm.tables.tables import TableStore
from registry import commands, events
from registry.errors import Refusal
from registry.records import Table
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

DROP_SECONDS = 5.0
SOON_SECONDS = 0.05
MOST_APART_SECONDS = 3 * 3600.0
"""A table that nobody saw registered is older than one of another host only if it is older by more: clocks differ."""
Stamp = tuple[int, int, int]
"""Generation, inode and time of a manifest, which identify it without reading it."""


class _Ended(NamedTuple):
    """The manifests that were there when a table was dropped, or destroyed with its channel."""

    stamps: set[Stamp]
    removed_by: float
    is_destroyed: bool


class TableWatcher:
    def __init__(
        self, directory: Directory, checks: EntryChecks, look_again: LookAgain, access_control: AccessControl | None
    ) -> None:
        self._directory = directory
        self._checks = checks
        self._look_again = look_again
        self._access_control = access_control
        self._registered: dict[str, Stamp] = {}
        self._ended: dict[str, _Ended] = {}
        self._elsewhere: dict[str, Table] = {}
        """By channel that has tables here: the table of another host that was registered since."""
        self._superseded: dict[str, Stamp] = {}
        """By channel: the newest table here, where one of another host came after it."""
        self._was_registered: dict[str, int] = {}
        """By channel: the newest generation here that the registry had, so that what it has from elsewhere is newer."""

    def channels(self, registry: Registry) -> list[str]:
        """Return the channels whose registered table should be in this directory."""
        return [name for name, known in registry.channels.items() if known.table and self._is_here(name, known.table)]

    def committed(self, channel: str, table: Table) -> None:
        """Note a table of another host that came after one which may be here."""
        if table.host != host() and os.path.isdir(self._directory.tables_path(channel)):
            self._elsewhere[channel] = table
            return
        self._elsewhere.pop(channel, None)
        if self._is_here(channel, table):
            self._was_registered[channel] = table.generation

    def ended(self, channel: str, *, is_destroyed: bool) -> None:
        """Remember that the registry's record of a table has ended."""
        stamps = self._stamps(channel)
        elsewhere = self._elsewhere.pop(channel, None)
        if stamps and elsewhere is not None:
            older = newest_table(self._directory, channel)
            if older is not None and not _is_news(older, elsewhere):
                is_removed = self._remove(older, elsewhere)
                if is_removed or not is_destroyed:
                    self._superseded[channel] = stamps[-1]
                    return
        if stamps:
            self._ended[channel] = _Ended(set(stamps), time.monotonic() + DROP_SECONDS, is_destroyed)
            self._look_again(channel, SOON_SECONDS)

    def look(self, registry: Registry, channel: str, happened: list[events.AnyEvent], now: float) -> str | None:
        """Register or end the channel's table as the directory shows it, and return what prevents that, if anything."""
        record = registry.channels.get(channel)
        present = record.table if record else None
        is_here = present is not None and self._is_here(channel, present)
        stamps = self._stamps(channel)
        if is_here and stamps and stamps[-1] == self._registered.get(channel):
            return None
        command = newest_table(self._directory, channel, with_schema=True) if stamps else None
        if command is None:
            self._checks.forget(channel, None)
            self._registered.pop(channel, None)
            self._ended.pop(channel, None)
            self._superseded.pop(channel, None)
            self._elsewhere.pop(channel, None)
            self._was_registered.pop(channel, None)
            happened += registry.host_events.table_gone(channel, now=now) if is_here else []
            return None
        if present is not None and not _is_news(command, present):
            if is_here:
                self._registered[channel] = stamps[-1]
                self._was_registered[channel] = command.generation
            else:
                self._elsewhere[channel] = present
            return None
        if present is None and self._superseded.get(channel) == stamps[-1]:
            return None
        self._superseded.pop(channel, None)
        ended = self._ended.get(channel)
        if ended is not None and stamps[-1] in ended.stamps:
            if time.monotonic() < ended.removed_by:
                self._look_again(channel, SOON_SECONDS)
                return None
            if ended.is_destroyed:
                return (
                    f"the channel was destroyed, but its table (generation {command.generation}) is still in shared"
                    f" memory: remove it with `messagehub tables drop {channel}`"
                )
        is_readable = present is not None and any(present.generation == generation for generation, *_ in stamps[:-1])
        if is_here and not is_readable:
            happened += registry.host_events.table_gone(channel, now=now)
        return self._adopt(registry, command, happened, now)

    def _adopt(
        self, registry: Registry, command: commands.RegisterTable, happened: list[events.AnyEvent], now: float
    ) -> str | None:
        channel = command.channel
        try:
            protocol.decode(protocol.encode(command))  # the directory is input like any other
            if self._access_control is not None:
                self._access_control.check_entry(_writer_of(self._directory, command), command)
        except (Refusal, ProtocolError) as error:
            return _clash_of(command, error)
        try:
            adoption = Adoption(channel, None, command)
            result = self._checks.result(adoption)
            if self._checks.must_wait(adoption, result, registry):
                return None
            happened += registry.apply(command, now=now, result=result).events
            self._checks.forget(channel, None)
            return None
        except Refusal as error:
            return _clash_of(command, error)

    def _remove(self, older: commands.RegisterTable, elsewhere: Table) -> bool:
        """Remove the table of this host with the newer one that ended elsewhere. The cleaner frees its memory.

        Return False where it may be the newer one, where somebody is changing it just now, or it is not ours to change.
        """
        channel, why = older.channel, "which of them is newer is not known, since clocks differ"
        was_registered = older.generation <= self._was_registered.get(channel, 0)
        if was_registered or older.committed_at + MOST_APART_SECONDS < elsewhere.registered_at:
            store = TableStore(self._directory.tables_path(channel))
            try:
                with store.locked(0.0):
                    for generation in store.generations():
                        if generation <= older.generation:
                            manifests.drop(store.path, generation)
            except (DataBlockError, OSError) as error:
                why = f"it cannot be removed: {error}"
            else:
                log.info("channel %r: the older table of this host is removed, as the newest was", channel)
                return True
        log.warning(
            "the table of channel %r in the memory of host %r has ended, and the one in the memory of this host stays:"
            " %s. Remove it with `messagehub tables drop %s`, or publish it again",
            channel,
            elsewhere.host,
            why,
            channel,
        )
        return False

    def _is_here(self, channel: str, table: Table) -> bool:
        """Return whether the table is in this directory, and not in that of another host or domain."""
        place = os.path.dirname(block_path(self._directory, table.shm_name))
        return table.host == host() and place == self._directory.tables_path(channel)

    def _stamps(self, channel: str) -> list[Stamp]:
        """Return the stamps of all manifests, the newest last."""
        path = self._directory.tables_path(channel)
        found = []
        for generation in manifests.generations(path):
            try:
                status = os.lstat(manifests.manifest_path(path, generation))
            except FileNotFoundError:
                continue  # retired meanwhile
            found.append((generation, status.st_ino, status.st_mtime_ns))
        return found


def _is_news(command: commands.RegisterTable, present: Table) -> bool:
    """Return whether a table of this host differs from the one that the registry has."""
    if present.host != command.host or os.path.dirname(present.shm_name) != os.path.dirname(command.shm_name):
        return command.committed_at > present.registered_at  # both by this host's clock
    return (command.generation, command.committed_at) != (present.generation, present.committed_at)


def _clash_of(command: commands.RegisterTable, error: HubError) -> str:
    return f"table generation {command.generation} (pid {command.pid}): {error.message}"


def _writer_of(directory: Directory, command: commands.RegisterTable) -> int:
    try:
        return os.lstat(block_path(directory, command.shm_name)).st_uid
    except OSError:
        return -1  # retired meanwhile
