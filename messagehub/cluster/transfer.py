"""Moves the registry of a hub on its own into a site, and out again: the same records, ids and revisions.

Rule 1: only a site that has nothing yet takes a registry, and only a directory without one gets it.
Rule 2: nobody writes meanwhile: a registry is read from a directory whose hub does not run, and the site is led by the
import itself.
Rule 3: an import that was cut short is seen: hubs refuse the site, and the next import begins anew.
Rule 4: retained topics are not moved: their messages are on the disk of one host, and not in the site. A registry that
has some is refused unless the caller leaves them out; those of a site stay there.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from messagehub.broker.instance_lock import InstanceLock
from messagehub.cluster.etcd_settings import etcd_access
from messagehub.errors import ConfigurationError
from messagehub.security.private_files import private_directory
from messagehub.settings import Settings
from messagehub.store import Saved, Store
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.head import head_key
from messagehub.store.etcd.leadership import LeaderKey, prefix_of
from messagehub.store.etcd.rows import KINDS
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore
from registry import events
from registry.events import AnyEvent
from registry.records import SchemaVersion

LEASE_SECONDS = 60
EVENTS_AT_ONCE = 1000


def import_into_site(settings: Settings, *, without_topics: bool) -> Saved:
    """Copy the registry of the directory into the site, and return it. The directory stays as it is."""
    if not settings.database_path.exists():
        raise ConfigurationError(f"there is no registry in {settings.dir}: no hub on its own ever ran there")
    with ExitStack() as ending:
        client = EtcdClient(etcd_access(settings))
        ending.callback(client.close)
        _refuse_registry(client, settings.site)  # before any hub has to be stopped for it
        ending.enter_context(without_hub(settings))
        source = SQLiteStore(settings.database_path, sync=settings.store_sync)
        ending.callback(source.close)
        saved = source.load()
        if saved.topics and not without_topics:
            names = ", ".join(sorted(found.topic.name for found in saved.topics)[:10])
            raise ConfigurationError(
                f"the registry has {len(saved.topics)} retained topics ({names}), whose messages are not moved into a"
                " site: say --without-topics to leave them out, and make them anew there"
            )
        leader = LeaderKey(client, settings.site, ttl_seconds=LEASE_SECONDS)
        if not leader.take(b"{}"):
            raise ConfigurationError(f"site {settings.site!r} has a hub that leads it: stop its hubs first")
        ending.callback(leader.give_up)
        _begin(client, settings.site)
        store = EtcdStore(client, settings.site, None, MemoryStore())
        store.begin(leader, *store.prepare(leader))
        _write(store, saved, leader)
        _ask(client, messages.delete(importing_key(settings.site)))
    return saved


def export_from_site(settings: Settings) -> Saved:
    """Write the registry of the site into the directory, for a hub on its own, and return it. The site stays."""
    for path in (settings.database_path, settings.site_path):
        if path.exists():
            raise ConfigurationError(f"{path} is there already: name a new directory with --dir")
    with ExitStack() as ending:
        client = EtcdClient(etcd_access(settings))
        ending.callback(client.close)
        source = EtcdStore(client, settings.site, None, MemoryStore())
        if source.is_new:
            raise ConfigurationError(f"there is no site {settings.site!r} in this etcd")
        saved = source.load()
        private_directory(settings.dir)
        store = SQLiteStore(settings.database_path, sync="full")
        ending.callback(store.close)
        _write(store, saved, None)
    return saved


def events_of(saved: Saved) -> Iterator[AnyEvent]:
    """Return the events that make the records, all with the revision of the last one."""
    named: dict[str, Any] = {"revision": saved.revision, "at": time.time()}
    for subject, config in saved.configs.items():
        yield events.SchemaConfigured(subject=subject, config=config, **named)
    for subject, mode in saved.modes.items():
        yield events.SchemaModeChanged(subject=subject, mode=mode, **named)
    if saved.last_schema_id:  # of a schema that may be gone: no id is given twice
        last = SchemaVersion(
            subject="messagehub.last",
            version=1,
            schema_id=saved.last_schema_id,
            schema_type="JSON",
            schema_hash="",
            schema="",
        )
        yield events.SchemaRegistered(schema=last, **named)
        yield events.SchemaDeleted(subject=last.subject, version=1, permanent=True, **named)
    for schema in saved.schemas:
        yield events.SchemaRegistered(schema=schema, **named)
        if schema.is_deleted:
            yield events.SchemaDeleted(subject=schema.subject, version=schema.version, permanent=False, **named)
    for channel in saved.channels:
        made = events.ChannelDeclared if channel.declared else events.ChannelCreated
        yield made(channel=channel.name, record=channel, **named)
        for producer in channel.producers.values():
            yield events.ProducerRegistered(channel=channel.name, producer=producer, **named)
        for consumer in channel.consumers.values():
            yield events.ConsumerRegistered(channel=channel.name, consumer=consumer, **named)
        if channel.table is not None:
            yield events.TableCommitted(channel=channel.name, table=channel.table, **named)


def importing_key(site: str) -> bytes:
    """Return the key that is there while a registry is being imported."""
    return prefix_of(site) + b"importing"


def is_half_imported(client: EtcdClient, site: str) -> bool:
    return bool(client.ask(messages.RANGE, messages.RangeRequest(key=importing_key(site))).kvs)


def _refuse_registry(client: EtcdClient, site: str) -> None:
    """Refuse a site that has a registry; what an import that was cut short has left is none."""
    if is_half_imported(client, site):
        return
    store = EtcdStore(client, site, None, MemoryStore())
    if not store.is_new and store.load().revision:
        raise ConfigurationError(f"site {site!r} has a registry already, and two cannot become one: name a new site")


def _begin(client: EtcdClient, site: str) -> None:
    """Refuse a site that has got a registry meanwhile, and remove what an import that was cut short has left."""
    if is_half_imported(client, site):
        _ask(client, *(messages.delete_beneath(prefix_of(site) + f"{kind}/".encode()) for kind in KINDS))
        _ask(client, messages.delete(head_key(site)))
        return
    _refuse_registry(client, site)
    _ask(client, messages.put(importing_key(site), b"1"))


def _ask(client: EtcdClient, *operations: object) -> None:
    client.ask(messages.TXN, messages.TxnRequest(success=list(operations)))


def _write(store: Store, saved: Saved, leader: LeaderKey | None) -> None:
    rows: list[object] = []
    for count, event in enumerate(events_of(saved), 1):
        rows += store.rows(event)
        if count % EVENTS_AT_ONCE == 0:
            store.write(rows, revision=saved.revision, durable=True)
            rows = []
            if leader is not None:
                leader.renew()
    if saved.revision:
        store.write(rows, revision=saved.revision, durable=True)


@contextmanager
def without_hub(settings: Settings) -> Iterator[None]:
    """Hold the lock of the directory, so that no hub runs there meanwhile."""
    lock = InstanceLock(settings)
    try:
        yield
    finally:
        lock.release()
