"""What a domain has in shared memory, for people: rings and tables, who writes them, whether their bytes are whole."""

import os
from dataclasses import asdict
from typing import Any

import msgspec

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError, GroupInUse, GroupMissing, NameRefused, TableMissing, WriterGone
from messagehub.shm.identity import host
from messagehub.shm.layout import Checksum, Kind
from messagehub.shm.mapped_file import read_header
from messagehub.shm.rings.holders import Holder, told
from messagehub.shm.rings.read_results import Item
from messagehub.shm.rings.ring import delete_group, describe, group_members, open_reader
from messagehub.shm.tables import manifests
from messagehub.shm.tables.tables import TableStore


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
    slots: int = 0
    held: int = 0  # slots that readers keep
    skipped: int = 0  # items that were not written because readers held every slot
    is_waiting: bool = False  # its writer waits for readers
    holders: list[Holder] = []
    flaw: str | None = None

    @property
    def held_back(self) -> str | None:
        """Who holds its producer back now, as a text; None when nobody does."""
        if self.state == "live" and (self.is_waiting or (self.slots and self.held >= self.slots)):
            return told(self.holders, self.channel)
        return None


class Verified(msgspec.Struct, kw_only=True):
    """How many payloads were compared with their checksums, how many have none, and what was wrong."""

    channel: str
    shm_name: str
    checked: int
    unchecked: int = 0
    flaw: str | None = None

    @property
    def result(self) -> str:
        if self.flaw is not None:
            return self.flaw
        if not self.unchecked:
            return "ok"
        return f"ok, but {self.unchecked} have no checksum" if self.checked else "no checksum, nothing to compare"


def inventory(directory: Directory) -> list[BlockInfo]:
    found = []
    for channel in directory.channels():
        found += rings(directory, channel)
        found += _tables(directory, channel)
    return found


def rings(directory: Directory, channel: str) -> list[BlockInfo]:
    """The rings of one channel on this host."""
    names = {name: listed.producer_id for listed in directory.producers(channel) if listed.entry is not None
             for name in listed.entry.blocks}  # fmt: skip
    exclusive = directory.relative(directory.exclusive_block(channel))
    if os.path.exists(os.path.join(directory.root, exclusive)):
        names.setdefault(exclusive, "")
    return [_ring(directory, channel, name, producer_id) for name, producer_id in names.items()]


def delete_group_of(directory: Directory, channel: str, group: str) -> None:
    """Forget how far a group has come in the rings of a channel on this host: in all of them, or in none."""
    known = [block for block in rings(directory, channel) if block.state in ("live", "dead")]
    paths = [os.path.join(directory.root, block.shm_name.lstrip("/")) for block in known]
    members = sum(group_members(path, group) for path in paths)
    if members:
        raise GroupInUse(group, members)
    deleted = [delete_group(path, group) for path in paths]
    if not any(deleted):
        raise GroupMissing(channel, group)


def header(directory: Directory, shm_name: str) -> dict[str, Any]:
    """All that a block says of itself; of a table, its manifest."""
    if "\0" in shm_name or ".." in shm_name.split("/"):
        raise NameRefused(shm_name, f"it must be a name in {directory.root}")
    path = os.path.join(directory.root, shm_name.lstrip("/"))
    tables, generation = manifests.generation_at(path)
    if tables is not None:
        return _manifest(tables, generation, shm_name)
    fixed, changing = describe(path)
    if fixed.kind == Kind.TABLE:
        changing = {}  # a part of a table is written once
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
    """Compare every payload that is there now with its checksum, where it has one."""
    result = Verified(channel=block.channel, shm_name=block.shm_name, checked=0)
    try:
        if block.state == "table":
            _verify_table(directory, block, result)
        elif block.state in ("live", "dead"):
            _verify_ring(os.path.join(directory.root, block.shm_name.lstrip("/")), result)
        else:
            result.flaw = block.flaw
    except TableMissing:
        return result  # retired meanwhile
    except DataBlockError as error:
        result.flaw = str(error)
    return result


def _ring(directory: Directory, channel: str, name: str, producer_id: str) -> BlockInfo:
    path = os.path.join(directory.root, name)
    try:
        fixed, changing = describe(path)
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
        readers=changing["readers"],
        slots=fixed.geometry.slot_count,
        held=changing["held"],
        skipped=changing["skipped"],
        is_waiting=changing["is_waiting"],
        holders=changing["holders"],
    )


def _tables(directory: Directory, channel: str) -> list[BlockInfo]:
    store = TableStore(directory.tables_path(channel))
    found = []
    for generation in store.generations():
        block = BlockInfo(
            channel=channel,
            shm_name="/" + directory.relative(manifests.manifest_path(store.path, generation)),
            state="table",
            kind=f"generation {generation}",
            format="arrow",
            head=generation,
        )
        try:
            with store.open(generation) as snapshot:
                block.size_bytes = snapshot.manifest.size_bytes
        except TableMissing:
            continue  # retired meanwhile
        except DataBlockError as error:
            block.state, block.flaw = "damaged", str(error)
        found.append(block)
    return found


def _manifest(tables: str, generation: int | None, shm_name: str) -> dict[str, Any]:
    with TableStore(tables).open(generation) as snapshot:
        manifest = snapshot.manifest
    return {
        "shm_name": shm_name,
        "kind": "TABLE",
        "generation": manifest.generation,
        "rows": manifest.rows,
        "size_bytes": manifest.size_bytes,
        "schema_hash": manifest.schema_hash,
        "created_at": manifest.committed_at,
        "transaction": manifest.transaction,
        "retention": asdict(manifest.retention),
        **manifest.details,
        "parts": [asdict(part) for part in manifest.parts],
    }


def _verify_table(directory: Directory, block: BlockInfo, result: Verified) -> None:
    store = TableStore(directory.tables_path(block.channel))
    with store.open(block.head) as snapshot:
        for index, part in enumerate(snapshot.manifest.parts):
            if part.host not in ("", host()):
                result.unchecked += 1
                continue
            snapshot.part(index, verify=True)
            if read_header(os.path.join(store.path, part.name)).checksum == Checksum.NONE:
                result.unchecked += 1
            else:
                result.checked += 1


def _verify_ring(path: str, result: Verified) -> None:
    with open_reader(path, start="oldest", lossless=False, verify=True) as reader:
        if reader.header.checksum == Checksum.NONE:
            result.unchecked = 1
            return
        stop = reader.head
        while reader.position.sequence < stop:
            try:
                found = reader.read(0.0)
            except WriterGone:
                break
            result.checked += isinstance(found, Item)
            if found is None:
                break
