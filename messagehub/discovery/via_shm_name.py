"""Discovery by name alone: the ring of an exclusive channel is where the channel's name says."""

from messagehub.discovery import Discovery
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.rings.ring import peek
from registry import names
from registry.records import Block


class ViaShmName:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def discover(self, channel: str, expected_schema_hash: str | None = None) -> Discovery | None:
        """Return a ring that somebody writes now. Only its header is known: check it against your own schema."""
        logical = names.check_channel(names.logical(channel))
        path = self._directory.exclusive_block(logical)
        try:
            header, state = peek(path)
        except DataBlockError:
            return None  # nothing there, not a block, or another user's: whoever attaches to it hears why
        if not state["has_writer"] or header.channel != logical:
            return None
        shm_name = "/" + self._directory.relative(path)
        return Discovery(
            channel=logical,
            shm_name=shm_name,
            schema_hash=header.schema_hash or None,
            schema_version=None,
            status="active",
            source="shm",
            access="exclusive",
            blocks=[Block(shm_name=shm_name, host=header.host, format=header.payload_format.name.lower())],
            blocks_total=1,
            compatible=None if expected_schema_hash is None else header.schema_hash == expected_schema_hash,
        )
