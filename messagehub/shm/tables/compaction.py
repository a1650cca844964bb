"""Compaction: small neighbouring parts of a table become one part, in a new generation.

Rule 1: the new generation has the same rows in the same order. It is committed like any other, so whoever dies here
leaves the old one, and whoever reads the old one keeps it.
Rule 2: rows that were appended meanwhile stay behind those that were compacted. A table that was overwritten, dropped
or compacted meanwhile is left alone.
Rule 3: parts in the memory of other hosts, and large ones, stay as they are.
"""

import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any, Final

from messagehub.shm.identity import host
from messagehub.shm.mapped_file import read_header
from messagehub.shm.tables.manifests import Manifest, Part
from messagehub.shm.tables.snapshot import Snapshot
from messagehub.shm.tables.tables import TableStore, Transaction

log = logging.getLogger("messagehub")

PACKED_BYTES: Final = 128 << 20
SMALL_BYTES: Final = 4 << 20
MOST_SMALL_PARTS: Final = 64
"""A table that is appended to is compacted beyond so many parts of less than `SMALL_BYTES`."""
_BATCH_ROWS: Final = 65_536


def compact_appended(store: TableStore, appended: Manifest, *, now: float) -> Manifest | None:
    """Compact a table that appends have cut into many small parts.

    Return the new generation, if there is one. What goes wrong is logged: the rows are appended.
    """
    if sum(_is_small(part, SMALL_BYTES) for part in appended.parts) <= MOST_SMALL_PARTS:
        return None
    try:
        return compact(store, now=now, small_bytes=SMALL_BYTES)
    except Exception as error:  # whoever heard of it would append the rows again
        said = "the table of %s has %d parts and is not compacted: %s"
        log.warning(said, store.path, len(appended.parts), error, exc_info=True)
        return None


def compact(
    store: TableStore, *, now: float, packed_bytes: int = PACKED_BYTES, small_bytes: int | None = None
) -> Manifest | None:
    """Pack neighbouring parts below `small_bytes` (by default half of `packed_bytes`) into parts of `packed_bytes`.

    Return the new generation, or None where there was nothing to pack or the table changed meanwhile. TableMissing
    is raised where there is none.
    """
    with store.open() as snapshot:
        before = snapshot.manifest
        runs = list(_runs(before.parts, packed_bytes, small_bytes or packed_bytes // 2))
        if len(runs) == len(before.parts):
            return None
        transaction = store.begin(now=now)
        try:
            parts = [part for run in runs for part in _packed(snapshot, run, transaction)]
            if len(parts) == len(before.parts):
                transaction.abort()
                return None
            done = store.commit_in_place(transaction, before, parts, now=now)
        except BaseException:
            transaction.abort()
            raise
    if done is None:
        transaction.abort()
    return done


def _is_small(part: Part, small_bytes: int) -> bool:
    return part.size_bytes < small_bytes and part.host in ("", host())


def _runs(parts: tuple[Part, ...], packed_bytes: int, small_bytes: int) -> Iterator[list[int]]:
    """Return the places of the parts, those together that become one."""
    run: list[int] = []
    size = 0
    for index, part in enumerate(parts):
        is_small = _is_small(part, small_bytes)
        if run and (not is_small or size + part.size_bytes > packed_bytes):
            yield run
            run, size = [], 0
        if is_small:
            run.append(index)
            size += part.size_bytes
        else:
            yield [index]
    if run:
        yield run


def _packed(snapshot: Snapshot, run: list[int], transaction: Transaction) -> Iterator[Part]:
    """Write the parts of a run as one; where their Arrow schemas differ (text of another width), as several."""
    if len(run) == 1:
        yield snapshot.manifest.parts[run[0]]
        return
    tables = [(index, snapshot.part(index)) for index in run]
    for _, alike in itertools.groupby(tables, key=lambda one: one[1].schema.serialize().to_pybytes()):
        yield from _joined(snapshot, list(alike), transaction)


def _joined(snapshot: Snapshot, alike: list[tuple[int, Any]], transaction: Transaction) -> Iterator[Part]:
    """Write parts of one Arrow schema as one; as they are where Arrow cannot join them (too many categories)."""
    import pyarrow as pa

    first = alike[0][0]
    if len(alike) == 1:
        yield snapshot.manifest.parts[first]
        return
    try:
        together = pa.concat_tables([table for _, table in alike]).combine_chunks()
    except pa.ArrowException as error:
        # As text: a record that somebody keeps must not keep the error, and with it all these parts mapped.
        log.info("%d parts of the table of %s stay apart: %s", len(alike), transaction.store.path, str(error))
        yield from (snapshot.manifest.parts[index] for index, _ in alike)
        return
    checksum = read_header(os.path.join(transaction.store.path, snapshot.manifest.parts[first].name)).checksum
    batches = together.to_batches(max_chunksize=_BATCH_ROWS)
    yield transaction.write_part(batches, together.schema, part=first, checksum=checksum, every_text=True)
