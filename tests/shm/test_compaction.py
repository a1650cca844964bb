"""Small parts become large ones; the rows, their order and whoever reads them stay as they are."""

import os
import signal

import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.layout import Checksum
from messagehub.shm.mapped_file import read_header
from messagehub.shm.tables.compaction import MOST_SMALL_PARTS, compact, compact_appended
from messagehub.shm.tables.manifests import Manifest, Part, Retention
from messagehub.shm.tables.tables import TableStore
from tests.shm.children import fork, wait


@pytest.fixture
def store(root: str) -> TableStore:
    return TableStore(os.path.join(root, "tables"))


def append(store: TableStore, table: pa.Table, now: float = 1000.0) -> Manifest:
    return store.publish(
        table.to_batches(),
        table.schema,
        now=now,
        mode="append",
        schema_hash="h",
        checksum=Checksum.WRITE,
        details={"schema_version": "7"},
    )


def rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"n": range(first, first + count), "s": [f"text {n}" for n in range(first, first + count)]})


def numbers(store: TableStore) -> list[int]:
    with store.open() as snapshot:
        return [int(number) for number in snapshot.table()["n"].to_pylist()]


def blocks(store: TableStore) -> int:
    return sum(name.endswith(".arrow") for name in os.listdir(store.path))


def test_small_parts_become_one_with_the_same_rows_in_the_same_order(store: TableStore) -> None:
    for turn in range(5):
        append(store, rows(turn * 10))
    packed = compact(store, now=2000.0)
    assert packed is not None
    (part,) = packed.parts
    assert (packed.generation, packed.rows, packed.schema_hash) == (6, 50, "h")
    assert packed.details == {"schema_version": "7"}
    assert (part.columns["n"].low, part.columns["n"].high) == (0, 49)
    assert read_header(os.path.join(store.path, part.name)).checksum == Checksum.WRITE
    assert numbers(store) == list(range(50))
    with store.open() as snapshot:
        assert len(snapshot.part(0).to_batches()) == 1
    assert compact(store, now=2000.0) is None, "there is nothing left to pack"
    assert store.generations()[-1] == 6


def test_large_parts_and_those_of_other_hosts_stay(store: TableStore) -> None:
    append(store, rows(0))
    append(store, rows(10))
    append(store, rows(20, 2000))
    append(store, rows(2020))
    append(store, rows(2030))
    transaction = store.begin(now=1000.0)
    there = Part(f"{transaction.id}-0-0.arrow", 10, 1000, "elsewhere")
    transaction.commit([there], now=1000.0, mode="append", schema_hash="h")
    with store.open() as snapshot:
        before = snapshot.manifest.parts
    packed = compact(store, now=2000.0, packed_bytes=20_000)
    assert packed is not None
    assert [part.rows for part in packed.parts] == [20, 2000, 20, 10]
    assert (packed.parts[1], packed.parts[3]) == (before[2], there)


def test_parts_are_packed_up_to_a_size(store: TableStore) -> None:
    sizes = {append(store, rows(turn * 10)).parts[-1].size_bytes for turn in range(6)}
    packed = compact(store, now=2000.0, packed_bytes=2 * max(sizes), small_bytes=max(sizes) + 1)
    assert packed is not None
    assert [part.rows for part in packed.parts] == [20, 20, 20]
    assert numbers(store) == list(range(60))


def test_parts_whose_arrow_types_differ_are_not_joined(store: TableStore) -> None:
    wide = pa.schema([("n", pa.int64()), ("s", pa.large_string())])
    coded = pa.table({"n": [40, 41], "s": pa.array(["a", "b"]).dictionary_encode()})
    again = pa.table({"n": [42, 43], "s": pa.array(["c", "b"]).dictionary_encode()})
    for table in (rows(0), rows(10), rows(20).cast(wide), rows(30).cast(wide), coded, again):
        append(store, table)
    packed = compact(store, now=2000.0)
    assert packed is not None
    assert [part.rows for part in packed.parts] == [20, 20, 4]
    with store.open() as snapshot:
        assert snapshot.part(1).schema == wide
        assert snapshot.part(2)["s"].to_pylist() == ["a", "b", "c", "b"]


