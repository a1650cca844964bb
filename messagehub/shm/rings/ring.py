"""Opening rings: RingBuffer, DoubleBuffer (two slots) and Single (one slot).

A ring outlives its writer. Whoever opens it for writing next takes the writer lock, raises the epoch and goes
on after the highest sequence found. A ring of another shape or schema is ended first, so that its readers
hear of it, and replaced. The new ring has the id of the old one and goes on with its numbers, so a position in the old
ring is one in the new ring, and what was not read of the old one is seen to be missing.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

from messagehub.shm import core
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.ownership import is_written_by_others
from messagehub.shm.errors import (
    DataBlockError,
    HeaderInconsistent,
    NameTaken,
    NothingThere,
    OtherLayout,
    TruncatedBlock,
    UnexpectedSchema,
    WrongMagic,
)
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import (
    CLAIM,
    EPOCH,
    HEAD,
    HEADER_BYTES,
    MAX_SUCCESSORS,
    SKIPPED,
    STATE,
    SUCCESSORS,
    WRITER_PID,
    WRITER_TICKET,
    Checksum,
    Geometry,
    Header,
    Kind,
    State,
    WhenFull,
    add_successor,
    scratch_bytes,
    successors,
)
from messagehub.shm.locks import OWNER, exclusive, is_locked, try_lock
from messagehub.shm.mapped_file import Segment, read_header, remove_file
from messagehub.shm.payloads import Codec, codec_of
from messagehub.shm.rings.groups import MemberShare, members_of, remove_group, undone_items
from messagehub.shm.rings.reader import ReaderOptions, RingReader
from messagehub.shm.rings.reader_files import (
    ReaderFiles,
    announce,
    has_reader_index,
    make_reader_directory,
    reader_directory,
    remove_reader_directory,
)
from messagehub.shm.rings.reader_probe import end_waiting_for
from messagehub.shm.rings.reader_start import live_items
from messagehub.shm.rings.ring_probe import RingProbe
from messagehub.shm.rings.writer import RingWriter

_SLOTS = {Kind.DOUBLE_BUFFER: 2, Kind.SINGLE: 1}
_MOST_ITEMS = 1 << 62  # more than a century of writing: a ring with a higher number is damaged, and is not continued


@dataclass(frozen=True)
class RingSpec:
    """What a producer asks for. `readers_path` is relative to the directory of the block, whose id is added to it."""

    channel: str
    producer_id: str
    readers_path: str
    slot_bytes: int = 4096
    slot_count: int = 16
    page_bytes: int = 4096
    kind: Kind = Kind.RING_BUFFER
    when_full: WhenFull = WhenFull.OVERWRITE
    checksum: Checksum = Checksum.NONE
    schema_hash: str = ""
    schema_id: int = 0


def open_writer(path: str, spec: RingSpec, codec: Codec, *, spin_us: int = 0) -> RingWriter:
    """Create the ring at `path`, or take over the one that a writer before left there.

    For a ring in a `Directory`, register its entry first and keep the channel locked, so that no cleaner takes the
    ring for a dead one while it is being made.
    """
    core.check_usable()
    header = _header(path, spec, codec)
    while True:
        found = _take_over(path, header, codec, spin_us)
        writer = found if isinstance(found, RingWriter) else _create(path, header, codec, found, spin_us)
        if writer is not None:
            return writer


def open_reader(
    path: str,
    *,
    expected_schema_hashes: Collection[str] = (),
    **options: Unpack[ReaderOptions],
) -> RingReader:
    """Attach read-only. Where schema hashes are expected, the ring's is compared before any payload is used.

    `options` are those of a `RingReader`.
    """
    core.check_usable()
    segment = Segment.attach(path)
    header = segment.header()
    if header.kind == Kind.TABLE:
        raise HeaderInconsistent(path, "it is a table, not a ring")
    description = bytes(segment.data[HEADER_BYTES : HEADER_BYTES + header.geometry.schema_bytes])
    if expected_schema_hashes and header.schema_hash not in expected_schema_hashes:
        expected = " or ".join(map(repr, sorted(expected_schema_hashes)))
        written = codec_of(header.payload_format, description, path).schema
        raise UnexpectedSchema(header.schema_hash, expected, written)
    try:
        checks_cells = options.get("verify", False) or is_written_by_others(path)
        codec = codec_of(header.payload_format, description, path, checks_cells=checks_cells)
        return RingReader(segment, codec, reader_directory(path, header), **options)
    except BaseException:
        segment.descriptor.close()  # the exception would keep the descriptor, and its lock, alive
        raise


def _header(path: str, spec: RingSpec, codec: Codec) -> Header:
    slot_count = _SLOTS.get(spec.kind, spec.slot_count)
    geometry = Geometry(
        slot_bytes=spec.slot_bytes,
        slot_count=slot_count,
        page_bytes=spec.page_bytes,
        schema_bytes=len(codec.description),
        scratch_bytes=scratch_bytes(codec.scratch_bytes, slot_count),
    )
    flaw = geometry.flaw()
    if flaw is not None:
        raise HeaderInconsistent(path, flaw)
    me = ProcessIdentity.current()
    block_id = uuid.uuid4().hex
    return Header(
        kind=spec.kind,
        geometry=geometry,
        payload_format=codec.payload_format,
        channel=spec.channel,
        producer_id=spec.producer_id,
        block_id=block_id,
        host=me.host,
        boot_id=me.boot_id,
        created_at=time.time(),
        when_full=spec.when_full,
        checksum=spec.checksum,
        schema_hash=spec.schema_hash,
        schema_id=spec.schema_id,
        readers_path=f"{spec.readers_path}/{block_id}",
    )


class _Replaced(NamedTuple):
    """What a new ring takes over from the ring that it replaces."""

    block_id: str
    epoch: int
    head: int


def _create(path: str, header: Header, codec: Codec, replaced: _Replaced | None, spin_us: int) -> RingWriter | None:
    """Create the ring; None if another process created it first."""
    if replaced is not None:
        readers_path = os.path.join(os.path.dirname(header.readers_path), replaced.block_id)
        header = replace(header, block_id=replaced.block_id, readers_path=readers_path)
    segment = Segment.create(path, header.geometry.file_bytes)
    packed = header.pack(codec.description)
    segment.data[: len(packed)] = packed
    segment.data[HEADER_BYTES : HEADER_BYTES + len(codec.description)] = codec.description
    if replaced is not None:
        segment.words[HEAD], segment.words[EPOCH] = replaced.head, replaced.epoch
    if not try_lock(segment.descriptor.fd, exclusive(OWNER)):
        raise NameTaken(path, None)
    readers_path = reader_directory(path, header)
    make_reader_directory(readers_path)
    try:
        segment.publish()
    except NameTaken:
        segment.descriptor.close()
        return None
    return RingWriter(segment, codec, readers_path, spin_us=spin_us)


def _take_over(path: str, header: Header, codec: Codec, spin_us: int) -> RingWriter | _Replaced | None:
    """Take over the existing ring; None if there is none, or none that this writer can continue."""
    try:
        segment = Segment.attach(path, writable=True)
    except NothingThere:
        return None
    try:
        found = segment.header()
    except (
        TruncatedBlock,
        HeaderInconsistent,
        OtherLayout,
    ):  # the error asks for a restart of the producer: this is one
        _discard(segment)
        return None
    if found.kind == Kind.TABLE:
        raise WrongMagic(path)
    if not try_lock(segment.descriptor.fd, exclusive(OWNER)):
        raise NameTaken(path, segment.words[WRITER_PID])
    readers_path = reader_directory(path, found)
    if not segment.is_published():
        return None
    make_reader_directory(readers_path)
    if (
        _same_stream(segment, found, header, codec)
        and _has_room_for_name(segment, found, header.producer_id)
        and _head_of(segment, found) < _MOST_ITEMS
    ):
        if header.producer_id != _last_producer(segment, found):  # before the epoch changes, so that readers look
            add_successor(segment.words, segment.data, _head_of(segment, found) + 1, header.producer_id)
        return RingWriter(segment, codec, readers_path, spin_us=spin_us)
    return _replace(segment, found, readers_path)


def _same_stream(segment: Segment, found: Header, header: Header, codec: Codec) -> bool:
    description = segment.data[HEADER_BYTES : HEADER_BYTES + found.geometry.schema_bytes]
    return description == codec.description and found == replace(
        header,
        block_id=found.block_id,
        readers_path=os.path.join(os.path.dirname(header.readers_path), found.block_id),
        producer_id=found.producer_id,
        created_at=found.created_at,
    )


def _head_of(segment: Segment, found: Header) -> int:
    """Return the highest sequence in a ring: a writer that died may not have stored it as the head."""
    lines = [segment.words[line] & ~CLAIM for line in found.geometry.lines()]
    return max(segment.words[HEAD], *lines)


def _last_producer(segment: Segment, found: Header) -> str:
    names = [producer_id for _, producer_id in successors(segment.words, segment.data)]
    return names[-1] if names else found.producer_id


def _has_room_for_name(segment: Segment, found: Header, producer_id: str) -> bool:
    is_known = producer_id == _last_producer(segment, found)
    return is_known or segment.words[SUCCESSORS] < MAX_SUCCESSORS


def _discard(segment: Segment) -> None:
    """Remove a damaged ring whose writer is gone. Cleaners find its reader files, and readers keep what they have."""
    if not try_lock(segment.descriptor.fd, exclusive(OWNER)):
        raise NameTaken(segment.path, None)
    if segment.is_published():
        remove_file(segment.path)
    segment.descriptor.close()


def _replace(segment: Segment, found: Header, readers_path: str) -> _Replaced | None:
    """End and remove a ring whose writer lock is ours."""
    head, epoch = _head_of(segment, found), segment.words[EPOCH]
    segment.words[STATE] = State.ENDED
    readers = ReaderFiles(readers_path, found.geometry.slot_count)
    readers.wake_all()
    readers.close()
    remove_file(segment.path)
    remove_reader_directory(readers_path)
    segment.descriptor.close()
    return _Replaced(found.block_id, epoch, head) if max(head, epoch) < _MOST_ITEMS else None


def peek(path: str) -> tuple[Header, dict[str, Any]]:
    """Return a block's header and the words that change, without taking a lock."""
    segment = Segment.attach(path)
    header = segment.header()
    return header, {
        "head": segment.words[HEAD],
        "epoch": segment.words[EPOCH],
        "has_ended": segment.words[STATE] == State.ENDED,
        "writer_pid": segment.words[WRITER_PID],
        "has_writer": is_locked(segment.descriptor.fd, exclusive(OWNER)),
        "is_waiting": segment.words[WRITER_TICKET] != 0,
        "skipped": segment.words[SKIPPED],
    }


