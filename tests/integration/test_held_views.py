"""Programs that keep what they read: their producers go on, and everybody can see who holds whom back."""

import json
import logging
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from messagehub.cli import app
from messagehub.errors import ConfigurationError
from messagehub.shm.errors import RingFull
from tests.integration.block_processes import Place, Process, place_in
from tests.shm.children import eventually

PATIENCE = 30.0
KEEPER = """
consumer = hub.consumer("kept", start="oldest", copy=copy)
kept = []
say(ready=True)
while len(kept) < count:
    kept.append(consumer.read(timeout=30))
say(kept=len(kept))
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"k{os.getpid()}") as made:
        yield made


def keeper(place: Place, *, count: int, copy: str = "auto") -> Process:
    process = place.process(KEEPER, count=count, copy=copy)
    assert process.hear() == {"ready": True}
    return process


def run(place: Place, *words: str) -> Any:
    shown = CliRunner().invoke(app, [*words, "--dir", str(place.dir)], env={"MESSAGEHUB_DOMAIN": place.domain})
    return json.loads(shown.stdout)


def test_a_consumer_that_keeps_a_thousand_values_does_not_stop_its_producer(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("kept", schema=np.dtype("<i8")) as producer,
        hub.consumer("kept", start="oldest") as consumer,
    ):
        kept: deque[Any] = deque(maxlen=1000)
        for n in range(1500):
            producer.write(np.full(8, n))
            kept.append(consumer.read(timeout=PATIENCE))
        assert producer.skipped == consumer.missed == 0
        assert [int(value[0]) for value in kept] == list(range(500, 1500))


@pytest.mark.parametrize("policy", ["Single", "DoubleBuffer"])
def test_a_loop_over_a_ring_of_one_or_two_slots_goes_on(place: Place, policy: str) -> None:
    hub = place.hub()
    with (
        hub.producer("one", schema=np.dtype("<i8"), policy=policy, when_full="block") as producer,
        hub.consumer("one", start="oldest") as consumer,
    ):
        value = None
        for n in range(20):
            producer.write(np.array([n]), timeout=PATIENCE)
            value = consumer.read(timeout=PATIENCE)
            assert value.tolist() == [n]


def test_a_producer_whose_slots_are_all_kept_goes_on_and_names_the_process(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    hub = place.hub()
    with hub.producer("kept", schema=np.dtype("<i8"), capacity=4) as producer:
        process = keeper(place, count=4, copy="never")
        for n in range(4):
            producer.write(np.array([n]))
        assert process.hear() == {"kept": 4}
        with caplog.at_level(logging.WARNING, "messagehub"):
            assert [producer.write(np.array([n])) for n in range(10)] == list(range(5, 15))
        assert producer.skipped == 10
        told = [record.message for record in caplog.records if "skipped" in record.message]
        assert len(told) == 1
        assert f"process {process.pid} holds 4 slots" in told[0]

        findings = [one for one in run(place, "doctor", "--json")["findings"] if "readers hold all" in one["message"]]
        assert [one["severity"] for one in findings] == ["warning"]
        assert f"process {process.pid} holds 4 slots, and 10 items were skipped" in findings[0]["message"]
        (block,) = run(place, "blocks", "list", "--json")
        assert (block["slots"], block["held"], block["skipped"]) == (4, 4, 10)
        holder = {
            "pid": process.pid,
            "holding_pid": process.pid,
            "host": None,
            "held": 4,
            "unread": None,
            "group": None,
            "members": None,
            "lag": 10,
            "position": 4,
            "missed": 0,
            "shares": 1,
        }
        (found,) = block["holders"]
        assert found.pop("consumer_id").startswith("consumer-")
        assert found == holder

        process.kill()
        producer.write(np.array([0]))
        assert producer.skipped == 10
        findings = [one for one in run(place, "doctor", "--json")["findings"] if "skipped" in one["message"]]
        assert [one["severity"] for one in findings] == ["info"]


def test_a_blocking_producer_names_the_process_that_does_not_read(place: Place) -> None:
    hub = place.hub()
    with hub.producer("kept", capacity=4, when_full="block") as producer:
        process = keeper(place, count=1)
        for n in range(5):
            producer.write(b"%d" % n)
        assert process.hear() == {"kept": 1}
        with pytest.raises(RingFull, match=f"process {process.pid} has not read 4 items"):
            producer.write(b"5", timeout=0.05)


def test_copy_takes_what_it_knows(place: Place) -> None:
    with pytest.raises(ConfigurationError, match="copy 'sometimes' is not one of auto, never"):
        place.hub().consumer("kept", copy="sometimes")  # type: ignore[arg-type]


def test_a_consumer_that_only_looks_at_the_latest_does_not_stop_a_blocking_producer(place: Place) -> None:
    hub = place.hub()
    with (
        hub.producer("looked.at", schema=np.dtype("<i8"), capacity=4, when_full="block") as producer,
        hub.consumer("looked.at") as consumer,
    ):
        producer.write(np.array([1]))
        assert consumer.latest().tolist() == [1]
        for n in range(2, 40):
            producer.write(np.array([n]), timeout=PATIENCE)
        assert consumer.latest().tolist() == [39]
        # It reads after all: what it was promised before is counted, and from here on the producer waits for it.
        assert consumer.read(timeout=PATIENCE).tolist() == [36]
        assert consumer.missed == 35
        assert [consumer.read(timeout=PATIENCE).tolist() for _ in range(3)] == [[37], [38], [39]]
        consumer.latest()
        for n in range(40, 44):
            producer.write(np.array([n]), timeout=PATIENCE)
        with pytest.raises(RingFull):
            producer.write(np.array([44]), timeout=0.05)
        assert consumer.missed == 35


def test_a_ring_that_comes_later_does_not_wait_either_for_who_only_looks(place: Place) -> None:
    hub = place.hub()
    with hub.consumer("later") as consumer:
        assert consumer.latest() is None
        with hub.producer("later", schema=np.dtype("<i8"), capacity=2, when_full="block") as producer:
            for n in range(10):
                producer.write(np.array([n]), timeout=PATIENCE)
                assert consumer.latest().tolist() == [n]


def test_a_producer_that_waits_is_shown_as_held_back(place: Place) -> None:
    """Seen from another process, while it waits."""
    process = place.process(
        """
        producer = hub.producer("waits", capacity=2, when_full="block")
        say(ready=True)
        sys.stdin.readline()
        for n in range(2):
            producer.write(b"x")
        say(full=True)
        producer.write(b"x", timeout=60)
        say(written=3)
        """
    )
    assert process.hear() == {"ready": True}
    with place.hub().consumer("waits", start="oldest") as consumer:
        process.tell()
        assert process.hear() == {"full": True}

        def found() -> list[dict[str, Any]]:
            return [
                one for one in run(place, "doctor", "--json")["findings"] if "waits for its readers" in one["message"]
            ]

        eventually(found, PATIENCE)
        assert f"process {os.getpid()} has not read 2 items" in found()[0]["message"]
        assert [consumer.read(timeout=PATIENCE) for _ in range(3)] == [b"x"] * 3
    assert process.hear() == {"written": 3}