def test_readers_of_the_old_generation_keep_it(store: TableStore) -> None:
    append(store, rows(0))
    append(store, rows(10))
    with store.open() as reading:
        assert compact(store, now=2000.0) is not None
        store.sweep(now=10_000.0)
        assert reading.table()["n"].to_pylist() == list(range(20))
        assert blocks(store) == 3
    store.sweep(now=10_000.0)
    assert blocks(store) == 1
    assert numbers(store) == list(range(20))


def test_what_is_appended_meanwhile_stays_and_what_is_overwritten_is_left_alone(
    store: TableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit comes from another process between the copy and its commit; here, at that very place."""
    commit = TableStore.commit_in_place
    meanwhile = [lambda: append(store, rows(20)), lambda: store.publish([], rows(0, 0).schema, now=1500.0)]

    def late(self: TableStore, *args: object, **kwargs: object) -> Manifest | None:
        meanwhile.pop(0)()
        return commit(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(TableStore, "commit_in_place", late)
    append(store, rows(0))
    append(store, rows(10))
    packed = compact(store, now=2000.0)
    assert packed is not None
    assert [part.rows for part in packed.parts] == [20, 10]
    assert numbers(store) == list(range(30))
    assert compact(store, now=2000.0) is None
    assert numbers(store) == []
    store.sweep(now=10_000.0)
    assert blocks(store) == 1, "what was copied in vain is removed"


def test_a_compaction_that_is_killed_leaves_the_table_as_it_was(store: TableStore) -> None:
    append(store, rows(0))
    append(store, rows(10))

    def compact_and_die() -> None:
        def die(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        TableStore.commit_in_place = die  # type: ignore[method-assign,assignment]
        compact(store, now=2000.0)

    assert wait(fork(compact_and_die)) == -signal.SIGKILL
    assert blocks(store) == 3
    assert numbers(store) == list(range(20))
    store.sweep(now=2000.0)
    assert blocks(store) == 2
    assert compact(store, now=2000.0) is not None
    assert numbers(store) == list(range(20))


def test_appends_and_compactions_of_several_processes_lose_and_double_nothing(store: TableStore) -> None:
    append(store, rows(0, 1))

    def appends(first: int) -> None:
        for turn in range(20):
            append(store, rows(first + turn, 1))

    def compacts() -> None:
        for _ in range(20):
            compact(store, now=2000.0)

    children = [fork(lambda: appends(100)), fork(lambda: appends(200)), fork(compacts), fork(compacts)]
    assert [wait(child, 60.0) for child in children] == [0, 0, 0, 0]
    found = numbers(store)
    assert sorted(found) == [0, *range(100, 120), *range(200, 220)]
    assert [n for n in found if 100 <= n < 200] == list(range(100, 120)), "in the order in which they were appended"
    compact(store, now=2000.0)
    assert numbers(store) == found


def test_appending_compacts_beyond_a_number_of_parts(store: TableStore) -> None:
    for turn in range(MOST_SMALL_PARTS):
        assert compact_appended(store, append(store, rows(turn, 1)), now=1000.0) is None
    packed = compact_appended(store, append(store, rows(MOST_SMALL_PARTS, 1)), now=1000.0)
    assert packed is not None
    assert len(packed.parts) == 1
    assert numbers(store) == list(range(MOST_SMALL_PARTS + 1))


def test_a_table_that_cannot_be_compacted_is_still_appended_to(
    store: TableStore, caplog: pytest.LogCaptureFixture
) -> None:
    for turn in range(MOST_SMALL_PARTS + 1):
        appended = append(store, rows(turn, 1))
    os.truncate(os.path.join(store.path, appended.parts[3].name), 100)
    assert compact_appended(store, appended, now=1000.0) is None
    assert "is not compacted" in caplog.text
    assert store.generations()[-1] == MOST_SMALL_PARTS + 1


def test_retention_and_names_of_transactions_outlive_a_compaction(store: TableStore) -> None:
    keep = Retention(generations=3)
    table = rows(0)
    store.publish(table.to_batches(), table.schema, now=1000.0, schema_hash="h", retention=keep)
    transaction = store.begin(now=1000.0, transaction_id="mine")
    transaction.commit(
        [transaction.write_part(table.to_batches(), table.schema)], now=1000.0, mode="append", schema_hash="h"
    )
    packed = compact(store, now=2000.0)
    assert packed is not None
    assert packed.retention == keep
    again = store.begin(now=2000.0, transaction_id="mine")
    again.commit([again.write_part(table.to_batches(), table.schema)], now=2000.0, mode="append", schema_hash="h")
    assert store.open().manifest.rows == 20, "the same transaction appends once"


def test_a_missing_table_is_said(store: TableStore) -> None:
    with pytest.raises(errors.TableMissing):
        compact(store, now=1000.0)


def coded(turn: int) -> pa.Table:
    """Three categories of its own: over 64 such parts they are more than an int8 can number."""
    codes = pa.array([0, 1, 2], pa.int8())
    return pa.table({"n": [turn] * 3, "s": pa.DictionaryArray.from_arrays(codes, [f"{turn}{x}" for x in "abc"])})


def test_parts_that_arrow_cannot_join_stay_apart(store: TableStore) -> None:
    for turn in range(MOST_SMALL_PARTS + 1):
        appended = append(store, coded(turn))
    assert compact_appended(store, appended, now=1000.0) is None
    assert len(appended.parts) == MOST_SMALL_PARTS + 1
    for turn in range(MOST_SMALL_PARTS + 1, MOST_SMALL_PARTS + 4):
        append(store, rows(turn, 1))
    packed = compact(store, now=1000.0)
    assert packed is not None
    assert packed.parts[:-1] == appended.parts
    assert packed.parts[-1].rows == 3
    assert blocks(store) == MOST_SMALL_PARTS + 1 + 3 + 1


def test_whatever_goes_wrong_after_an_append_is_logged(
    store: TableStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in range(MOST_SMALL_PARTS + 1):
        appended = append(store, rows(turn, 1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableStore, "commit_in_place", full)
    assert compact_appended(store, appended, now=1000.0) is None
    assert "is not compacted: [Errno 28]" in caplog.text
    assert numbers(store) == list(range(MOST_SMALL_PARTS + 1))


def test_a_compaction_takes_no_grace_time_from_those_before_it(store: TableStore) -> None:
    append(store, rows(0), now=1000.0)
    append(store, rows(10), now=2000.0)
    assert compact(store, now=2000.1) is not None
    assert store.generations() == [1, 2, 3]
    store.sweep(now=2300.0)
    assert store.generations() == [1, 2, 3]
    store.sweep(now=2300.05)
    assert store.generations() == [2, 3], "superseded at 2000"
    store.sweep(now=2300.2)
    assert store.generations() == [3]
    assert numbers(store) == list(range(20))


def test_a_compaction_long_after_the_last_append_has_the_grace_time_too(store: TableStore) -> None:
    append(store, rows(0), now=1000.0)
    append(store, rows(10), now=1000.0)
    assert compact(store, now=5000.0) is not None
    assert store.generations() == [2, 3]
    append(store, rows(20), now=5001.0)
    assert store.generations() == [2, 3, 4]
    append(store, rows(30), now=5002.0)
    assert store.generations() == [4, 5]


def test_a_compaction_is_none_of_the_generations_that_are_kept(store: TableStore) -> None:
    keep = Retention(generations=3, grace_seconds=0.0)
    for turn in range(3):
        table = rows(turn * 10)
        store.publish(table.to_batches(), table.schema, now=1000.0 + turn, mode="append", retention=keep)
    assert compact(store, now=1003.0) is not None
    store.sweep(now=9000.0)
    assert store.generations() == [1, 2, 3, 4]
    append_as_before = rows(30)
    store.publish(append_as_before.to_batches(), append_as_before.schema, now=9000.0, mode="append")
    assert store.generations() == [2, 3, 4, 5]


def test_a_compaction_does_not_make_the_rows_younger(store: TableStore) -> None:
    ends = Retention(max_age_seconds=100.0, grace_seconds=0.0)
    for turn in range(2):
        table = rows(turn * 10)
        store.publish(table.to_batches(), table.schema, now=1000.0, mode="append", retention=ends)
    packed = compact(store, now=1090.0)
    assert packed is not None
    assert packed.committed_at == 1000.0
    store.sweep(now=1101.0)
    assert 3 not in store.generations()
    store.sweep(now=1200.0)
    assert store.generations() == []
