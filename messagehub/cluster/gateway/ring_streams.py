"""A ring of this host as a stream of messages for one reader elsewhere.

Rule 1: the ring is read as any consumer of this host reads it, and no faster than the peer takes it: a blocking
producer waits for a lossless reader elsewhere too.
Rule 2: every IDLE_SECONDS at least something is sent, so that a peer that left is noticed, and lets go of the ring.
Rule 3: a member of a group is one here, in the group's files, as long as its stream lasts. What it has not acknowledged
then is another's. Its stream goes on after the ring's end: until the group is done, nobody may clean the ring.
"""

import threading
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from messagehub.cluster.gateway.group_members import GroupMembers
from messagehub.cluster.gateway.packed_items import PackedItems, columns
from messagehub.flight.messages import (
    IDLE_SECONDS,
    RING_KEY,
    FlightTicket,
    RemoteRingState,
    RingInfo,
    start_of,
)
from messagehub.shm.channel_directory.ownership import is_written_by_others
from messagehub.shm.errors import NothingThere, StreamEnded
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.read_results import Position, Producers
from messagehub.shm.rings.reader_files import ReadsFor
from messagehub.shm.rings.ring import open_reader, peek

Message = tuple[pa.RecordBatch, pa.Buffer]
STATE_ALIGNMENT, STATE_REMAINDER = 16, 14
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
        self.schema = columns({RING_KEY: msgspec.json.encode(info)})

    def messages(self) -> Iterator[Message]:
        with self._reader as reader:
            if self._ticket.newest:
                newest, found = PackedItems(), reader.latest()
                if found is not None:
                    newest.add(found)
                yield self._message(newest, has_ended=True)
                return
            while not self._left.is_set():
                try:  # no name keeps the message, whose slots are let go of when it is sent
                    yield self._next_message()
                except StreamEnded:
                    yield self._message(PackedItems(), has_ended=True)
                    if self._ticket.member is None:
                        return
                    self._left.wait(IDLE_SECONDS)

    def state_message(self) -> Message:
        """Return a message without items."""
        return self._message(PackedItems())

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

    def _next_message(self) -> Message:
        """Wait for an item, but no longer than IDLE_SECONDS; return what can be had at once, up to a message."""
        packed = PackedItems()
        found = self._reader.read(IDLE_SECONDS)
        while found is not None:
            packed.add(found)
            found = None if packed.is_full else self._reader.take()
        return self._message(packed)

    def _message(self, packed: PackedItems, *, has_ended: bool = False) -> Message:
        self._producers = packed.producers or self._producers
        state = msgspec.json.encode(self._state(has_ended=has_ended))
        padding = b" " * ((STATE_REMAINDER - len(state)) % STATE_ALIGNMENT)
        return packed.batch(self.schema), pa.py_buffer(state + padding)

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
