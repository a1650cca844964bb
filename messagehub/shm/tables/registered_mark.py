"""The newest generation of a channel's tables here that the registry of a site has had: `registered.mark`.

The registry keeps no record of a table that was dropped or overwritten. So the host of the table notes that it was
registered: what the mark covers and the registry does not have any more has ended, and is not to be registered again.

Rule 1: only the hub of this host writes it, after the registration was stored. It may say less than is true, and never
more.
Rule 2: it counts for one site, and for registries that are not older than the one it was taken from.
Rule 3: generations are numbered anew only in a new directory, which has no mark.
"""

import contextlib
import os
from typing import Final

import msgspec

from messagehub.shm.channel_directory.ownership import parent_of
from messagehub.shm.errors import NothingThere
from messagehub.shm.mapped_file import open_trusted, read_file, remove_file, write_file
from registry.decoding import decodable

REGISTERED_MARK: Final = "registered.mark"
_BEING_WRITTEN: Final = "registered.mark.writing"
"""Not `.new`: whoever has the lock of the tables removes such files, and the hub's loop does not wait for that lock."""
_MOST_BYTES: Final = 4096


@decodable
class RegisteredMark(msgspec.Struct, kw_only=True, frozen=True):
    site_id: str
    generation: int
    revision: int
    """The revision of the site's registry at which the registration was seen."""


def read_mark(directory: str) -> RegisteredMark | None:
    """Return None where nothing is noted, or nothing that a hub would write."""
    path = os.path.join(directory, REGISTERED_MARK)
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except NothingThere:
        return None
    try:
        return msgspec.json.decode(read_file(descriptor, path, _MOST_BYTES), type=RegisteredMark)
    except msgspec.DecodeError:
        return None
    finally:
        descriptor.close()


def write_mark(directory: str, mark: RegisteredMark) -> None:
    """Replace the mark in one step."""
    temporary = os.path.join(directory, _BEING_WRITTEN)
    remove_file(temporary)  # of a hub that was killed here
    write_file(temporary, msgspec.json.encode(mark))
    with parent_of(temporary) as (parent, name):
        new = os.path.join(os.path.dirname(name), REGISTERED_MARK)
        os.rename(name, new, src_dir_fd=parent, dst_dir_fd=parent)


def remove_mark(directory: str) -> None:
    with contextlib.suppress(NothingThere):
        remove_file(os.path.join(directory, REGISTERED_MARK))
