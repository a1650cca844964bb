"""A program that leads a site whenever it can, and writes as a hub does: the loop of a broker without its sockets.

    python -m tests.site.leading_process URLS SITE DIRECTORY

Each line of DIRECTORY/acknowledged is something that a client would have been told was stored. The program does not
listen when it is told that it has lost the leadership: only etcd keeps it from writing.
"""

import copy
import json
import signal
import sys
import threading
from pathlib import Path

from messagehub.broker.persistence.restore import load
from messagehub.errors import StoreError
from messagehub.settings import Settings
from messagehub.store.commit import GroupCommit
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.election import Election
from messagehub.store.etcd.errors import NotLeader
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore
from registry import commands

WRITTEN_AT_ONCE = 3


class Leadership:
    """What the leader does; a hub that leads again goes on with new names and with revisions that it never gave."""

    def __init__(self, client: EtcdClient, site: str, directory: Path) -> None:
        self._client, self._site, self._directory = client, site, directory
        self._number = self._at_least = 0

    def serve(self, fence: LeaderKey, stopping: threading.Event) -> None:
        """Write until another hub leads, and reload after any other failure."""
        failure: StoreError | None = None
        while not stopping.is_set() and not isinstance(failure, NotLeader):
            try:
                store = EtcdStore(self._client, self._site, fence, MemoryStore())
                failure = self._write(store, stopping)
            except StoreError:
                continue

    def _write(self, store: EtcdStore, stopping: threading.Event) -> StoreError | None:
        settings = Settings.load(dir=self._directory)
        registry, written = load(store, settings, now=1.0, at_least=self._at_least)
        commit = GroupCommit(store, written=written)
        with (self._directory / "acknowledged").open("a") as acknowledged:
            while not stopping.is_set() and commit.failure is None:
                told = []
                for _ in range(WRITTEN_AT_ONCE):
                    self._number += 1
                    name = f"{self._directory.name}_{self._number}"
                    outcome = registry.apply(commands.RegisterSchema(subject=name, schema={"title": name}), now=1.0)
                    commit.submit(outcome.events)
                    told.append([registry.revision, outcome.reply.schema_id, name])  # type: ignore[attr-defined]
                commit.flush(registry.revision, timeout=30)
                self._at_least = registry.revision
                for line in told:
                    if line[0] <= commit.written:
                        acknowledged.write(json.dumps(line) + "\n")
                acknowledged.flush()
        commit.close(timeout=30)
        return commit.failure


def main(urls: str, site: str, directory: Path) -> None:
    client = EtcdClient(EtcdAccess(endpoints=tuple(urls.split(","))), request_seconds=1.0)
    key = LeaderKey(client, site, ttl_seconds=2)
    has_won, stopping = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    election = Election(key, str(directory).encode(), on_won=has_won.set, on_lost=lambda _: None)
    lead = Leadership(client, site, directory)
    while not stopping.is_set():
        if has_won.wait(0.05):
            has_won.clear()
            lead.serve(copy.copy(key), stopping)
    election.close(timeout=10)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
