"""What dies in the middle of a write: a worker, an executor, the driver; and what is full."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from messagehub import MessageHub
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.spark.cluster import can_have_own_hosts, standalone
from tests.spark.jobs import running
from tests.spark.messages import DONE, prepare
from tests.spark.test_batch import left_behind, write

pytestmark = pytest.mark.timeout(600, func_only=True)
Options = dict[str, str]
SMALL = ("spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2")


def until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_killed_python_workers_are_replaced_and_their_data_is_published_once(
    spark: SparkSession, channel_options: Options, tables: TableStore
) -> None:
    def kill_all_workers(batches: Any) -> Any:
        for batch in batches:
            yield batch
            context = TaskContext.get()
            if context.partitionId() == 0 and context.attemptNumber() == 0:
                daemon = os.getppid()
                with open(f"/proc/{daemon}/task/{daemon}/children") as file:
                    workers = [int(pid) for pid in file.read().split()]
                for pid in [pid for pid in workers if pid != os.getpid()] + [os.getpid()]:
                    os.kill(pid, signal.SIGKILL)

    write(spark.range(0, 50_000, 1, 2).mapInArrow(kill_all_workers, "id long"), channel_options)
    with tables.open() as snapshot:
        assert sorted(snapshot.table()["id"].to_pylist()) == list(range(50_000))
    assert left_behind(tables) == set()


@pytest.mark.slow
def test_a_task_may_end_long_before_its_commit_while_cleaners_run(
    spark: SparkSession, channel_options: Options, tables: TableStore, domain: str
) -> None:
    def wait(batches: Any) -> Any:
        if TaskContext.get().partitionId() == 1:
            time.sleep(75)
        yield from batches

    is_over = threading.Event()
    cleanings = []

    def keep_cleaning() -> None:
        while not is_over.wait(0.5):
            cleanings.append(clean(Directory(domain), now=time.time()))

    cleaner = threading.Thread(target=keep_cleaning)
    cleaner.start()
    started = time.monotonic()
    try:
        write(spark.range(0, 1000, 1, 2).mapInArrow(wait, "id long"), channel_options)
    finally:
        is_over.set()
        cleaner.join(30)
    assert time.monotonic() - started > 70
    assert len(cleanings) > 20
    with tables.open() as snapshot:
        assert sorted(snapshot.table()["id"].to_pylist()) == list(range(1000))


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_visible_and_nothing_after_cleaning(
    channel_options: Options, tables: TableStore, domain: str, tmp_path: Path
) -> None:
    with running("local[2]", tmp_path, channel_options) as job:
        job.tell("write", shape="stall", parts=2)
        until(lambda: os.path.isdir(tables.path) and any(n.endswith(".arrow") for n in os.listdir(tables.path)))
        assert clean(Directory(domain), now=time.time()).producers == []
        assert any(name.endswith(".arrow") for name in os.listdir(tables.path))
        job.kill()
        assert tables.generations() == []
        until(lambda: not clean(Directory(domain), now=time.time()).busy and left_behind(tables) == set(), 30)


@pytest.mark.slow
@pytest.mark.skipif(not can_have_own_hosts(), reason="a small /dev/shm of one's own needs root")
def test_a_frame_that_does_not_fit_fails_with_sizes_and_leaves_the_memory_free(
    channel_options: Options, tmp_path: Path
) -> None:
    tiny = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh"]
    with running("local[2]", tmp_path, channel_options, prefix=tiny) as job:
        said = job.ask("write", rows=400_000, wide=100)
        assert "ShmFull" in said
        assert "remount,size" in said
        assert job.ask("write", rows=10_000, wide=100) == "written"  # 1 MB: there is room again
        assert job.ask("read")[0] == 10_000


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
def test_on_a_standalone_cluster_killed_executors_and_speculation_publish_once(
    channel_options: Options, tables: TableStore, domain: str, tmp_path: Path
) -> None:
    speculative = (
        "spark.speculation=true",
        "spark.speculation.interval=200ms",
        "spark.speculation.minTaskRuntime=500ms",
        "spark.speculation.quantile=0.5",
    )
    with (
        standalone(tmp_path, own_hosts=False) as cluster,
        running(cluster.url, tmp_path / "driver", channel_options, *SMALL, *speculative) as job,
    ):
        for shape in ("", "kill_executor", "dawdle"):
            assert job.ask("write", shape=shape) == "written"
            assert job.ask("read") == [1000, 499_500]
            with tables.open() as snapshot:
                assert sorted(snapshot.table()["id"].to_pylist()) == list(range(1000))
    until(lambda: not clean(Directory(domain), now=time.time()).busy and left_behind(tables) == set(), 60)


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
def test_on_a_standalone_cluster_topics_and_registered_payloads_work(
    channel_options: Options, hub: MessageHub, tmp_path: Path
) -> None:
    prepare(hub)
    with (
        standalone(tmp_path, own_hosts=False) as cluster,
        running(cluster.url, tmp_path / "driver", channel_options, *SMALL) as job,
    ):
        assert job.ask("through_topics", checkpoints=str(tmp_path / "checkpoints")) == DONE


@pytest.mark.slow
@pytest.mark.timeout(900, func_only=True)
@pytest.mark.skipif(not can_have_own_hosts(), reason="hosts of one's own need root")
def test_on_hosts_of_their_own_every_block_names_its_host_and_is_refused_elsewhere(
    channel_options: Options, tables: TableStore, tmp_path: Path
) -> None:
    with standalone(tmp_path, own_hosts=True) as cluster:
        strict = ("spark.task.maxFailures=1", "spark.locality.wait=0")
        with running(cluster.url, tmp_path / "driver", channel_options, *SMALL, *strict) as job:
            assert job.ask("write", rows=4000, parts=8) == "written"
            with tables.open() as snapshot:
                hosts = {part.host for part in snapshot.manifest.parts}
                assert hosts == {"worker1", "worker2"}
                with pytest.raises(Exception, match="is in the memory of host 'worker"):
                    snapshot.table()
            cluster.stop("worker2")
            said = job.ask("read")
            assert "BlockOnOtherHost" in said
            assert "'worker2'" in said
