import os
import pickle

import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import Checksum
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.tables import manifests
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.table_blocks import read_block
from messagehub.shm.tables.tables import TableStore
from tests.shm.children import fork, kill, parked, wait


def table(number: int, rows: int = 50) -> pa.Table:
    return pa.table({"n": [number] * rows, "s": [f"text {number} {i}" for i in range(rows)]})


def publish(store: TableStore, number: int, now: float = 1000.0, **options: object) -> int:
    made = table(number)
    manifest = store.publish(made.to_batches(), made.schema, now=now, checksum=Checksum.VERIFY, **options)  # type: ignore[arg-type]
    return manifest.generation


def blocks(store: TableStore) -> list[str]:
    return [name for name in os.listdir(store.path) if name.endswith(".arrow")]


@pytest.fixture
def store(root: str) -> TableStore:
    return TableStore(os.path.join(root, "tables"))


def test_a_published_table_comes_back_whole_and_zero_copy(store: TableStore) -> None:
    assert publish(store, 1) == 1
    with store.open() as snapshot:
        found = snapshot.table()
        assert found.equals(table(1))
        assert snapshot.manifest.rows == 50
    before = pa.total_allocated_bytes()
    with store.open() as snapshot:
        again = snapshot.part(0)
    assert pa.total_allocated_bytes() - before < 4096
    assert again.equals(found)


def test_overwrite_replaces_and_append_adds(store: TableStore) -> None:
    publish(store, 1)
    publish(store, 2)
    publish(store, 3, mode="append")
    with store.open() as snapshot:
        assert snapshot.table()["n"].unique().to_pylist() == [2, 3]
    with pytest.raises(errors.PayloadSchemaMismatch):
        publish(store, 4, mode="append", schema_hash="other")
    assert store.open().generation == 3


def test_nothing_to_open_is_said(store: TableStore) -> None:
    with pytest.raises(errors.TableMissing):
        store.open()
    publish(store, 1)
    with pytest.raises(errors.TableMissing, match="generation 7"):
        store.open(7)


def test_several_tasks_write_parts_and_one_commit_publishes_them(store: TableStore) -> None:
    transaction = store.begin(now=1.0, transaction_id="job-7")
    parts = []
    for part in range(3):
        read_end, write_end = os.pipe()

        def task(part: int = part, write_end: int = write_end) -> None:
            carried = pickle.loads(pickle.dumps(transaction))
            made = carried.write_part(table(part).to_batches(), table(0).schema, part=part, attempt=1)
            os.write(write_end, pickle.dumps(made))

        assert wait(fork(task)) == 0
        parts.append(pickle.loads(os.read(read_end, 65536)))
        os.close(read_end)
        os.close(write_end)
    assert store.generations() == []
    assert transaction.commit(parts, now=2.0).generation == 1
    with store.open() as snapshot:
        assert snapshot.table()["n"].unique().to_pylist() == [0, 1, 2]


def test_a_finished_task_is_safe_from_cleaners_while_the_keeper_lives_and_swept_when_it_died(
    store: TableStore,
) -> None:
    """The task that wrote the part is long gone; the driver keeps the transaction."""
    driver = parked(lambda: None)
    keeper = ProcessIdentity.of(driver)
    transaction = store.begin(now=1.0, keeper=keeper)
    assert wait(fork(lambda: transaction.write_part(table(1).to_batches(), table(1).schema))) == 0
    assert store.sweep(now=1e9) == []
    assert len(blocks(store)) == 1
    kill(driver)
    assert len(store.sweep(now=1e9)) == 1
    assert os.listdir(store.path) == ["commit.lock"]
    with pytest.raises(errors.TransactionEnded):
        transaction.write_part(table(1).to_batches(), table(1).schema)
    with pytest.raises(errors.TransactionEnded):
        transaction.commit([], now=2.0)


def test_a_keeper_on_another_host_is_checked_by_age(store: TableStore) -> None:
    keeper = ProcessIdentity.current()._replace(host="elsewhere")
    transaction = store.begin(now=1000.0, keeper=keeper)
    transaction.write_part(table(1).to_batches(), table(1).schema)
    assert store.sweep(now=1000.0 + 3599) == []
    assert len(store.sweep(now=1000.0 + 3601)) == 1


def test_the_same_transaction_is_published_once(store: TableStore) -> None:
    schema = table(1).schema
    for _ in range(2):
        transaction = store.begin(now=1.0, transaction_id="query.5")
        part = transaction.write_part(table(1).to_batches(), schema)
        assert transaction.commit([part], now=1.0, mode="append").generation == 1
    assert len(blocks(store)) == 1
    assert not transaction.is_open()
    transaction.abort()
    with store.open() as snapshot:
        assert snapshot.manifest.rows == 50


def test_abort_and_losing_attempts_leave_no_block(store: TableStore) -> None:
    schema = table(1).schema
    transaction = store.begin(now=1.0)
    transaction.write_part(table(1).to_batches(), schema)
    transaction.abort()
    assert blocks(store) == []
    transaction = store.begin(now=1.0)
    loser = transaction.write_part(table(1).to_batches(), schema, part=0, attempt=0)
    winner = transaction.write_part(table(2).to_batches(), schema, part=0, attempt=1)
    transaction.commit([winner], now=1.0)
    assert blocks(store) == [winner.name]
    assert loser.name != winner.name


