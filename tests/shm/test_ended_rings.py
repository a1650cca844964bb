"""How far a ring went is known after it was removed."""

import os
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.rings import ended_rings
from messagehub.shm.rings.ended_rings import last_sequence, note_ended


@pytest.fixture
def directory(root: str) -> Directory:
    made = Directory("d", root)
    made.make()
    return made


def test_a_ring_that_was_cleaned_is_remembered_with_its_last_item(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub:
        directory = Directory(hub.settings.domain)
        ids = []
        for count in (3, 5):
            with hub.producer("c") as producer, hub.consumer("c") as consumer:
                for _ in range(count):
                    producer.write(b"1")
                consumer.read(timeout=30)
                ids.append(next(iter(consumer.position)))
            clean(directory, now=1.0, linger_seconds=0.0)
            clean(directory, now=2.0, linger_seconds=0.0)
        assert [last_sequence(directory, one) for one in ids] == [3, 5]
    assert last_sequence(directory, "nobody") is None


def test_the_newest_are_remembered_in_a_file_of_bounded_size(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_rings, "MOST", 8)
    for number in range(1, 101):
        note_ended(directory, f"{number:032x}", number)
    known = [number for number in range(1, 101) if last_sequence(directory, f"{number:032x}") == number]
    assert known[-4:] == [97, 98, 99, 100]
    assert len(known) <= 16
    assert os.path.getsize(os.path.join(os.path.dirname(directory.path), "ended-rings")) <= 8 * 64


@pytest.mark.parametrize(
    "damage", [b"\xff" * 1000, b"no line end", b"\n\n \n", b"x" * 10_000_000, b"a " + b"9" * 5000 + b"\n"]
)
def test_a_damaged_file_says_nothing_and_is_written_again(directory: Directory, damage: bytes) -> None:
    path = Path(os.path.dirname(directory.path)) / "ended-rings"
    path.write_bytes(damage)
    assert last_sequence(directory, "a") is None
    note_ended(directory, "a", 7)
    note_ended(directory, "b", 8)
    assert [last_sequence(directory, name) for name in "ab"] == [7, 8]
