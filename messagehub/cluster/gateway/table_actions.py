"""What other hosts ask a gateway about tables, beside their rows: generations, parts in use, and to remove one."""

import os
from collections.abc import Iterable

import msgspec

from messagehub.errors import TableNotFound
from messagehub.flight.messages import PartsAsked, PartsInUse
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.identity import host
from messagehub.shm.tables import manifests
from messagehub.shm.tables.parts_for_others import open_transactions
from messagehub.shm.tables.tables import TableStore


def manifests_of(directory: Directory, channel: str) -> list[bytes]:
    """Return the visible generations, oldest first."""
    path = directory.tables_path(channel)
    found = [manifests.load(path, generation) for generation in manifests.generations(path)]
    return [one.to_json() for one in found if one is not None]


def parts_in_use(directory: Directory, channel: str, asked: PartsAsked) -> bytes:
    store = TableStore(directory.tables_path(channel))
    if not os.path.isdir(store.path):
        return msgspec.json.encode(PartsInUse(parts=[], open=[], committed=[]))
    with store.locked():
        in_use = store.in_use()
        is_open = set(open_transactions(store.path))
    parts = [part.name for manifest in in_use for part in manifest.parts if part.host == asked.host]
    done = {name for manifest in in_use for name in manifest.recent} | set(map(_transaction_of, parts))
    found = PartsInUse(
        parts=sorted(set(parts)),
        open=_those(asked.transactions, is_open),
        committed=_those(asked.transactions, done - is_open),
    )
    return msgspec.json.encode(found)


def drop_table(directory: Directory, channel: str) -> bytes:
    """Remove the table from the memory of this host; the hub of this host sees it go, and tells the registry."""
    dropped = TableStore(directory.tables_path(channel)).drop()
    if not dropped:
        said = f"channel {channel!r} has no table in the memory of host {host()!r}"
        raise TableNotFound(said, channel=channel)
    return msgspec.json.encode(dropped)


def _transaction_of(part: str) -> str:
    return part.rsplit("-", 2)[0]


def _those(asked: Iterable[str], of: set[str]) -> list[str]:
    return [name for name in asked if name in of]
