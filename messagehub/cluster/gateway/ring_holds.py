"""Rings of this host that somebody elsewhere reads step by step, as a streaming query of Spark does: listed, and held.

Rule 1: whoever holds a ring is a lossless reader that takes nothing: a blocking producer waits for it, and the ring is
not removed. It moves on when it is told to (`release`), and ends with its stream.
Rule 2: a hold is named by who opened it, so that nobody else moves it by chance.
"""

import os
import threading
import time
from collections.abc import Iterator

import msgspec

from messagehub.cluster.gateway.ring_streams import Message, RingStream
from messagehub.errors import NotRegistered
from messagehub.flight.messages import ListedRing, RingRelease, RingsAsked, RingsListed
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.layout import HEADER_BYTES, Kind, WhenFull
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.ended_rings import last_sequence
from messagehub.shm.rings.ring import peek, ring_paths

STATE_SECONDS = 0.5
"""So often a hold says how its ring is. A peer that left is noticed, and its hold ends, within about that."""


def list_rings(directory: Directory, channel: str, asked: RingsAsked) -> bytes:
    paths = ring_paths(directory, channel)
    found = [ring for path in paths if (ring := _listed(directory, channel, path)) is not None]
    removed = {block_id: last_sequence(directory, block_id) for block_id in asked.removed}
    return msgspec.json.encode(RingsListed(rings=found, removed=removed))


def _listed(directory: Directory, channel: str, path: str) -> ListedRing | None:
    """Return None where there is none (any more), or nothing that can be read as one."""
    try:
        header, state = peek(path)
        description = bytes(Segment.attach(path).data[HEADER_BYTES : HEADER_BYTES + header.geometry.schema_bytes])
    except DataBlockError:
        return None
    if header.channel != channel or header.kind == Kind.TABLE:
        return None
    return ListedRing(
        block="/" + os.path.relpath(path, directory.root),
        block_id=header.block_id,
        payload_format=int(header.payload_format),
        description=description,
        capacity=header.geometry.slot_count,
        overwrites=header.when_full == WhenFull.OVERWRITE,
        head=state["head"],
        epoch=state["epoch"],
        has_writer=state["has_writer"],
    )


class RingHolds:
    """Any thread may use it; each hold has one of Flight's threads, and is moved by others."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._held: dict[str, RingStream] = {}

    def messages(self, name: str, stream: RingStream) -> Iterator[Message]:
        """Hold the ring of a stream for as long as its messages are taken."""
        with self._changing:
            self._held[name] = stream
        try:
            while True:
                with self._changing:
                    said = stream.state_message()
                yield said
                time.sleep(STATE_SECONDS)
        finally:
            with self._changing:
                if self._held.get(name) is stream:
                    del self._held[name]
                stream.close()

    def release(self, asked: RingRelease) -> bytes:
        """Let go of the items up to one; return the last one that is let go of."""
        with self._changing:
            stream = self._held.get(asked.hold)
            if stream is None or stream.channel != asked.channel:
                raise NotRegistered("nothing is held under this name (any more): hold the ring again")
            return msgspec.json.encode(stream.release(asked.sequence))
