"""Everything at once: a storm of kills, pauses and restarts over a whole hub, and then the accounts are checked.

MESSAGEHUB_STORM_SECONDS sets how long; Spark takes part from a minute on. A failure names its seed and keeps its
history in build/chaos; MESSAGEHUB_CHAOS_SEED=… strikes in the same order again.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.shm.channel_directory.directory import Directory
from tests.faults.chaos import checker
from tests.faults.chaos.storm import Storm
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import ROOT, Served, eventually
from tests.levels import STORM_SECONDS


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"chaos{os.getpid()}") as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(STORM_SECONDS + 600)
def test_a_storm_breaks_no_promise_and_leaves_nothing(place: Place) -> None:
    seed = int(os.environ.get("MESSAGEHUB_CHAOS_SEED", time.time_ns() % 1_000_000))
    print(f"MESSAGEHUB_CHAOS_SEED={seed}")
    with_spark = STORM_SECONDS >= 60 and shutil.which("java") is not None
    storm = Storm(place.dir, place.domain, seed, with_spark=with_spark)
    try:
        storm.begin()
        strikes = storm.rage(STORM_SECONDS)
        checker.everybody_goes_on(storm.history, sorted({role.partition("-")[0] for role in storm.roles}))
        storm.stop_writing()
        eventually(lambda: _is_done(storm), timeout=checker.STALL_SECONDS)
        storm.end()
        assert storm.broker.stop() == 0
    except BaseException as error:
        storm.ask_everybody()
        if isinstance(error, checker.Stalled):
            print(f"{error} did not move in time. {storm.said_by(str(error))}")
        kept_at = ROOT / "build" / "chaos" / str(seed)
        shutil.copytree(place.dir, kept_at, ignore=shutil.ignore_patterns("*.sock", "spark-*"), dirs_exist_ok=True)
        print(f"history, complaints and the broker's log are kept in {kept_at}")
        raise
    finally:
        storm.close()
    checker.every_item_was_done(storm.history)
    with Served(place.dir) as again:
        with place.hub() as hub:
            kept = checker.every_promise_is_kept(storm.history, hub)
            kept |= checker.retained_messages_are_whole(storm.history, hub)
        assert again.stop() == 0
    kept["tables"] = checker.tables_are_newest(storm.history, Directory(place.domain))
    kept |= checker.requests_were_handled_once(storm.history)
    kept["counted losses"] = checker.losses_were_counted(storm.history)
    kept["events"] = checker.revisions_only_grew(storm.history)
    checker.nothing_is_left(place.dir, Directory(place.domain), storm.broker.http)
    print(f"{strikes} strikes, {kept}")


def _is_done(storm: Storm) -> bool:
    try:
        checker.every_item_was_done(storm.history)
    except AssertionError:
        return False
    return True
