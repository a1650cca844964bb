"""Damaged block files against their readers: a typed refusal or data; never another error, a signal, a hang, or
memory that grows.

A few thousand in `make test` and `make nightly`; in `make soak` as long as a storm (MESSAGEHUB_STORM_SECONDS). A
failure names the original and the seed;
MESSAGEHUB_BLOCK_SEED=… begins there.
"""

import collections
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.blocks.mutants import Mutant, mutant, write
from tests.faults.blocks.originals import Original, make_all
from tests.faults.test_fuzz import resident_bytes
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import ROOT, clean_environment
from tests.levels import LEVEL, STORM_SECONDS

MUTANTS = 3000
WARM = 1000
DEADLINE_SECONDS = 30.0
GROWTH_BYTES = 16_000_000
SECONDS = STORM_SECONDS if LEVEL == "soak" else 0.0


class Victim:
    """The process that reads; another one when it died of it."""

    def __init__(self, place: Place) -> None:
        program = ["-X", "faulthandler", "-m", "tests.faults.blocks.reading"]
        self.process = subprocess.Popen(
            [sys.executable, *program, str(place.dir), place.domain],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )

    def read(self, **task: object) -> str:
        """What it says of a file; how it ended, if it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], DEADLINE_SECONDS)[0]:
            return f"wrong: nothing said in {DEADLINE_SECONDS} s"
        line = self.process.stdout.readline()
        outcome: str = json.loads(line) if line else f"wrong: it ended with {self.process.wait(DEADLINE_SECONDS)}"
        return outcome

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"fuzz{os.getpid()}") as made:
        yield made


@pytest.fixture
def originals(place: Place) -> Iterator[list[Original]]:
    root = tempfile.mkdtemp(prefix="mh-fuzz-", dir="/dev/shm")
    try:
        yield make_all(root, place.hub())
    finally:
        shutil.rmtree(root)


@pytest.fixture
def victim(place: Place) -> Iterator[Victim]:
    made = Victim(place)
    yield made
    made.close()


def read_one(victim: Victim, originals: list[Original], seed: int) -> tuple[str, str]:
    """The outcome, and what was done."""
    chance = random.Random(seed)
    original = chance.choice(originals)
    made = mutant(original, originals, seed)
    write(original.damaged, made)
    try:
        outcome = victim.read(
            kind=original.kind,
            opened=original.opened,
            damaged=original.damaged,
            has_writer=original.damaged.endswith("ring") and chance.random() < 0.3,
            must_be_valid=original.is_checked and not made.is_sealed,
        )
    finally:
        write(original.damaged, Mutant(original.content, None, False, ""))
    return outcome, f"MESSAGEHUB_BLOCK_SEED={seed} ({original.name}: {made.how}, sealed: {made.is_sealed})"


def test_whole_blocks_are_read(originals: list[Original], victim: Victim) -> None:
    """Else the rest would prove nothing."""
    for original in originals:
        task = {"kind": original.kind, "opened": original.opened, "damaged": original.damaged}
        outcome = victim.read(**task, has_writer=False, must_be_valid=True)
        assert outcome == ("STREAM_ENDED" if original.kind in ("ring", "member") else "data"), original.name


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_a_damaged_block_is_refused_or_read_and_nothing_else(originals: list[Original], victim: Victim) -> None:
    first = int(os.environ.get("MESSAGEHUB_BLOCK_SEED", 1 if not SECONDS else time.time_ns() % 10**9 * 1000))
    print(f"MESSAGEHUB_BLOCK_SEED={first}")
    deadline = time.monotonic() + SECONDS
    outcomes: collections.Counter[str] = collections.Counter()
    warm_bytes = 0
    seed = first
    while seed < first + MUTANTS or time.monotonic() < deadline:
        outcome, what = read_one(victim, originals, seed)
        assert not outcome.startswith("wrong"), f"{what}: {outcome}"
        outcomes[outcome] += 1
        seed += 1
        if seed == first + WARM:
            warm_bytes = resident_bytes(victim.process.pid)
    grown = resident_bytes(victim.process.pid) - warm_bytes
    print(f"{grown} bytes more after {seed - first - WARM} of {seed - first} mutants: {dict(outcomes.most_common())}")
    assert grown < GROWTH_BYTES
    assert outcomes.keys() > {
        "BLOCK_TRUNCATED",
        "BLOCK_HEADER_INCONSISTENT",
        "BLOCK_CHECKSUM_MISMATCH",
        "ENTRY_DAMAGED",
    }