def describe(path: str) -> tuple[Header, dict[str, Any]]:
    """Return what `peek` does, with the readers; it costs a look at the file of each."""
    with RingProbe(path) as probe:
        seen = probe.look()
    if seen is None:
        raise NothingThere(path)
    holders = [*(reader.holder for reader in seen.readers), *seen.groups]
    names = ("head", "epoch", "has_ended", "has_writer", "writer_pid", "is_waiting", "skipped", "held")
    state = {name: getattr(seen, name) for name in names}
    return probe.header, state | {"readers": len(seen.readers), "holders": holders}


def ring_paths(directory: Directory, channel: str) -> list[str]:
    """Return where the rings of a channel on this host are, or would be, of producers alive or dead."""
    listed = directory.producers(channel, with_refused=True)
    named = (os.path.join(directory.root, name) for one in listed if one.entry is not None for name in one.entry.blocks)
    paths = dict.fromkeys([*named, directory.exclusive_block(channel)])
    return [path for path in paths if directory.may_hold(channel, path)]


def evict_reader(directory: Directory, channel: str, consumer_id: str) -> None:
    """Have no writer of the channel's rings on this host wait for this consumer any more."""
    for path in ring_paths(directory, channel):
        with contextlib.suppress(DataBlockError, FileNotFoundError):  # gone, or damaged
            header = read_header(path)
            if header.channel == channel and header.readers_path:
                end_waiting_for(reader_directory(path, header), consumer_id)


