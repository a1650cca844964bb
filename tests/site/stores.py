"""Stores of a site that lead it, for tests of the store itself."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from messagehub.errors import StoreError
from messagehub.store.etcd.access import EtcdAccess
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.leadership import LeaderKey
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.registry import Registry
from tests.integration.harness import PATIENCE_SECONDS, eventually

TTL_SECONDS = 60


@contextmanager
def leading_store(
    url: str,
    database: Path,
    site: str = "",
    *,
    request_seconds: float = PATIENCE_SECONDS,
    site_id: str = "",
    **access: Any,
) -> Iterator[EtcdStore]:
    """A store that leads its site, which is a new one unless it is named. Others may lead afterwards."""
    name = site or uuid.uuid4().hex
    with ExitStack() as ending:
        client = EtcdClient(EtcdAccess(endpoints=tuple(url.split(",")), **access), request_seconds=request_seconds)
        ending.callback(client.close)
        leader = LeaderKey(client, name, ttl_seconds=TTL_SECONDS)
        assert leader.take(b"a test")
        ending.callback(leader.give_up)
        store = EtcdStore(client, name, leader, SQLiteStore(database, sync="off"), site_id=site_id)
        ending.callback(store.close)
        yield store


def write(store: EtcdStore, registry: Registry, *given: commands.Command) -> None:
    """Apply commands, and write all that happened at once."""
    happened = [event for command in given for event in registry.apply(command, now=1.0).events]
    rows = [row for event in happened for row in store.rows(event)]
    store.write(rows, revision=registry.revision, durable=True)


def created(store: EtcdStore, registry: Registry, name: str, *, has_failed: bool = False) -> Registry:
    """Create a channel, and return the registry that has it: as a hub does, which loads after every failure."""
    current = None if has_failed else registry
    given_out = registry.revision

    def attempt() -> Registry | None:
        nonlocal current, given_out
        try:
            if current is None:
                saved = store.load()
                current = Registry()
                current.restore(saved.channels, revision=max(saved.revision, given_out), now=1.0)
            if name not in current.channels:
                write(store, current, commands.CreateChannel(channel=name))
        except StoreError:
            given_out = max(given_out, current.revision if current else 0)
            current = None
        return current

    return eventually(attempt)
