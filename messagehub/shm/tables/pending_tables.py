"""Tables of this host that are not yet registered with a broker on another host: one small file a domain.

The process that published such a table may end before that broker answers; whoever connects to it next from this host
registers the table. A broker of this host needs no note, since it finds tables by itself.
"""

import os
from typing import Final

import msgspec

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.shared_line_file import LOCK_SECONDS, SharedLineFile

MOST: Final = 1024
_NAME: Final = "pending-tables"
_LINE_BYTES: Final = 1024
_decoder = msgspec.json.Decoder(tuple[str, str, int])


def note_pending(directory: Directory, endpoint: str, channel: str, generation: int) -> None:
    """Remember that a channel's newest table, this generation or a later one, is to be registered at `endpoint`."""
    _file(directory).append(msgspec.json.encode((endpoint, channel, generation)).decode())


def may_be_pending(directory: Directory) -> bool:
    """Whether anything was ever noted in this domain; looking takes no lock."""
    return os.path.exists(_file(directory).path)


def pending(directory: Directory, endpoint: str, *, lock_seconds: float = LOCK_SECONDS) -> list[str]:
    """Return the channels whose newest table is not yet registered with the broker at `endpoint`."""
    noted = [_noted(line) for line in _file(directory).lines(lock_seconds=lock_seconds)]
    return list(dict.fromkeys(channel for whose, channel, _ in noted if whose == endpoint))


def forget_pending(
    directory: Directory,
    endpoint: str,
    channel: str,
    generation: int | None,
    *,
    lock_seconds: float = LOCK_SECONDS,
) -> None:
    """Remove the notes of a channel up to this generation, which is registered; None: all, since the table is gone."""

    def is_done(line: str) -> bool:
        whose, named, number = _noted(line)
        return (whose, named) == (endpoint, channel) and (generation is None or number <= generation)

    _file(directory).remove(is_done, lock_seconds=lock_seconds)


def _noted(line: str) -> tuple[str, str, int]:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:  # the line was cut off, or we did not write it
        return "", "", 0


def _file(directory: Directory) -> SharedLineFile:
    return SharedLineFile(os.path.join(os.path.dirname(directory.path), _NAME), MOST, _LINE_BYTES)
