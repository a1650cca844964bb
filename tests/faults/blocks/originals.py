"""Real blocks of every kind, small enough that thousands of damaged copies can be read in seconds."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from messagehub import MessageHub
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.layout import HEADER_BYTES, LENGTH, LINE_BYTES, Checksum, Header, Kind
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.groups import MemberShare
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.tables.tables import TableStore

CHECKSUMS = (Checksum.NONE, Checksum.VERIFY)
TEXT = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])
CODED = pa.schema([("n", pa.int16()), ("kind", pa.dictionary(pa.int8(), pa.string()))])
DTYPE = np.dtype([("t", "<f8"), ("xy", "<i4", (2,)), ("name", "S5")])
CHANNEL = "c"
GROUP = "g"
MEMBER = MemberShare(2, 0, 2)
ROWS = [{"n": 1, "text": "one", "list": [1, 2]}, {"n": 2, "text": None, "list": None}, {"n": 3, "text": "", "list": []}]


@dataclass(frozen=True)
class Original:
    """A file that a reader opens, the file of it that is damaged, and what is where in that."""

    name: str
    kind: str  # which reader: ring, member, table or consumer
    opened: str
    damaged: str
    content: bytes
    regions: tuple[tuple[int, int], ...]
    is_checked: bool


def make_all(root: str, hub: MessageHub) -> list[Original]:
    rings = [
        _ring(root, kind, payload, checksum)
        for kind in (Kind.RING_BUFFER, Kind.DOUBLE_BUFFER, Kind.SINGLE)
        for payload in ("raw", "arrow", "coded", "numpy")
        for checksum in CHECKSUMS
    ]
    tables = [original for checksum in CHECKSUMS for original in _table(root, checksum)]
    return [*rings, *tables, *_reader_files(root), *_channel(hub)]


def payload_of(name: str) -> tuple[Any, Any]:
    """A schema as a user gives it, and a payload of it."""
    if name == "arrow":
        return TEXT, pa.RecordBatch.from_pylist(ROWS, schema=TEXT)
    if name == "coded":
        kinds = pa.array(["a", "b", "a"]).dictionary_encode().cast(CODED.field("kind").type)
        return CODED, pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int16()), kinds], schema=CODED)
    if name == "numpy":
        return DTYPE, np.zeros(7, DTYPE)
    return None, bytes(range(256))


def regions_of(content: bytes) -> tuple[tuple[int, int], ...]:
    """Fixed header, changing words, schema, table of slots, each slot's payload."""
    header = Header.unpack(memoryview(content), "", len(content))
    geometry = header.geometry
    lines = (geometry.table_offset, geometry.table_offset + geometry.slot_count * LINE_BYTES)
    words = memoryview(content)[: len(content) // 8 * 8].cast("Q")
    lengths = [words[geometry.line(slot) + LENGTH] for slot in range(geometry.slot_count)]
    slots = [(geometry.slot_offset(slot), geometry.slot_offset(slot) + size) for slot, size in enumerate(lengths)]
    schema = (HEADER_BYTES, HEADER_BYTES + geometry.schema_bytes)
    return tuple(found for found in ((0, 104), (104, 1480), (2048, 2432), schema, lines, *slots) if found[0] < found[1])


def _ring(root: str, kind: Kind, payload: str, checksum: Checksum) -> Original:
    name = f"{kind.name}-{payload}-{checksum.name}"
    directory = os.path.join(root, name)
    os.mkdir(directory, 0o700)
    path = os.path.join(directory, "ring")
    schema, value = payload_of(payload)
    spec = RingSpec("c", "p", "readers", slot_bytes=1024, page_bytes=64, slot_count=4, kind=kind, checksum=checksum)
    with open_writer(path, spec, codec_for(schema)) as writer:
        for _ in range(6):
            writer.write(value)
    content = _read(path)
    return Original(name, "ring", path, path, content, regions_of(content), checksum == Checksum.VERIFY)


def _table(root: str, checksum: Checksum) -> list[Original]:
    """Its manifest and one of its two blocks."""
    directory = os.path.join(root, f"table-{checksum.name}")
    os.mkdir(directory, 0o700)
    store = TableStore(directory)
    _, batch = payload_of("arrow")
    store.publish([batch], TEXT, now=1.0, checksum=checksum)
    manifest = store.publish([batch, batch], TEXT, now=2.0, mode="append", checksum=checksum)
    found = []
    for name in (manifest.parts[0].name, f"g{manifest.generation:012d}.json"):
        path = os.path.join(directory, name)
        content = _read(path)
        is_block = name.endswith(".arrow")
        regions = regions_of(content) if is_block else ((0, len(content)),)
        label = f"{'block' if is_block else 'manifest'}-{checksum.name}"
        found.append(Original(label, "table", directory, path, content, regions, checksum == Checksum.VERIFY))
    return found


def _reader_files(root: str) -> list[Original]:
    """What lies beside a ring: the index of its reader files, and how far a group has come in its second epoch."""
    directory = os.path.join(root, "readers")
    os.mkdir(directory, 0o700)
    path = os.path.join(directory, "ring")
    spec = RingSpec("c", "p", "readers", slot_bytes=1024, page_bytes=64, slot_count=4)
    with open_writer(path, spec, codec_for(None)) as writer:
        for share in (MemberShare(1, 0, 3), MEMBER):
            writer.write(b"x")
            open_reader(path, start="oldest", group=GROUP, assignment=share).close()
        readers_path = os.path.join(directory, writer.header.readers_path)
    index, group = os.path.join(readers_path, "index"), os.path.join(readers_path, f"{GROUP}@{MEMBER.epoch}.group")
    return [
        Original("index", "ring", path, index, _read(index), ((0, 64), (0, 4096)), False),
        Original("group", "member", path, group, _read(group), ((0, 24), (64, 72), (128, 328)), False),
    ]


def _channel(hub: MessageHub) -> list[Original]:
    """A channel as `hub.consumer` finds it: its ring, its entry."""
    schema, batch = payload_of("arrow")
    with hub.producer(CHANNEL, schema=schema, page_size=1024, capacity=4, checksum="verify") as producer:
        for _ in range(3):
            producer.write(batch)
    directory = directory_of(hub.settings)
    ring = directory.exclusive_block(CHANNEL)
    (entry,) = Path(directory.channel_path(CHANNEL)).glob("*.json")
    content = _read(ring)
    found = _read(str(entry))
    return [
        Original("channel", "consumer", CHANNEL, ring, content, regions_of(content), True),
        Original("entry", "consumer", CHANNEL, str(entry), found, ((0, len(found)),), True),
    ]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
