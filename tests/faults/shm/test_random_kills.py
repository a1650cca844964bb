"""Writers, readers, committers and cleaners are killed and paused at random while they work. Half of them have the core
of rings in Python, half of them the one that is used here: in C, where it was built.

MESSAGEHUB_STORM_SECONDS sets how long.
Zero bad reads, zero stalls, zero leaked segments after cleaning, zero committed tables lost.
"""

import mmap
import os
import random
import signal
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from messagehub.shm import errors
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import Checksum, WhenFull
from messagehub.shm.payloads import codec_for
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.rings.ring import RingSpec, open_reader, open_writer
from messagehub.shm.tables.manifests import Retention
from messagehub.shm.tables.tables import TableStore
from tests.levels import KILLING_SECONDS
from tests.shm.children import fork, wait
from tests.shm.rings import number_of, payload, use_python_core

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.utf8())])
BYTES = np.dtype("u1")
PROGRESS = ("raw", "arrow", "blocking", "table", "committed", "cleaned")


def batch(number: int) -> pa.RecordBatch:
    rows = 1 + number % 40
    return pa.record_batch([[number] * rows, [f"{number}:{i}" for i in range(rows)]], schema=SCHEMA)


class Scene:
    """What the processes of one run share: a directory, and a word of progress for each role."""

    def __init__(self, root: str) -> None:
        self.directory = Directory(root=root)
        self.progress = memoryview(mmap.mmap(-1, 4096)).cast("Q")

    def advance(self, role: str) -> None:
        self.progress[PROGRESS.index(role)] += 1

    def produce(self, channel: str) -> None:
        block = self.directory.exclusive_block(channel)
        spec = RingSpec(
            channel,
            "p",
            self.directory.readers_path(block, channel),
            slot_count=8,
            checksum=Checksum.NONE if channel == "raw" else Checksum.VERIFY,  # "raw": the core alone writes and reads
            when_full=WhenFull.BLOCK if channel == "blocking" else WhenFull.OVERWRITE,
        )
        entry = ProducerEntry(channel, "p", ProcessIdentity.current(), time.time(), (self.directory.relative(block),))
        with self.directory.locked(channel, 20) as locked:
            registration = locked.register(entry)
            made = open_writer(block, spec, codec_for({"arrow": SCHEMA, "raw": BYTES}.get(channel)))
        while registration.is_held:
            number = made.head + 1
            try:
                if channel == "arrow":
                    made.write(batch(number), 1)
                elif number % 5:
                    content = payload(number, random.randint(20, 4000))
                    made.write(np.frombuffer(content, BYTES) if channel == "raw" else content, 1)
                else:
                    with made.loan(300, 1) as loan:
                        loan.buffer[:] = payload(number)
            except errors.RingFull:
                continue  # its reader is paused
            if random.random() < 0.05:
                time.sleep(0.001)

    def consume(self, channel: str) -> None:
        block = self.directory.exclusive_block(channel)
        held: list[tuple[int, object]] = []
        while True:
            try:
                with open_reader(block, start="oldest") as reader:
                    while True:
                        head = reader.head
                        found = reader.read(2)
                        # The writer may itself be paused; a stall is data that was there before, and does not come.
                        assert found is not None or reader.position.sequence >= head, "STALL"
                        if found is None or isinstance(found, Gap):
                            assert found is None or channel != "blocking", f"lossless reader lost {found}"
                            continue
                        self.check(channel, found.sequence, found.value)
                        view = found.value if channel == "arrow" else memoryview(found.buffer)
                        held.append((found.sequence, view))
                        if len(held) > 3:
                            self.check(channel, *held.pop(random.randrange(3)))
                        self.advance(channel)
            except (errors.WriterGone, errors.NothingThere):
                held.clear()
                time.sleep(0.002)

    def check(self, channel: str, sequence: int, value: object) -> None:
        if channel == "arrow":
            assert value.equals(batch(sequence)), "BAD READ"  # type: ignore[attr-defined]
        else:
            assert number_of(value) == sequence, "BAD READ"

    @property
    def store(self) -> TableStore:
        return TableStore(self.directory.tables_path("tables"))

    def commit(self) -> None:
        with self.directory.locked("tables", 20):
            pass  # makes the channel's directory
        while True:
            with_table = self.progress[PROGRESS.index("committed")] + 1
            made = pa.Table.from_batches([batch(with_table)])
            manifest = self.store.publish(
                made.to_batches(),
                SCHEMA,
                now=time.time(),
                checksum=Checksum.VERIFY,
                retention=Retention(generations=2, grace_seconds=0.05),
                details={"number": with_table},
            )
            assert manifest.details["number"] == with_table
            self.progress[PROGRESS.index("committed")] = with_table

    def read_tables(self) -> None:
        while True:
            committed = self.progress[PROGRESS.index("committed")]
            try:
                with self.store.open() as snapshot:
                    number = snapshot.manifest.details["number"]
                    assert snapshot.table().equals(pa.Table.from_batches([batch(number)])), "BAD READ"
                    assert number >= committed, "a committed table was lost"
                    self.advance("table")
            except errors.TableMissing:
                assert committed == 0, "a committed table was lost"
                time.sleep(0.002)

    def clean(self) -> None:
        while True:
            clean(self.directory, now=time.time(), linger_seconds=0.02, retention=Retention(grace_seconds=0.05))
            self.advance("cleaned")
            time.sleep(0.005)


