"""Generation manifests: one small file that says which blocks a table consists of.

Rule 1: a manifest is never changed; a new generation is a new file, named by one link(2).
Rule 2: a reader of a table holds a shared lock on its manifest. Retiring the table needs the exclusive lock and
unlinks the manifest before any block, so a visible, locked manifest has all its blocks.
"""

import contextlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from messagehub.shm.channel_directory.ownership import parent_of
from messagehub.shm.errors import EntryDamaged, NothingThere
from messagehub.shm.locks import OWNER, Descriptor, exclusive, shared, try_lock
from messagehub.shm.mapped_file import open_trusted, read_file, remove_file, write_file
from messagehub.shm.tables.column_statistics import ColumnStatistics
from registry.decoding import decodable

_NAME: Final = re.compile(r"g(\d{12})\.json")
_VISIBLE: Final = ".json"
_DROPPED: Final = ".dropped"
_READING: Final = shared(OWNER)
_RETIRING: Final = exclusive(OWNER)
# How many transactions a manifest remembers, to make a repeated commit harmless.
RECENT_TRANSACTIONS: Final = 256
_TEXT: Final = 1024
MOST_STATISTICS: Final = 16_384
"""How many statistics of columns a manifest holds. A table with more is written without, to stay small."""


@dataclass(frozen=True)
class Part:
    """One immutable block of a table."""

    name: str
    rows: int
    size_bytes: int
    host: str = ""  # where its memory is; empty: beside the manifest
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)  # of those that have statistics, by name


@decodable
@dataclass(frozen=True)
class Retention:
    """Which superseded generations stay. It is part of the manifest, so that any cleaner knows it."""

    generations: int = 1
    """How many generations stay, the current one included."""
    max_bytes: int | None = None
    """How many bytes all generations together may take."""
    max_age_seconds: float | None = None
    """A generation ends when it is so old, the current one too."""
    grace_seconds: float = 300.0
    """The generation that was superseded last stays at least so long."""


@decodable
@dataclass(frozen=True)
class Manifest:
    generation: int
    committed_at: float  # a compaction leaves it as it was: it changes no row
    transaction: str
    parts: tuple[Part, ...]
    schema_hash: str = ""
    recent: tuple[str, ...] = ()  # transactions already contained or superseded, newest last
    retention: Retention = Retention()
    details: dict[str, Any] = field(default_factory=dict)
    compacted_at: float | None = None  # of a generation that has the rows of the one before it, in other parts

    @property
    def superseded_before_at(self) -> float:
        """Return when the generation before this one was superseded."""
        return self.committed_at if self.compacted_at is None else self.compacted_at

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def to_json(self) -> bytes:
        return json.dumps(msgspec.to_builtins(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, path: str) -> "Manifest":
        try:
            found = msgspec.json.decode(content, type=cls)
            if not all(part.name and not {"/", "\0"} & set(part.name) for part in found.parts):
                raise ValueError("a part outside the directory")
            numbers = [found.generation, *(n for part in found.parts for n in (part.rows, part.size_bytes))]
            if not (
                all(0 <= number < 1 << 63 for number in numbers)
                and 0 <= found.committed_at < 1e15
                and 0 <= (found.compacted_at or 0) < 1e15
            ):
                raise ValueError("a number that no commit writes")
            if max(len(found.schema_hash), len(str(found.details.get("schema_version", "")))) > _TEXT:
                raise ValueError("a text that no commit writes")
            for part in found.parts:
                for name, column in part.columns.items():
                    if flaw := column.flaw(part.rows):
                        raise ValueError(f"column {name!r} of part {part.name!r} is said to have {flaw}")
            return found
        except (ValueError, RecursionError) as error:  # what msgspec raises is a ValueError
            raise EntryDamaged(path, str(error)) from None


def generations(directory: str) -> list[int]:
    """Return the visible generations, oldest first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)


def manifest_path(directory: str, generation: int) -> str:
    return os.path.join(directory, f"g{generation:012d}.json")


def generation_at(path: str) -> tuple[str | None, int | None]:
    """Return the directory of tables and the generation that a manifest's path names.

    For the path of a directory of tables the generation is None, which stands for the newest.
    """
    parent, name = os.path.split(path.rstrip("/"))
    named = _NAME.fullmatch(name)
    if named:
        return parent, int(named[1])
    return (path, None) if generations(path) else (None, None)


def load(directory: str, generation: int) -> Manifest | None:
    """Return the manifest of a generation, or None if it was retired."""
    found = _read(directory, generation)
    if found is None:
        return None
    found[1].close()
    return found[0]


def hold(directory: str, generation: int) -> tuple[Manifest, Descriptor] | None:
    """Return the manifest and the lock that keeps its blocks; None if it is retired or about to be."""
    found = _read(directory, generation)
    if found is None:
        return None
    fd = found[1].fd
    if try_lock(fd, _READING) and os.fstat(fd).st_nlink > 0:
        return found
    found[1].close()
    return None


def publish_manifest(directory: str, manifest: Manifest) -> None:
    if sum(len(part.columns) for part in manifest.parts) > MOST_STATISTICS:
        manifest = replace(manifest, parts=tuple(replace(part, columns={}) for part in manifest.parts))
    write_file(manifest_path(directory, manifest.generation), manifest.to_json())


def retire(directory: str, generation: int) -> bool:
    """Unlink a manifest unless somebody reads it."""
    path = manifest_path(directory, generation)
    try:
        descriptor = open_trusted(path, os.O_RDWR)
    except NothingThere:
        return True
    try:
        return try_lock(descriptor.fd, _RETIRING) and remove_file(path)
    finally:
        descriptor.close()


def drop(directory: str, generation: int) -> bool:
    """Make a manifest invisible, also while somebody reads it; False if it was gone already."""
    path = manifest_path(directory, generation)
    if retire(directory, generation):
        return True
    try:
        with parent_of(path) as (parent, name):
            os.rename(name, name.removesuffix(_VISIBLE) + _DROPPED, src_dir_fd=parent, dst_dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


def dropped_in_use(directory: str) -> list[Manifest]:
    """Return the dropped manifests that somebody still reads, and remove the others."""
    found = []
    for name in os.listdir(directory):
        if not name.endswith(_DROPPED):
            continue
        path = os.path.join(directory, name)
        with contextlib.suppress(NothingThere):
            descriptor = open_trusted(path, os.O_RDWR)
            try:
                if try_lock(descriptor.fd, _RETIRING):
                    remove_file(path)
                else:
                    found.append(Manifest.from_json(read_file(descriptor, path), path))
            finally:
                descriptor.close()
    return found


def _read(directory: str, generation: int) -> tuple[Manifest, Descriptor] | None:
    path = manifest_path(directory, generation)
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except NothingThere:
        return None
    try:
        return Manifest.from_json(read_file(descriptor, path), path), descriptor
    except BaseException:
        descriptor.close()
        raise
