"""Which producers of this host are held back by their readers; quick enough for thousands of channels."""

import os
from collections.abc import Iterator
from typing import Final

from messagehub.channels.inventory import BlockInfo, rings
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.layout import HEADER_BYTES, SKIPPED, WRITER_TICKET
from messagehub.shm.mapped_file import open_trusted

_RING: Final = ".ring"


def held_back(directory: Directory) -> list[BlockInfo]:
    """The rings whose producer waits for readers now, or whose slots are all held by them."""
    found: list[BlockInfo] = []
    for channel in directory.channels():
        if any(_may_be_held_back(path) for path in _ring_files(directory, channel)):
            found += [block for block in rings(directory, channel) if block.held_back is not None]
    return found


def _ring_files(directory: Directory, channel: str) -> Iterator[str]:
    yield directory.exclusive_block(channel)
    place = directory.channel_path(channel)
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return  # cleaned meanwhile
    for name in names:
        if name.endswith(_RING):
            yield os.path.join(place, name)


def _may_be_held_back(path: str) -> bool:
    """Whether its writer waits, or has ever skipped an item. One page is read: all readers are looked at only then."""
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except DataBlockError:
        return False
    try:
        page = os.pread(descriptor.fd, HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\0")
    finally:
        descriptor.close()
    words = memoryview(page).cast("Q")
    return bool(words[WRITER_TICKET] or words[SKIPPED])
