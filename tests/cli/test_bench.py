"""`messagehub bench`: what it says with and without a broker, and that it leaves nothing behind."""

import signal
from pathlib import Path

import pytest

from messagehub.shm.channel_directory.directory import Directory
from tests.cli.program import Program, until

ALONE = [
    "memcpy of 1 KiB",
    "ring, 1 KiB written and read",
    "memcpy of 64 KiB",
    "ring, 64 KiB written and read",
    "memcpy of 1 MiB",
    "ring, 1 MiB written and read",
    "discovery without a broker, through files",
]
WITH_BROKER = [*ALONE, "discovery through the broker", "topic message of 100 bytes, published and received"]
SHORT = ("--seconds", "0.01")


def left_behind(program: Program) -> list[Path]:
    """What is in shared memory of a bench, and in the directory for temporary files that the program was given."""
    blocks = Path(Directory("any").path).parents[1]
    return [*blocks.glob("bench-*-*"), *Path("/dev/shm").glob("pylabhub_*@bench-*-*"), *program.place.glob("tmp/*")]


@pytest.fixture
def temporary(alone: Program) -> dict[str, str]:
    (alone.place / "tmp").mkdir()
    return {"TMPDIR": str(alone.place / "tmp")}


def test_without_a_broker_rings_are_measured_and_the_rest_is_named(alone: Program, temporary: dict[str, str]) -> None:
    before = set(left_behind(alone))
    found = alone.json("bench", *SHORT, **temporary)
    assert [each["name"] for each in found["measured"]] == ALONE
    assert all(each["seconds"] > 0 and each["count"] > 0 for each in found["measured"])
    assert [each["name"] for each in found["measured"] if each["of_memcpy"]] == ALONE[1:6:2]
    assert set(found["left_out"]) == {"discovery through the broker", "a message of a topic"}
    assert all("no broker runs in" in reason for reason in found["left_out"].values())
    assert not alone.dir.exists()
    until(lambda: set(left_behind(alone)) <= before, "nothing is left behind")


def test_broker_answers_for_discovery_and_topics_and_keeps_nothing(hub: Program) -> None:
    found = hub.json("bench", *SHORT)
    assert [each["name"] for each in found["measured"]] == WITH_BROKER
    assert (found["left_out"], found["interrupted"]) == ({}, False)
    assert hub.json("channels") == []
    assert hub.json("topics") == []


def test_people_read_units_and_what_was_left_out(alone: Program) -> None:
    said = alone.call("bench", *SHORT).stdout
    assert "what" in said
    assert any(unit in said for unit in (" ns ", " µs "))
    assert "iB/s" in said
    assert said.count("left out: ") == 1
    assert "left out: discovery through the broker and a message of a topic, because no broker runs in" in said


def test_interrupted_bench_ends_at_once_and_leaves_nothing(alone: Program, temporary: dict[str, str]) -> None:
    before = set(left_behind(alone))
    with alone.start("bench", "--seconds", "600", "--json", **temporary) as running:
        until(lambda: any((alone.place / "tmp").iterdir()), "the bench has begun")  # and not one of another test
        assert running.end(signal.SIGINT) == 0, running.err
        assert '"interrupted": true' in running.out
    until(lambda: set(left_behind(alone)) <= before, "nothing is left behind")