def test_a_zombie_that_writes_after_the_abort_leaves_nothing(store: TableStore) -> None:
    transaction = store.begin(now=1.0)

    def batches() -> object:
        yield from table(1).to_batches()
        transaction.abort()

    with pytest.raises(errors.TransactionEnded):
        transaction.write_part(batches(), table(1).schema)  # type: ignore[arg-type]
    assert blocks(store) == []


def test_an_iterator_that_fails_leaves_nothing(store: TableStore) -> None:
    def broken() -> object:
        yield from table(1).to_batches()
        raise KeyError("on purpose")

    with pytest.raises(KeyError):
        store.publish(broken(), table(1).schema, now=1.0)  # type: ignore[arg-type]
    assert os.listdir(store.path) == ["commit.lock"]


def test_an_empty_partition_is_a_part_without_rows(store: TableStore) -> None:
    assert store.publish([], table(1).schema, now=1.0).rows == 0
    with store.open() as snapshot:
        assert snapshot.table().schema == table(1).schema


def test_the_generation_just_superseded_outlasts_the_grace_time(store: TableStore) -> None:
    for number in range(1, 5):
        publish(store, number, now=1000.0 + number)
    assert store.generations() == [3, 4]
    assert len(blocks(store)) == 2
    store.sweep(now=1304.0)
    assert store.generations() == [3, 4]
    store.sweep(now=1305.0)
    assert store.generations() == [4]
    with store.open() as snapshot:
        assert snapshot.table().equals(table(4))


def test_retention_by_count_bytes_and_age(store: TableStore) -> None:
    keep = Retention(generations=4, grace_seconds=0)
    for number in range(1, 8):
        publish(store, number, now=float(number), retention=keep)
    assert store.generations() == [4, 5, 6, 7]
    size = store.open().manifest.size_bytes
    store.sweep(now=10.0, retention=Retention(generations=9, max_bytes=2 * size, grace_seconds=0))
    assert store.generations() == [6, 7]
    store.sweep(now=10.0, retention=Retention(generations=9, max_age_seconds=2.5, grace_seconds=0))
    assert store.generations() == []
    assert blocks(store) == []
    assert publish(store, 8) == 8


def test_a_generation_that_is_being_read_is_not_retired_and_its_views_outlive_it(store: TableStore) -> None:
    publish(store, 1, now=1.0)
    snapshot = store.open()
    for number in (2, 3, 4):
        publish(store, number, now=float(number))
    assert store.generations() == [1, 3, 4]
    found = snapshot.table()
    snapshot.close()
    store.sweep(now=1e6)
    assert store.generations() == [4]
    assert len(blocks(store)) == 1
    assert found.equals(table(1))


def test_appended_blocks_live_as_long_as_any_generation_names_them(store: TableStore) -> None:
    for number in range(1, 4):
        publish(store, number, now=float(number), mode="append")
    store.sweep(now=1e6)
    assert store.generations() == [3]
    assert len(blocks(store)) == 3
    with store.open() as snapshot:
        assert snapshot.table()["n"].unique().to_pylist() == [1, 2, 3]


def test_damage_is_found(store: TableStore) -> None:
    publish(store, 1)
    (name,) = blocks(store)
    path = os.path.join(store.path, name)
    with pytest.raises(errors.HeaderInconsistent, match="table"):
        open_reader(path)
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xee" * 50)
    with pytest.raises(errors.ChecksumMismatch):
        read_block(path)
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(errors.TruncatedBlock):
        read_block(path)
    with open(os.path.join(store.path, "g000000000001.json"), "wb") as file:
        file.write(b"{")
    with pytest.raises(errors.EntryDamaged):
        store.open()


def test_racing_committers_each_get_a_generation_of_their_own(store: TableStore) -> None:
    publish(store, 0)

    def commit_some(seed: int) -> None:
        for step in range(5):
            publish(store, seed * 10 + step, mode="append", now=1.0)

    children = [fork(lambda seed=seed: commit_some(seed)) for seed in range(1, 5)]
    assert [wait(pid) for pid in children] == [0] * 4
    with store.open() as snapshot:
        assert snapshot.generation == 21
        assert sorted(snapshot.table()["n"].unique().to_pylist()) == sorted(
            [0, *(seed * 10 + step for seed in range(1, 5) for step in range(5))]
        )


def test_retention_is_kept_with_the_table_and_honoured_by_every_cleaner(store: TableStore) -> None:
    keep = Retention(generations=3, grace_seconds=1.0)
    publish(store, 1, now=1.0, retention=keep)
    for number in range(2, 7):
        publish(store, number, now=float(number))
    store.sweep(now=1e6)
    assert store.generations() == [4, 5, 6]
    assert TableStore(store.path).open().manifest.retention == keep


def test_a_store_without_its_channel_directory_is_refused(root: str) -> None:
    with pytest.raises(errors.RootUnusable):
        TableStore(os.path.join(root, "absent", "tables")).begin(now=1.0)
    os.symlink(root, os.path.join(root, "link"))
    with pytest.raises(errors.SymlinkRefused):
        TableStore(os.path.join(root, "link")).begin(now=1.0)


def test_a_table_of_very_many_parts_is_written_without_statistics(
    store: TableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would make its manifest too large to be read."""
    monkeypatch.setattr(manifests, "MOST_STATISTICS", 4)
    publish(store, 1)
    publish(store, 2, mode="append")
    with store.open() as snapshot:
        assert [list(part.columns) for part in snapshot.manifest.parts] == [["n", "s"], ["n", "s"]]
    publish(store, 3, mode="append")
    with store.open() as snapshot:
        assert [list(part.columns) for part in snapshot.manifest.parts] == [[], [], []]
