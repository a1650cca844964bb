"""Large messages of topics, put together from their pieces.

Rule 1: the pieces of a publisher's message come in their order and before the pieces of its next one, or not at all: a
message that lacks one is given up, and shows as a gap in the publisher's numbers.
Rule 2: what all unfinished messages hold is bounded; when it is too much, the one that was begun first is given up.
"""

from messagehub.protocol.topic_frames import HEAD, MOST_PIECES, PIECE, PLACE

MOST_BYTES = 256 * 2**20
OVERHEAD_BYTES = 1024  # what an unfinished message takes beside its content, so that empty ones are bounded too
_KIND_AT = HEAD.size - 1


class _Unfinished:
    __slots__ = ("count", "head", "parts", "size_bytes")

    def __init__(self, head: bytes, count: int) -> None:
        self.head = head
        self.count = count
        self.parts: list[memoryview] = []
        self.size_bytes = OVERHEAD_BYTES


class Pieces:
    """The unfinished messages of one socket. Only one thread may use it at a time."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._unfinished: dict[bytes, _Unfinished] = {}
        self._size_bytes = 0

    def add(self, frame: bytes, end: int) -> bytes | None:
        """Add a piece.

        Return the whole message as one frame after its last piece, else None. Raise ValueError for no piece.
        """
        head_at, place_at = end + 1, end + 1 + HEAD.size
        if len(frame) < place_at + PLACE.size:
            raise ValueError("a piece that ends before its content")
        index, count = PLACE.unpack_from(frame, place_at)
        if not index < count <= MOST_PIECES:
            raise ValueError("a piece outside of its message")
        key, head = frame[: head_at + 8], frame[:place_at]
        found = self._unfinished.get(key)
        if index == 0:
            self._give_up(key)
            found = self._unfinished[key] = _Unfinished(head, count)
            self._size_bytes += OVERHEAD_BYTES
        elif found is None or found.head != head or found.count != count or len(found.parts) != index:
            self._give_up(key)
            return None
        part = memoryview(frame)[place_at + PLACE.size :]
        found.parts.append(part)
        found.size_bytes += len(part)
        self._size_bytes += len(part)
        if index + 1 == count:
            self._give_up(key)
            kind_at = head_at + _KIND_AT
            return b"".join((head[:kind_at], bytes((head[kind_at] & ~PIECE,)), *found.parts))
        while self._size_bytes > self._most_bytes:
            self._give_up(next(iter(self._unfinished)))
        return None

    def _give_up(self, key: bytes) -> None:
        found = self._unfinished.pop(key, None)
        if found is not None:
            self._size_bytes -= found.size_bytes
