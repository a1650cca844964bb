"""The newest items of a channel on this host, for somebody who looks now and then: no registration, nobody waits."""

import os
from typing import Any, NamedTuple

from messagehub.channels.items import item_from
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError, TableMissing, WriterGone
from messagehub.shm.rings.read_results import Item, LastItems, Position
from messagehub.shm.rings.ring import open_reader, peek, ring_paths
from messagehub.shm.tables.tables import TableStore


class NewestItem(NamedTuple):
    """An item or, without a producer, the newest generation of the channel's table. A value shares memory with its
    producer while somebody holds it."""

    value: Any
    sequence: int
    written_at: float
    producer_id: str | None
    shm_name: str
    format: str
    size_bytes: int


def newest_items(directory: Directory, channel: str, count: int) -> list[NewestItem]:
    """Return the newest items of all rings, and the newest table, oldest first; at most `count`."""
    found: list[NewestItem] = []
    for path in ring_paths(directory, channel):
        try:
            found += _of_ring(directory, channel, path, count)
        except (DataBlockError, FileNotFoundError):
            continue  # gone, or damaged, which `messagehub doctor` reports
    found += _of_table(directory, channel)
    return sorted(found, key=lambda item: item.written_at)[-count:]


def _of_ring(directory: Directory, channel: str, path: str, count: int) -> list[NewestItem]:
    header, state = peek(path)
    if header.channel != channel:
        return []  # somebody registered a block of another channel as one of this
    start = LastItems(count, Position(header.block_id, state["epoch"], state["head"]))
    found: list[NewestItem] = []
    with open_reader(path, start=start, lossless=False) as reader:
        while reader.position.sequence < state["head"]:
            try:
                taken = reader.read(0.0)
            except WriterGone:
                break
            if taken is None:
                break
            if isinstance(taken, Item):
                origin = taken.sequence, taken.written_ns, taken.producers
                item = item_from(channel, origin, taken.value)
                size, name = memoryview(taken.buffer).nbytes, "/" + directory.relative(path)
                kind = header.payload_format.name.lower()
                found.append(NewestItem(item.value, item.sequence, item.written_at, item.producer_id, name, kind, size))
    return found


def _of_table(directory: Directory, channel: str) -> list[NewestItem]:
    path = directory.tables_path(channel)
    if not os.path.isdir(path):
        return []
    try:
        with TableStore(path).open() as snapshot:
            manifest = snapshot.manifest
            name = "/" + directory.relative(path)
            value = snapshot.table()
            at, size = manifest.committed_at, manifest.size_bytes
            return [NewestItem(value, manifest.generation, at, None, name, "table", size)]
    except (TableMissing, DataBlockError, OSError):
        return []  # none yet, retired meanwhile, or in parts on other hosts
