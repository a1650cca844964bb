import os
import struct
from dataclasses import replace

import pytest

from messagehub.shm import errors
from messagehub.shm.layout import HEADER_BYTES, Geometry, Header, Kind, PayloadFormat
from messagehub.shm.rings.ring import describe, open_reader
from tests.shm.rings import writer


def header(**changes: object) -> Header:
    made = Header(
        kind=Kind.RING_BUFFER,
        geometry=Geometry(slot_bytes=1000, slot_count=3, schema_bytes=77, scratch_bytes=64),
        payload_format=PayloadFormat.RAW,
        channel="lab.sensors",
        producer_id="p-1",
        block_id="0" * 32,
        host="here",
        boot_id="b",
        created_at=12.5,
        schema_hash="abc",
        schema_id=7,
        readers_path="readers/0",
    )
    return replace(made, **changes)


def padded(packed: bytes) -> bytes:
    return packed.ljust(HEADER_BYTES, b"\0")


def test_header_comes_back_as_it_went_in() -> None:
    made = header()
    assert Header.unpack(padded(made.pack()), "x", made.geometry.file_bytes) == made


def test_areas_of_a_block_do_not_overlap_and_slots_are_aligned() -> None:
    geometry = Geometry(slot_bytes=5000, slot_count=7, page_bytes=4096, schema_bytes=100, scratch_bytes=300)
    assert geometry.scratch_offset >= HEADER_BYTES + 100
    assert geometry.scratch_offset + 300 <= geometry.table_offset
    assert geometry.table_offset + 7 * 64 <= geometry.data_offset
    assert geometry.data_offset % 4096 == 0
    assert geometry.stride_bytes == 8192
    assert geometry.file_bytes == geometry.data_offset + 7 * 8192


@pytest.mark.parametrize(
    ("offset", "form", "value", "error"),
    [
        (0, "=8s", b"NOTABLOK", errors.WrongMagic),
        (8, "=Q", 0x0807060504030201, errors.ForeignByteOrder),
        (16, "=I", 4, errors.OtherLayout),
        (20, "=I", 99, errors.HeaderInconsistent),
        (40, "=Q", 1 << 50, errors.HeaderInconsistent),
        (40, "=Q", 0, errors.HeaderInconsistent),
        (48, "=Q", 4, errors.HeaderInconsistent),
        (48, "=Q", (1 << 64) - 1, errors.HeaderInconsistent),
        (56, "=Q", 100, errors.HeaderInconsistent),
        (80, "=Q", 1 << 40, errors.HeaderInconsistent),
        (88, "=Q", 8, errors.HeaderInconsistent),
        (200, "=B", 1, errors.HeaderInconsistent),
    ],
)
def test_a_header_that_lies_is_refused_by_its_own_error(
    offset: int, form: str, value: object, error: type[Exception]
) -> None:
    data = bytearray(padded(header().pack()))
    struct.pack_into(form, data, offset, value)
    with pytest.raises(error):
        Header.unpack(bytes(data), "x", header().geometry.file_bytes)


def test_reader_files_outside_the_directory_of_the_block_are_refused() -> None:
    for readers_path in ("/etc", "../up", "a/../../b"):
        with pytest.raises(errors.HeaderInconsistent):
            Header.unpack(padded(header(readers_path=readers_path).pack()), "x", header().geometry.file_bytes)


def test_a_name_that_does_not_fit_the_header_is_too_long() -> None:
    with pytest.raises(errors.NameTooLong):
        header(channel="c" * 300).pack()


def test_every_length_of_a_truncated_block_is_refused(root: str) -> None:
    made = writer(root)
    made.close()
    path = os.path.join(root, "ring")
    size = os.path.getsize(path)
    for kept in (size - 1, size // 2, HEADER_BYTES, HEADER_BYTES - 1, 1, 0):
        os.truncate(path, kept)
        with pytest.raises(errors.TruncatedBlock):
            open_reader(path)


def test_a_torn_header_never_yields_a_reader(root: str) -> None:
    made = writer(root)
    made.close()
    path = os.path.join(root, "ring")
    with open(path, "r+b") as file:
        whole = file.read(512)
        for cut in range(0, 88, 4):  # what follows are names, any of which is a valid name
            file.seek(0)
            file.write(whole[:cut] + b"\xff" * (512 - cut))
            file.flush()
            with pytest.raises(errors.DamagedBlock):
                open_reader(path)


def test_describe_shows_header_and_words(root: str) -> None:
    with writer(root) as made:
        made.write(b"x")
        found, words = describe(os.path.join(root, "ring"))
        assert found == made.header
        assert words["head"] == 1
        assert words["has_writer"]
        assert words["writer_pid"] == os.getpid()
        assert words["readers"] == 0
        with open_reader(os.path.join(root, "ring")), open_reader(os.path.join(root, "ring")):
            assert describe(os.path.join(root, "ring"))[1]["readers"] == 2
    assert not describe(os.path.join(root, "ring"))[1]["has_writer"]


def test_every_error_has_a_code_of_its_own() -> None:
    def family(kind: type[errors.DataBlockError]) -> list[type[errors.DataBlockError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in family(child))]

    codes = [kind.code for kind in family(errors.DataBlockError)]
    assert len(codes) == len(set(codes))
    assert all(code == code.upper() for code in codes)
