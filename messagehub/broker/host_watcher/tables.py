"""Follows the tables in the directory of this host: registers those that their writer could not, ends those removed.

Rule 1: a table is registered by the command that its writer would send, so both have the same effect.
Rule 2: the schema of a table is checked elsewhere (`entry_checks`) before the table is registered.
Rule 3: a dropped table is not registered again while its files are being removed.
Rule 4: a table that the registry has had (`registered_generations`) and has no more does not come back. In a site it
was overwritten on another host, or dropped, perhaps while no hub ran here. It is removed: kept in memory, it would be
read here, and be in the way of whoever appends. What is overwritten has its time of grace before.
Rule 5: only what is stored ends a table: a leader may lose what it has decided.
Rule 6: clocks decide in one case only: a table that the registry is not known to have had, mostly since no hub was
here, against one that another host has registered. The later instant wins. The older one is never removed for that: it
stays, unregistered while this hub runs.
"""

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.host_watcher.entry_checks import Adoption, EntryChecks, LookAgain
from messagehub.broker.host_watcher.registered_generations import RegisteredGenerations
from messagehub.errors import HubError, ProtocolError
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import block_path, newest_table
from messagehub.shm.errors import Busy, DataBlockError
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
BUSY_SECONDS = 1.0
Stamp = tuple[int, int, int]
"""Generation, inode and time of a manifest, which identify it without reading it."""


class _Ended(NamedTuple):
    """The manifests that were there when a table was dropped, or destroyed with its channel."""

    stamps: set[Stamp]
    removed_by: float
    is_destroyed: bool


class _Overwritten(NamedTuple):
    """The newest manifest here while the registry has a table of another host instead."""

    stamp: Stamp
    ends_at: float


