"""Ends what a hub or a host leaves behind: the binding of a directory to its site, and a host's place in the list.

Rule 1: neither loses anything. A directory with messages of retained topics stays with its site, and a host is
forgotten only when the registry has nothing of it any more.
Rule 2: a host whose hub lives, or whose lease is not over, is not forgotten.
"""

from collections.abc import Sequence

from messagehub.cluster.etcd_settings import etcd_access
from messagehub.cluster.site_file import read_site_file
from messagehub.cluster.transfer import without_hub
from messagehub.errors import ConfigurationError
from messagehub.settings import Settings
from messagehub.store import Saved
from messagehub.store.etcd import messages
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.leadership import prefix_of
from messagehub.store.etcd.store import EtcdStore
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore

MOST_NAMED = 10


def leave_site(settings: Settings) -> str:
    """Release the directory of a stopped hub from its site, and return the name of the site."""
    present = read_site_file(settings)
    if present is None:
        raise ConfigurationError(f"{settings.dir} belongs to no site")
    with without_hub(settings):
        _refuse_messages(settings)
        for path in (settings.home_topics_path, settings.home_topics_since_path):
            for end in ("", "-wal", "-shm"):
                path.with_name(path.name + end).unlink(missing_ok=True)
        settings.site_path.unlink(missing_ok=True)
    return present.site


def forget_host(settings: Settings, host: str) -> None:
    """Remove a host from the list of its site; refuse one that lives, or of which the registry has something."""
    client = EtcdClient(etcd_access(settings))
    try:
        _forget(client, settings.site, host)
    finally:
        client.close()


def _forget(client: EtcdClient, site: str, host: str) -> None:
    prefix = prefix_of(site)
    member, alive = prefix + b"members/" + host.encode(), prefix + b"hosts/" + host.encode()
    if not client.ask(messages.RANGE, messages.RangeRequest(key=member)).kvs:
        raise ConfigurationError(f"site {site!r} has no host {host!r}")
    store = EtcdStore(client, site, None, MemoryStore())
    left = [] if store.is_new else _left_of(store.load(), host)
    removing = messages.TxnRequest(compare=[messages.changed_at(alive, 0)], success=[messages.delete(member)])
    if client.ask(messages.RANGE, messages.RangeRequest(key=alive)).kvs:
        raise ConfigurationError(_lives(site, host))
    if left:
        raise ConfigurationError(f"site {site!r} still has what is on host {host!r} alone: {'; '.join(left)}")
    if not client.ask(messages.TXN, removing).succeeded:
        raise ConfigurationError(_lives(site, host))


def _lives(site: str, host: str) -> str:
    said = f"host {host!r} is a member of site {site!r}: its hub runs, or was stopped a moment ago"
    return f"{said}. Stop its hub, and wait until `messagehub hosts` shows it as lost"


def _left_of(saved: Saved, host: str) -> list[str]:
    """Return what would be lost with a host, each with the way to remove it."""
    tables = [channel.name for channel in saved.channels if channel.table is not None and channel.table.host == host]
    topics = [found.topic.name for found in saved.topics if found.topic.home == host]
    members = [
        channel.name
        for channel in saved.channels
        if any(one.host == host for one in channel.producers.values())
        or any(one.host == host for one in channel.consumers.values())
    ]
    services = [service.address for service in saved.services if any(one.host == host for one in service.workers)]
    said = []
    if tables:
        said.append(f"{_named('table', tables)}, which `messagehub tables drop NAME --forget` removes")
    if topics:
        said.append(f"{_named('retained topic', topics)}, which `messagehub topics delete NAME` removes")
    if members:
        said.append(f"members of {_named('channel', members)}, which the hub that leads ends: wait, or start a hub")
    if services:
        said.append(f"workers of {_named('service', services)}, which the hub that leads ends too")
    return said


def _named(noun: str, names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMED])
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"the {noun}{'s' * (len(names) != 1)} {shown}{more}"


def _refuse_messages(settings: Settings) -> None:
    if not settings.home_topics_path.exists():
        return
    store = SQLiteStore(settings.home_topics_path, sync="full")
    try:
        topics = sorted(found.topic.name for found in store.load().topics)
    finally:
        store.close()
    if topics:
        raise ConfigurationError(
            f"{settings.dir} has the messages of {_named('retained topic', topics)}, which are nowhere else: delete"
            " them while its hub runs (`messagehub topics delete NAME`), or use another directory. Where they were"
            " deleted while it did not run, start it once more and stop it: it removes their messages then"
        )
