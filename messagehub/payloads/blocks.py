"""Large Arrow payloads: in shared memory, with only a reference in the message.

    <root>/messagehub-<uid>/<domain>/messages/<publisher>-<number>.block        (of a group: messagehub@<gid>)

Rule 1: a block is written once, and complete before its message leaves. Whoever receives the message maps it at once,
and what is mapped stays readable for as long as it is used, also when the file is gone.
Rule 2: a block belongs to nobody. It is removed when it is LEASE_SECONDS old, or earlier, the oldest first, when all of
them take more than MOST_BYTES; by the next publisher or the broker's cleaner, whoever comes first.
Rule 3: who cannot map a block still gets its message, and is told why when it asks for the payload.
"""

import os
import re
import time
from typing import Any

import msgspec

from messagehub.errors import DataLost
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import boot_id, host
from messagehub.shm.layout import Checksum
from messagehub.shm.mapped_file import DEFAULT_ROOT
from messagehub.shm.messages import make_messages_directory, sweep_messages
from messagehub.shm.tables.table_blocks import read_block, write_block

BLOCK_BYTES = 256 * 1024
SWEEP_SECONDS = 0.2
_NAME = re.compile(
    r"messagehub[-@][0-9]{1,10}/[A-Za-z0-9_][A-Za-z0-9_.:=+,-]{0,199}/messages/[0-9a-f]{16}-[0-9]{1,20}\.block"
)


class _Reference(msgspec.Struct):
    name: str
    host: str
    boot_id: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Reference).decode


def is_large(payload: Any) -> bool:
    """Return whether a payload goes into a block: an Arrow batch or table over the limit."""
    if type(payload).__module__.partition(".")[0] != "pyarrow":
        return False
    import pyarrow as pa

    return isinstance(payload, pa.RecordBatch | pa.Table) and payload.nbytes > BLOCK_BYTES


class MessageBlocks:
    """The blocks of one publisher, used by one thread at a time."""

    def __init__(self, directory: Directory, publisher: bytes) -> None:
        self._directory = directory
        self._publisher = publisher.hex()
        self._number = 0
        self._path: str | None = None
        self._sweep_at = 0.0

    def put(self, payload: Any) -> bytes:
        """Write the block, and return the reference to send."""
        import pyarrow as pa

        if self._path is None:
            self._path = make_messages_directory(self._directory)
        now = time.time()
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            sweep_messages(self._directory, now=now, room_bytes=payload.nbytes)
        self._number += 1
        path = os.path.join(self._path, f"{self._publisher}-{self._number}.block")
        batches = [payload] if isinstance(payload, pa.RecordBatch) else payload.to_batches()
        write_block(path, batches, payload.schema, Checksum.NONE)
        name = os.path.relpath(path, self._directory.root)
        return _encode(_Reference(name=name, host=host(), boot_id=boot_id()))


def attach(body: memoryview, topic: str) -> Any:
    """Return the table that a reference names, sharing its memory, or the error that its payload is to raise."""
    try:
        reference = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return DataLost(f"a message of {topic!r} refers to its payload in a way that cannot be read: {error}")
    try:
        if (reference.host, reference.boot_id) != (host(), boot_id()):
            return DataLost(
                f"the payload of a message of {topic!r} is in the memory of host {reference.host!r}, and this is"
                f" {host()!r}: only small ones travel. Publish it as a table, which other hosts read",
                name=reference.name,
            )
        if not _NAME.fullmatch(reference.name):
            return DataLost(f"a message of {topic!r} refers to {reference.name[:200]!r}, which is no message block")
        return read_block(os.path.join(DEFAULT_ROOT, reference.name))
    except (DataBlockError, ValueError, OSError, LookupError, TypeError, NotImplementedError) as error:  # as Arrow does
        return DataLost(f"the payload of a message of {topic!r} cannot be had any more: {error}", name=reference.name)
