"""Parts of tables that jobs of other hosts wrote into the memory of this one: they live as long as their generation.

A job of Spark commits on the host of its driver. The registry then says how many parts are on which host, and the hub
of each of those asks the host of the manifest which of its parts are in use (`parts_for_others` has them written down).

Rule 1: a part ends when no manifest names it any more: superseded and past its grace time, dropped, or not committed.
Rule 2: a job that goes on keeps its parts, however long it takes.
Rule 3: while the host of the manifest cannot be asked, all stays that belongs to the table which the registry has. What
belongs to no such table ends after RELEASE_SECONDS without an answer.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping

from messagehub.errors import HubError
from messagehub.flight.client import AskGateway, Gateways
from messagehub.flight.messages import PartsAsked, PartsInUse
from messagehub.runtime.supervision import Supervisor
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.tables import parts_for_others
from messagehub.shm.tables.tables import TableStore
from registry.records import Table

log = logging.getLogger("messagehub.site")

SOON_SECONDS = 0.2
AGAIN_SECONDS = 30.0
"""So often hosts are asked again: a generation that was superseded ends there later, and nobody tells."""
SCAN_SECONDS = 300.0
"""So often the whole directory is looked at, for jobs that have not committed yet."""
RELEASE_SECONDS = 3600.0


class TableParts:
    """The loop tells it what the registry has; a thread of its own asks, and changes files."""

    def __init__(self, directory: Directory, ask: AskGateway, *, host: str, supervisor: Supervisor) -> None:
        self._directory = directory
        self._gateways = Gateways(ask)
        self._host = host
        self._changing = threading.Lock()
        self._registered: dict[str, str] = {}
        """By channel: the host of the table that has parts here."""
        self._due: set[str] = set()
        self._concerned: set[str] = set()
        """Channels of which something here may be another host's."""
        self._scan_at = self._again_at = 0.0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = supervisor.start("messagehub-table-parts", self._run)

    def close(self, *, timeout: float) -> None:
        self._stopping.set()
        self._wake.set()
        self._thread.join(timeout)
        self._gateways.close()

    # -- for the loop --------------------------------------------------------------------------------------

    def replace(self, tables: Mapping[str, Table]) -> None:
        """Take the tables of the registry, by channel, for all that there are."""
        found = {channel: str(table.host) for channel, table in tables.items() if self._is_named_by(table)}
        with self._changing:
            self._due.update(found, self._registered)
            self._registered = found
        self._wake.set()

    def changed(self, channel: str, table: Table | None) -> None:
        with self._changing:
            if table is not None and self._is_named_by(table):
                self._registered[channel] = str(table.host)
            elif self._registered.pop(channel, None) is None and channel not in self._concerned:
                return
            self._due.add(channel)
        self._wake.set()

    def _is_named_by(self, table: Table) -> bool:
        return table.host not in (None, self._host) and self._host in table.hosts

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            next_at = min(self._scan_at, self._again_at) if self._concerned else self._scan_at
            if self._wake.wait(max(next_at - time.monotonic(), 0.0)):
                self._wake.clear()
                self._stopping.wait(SOON_SECONDS)  # several commits are one question
            for channel in sorted(self._take_due()):
                if self._stopping.is_set():
                    return
                try:
                    self._look(channel)
                except (HubError, OSError) as error:
                    log.warning("parts of other hosts' tables of channel %r are left as they are: %s", channel, error)

    def _take_due(self) -> set[str]:
        with self._changing:
            due, self._due = self._due, set()
        now = time.monotonic()
        if now >= self._again_at:
            self._again_at = now + AGAIN_SECONDS
            due |= self._concerned
        if now >= self._scan_at:
            self._scan_at = now + SCAN_SECONDS
            due |= self._found_in_directory()
        return due

    def _found_in_directory(self) -> set[str]:
        try:
            channels = self._directory.channels()
        except (DataBlockError, OSError):
            return set()
        return {name for name in channels if parts_for_others.has_any(self._directory.tables_path(name))}

    def _look(self, channel: str) -> None:
        store = TableStore(self._directory.tables_path(channel))
        if not parts_for_others.has_any(store.path):
            self._concerned.discard(channel)
            return
        open_here = parts_for_others.transactions_of_others(store.path)
        named = {each.host: each for each in parts_for_others.named_by_others(store.path, os.listdir(store.path))}
        hosts = sorted({*open_here, *named})
        if not hosts:
            self._concerned.discard(channel)
            return
        self._concerned.add(channel)
        for host in hosts:
            transactions = open_here.get(host, [])
            try:
                told = self._gateways.parts_in_use(
                    PartsAsked(channel=channel, host=self._host, transactions=transactions), host
                )
            except (HubError, ImportError) as error:
                log.debug("host %s cannot be asked about the parts of channel %r: %s", host, channel, error)
                self._not_told(store, channel, host, transactions, named.get(host))
            else:
                self._told(store, host, told)

    def _told(self, store: TableStore, host: str, told: PartsInUse) -> None:
        now = time.time()
        with store.locked():
            parts_for_others.set_named(store.path, host, told.parts, now=now)
            for transaction in told.committed:
                parts_for_others.end(store.path, transaction)
            for transaction in told.open:
                parts_for_others.renew(store.path, transaction, now=now)
            store.collect()

    def _not_told(
        self,
        store: TableStore,
        channel: str,
        host: str,
        transactions: list[str],
        named: parts_for_others.NamedParts | None,
    ) -> None:
        now = time.time()
        with self._changing:
            is_registered = self._registered.get(channel) == host
        with store.locked():
            if is_registered:
                for transaction in transactions:
                    parts_for_others.renew(store.path, transaction, now=now)
            elif named is not None and now - named.confirmed_at > RELEASE_SECONDS:
                log.info("channel %r: host %s does not say that it needs its parts here; they end", channel, host)
                parts_for_others.set_named(store.path, host, (), now=now)
                store.collect()
