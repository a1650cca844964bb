"""Exhaustive: whoever commits, sweeps or aborts tables dies after each change of a file."""

import os
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from messagehub.shm.layout import Checksum
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import TableStore
from tests.faults.shm.suicide import Fuse, count_system_calls, died_after

LATER = 1e6


def table(number: int) -> pa.Table:
    return pa.table({"n": [number] * 30, "s": [f"{number}/{i}" for i in range(30)]})


def commit(store: TableStore, number: int, mode: str, now: float = 1.0) -> None:
    made = table(number)
    transaction = store.begin(now=now)
    parts = [
        transaction.write_part(made.to_batches(), made.schema, part=part, checksum=Checksum.VERIFY) for part in range(2)
    ]
    transaction.commit(parts, now=now, mode=mode)  # type: ignore[arg-type]


def read(store: TableStore) -> tuple[int, list[int]]:
    """The latest generation and its numbers, every byte compared."""
    with store.open() as snapshot:
        found = snapshot.table()
        numbers = found["n"].unique().to_pylist()
        for number in numbers:
            rows = found.filter(pc.equal(found["n"], number))
            assert rows.slice(0, 30).equals(table(number)) or rows["s"].to_pylist() == [
                *table(number)["s"].to_pylist(),
                *table(number)["s"].to_pylist(),
            ], "BAD READ"
            assert len(rows) == 60
        return snapshot.generation, numbers


def leftovers(store: TableStore) -> set[str]:
    """Files that no manifest and no lock explains."""
    names = set(os.listdir(store.path)) - {"commit.lock"}
    for generation in store.generations():
        names.discard(f"g{generation:012d}.json")
        with store.open(generation) as snapshot:
            names -= {part.name for part in snapshot.manifest.parts}
    return names


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_committer_that_dies_anywhere_has_published_all_or_nothing(root: str, mode: str) -> None:
    store = TableStore(os.path.join(root, "tables"))
    commit(store, 0, "overwrite")
    for number in count(1):
        before, numbers = read(store)

        def body(fuse: Fuse, number: int = number) -> None:
            count_system_calls(fuse)
            commit(store, number, mode)

        died = died_after(body, number)
        generation, found = read(store)
        if generation == before:
            assert died
            assert found == numbers
        else:
            assert generation > before
            assert found == ([*numbers, number] if mode == "append" else [number])
        store.sweep(now=LATER)
        assert leftovers(store) == set()
        assert read(store) == (generation, found), "a committed table was lost"
        if not died:
            assert generation > before
            return


def test_a_sweeper_that_dies_anywhere_loses_nothing_and_leaves_its_work_to_the_next(root: str) -> None:
    store = TableStore(os.path.join(root, "tables"))
    keep_many = Retention(generations=99)
    for length in count(1):
        for number in range(3):
            made = table(number)
            store.publish([made.to_batches()[0]] * 2, made.schema, now=1.0, retention=keep_many)

        def abandon(fuse: Fuse) -> None:
            store.begin(now=1.0).write_part(table(9).to_batches(), table(9).schema)

        assert not died_after(abandon, 1)

        def body(fuse: Fuse) -> None:
            count_system_calls(fuse)
            store.sweep(now=LATER, retention=Retention())

        died = died_after(body, length)
        assert read(store)[1] == [2]
        store.sweep(now=LATER, retention=Retention())
        assert leftovers(store) == set()
        assert len(store.generations()) == 1
        if not died:
            return
