"""Files that are not what they should be, one defect at a time; `tests/faults/test_block_fuzz.py` tries thousands."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory.directory import ProducerEntry
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import HEADER_BYTES, LENGTH, WRITER_PID, Checksum, Header, PayloadFormat
from messagehub.shm.mapped_file import Segment, read_header
from messagehub.shm.payloads import codec_of
from messagehub.shm.rings.groups import GroupCursors, MemberShare
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.tables.manifests import Manifest, manifest_path
from messagehub.shm.tables.tables import TableStore
from tests.shm.rings import payload, writer

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
BATCH = pa.record_batch([pa.array([1, 2]), pa.array(["a", "b"])], schema=SCHEMA)
CODED = pa.record_batch([pa.array(["a", "b", "a"]).dictionary_encode()], names=["kind"])
PART = {"name": "a", "rows": 1, "size_bytes": 1}


def overwrite(path: str, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_every_flipped_bit_of_header_and_schema_is_refused(root: str) -> None:
    with writer(root, SCHEMA) as made:
        header = made.header
    content = bytearray(Path(root, "ring").read_bytes())
    assert Header.unpack(content, "x", len(content)) == header
    fixed = len(header.pack())
    for place in [*range(fixed), *range(HEADER_BYTES, HEADER_BYTES + header.geometry.schema_bytes)]:
        for bit in range(8):
            content[place] ^= 1 << bit
            with pytest.raises(errors.DamagedBlock):
                Header.unpack(content, "x", len(content))
            content[place] ^= 1 << bit


def test_a_header_read_without_a_mapping_is_the_same_also_with_a_long_schema(root: str) -> None:
    schema = pa.schema([(f"column_{number}", pa.int64()) for number in range(500)])
    with writer(root, schema=schema) as made:
        assert read_header(made.path) == Segment.attach(made.path).header()


def test_a_block_with_holes_is_refused_before_it_is_mapped(root: str) -> None:
    """Reading a hole takes memory, and is a SIGBUS where there is none."""
    writer(root).close()
    path = os.path.join(root, "ring")
    for size in (os.path.getsize(path) + (1 << 20), 1 << 40, 1 << 62):
        os.truncate(path, size)
        with pytest.raises(errors.TruncatedBlock):
            open_reader(path)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_block_that_others_may_write_is_not_trusted(root: str, mode: int) -> None:
    writer(root).close()
    path = os.path.join(root, "ring")
    os.chmod(path, mode)
    with pytest.raises(errors.WritableByOthers, match=f"{mode:04o}"):
        open_reader(path)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(SCHEMA, BATCH), (CODED.schema, CODED), (np.dtype("<i8"), np.arange(3))],
    ids=["arrow", "coded", "numpy"],
)
def test_a_payload_that_cannot_be_decoded_says_so(root: str, schema: Any, value: Any) -> None:
    path = os.path.join(root, "ring")
    with writer(root, schema, slot_bytes=1024, checksum=Checksum.NONE) as made, open_reader(path) as reader:
        made.write(value)
        geometry = made.header.geometry
        overwrite(path, geometry.slot_offset(0), b"\x7f" * 200)
        overwrite(path, 8 * (geometry.line(0) + LENGTH), struct.pack("=Q", 201))
        item = reader.read(0)
        with pytest.raises(errors.PayloadDamaged):
            item.value  # type: ignore[union-attr]  # noqa: B018 - decodes
        del item


def test_columns_shorter_than_their_batch_are_refused(root: str) -> None:
    """Else reading cells would leave the slot's memory."""
    path = os.path.join(root, "ring")
    with writer(root, SCHEMA, slot_bytes=1024, checksum=Checksum.NONE) as made, open_reader(path) as reader:
        made.write(BATCH)
        start = made.header.geometry.slot_offset(0)
        content = Path(path).read_bytes()[start : start + 1024]
        rows = struct.pack("=q", 2)
        found = [place for place in range(0, 400, 4) if content[place : place + 8] == rows]
        for place in found:  # the batch's length and that of each column
            overwrite(path, start + place, struct.pack("=q", 2_000_000))
        item = reader.read(0)
        with pytest.raises(errors.PayloadDamaged):
            item.value  # type: ignore[union-attr]  # noqa: B018 - decodes
        del item


@pytest.mark.parametrize(
    "schema", [pa.schema([("name", pa.int8())]), pa.schema([("x", pa.struct([("name", pa.int8())]))])]
)
def test_a_schema_with_names_that_are_no_text_is_damaged(schema: pa.Schema) -> None:
    description = schema.serialize().to_pybytes()
    assert codec_of(PayloadFormat.ARROW, description, "x")
    with pytest.raises(errors.EntryDamaged):
        codec_of(PayloadFormat.ARROW, description.replace(b"name", b"n\xffme"), "x")


