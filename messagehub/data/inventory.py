"""What a domain has in shared memory, for people: rings and tables, who writes them, whether their bytes are whole."""

import os
from typing import Any

import msgspec

from messagehub.datablock.directory import Directory
from messagehub.datablock.errors import ChecksumMismatch, DataBlockError, NameRefused, WriterGone
from messagehub.datablock.items import Item
from messagehub.datablock.lanes import live_lanes
from messagehub.datablock.layout import Checksum
from messagehub.datablock.ring import describe, lane_directory, open_reader
from messagehub.datablock.tables import TableStore


class BlockInfo(msgspec.Struct, kw_only=True):
    """`state`: live (somebody writes it), dead (it lingers, then it is cleaned), table, damaged or missing."""

    channel: str
    shm_name: str
    state: str
    kind: str = ""
    producer_id: str = ""
    format: str = ""
    size_bytes: int = 0
    head: int = 0
    epoch: int = 0
    pid: int | None = None
    readers: int = 0
    flaw: str | None = None


class Verified(msgspec.Struct, kw_only=True):
    """How much of a block was compared with its checksums, and what was wrong."""

    channel: str
    shm_name: str
    checked: int
    flaw: str | None = None


def inventory(directory: Directory) -> list[BlockInfo]:
    found = []
    for channel in directory.channels():
        names = {name: listed.producer_id for listed in directory.producers(channel) if listed.entry is not None
                 for name in listed.entry.blocks}  # fmt: skip
        exclusive = directory.relative(directory.exclusive_block(channel))
        if os.path.exists(os.path.join(directory.root, exclusive)):
            names.setdefault(exclusive, "")
        found += [_ring(directory, channel, name, producer_id) for name, producer_id in names.items()]
        found += _tables(directory, channel)
    return found


def header(directory: Directory, shm_name: str) -> dict[str, Any]:
    """All that a block says of itself."""
    if "\0" in shm_name or ".." in shm_name.split("/"):
        raise NameRefused(shm_name, f"it must be a name in {directory.root}")
    fixed, changing = describe(os.path.join(directory.root, shm_name.lstrip("/")))
    return {
        "shm_name": shm_name,
        **{name: getattr(fixed, name) for name in ("channel", "producer_id", "block_id", "host", "boot_id")},
        "kind": fixed.kind.name,
        "format": fixed.payload_format.name,
        "when_full": fixed.when_full.name,
        "checksum": fixed.checksum.name,
        "schema_hash": fixed.schema_hash,
        "created_at": fixed.created_at,
        "slot_bytes": fixed.geometry.slot_bytes,
        "slot_count": fixed.geometry.slot_count,
        "page_bytes": fixed.geometry.page_bytes,
        "file_bytes": fixed.geometry.file_bytes,
        **changing,
    }


def verify(directory: Directory, block: BlockInfo) -> Verified:
    """Compare every payload that is there now with its checksum; blocks without checksums have nothing to compare."""
    result = Verified(channel=block.channel, shm_name=block.shm_name, checked=0)
    try:
        if block.state == "table":
            result.checked = _verify_tables(directory, block.channel)
        elif block.state in ("live", "dead"):
            result.checked = _verify_ring(os.path.join(directory.root, block.shm_name.lstrip("/")))
        else:
            result.flaw = block.flaw
    except ChecksumMismatch as error:
        result.flaw = str(error)
    return result


def _ring(directory: Directory, channel: str, name: str, producer_id: str) -> BlockInfo:
    path = os.path.join(directory.root, name)
    try:
        fixed, changing = describe(path)
        readers = live_lanes(lane_directory(path, fixed))
    except (DataBlockError, FileNotFoundError) as error:
        state = "damaged" if os.path.exists(path) else "missing"
        return BlockInfo(channel=channel, shm_name=f"/{name}", state=state, producer_id=producer_id, flaw=str(error))
    return BlockInfo(
        channel=channel,
        shm_name=f"/{name}",
        state="live" if changing["has_writer"] else "dead",
        kind=fixed.kind.name.lower(),
        producer_id=producer_id,
        format=fixed.payload_format.name.lower(),
        size_bytes=fixed.geometry.file_bytes,
        head=changing["head"],
        epoch=changing["epoch"],
        pid=changing["writer_pid"] if changing["has_writer"] else None,
        readers=readers,
    )


def _tables(directory: Directory, channel: str) -> list[BlockInfo]:
    store = TableStore(directory.tables_path(channel))
    found = []
    for generation in store.generations():
        try:
            with store.open(generation) as snapshot:
                found.append(
                    BlockInfo(
                        channel=channel,
                        shm_name="/" + directory.relative(store.path),
                        state="table",
                        kind=f"generation {generation}",
                        format="arrow",
                        size_bytes=snapshot.manifest.size_bytes,
                        head=generation,
                    )
                )
        except DataBlockError:
            continue  # retired meanwhile
    return found


def _verify_tables(directory: Directory, channel: str) -> int:
    with TableStore(directory.tables_path(channel)).open() as snapshot:
        return sum(1 for _ in snapshot.parts(verify=True))


def _verify_ring(path: str) -> int:
    checked = 0
    with open_reader(path, start="oldest", lossless=False, verify=True) as reader:
        if reader.header.checksum == Checksum.NONE:
            return 0
        stop = reader.head
        while reader.position.sequence < stop:
            try:
                found = reader.read(0.0)
            except WriterGone:
                break
            checked += isinstance(found, Item)
            if found is None:
                break
    return checked
