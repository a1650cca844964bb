"""A ring of this host as a stream of messages for one reader elsewhere.

Rule 1: the ring is read as any consumer of this host reads it, and no faster than the peer takes it: a blocking
producer waits for a lossless reader elsewhere too.
Rule 2: every IDLE_SECONDS at least something is sent, so that a peer that left is noticed, and lets go of the ring.
Rule 3: a member of a group is one here, in the group's files, as long as its stream lasts. What it has not acknowledged
then is another's. Its stream goes on after the ring's end: until the group is done, nobody may clean the ring.
"""

import struct
import threading
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from messagehub.cluster.gateway.group_members import GroupMembers
from messagehub.flight.messages import (
    ALIGNMENT,
    IDLE_SECONDS,
    ITEM,
    MESSAGE_BYTES,
    MESSAGE_ITEMS,
    RING_KEY,
    FlightTicket,
    RemoteRingState,
    RingInfo,
    start_of,
)
from messagehub.shm.channel_directory.ownership import is_written_by_others
from messagehub.shm.errors import NothingThere, StreamEnded
from messagehub.shm.layout import FLAT
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.read_results import Gap, Item, Position, Producers
from messagehub.shm.rings.reader_files import ReadsFor
from messagehub.shm.rings.ring import open_reader, peek

COLUMNS = pa.schema(
    [pa.field("items", pa.binary(), nullable=False), pa.field("payload", pa.large_binary(), nullable=False)]
)
"""A message is one row: what is known of each item, packed (`ITEM`), and their bytes one after the other. Columns for
each field would take more time than sending 64 KiB does."""
Message = tuple[pa.RecordBatch, pa.Buffer]
STATE_ALIGNMENT, STATE_REMAINDER = 16, 6
"""The state stands before the items in what gRPC sends. With a length of so much above a multiple of 16, the items of
most messages come to lie where they can be read in place; a reader copies them otherwise."""


class RingStream:
    def __init__(self, path: str, ticket: FlightTicket, members: GroupMembers, read_for: ReadsFor | None) -> None:
        """Attach to the ring; raise NothingThere if it is not one of the ticket's channel."""
        header, state = peek(path)
        if header.channel != ticket.channel:
            raise NothingThere(path)
        self.channel = header.channel
        self._ticket = ticket
        member = ticket.member
        if member is not None:
            members.make_room(path, ticket)
        self._reader = reader = open_reader(
            path,
            start=start_of(ticket, Position(header.block_id, state["epoch"], state["head"])),
            lossless=ticket.lossless and not ticket.newest,
            wait_for_writer=True,
            verify=ticket.verify,
            consumer_id=ticket.consumer_id,
            read_for=read_for,
            group=member.group if member is not None else None,
            assignment=member.share() if member is not None else None,
        )
        self._acknowledging = threading.Lock()
        self._left = threading.Event()
        if member is not None:
            self.acknowledge(ticket.done)
            reader.skip_to(ticket.after)
            members.add(path, ticket, self)
        self._producers: Producers = ((0, reader.header.producer_id),)
        info = RingInfo(
            block_id=reader.header.block_id,
            channel=header.channel,
            schema_hash=reader.header.schema_hash,
            payload_format=int(reader.header.payload_format),
            description=codec_for(reader.schema).description,
            checks_cells=is_written_by_others(path),
            position=(*reader.position,),
            was_over=state["has_ended"] or not state["has_writer"],
            state=self._state(),
        )
        self.schema = COLUMNS.with_metadata({RING_KEY: msgspec.json.encode(info)})

    def messages(self) -> Iterator[Message]:
        with self._reader as reader:
            if self._ticket.newest:
                item = reader.latest()
                yield self._message([] if item is None else [item], has_ended=True)
                return
            while not self._left.is_set():
                try:
                    found = reader.read(IDLE_SECONDS)
                except StreamEnded:
                    yield self._message([], has_ended=True)
                    if self._ticket.member is None:
                        return
                    self._left.wait(IDLE_SECONDS)
                    continue
                message = self._message([] if found is None else self._more(found))
                found = None  # lets go of its slot, which is copied or on its way, before the peer takes the message
                yield message

    def state_message(self) -> Message:
        """Return a message without items."""
        return self._message([])

    def release(self, sequence: int) -> int:
        """Let go of the items up to one without sending them; return the last one that is let go of."""
        while self._reader.position.sequence < sequence and self._reader.take() is not None:
            pass
        return self._reader.position.sequence

    def acknowledge(self, sequence: int) -> None:
        """Of a member: note that its share is done up to this item. Any thread may call this."""
        with self._acknowledging:
            if sequence and not self._left.is_set():
                self._reader.acknowledge(sequence)

    def leave(self) -> None:
        """Of a member: give up its share, and end the stream. Any thread may call this."""
        with self._acknowledging:
            self._left.set()
            self._reader.leave_group()

    def _more(self, first: Item | Gap) -> list[Item | Gap]:
        """Return what can be had at once, up to a message."""
        found, size = [first], _size(first)
        while size < MESSAGE_BYTES and len(found) < MESSAGE_ITEMS:
            taken = self._reader.take()
            if taken is None:
                break
            found.append(taken)
            size += _size(taken)
        return found

    def _message(self, found: list[Item | Gap], *, has_ended: bool = False) -> Message:
        rows, chunks, end = list[bytes](), list[memoryview | bytes](), 0
        for one in found:
            if isinstance(one, Gap):
                rows.append(ITEM.pack(one.first, one.last, 0, 0, *FLAT, 0, 0))
                continue
            self._producers = one.producers
            view = memoryview(one.buffer)
            size = view.nbytes
            rows.append(ITEM.pack(one.sequence, 0, one.epoch, one.written_ns, *one.shape, size, end))
            padding = -size % ALIGNMENT if len(found) > 1 else 0
            chunks += [view, bytes(padding)] if padding else [view]
            end += size + padding
        batch = pa.RecordBatch.from_arrays(
            [_cell(pa.binary(), "i", b"".join(rows)), _cell(pa.large_binary(), "q", _as_one(chunks))],
            schema=self.schema,
        )
        state = msgspec.json.encode(self._state(has_ended=has_ended))
        return batch, pa.py_buffer(state + b" " * ((STATE_REMAINDER - len(state)) % STATE_ALIGNMENT))

    def _state(self, *, has_ended: bool = False) -> RemoteRingState:
        reader = self._reader
        return RemoteRingState(
            head=reader.head,
            epoch=reader.position.epoch,
            is_alive=reader.is_writer_alive(),
            is_replaced=reader.is_replaced(),
            has_ended=has_ended,
            producers=list(self._producers),
            has_more=self._ticket.member is not None and reader.has_unread(),
        )

    def close(self) -> None:
        self._reader.close()


def _as_one(chunks: list[memoryview | bytes]) -> memoryview | bytes:
    """Return the bytes together: one large item is sent from its slot, without a copy."""
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _cell(kind: pa.DataType, offset: str, content: memoryview | bytes) -> pa.Array:
    """Return a column of one row that shares the memory of its bytes."""
    data = pa.py_buffer(content)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(struct.pack(f"=2{offset}", 0, data.size)), data])


def _size(one: Item | Gap) -> int:
    return 0 if isinstance(one, Gap) else memoryview(one.buffer).nbytes
