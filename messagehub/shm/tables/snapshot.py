"""A generation of a table as one reader sees it: whole, unchanging, zero-copy."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from messagehub.shm.errors import BlockOnOtherHost, PayloadDamaged, TableMissing
from messagehub.shm.identity import host
from messagehub.shm.locks import Descriptor
from messagehub.shm.tables.manifests import Manifest
from messagehub.shm.tables.table_blocks import read_block

FetchParts = Callable[[Manifest, bool], list[Any]]
"""Give the parts of a generation in order, each from where it is; the second argument is `verify`."""


def whole_part(path: str, rows: int, *, verify: bool = False) -> Any:
    """Return a part as a pyarrow Table; refuse one whose manifest says another number of rows."""
    table = read_block(path, verify=verify)
    if table.num_rows != rows:
        raise PayloadDamaged(path, f"it has {table.num_rows} rows, and its manifest says {rows}")
    return table


class Snapshot:
    """It holds its manifest's lock, so no part is removed before `close`. Tables that were read stay valid after it."""

    def __init__(self, path: str, manifest: Manifest, lock: Descriptor, fetch: "FetchParts | None" = None) -> None:
        """`fetch` gives all parts of a generation of which some are on other hosts."""
        self.manifest = manifest
        self._fetch = fetch
        self._path = path
        self._lock = lock

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def host(self) -> str:
        """Where the manifest is: on this host."""
        return host()

    def part(self, index: int, *, verify: bool = False) -> Any:
        """Return one part as a pyarrow Table over shared memory."""
        part = self.manifest.parts[index]
        if part.host not in ("", host()):
            raise BlockOnOtherHost(part.name, part.host, host())
        return whole_part(os.path.join(self._path, part.name), part.rows, verify=verify)

    def parts(self, *, verify: bool = False) -> Iterator[Any]:
        for index in range(len(self.manifest.parts)):
            yield self.part(index, verify=verify)

    def table(self, *, verify: bool = False) -> Any:
        """Return all parts as one table, in order, without copying."""
        import pyarrow as pa

        is_here = all(part.host in ("", host()) for part in self.manifest.parts)
        fetch = None if is_here else self._fetch
        parts = list(self.parts(verify=verify)) if fetch is None else fetch(self.manifest, verify)
        if not parts:
            raise TableMissing(self._path, self.generation)
        try:
            return pa.concat_tables(parts)
        except pa.ArrowException as error:
            raise PayloadDamaged(self._path, error) from None

    def schema(self) -> Any:
        return self.table().schema

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