def rampage(root: str, seconds: float) -> None:
    scene = Scene(root)
    batch(1)  # imports pandas, once for all children
    seed = int(os.environ.get("MESSAGEHUB_KILL_SEED", time.time_ns() % 100_000))
    print(f"seed {seed}")
    chance = random.Random(seed)
    roles: list[Callable[[], None]] = [scene.commit, scene.read_tables, scene.clean, scene.clean]
    for channel in ("raw", "arrow", "blocking"):
        roles += [
            lambda channel=channel: scene.produce(channel),  # type: ignore[misc]
            lambda channel=channel: scene.consume(channel),  # type: ignore[misc]
            lambda channel=channel: scene.consume(channel),  # type: ignore[misc]
        ]

    def start(role: Callable[[], None]) -> int:
        is_python = chance.random() < 0.5
        return fork(lambda: (use_python_core() if is_python else None, role()))

    children = {start(role): role for role in roles}
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(chance.uniform(0.001, 0.02))
            pid = chance.choice(list(children))
            if chance.random() < 0.3:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.uniform(0.001, 0.03))
                os.kill(pid, signal.SIGCONT)
            else:
                role = children.pop(pid)
                os.kill(pid, signal.SIGKILL)
                assert wait(pid) == -signal.SIGKILL, "a process found something bad: see its traceback"
                children[start(role)] = role
        before = scene.progress.tolist()[: len(PROGRESS)]
        calm = time.monotonic() + 15
        while any(now <= then for now, then in zip(scene.progress.tolist(), before, strict=False)):
            assert time.monotonic() < calm, f"STALL: {dict(zip(PROGRESS, scene.progress.tolist(), strict=False))}"
            time.sleep(0.01)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        ends = [wait(pid) for pid in children]
    assert set(ends) == {-signal.SIGKILL}, "a process found something bad: see its traceback"
    assert_nothing_left(scene)


def assert_nothing_left(scene: Scene) -> None:
    clean(scene.directory, now=time.time() + 1000, linger_seconds=0, retention=Retention())
    with scene.store.open() as snapshot:
        assert snapshot.manifest.details["number"] >= scene.progress[PROGRESS.index("committed")]
        kept = {part.name for part in snapshot.manifest.parts} | {f"g{snapshot.generation:012d}.json"}
    names = {name for _, _, found in os.walk(scene.directory.root) for name in found}
    assert names - kept == {"channel.lock", "commit.lock", "ended-rings"}


@pytest.mark.soak
@pytest.mark.timeout(KILLING_SECONDS + 300)
def test_random_kills_lose_nothing_and_stall_nobody(root: str) -> None:
    rampage(root, KILLING_SECONDS)