def group_members(path: str, group: str) -> int:
    """Return how many members of a group read a ring now."""
    readers_path = _reader_directory_of(path)
    return members_of(readers_path, group) if readers_path is not None else 0


def left_by_group(path: str, channel: str, group: str, left_out: Collection[MemberShare] = ()) -> int:
    """Return how many items of a ring of the channel no member of the group has done (see `undone_items`)."""
    try:
        segment = Segment.attach(path)
        header = segment.header()
        if header.channel != channel:
            return 0  # somebody registered a block of another channel as one of this
        head, geometry = segment.words[HEAD], header.geometry
        live = live_items(segment.words, geometry.line(0), geometry.slot_count, 1, claimed=True)
        written = (each for each, _ in live if each <= head)
        return len(undone_items(reader_directory(path, header), group, written, left_out))
    except (NothingThere, FileNotFoundError):
        return 0  # it is gone, or its readers' files are


def delete_group(path: str, group: str) -> bool:
    """Forget how far a group has come in a ring; False if it never read it. A writer that waits sees it soon."""
    readers_path = _reader_directory_of(path)
    if readers_path is None or not remove_group(readers_path, group):
        return False
    announce(readers_path)
    return True


def _reader_directory_of(path: str) -> str | None:
    """Return where the readers of a ring have their files; None where they have none."""
    header, _ = peek(path)
    readers_path = reader_directory(path, header)
    return readers_path if header.readers_path and has_reader_index(readers_path) else None
