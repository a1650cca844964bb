"""A small tmpfs that fills up: an error with sizes, never SIGBUS, and nothing left behind."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.rings.ring import open_reader
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import TableStore
from tests.shm.children import fork, wait
from tests.shm.rings import payload, writer


@pytest.fixture
def small() -> Iterator[str]:
    """4 MiB of tmpfs of our own."""
    with mounted_tmpfs("4m") as path:
        yield path


@contextmanager
def mounted_tmpfs(size: str) -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    path = tempfile.mkdtemp(prefix="mh-small-")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        os.rmdir(path)
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        os.rmdir(path)


def fill_up(path: str) -> None:
    step = 1 << 16
    with open(path, "wb", buffering=0) as file:
        while step:
            try:
                file.write(bytes(step))
            except OSError:
                step //= 2


def register(directory: Directory) -> None:
    with directory.locked("c") as channel:
        channel.register(ProducerEntry("c", "p", ProcessIdentity.current(), 1.0))


def free(path: str) -> int:
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


def test_a_ring_that_does_not_fit_is_refused_at_creation(small: str) -> None:
    def body() -> None:
        before = free(small)
        with pytest.raises(errors.ShmFull, match="free"):
            writer(small, slot_bytes=1 << 20, slot_count=5)
        assert not os.path.exists(os.path.join(small, "ring"))
        assert free(small) == before
        with writer(small, slot_bytes=1 << 20, slot_count=3) as made:
            for number in range(1, 20):
                made.write(payload(number, 1 << 10))

    assert wait(fork(body)) == 0


def test_a_full_root_cannot_hurt_a_ring_that_exists(small: str) -> None:
    def body() -> None:
        with writer(small, slot_bytes=1 << 18, slot_count=4) as made:
            fill_up(os.path.join(small, "ballast"))
            for number in range(1, 20):
                made.write(payload(number, 1 << 16))
            with pytest.raises(errors.ShmFull):
                open_reader(os.path.join(small, "ring"))
            with pytest.raises(errors.ShmFull):
                register(Directory(root=small))

    assert wait(fork(body)) == 0


def test_a_table_that_does_not_fit_fails_at_its_block_and_leaves_nothing(small: str) -> None:
    def body() -> None:
        store = TableStore(os.path.join(small, "tables"))
        fits = pa.table({"n": range(1000)})
        store.publish(fits.to_batches(), fits.schema, now=1.0)
        before = free(small)
        big = pa.table({"n": range(100_000)})
        with pytest.raises(errors.ShmFull):
            store.publish(big.to_batches() * 9, big.schema, now=2.0)
        assert free(small) == before
        with store.open() as snapshot:
            assert snapshot.table().equals(fits)

    assert wait(fork(body)) == 0


def test_a_table_is_overwritten_again_and_again_where_three_of_it_fit() -> None:
    """What a commit removes is freed in the background, and the next write of that process waits for it."""
    table = pa.table({"n": pa.array(range(4 << 20), pa.int64())})
    with mounted_tmpfs("104m") as path:
        store = TableStore(os.path.join(path, "tables"))
        for number in range(1, 20):
            manifest = store.publish(
                table.to_batches(), table.schema, now=float(number), retention=Retention(grace_seconds=0)
            )
            assert manifest.size_bytes > 32 << 20
        assert store.generations() == [18, 19]
        with store.open() as snapshot:
            assert snapshot.table().equals(table)