class TableWatcher:
    def __init__(
        self,
        directory: Directory,
        checks: EntryChecks,
        look_again: LookAgain,
        access_control: AccessControl | None,
        stored_revision: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._checks = checks
        self._look_again = look_again
        self._access_control = access_control
        self._stored_revision = stored_revision
        self.generations = RegisteredGenerations(directory)
        self._registered: dict[str, Stamp] = {}
        self._ended: dict[str, _Ended] = {}
        self._elsewhere: set[str] = set()
        """Channels that have tables here, and have had a table of another host registered since."""
        self._overwritten: dict[str, _Overwritten] = {}
        self._older: dict[str, Stamp] = {}
        """By channel: the newest table here, where one of another host is newer by the clock (Rule 6)."""
        self._unstored: dict[str, int] = {}
        """By channel: the revision of the last change of its table, until it is stored."""

    def channels(self, registry: Registry) -> list[str]:
        """Return the channels whose registered table should be in this directory."""
        return [name for name, known in registry.channels.items() if known.table and self._is_here(name, known.table)]

    # -- what happened in the registry ---------------------------------------------------------------------

    def changed(
        self, registry: Registry, channel: str, table: Table | None, revision: int, *, is_destroyed: bool = False
    ) -> None:
        """Take what the registry has of a channel now: a table, or none."""
        if table is not None and table.host != host():
            if os.path.isdir(self._directory.tables_path(channel)):
                self._elsewhere.add(channel)
                self._look_again(channel, SOON_SECONDS)
        elif table is not None or not (stamps := self._stamps(channel)):
            self._elsewhere.discard(channel)
        elif channel not in self._elsewhere:
            self._ended[channel] = _Ended(set(stamps), time.monotonic() + DROP_SECONDS, is_destroyed)
            self._look_again(channel, SOON_SECONDS)
        elif is_destroyed:
            self._ended[channel] = _Ended(set(stamps), time.monotonic(), is_destroyed)
        self._unstored[channel] = revision
        self.stored(registry)

    def stored(self, registry: Registry) -> None:
        """Act on the changes that are stored by now. Nobody has heard of them yet."""
        if self._unstored:
            stored = self._stored_revision()
            for channel in [name for name, revision in self._unstored.items() if revision <= stored]:
                self._act_on_stored(registry, channel, self._unstored.pop(channel))

    def forget_unstored(self) -> None:
        """Go on with a registry all of which is stored. What is different in it is seen at the next look."""
        self._unstored.clear()

    def _act_on_stored(self, registry: Registry, channel: str, revision: int) -> None:
        record = registry.channels.get(channel)
        present = record.table if record else None
        if present is not None:
            path = self._directory.tables_path(channel)
            if self._is_here(channel, present) and os.path.exists(manifests.manifest_path(path, present.generation)):
                self.generations.note(channel, present.generation, revision)
        elif channel in self._elsewhere:  # nobody else removes what is here, and whoever hears of the end may append
            command = newest_table(self._directory, channel)
            if command is not None and command.generation <= self.generations.newest(registry, channel):
                self._remove(registry, channel)
                return
            self._look_again(channel, SOON_SECONDS)
            if channel in self._older:
                log.warning(
                    "the table of channel %r in the memory of another host has ended, and the one in the memory of this"
                    " host stays, unregistered: it may be the newer one, since clocks differ. Remove it with"
                    " `messagehub tables drop %s`, or publish it again",
                    channel,
                    channel,
                )

    # -- what is in the directory --------------------------------------------------------------------------

    def look(self, registry: Registry, channel: str, happened: list[events.AnyEvent], now: float) -> str | None:
        """Register or end the channel's table as the directory shows it, and return what prevents that, if anything."""
        record = registry.channels.get(channel)
        present = record.table if record else None
        is_here = present is not None and self._is_here(channel, present)
        stamps = self._stamps(channel)
        if is_here and stamps and stamps[-1] == self._registered.get(channel):
            return None
        if present is not None and not is_here and self._has_grace(channel, stamps):
            return None
        command = newest_table(self._directory, channel, with_schema=True) if stamps else None
        if command is None:
            self._forget(channel)
            happened += registry.host_events.table_gone(channel, now=now) if is_here else []
            return None
        if present is not None and present.host != host():
            self._elsewhere.add(channel)
        if present is not None and is_here and not _is_news(command, present):
            self._note(registry, channel, stamps[-1])
            return None
        if not is_here and self._is_over(registry, command, present):
            self._end(registry, command, present, stamps)
            return None
        if present is not None and not _is_news(command, present):
            self._older[channel] = stamps[-1]
            return None
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
        if present is None and self._older.get(channel) == stamps[-1]:
            return None
        is_readable = present is not None and any(present.generation == generation for generation, *_ in stamps[:-1])
        if is_here and not is_readable:
            self.generations.forget(channel)
            is_lost = present is not None and _is_older(command, present)  # not dropped, and an older one serves again
            happened += registry.host_events.table_gone(channel, now=now) if is_lost else []
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

    def _note(self, registry: Registry, channel: str, stamp: Stamp) -> None:
        """Note that the newest table here is the one of the registry, once that is stored."""
        revision = min(registry.revision, self._stored_revision())
        if channel not in self._unstored and self.generations.note(channel, stamp[0], revision):
            self._registered[channel] = stamp
            self._overwritten.pop(channel, None)
            self._older.pop(channel, None)

    def _forget(self, channel: str) -> None:
        """Forget a channel that has no table here."""
        self._checks.forget(channel, None)
        self._registered.pop(channel, None)
        self._ended.pop(channel, None)
        self._elsewhere.discard(channel)
        self._overwritten.pop(channel, None)
        self._older.pop(channel, None)
        self.generations.forget(channel)

    # -- tables that have ended elsewhere ------------------------------------------------------------------

    def _is_over(self, registry: Registry, command: commands.RegisterTable, present: Table | None) -> bool:
        """Return whether the registry has had this table, and has one of another host, or none, by now.

        On its own, a hub hears of every drop, and what is dropped is removed by whoever drops it.
        """
        is_elsewhere = command.channel in self._elsewhere if present is None else present.host != host()
        may_be = is_elsewhere or (present is None and self.generations.is_kept)
        return may_be and command.generation <= self.generations.newest(registry, command.channel)

    def _has_grace(self, channel: str, stamps: list[Stamp]) -> bool:
        """Return whether the newest table here is known to be overwritten, and is not to be removed yet."""
        overwritten = self._overwritten.get(channel)
        if overwritten is None or not stamps or stamps[-1] != overwritten.stamp:
            return False
        left = overwritten.ends_at - time.monotonic()
        if left > 0:
            self._look_again(channel, left)
        return left > 0

    def _end(
        self, registry: Registry, command: commands.RegisterTable, present: Table | None, stamps: list[Stamp]
    ) -> None:
        channel = command.channel
        ended = self._ended.get(channel)
        if channel in self._unstored:
            self._look_again(channel, SOON_SECONDS)
        elif present is None:
            if ended is not None and stamps[-1] in ended.stamps and time.monotonic() < ended.removed_by:
                self._look_again(channel, SOON_SECONDS)
            else:
                self._remove(registry, channel)
        elif self.generations.is_kept:  # on its own, a hub keeps it until the newer one ends
            overwritten = self._overwritten.get(channel)
            if overwritten is None or overwritten.stamp != stamps[-1]:
                manifest = manifests.load(self._directory.tables_path(channel), command.generation)
                grace_seconds = manifest.retention.grace_seconds if manifest is not None else 0.0
                self._overwritten[channel] = _Overwritten(stamps[-1], time.monotonic() + grace_seconds)
            if not self._has_grace(channel, stamps):
                self._remove(registry, channel)

    def _remove(self, registry: Registry, channel: str) -> None:
        """Remove what the registry has had. The cleaner frees its memory, when the last reader has left."""
        store = TableStore(self._directory.tables_path(channel))
        try:
            with store.locked(0.0):
                present = store.generations()
                if present and present[-1] <= self.generations.newest(registry, channel):
                    for generation in present:
                        manifests.drop(store.path, generation)
                    log.info("channel %r: the table of this host is removed: it was overwritten or dropped", channel)
        except Busy:
            self._look_again(channel, BUSY_SECONDS)
        except (DataBlockError, OSError) as error:
            log.warning("channel %r: the table of this host was overwritten or dropped, and stays: %s", channel, error)

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
    """Return whether a table of this host differs from the one that the registry has; Rule 6 for one of elsewhere."""
    if present.host != command.host or os.path.dirname(present.shm_name) != os.path.dirname(command.shm_name):
        return command.committed_at > present.registered_at
    return (command.generation, command.committed_at) != (present.generation, present.committed_at)


def _is_older(command: commands.RegisterTable, present: Table) -> bool:
    """Return whether the registry, which has `present`, would keep it."""
    return command.generation < present.generation and command.committed_at <= present.committed_at


def _clash_of(command: commands.RegisterTable, error: HubError) -> str:
    return f"table generation {command.generation} (pid {command.pid}): {error.message}"


def _writer_of(directory: Directory, command: commands.RegisterTable) -> int:
    try:
        return os.lstat(block_path(directory, command.shm_name)).st_uid
    except OSError:
        return -1  # retired meanwhile