def test_a_writer_with_an_impossible_pid_is_checked_by_its_lock(root: str) -> None:
    path = os.path.join(root, "ring")
    with writer(root), open_reader(path) as reader:
        overwrite(path, 8 * WRITER_PID, struct.pack("=Q", (1 << 64) - 1))
        assert reader.read(0) is None


def test_a_reader_that_finds_no_index_leaves_no_file(root: str) -> None:
    with writer(root) as made:
        readers_path = os.path.join(root, made.header.readers_path)
        os.unlink(os.path.join(readers_path, "index"))
        before = os.listdir(readers_path)
        with open_reader(os.path.join(root, "ring")) as reader:
            assert not reader.is_known
        assert os.listdir(readers_path) == before


def group_file(root: str, shares: list[MemberShare]) -> str:
    """Of a ring whose group has had these epochs."""
    with writer(root, slot_count=16) as made:
        for share in shares:
            made.write(payload(made.head + 1))
            open_reader(os.path.join(root, "ring"), start="oldest", group="g", assignment=share).close()
        return os.path.join(root, made.header.readers_path, f"g@{shares[-1].epoch}.group")


def test_a_group_that_has_done_more_than_a_stream_can_hold_is_refused(root: str) -> None:
    path = group_file(root, [MemberShare(1, 0, 2)])
    overwrite(path, 64, struct.pack("=Q", 1 << 63))
    with pytest.raises(errors.HeaderInconsistent):
        GroupCursors(path)


def test_what_was_done_before_is_passed_over_in_one_step(root: str) -> None:
    path = group_file(root, [MemberShare(1, 0, 3), MemberShare(2, 0, 2)])
    done = [7, 30, 12]
    for index, sequence in enumerate(done):
        overwrite(path, 64 * (1 + 2 + index), struct.pack("=Q", sequence))
    cursors = GroupCursors(path)
    for first in range(1, 40):
        expected = next(each for each in range(first, 100, 2) if each > done[each % 3])
        assert cursors.first_not_done(first, 2) == expected
    for index in range(3):
        overwrite(path, 64 * (1 + 2 + index), struct.pack("=Q", 1 << 62))
    assert cursors.first_not_done(1, 2) == (1 << 62) + 1  # a loop would never end
    cursors.close()


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "x"},
        {"parts": None},
        {"parts": [{"name": "../x", "rows": 1, "size_bytes": 1}]},
        {"parts": [{"name": "a\0b", "rows": 1, "size_bytes": 1}]},
        {"parts": [{"name": ["a"], "rows": 1, "size_bytes": 1}]},
        {"parts": [{"name": "a", "rows": -1, "size_bytes": 1}]},
        {"parts": [PART | {"columns": 7}]},
        {"parts": [PART | {"columns": {"c": {"low": 1}}}]},
        {"parts": [PART | {"columns": {"c": {"nulls": 2}}}]},
        {"parts": [PART | {"columns": {"c": {"nulls": 0, "low": [1]}}}]},
        {"parts": [PART | {"columns": {"c": {"nulls": 0, "low": True}}}]},
        {"parts": [PART | {"columns": {"c": {"nulls": 0, "high": "x" * 65}}}]},
        {"retention": {"generations": "all"}},
        {"recent": 1},
    ],
)
def test_a_manifest_with_a_value_of_another_kind_is_damaged(change: dict[str, Any]) -> None:
    whole = json.loads(Manifest(generation=1, committed_at=1.0, transaction="t", parts=()).to_json())
    with pytest.raises(errors.EntryDamaged):
        Manifest.from_json(json.dumps(whole | change).encode(), "x")


def test_a_manifest_from_before_statistics_is_read() -> None:
    whole = json.loads(Manifest(generation=1, committed_at=1.0, transaction="t", parts=()).to_json())
    found = Manifest.from_json(json.dumps(whole | {"parts": [PART]}).encode(), "x")
    assert (found.rows, found.parts[0].columns) == (1, {})


@pytest.mark.parametrize("block", ["/etc/x", "a/../../x", "a\0b", "\ud800", 1, None])
def test_an_entry_whose_block_is_no_place_is_damaged(block: Any) -> None:
    whole = json.loads(ProducerEntry("c", "p", ProcessIdentity.current(), 1.0).to_json())
    assert ProducerEntry.from_json(json.dumps(whole | {"blocks": ["ring"]}).encode(), "x").blocks == ("ring",)
    with pytest.raises(errors.EntryDamaged):
        ProducerEntry.from_json(json.dumps(whole | {"blocks": [block]}).encode(), "x")


def test_a_manifest_too_deep_or_too_large_is_damaged(root: str) -> None:
    path = manifest_path(root, 1)
    Path(path).write_bytes(b"[" * 100_000)
    os.chmod(path, 0o600)
    with pytest.raises(errors.EntryDamaged):
        TableStore(root).open()
    os.truncate(path, 1 << 50)
    with pytest.raises(errors.EntryDamaged, match="bytes"):
        TableStore(root).open()
