"""What the cells of Arrow data say is checked where others than the reader's user could have written it."""

import os
import struct

import pyarrow as pa
import pytest

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import PayloadDamaged
from messagehub.shm.layout import Checksum
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.reader import RingReader
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.tables.table_blocks import read_block, write_block

GROUP = 1
WORDS = pa.record_batch([["abc", "def", "ghi"]], names=["word"])
LISTS = pa.record_batch([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]], names=["numbers"])
KINDS = pa.record_batch([pa.array(["a", "b", "c", "b"]).dictionary_encode()], names=["kind"])
DAMAGE = {  # as it is in the block, and with one cell that points far outside of it
    "words": (WORDS, struct.pack("<4i", 0, 3, 6, 9), struct.pack("<4i", 0, 1 << 30, 6, 9)),
    "lists": (LISTS, struct.pack("<4i", 0, 3, 6, 9), struct.pack("<4i", 0, 1 << 30, 6, 9)),
    "kinds": (KINDS, struct.pack("<4i", 0, 1, 2, 1), struct.pack("<4i", 0, 1 << 30, 2, 1)),
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a group's place needs a group")


def damage(path: str, before: bytes, after: bytes) -> None:
    """As a member of the group could, in place."""
    with open(path, "r+b") as file:
        content = file.read()
        assert content.count(before) == 1
        file.seek(content.index(before))
        file.write(after)


def ring(root: str, gid: int | None, batch: pa.RecordBatch) -> str:
    directory = Directory(root=root, gid=gid)
    directory.make_channel("c")
    path = directory.exclusive_block("c")
    spec = RingSpec("c", "p", directory.readers_path(path, "c"))
    with open_writer(path, spec, codec_for(batch.schema)) as made:
        made.write(batch)
    return path


def newest(reader: RingReader) -> pa.RecordBatch:
    found = reader.latest()
    assert found is not None
    batch: pa.RecordBatch = found.value
    return batch


@needs_root
@pytest.mark.parametrize("kind", DAMAGE)
def test_in_a_groups_place_cells_are_checked(root: str, kind: str) -> None:
    os.chmod(root, 0o755)
    batch, before, after = DAMAGE[kind]
    path = ring(root, GROUP, batch)
    with open_reader(path, start="oldest") as reader:
        assert newest(reader).equals(batch)
        damage(path, before, after)
        with pytest.raises(PayloadDamaged):
            newest(reader)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_reader_that_verifies_checks_cells_of_its_own_users_blocks_too(root: str, kind: str) -> None:
    batch, before, after = DAMAGE[kind]
    path = ring(root, None, batch)
    damage(path, before, after)
    with open_reader(path, start="oldest", verify=True) as reader, pytest.raises(PayloadDamaged):
        newest(reader)
    with open_reader(path, start="oldest") as reader:
        assert newest(reader).num_rows == batch.num_rows  # not looked at: only this user can have written it


@needs_root
@pytest.mark.parametrize("kind", DAMAGE)
def test_tables_and_messages_of_a_group_are_checked_too(root: str, kind: str) -> None:
    os.chmod(root, 0o755)
    batch, before, after = DAMAGE[kind]
    directory = Directory(root=root, gid=GROUP)
    path = os.path.join(directory.make_channel("c"), "part.arrow")
    write_block(path, [batch], batch.schema, Checksum.NONE)
    assert read_block(path).num_rows == batch.num_rows
    damage(path, before, after)
    with pytest.raises(PayloadDamaged):
        read_block(path)


def test_a_table_is_checked_where_that_is_asked_for(root: str) -> None:
    batch, before, after = DAMAGE["words"]
    path = os.path.join(root, "part.arrow")
    write_block(path, [batch], batch.schema, Checksum.NONE)
    damage(path, before, after)
    assert read_block(path).num_rows == batch.num_rows
    with pytest.raises(PayloadDamaged):
        read_block(path, verify=True)
