"""One suite for both implementations of the ring's core, in C and in Python, in all four pairings of processes."""

import itertools
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from messagehub.shm import core
from messagehub.shm.layout import HEAD, HINT, LENGTH, SEQUENCE, WhenFull
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.reader_files import announce
from messagehub.shm.rings.ring import describe
from tests.conformance.ring_process import Actor, Nursery

IMPLEMENTATIONS = ("c", "python")
KINDS = [pytest.param(False, id="verified"), pytest.param(True, id="plain")]


@pytest.fixture(scope="module")
def nurseries() -> Iterator[dict[str, Nursery]]:
    started = {name: Nursery(name) for name in IMPLEMENTATIONS if name == "python" or core.IMPLEMENTATION == "c"}
    yield started
    for nursery in started.values():
        nursery.close()


@pytest.fixture
def root() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="mh-test-", dir="/dev/shm")
    yield path
    shutil.rmtree(path, ignore_errors=True)


class Pair(NamedTuple):
    writer: Actor
    reader: Actor
    another: Callable[[str], Actor]  # of the named implementation
    path: str
    root: str

    def state(self) -> dict[str, Any]:
        return describe(self.path)[1]


@pytest.fixture(params=list(itertools.product(IMPLEMENTATIONS, repeat=2)), ids="-to-".join)
def pair(request: pytest.FixtureRequest, nurseries: dict[str, Nursery], root: str) -> Iterator[Pair]:
    if "c" in request.param and "c" not in nurseries:
        pytest.skip(f"the extension is not used here: {core.REASON}")
    actors: list[Actor] = []

    def another(implementation: str) -> Actor:
        if implementation not in nurseries:
            pytest.skip(f"the extension is not used here: {core.REASON}")
        actors.append(nurseries[implementation].actor())
        return actors[-1]

    writing, reading = request.param
    yield Pair(another(writing), another(reading), another, os.path.join(root, "ring"), root)
    for actor in actors:
        actor.leave()


@pytest.mark.parametrize("plain", KINDS)
def test_views_stay_as_they_are_while_the_ring_turns(pair: Pair, plain: bool) -> None:
    pair.writer.open_writer(pair.root, plain=plain, slot_count=8)
    pair.reader.open_reader(pair.path, start="oldest", copy="never")
    pair.writer.write(3)
    assert pair.reader.hold(3) == [1, 2, 3]
    assert pair.reader.are_views()
    assert pair.writer.write(100) == 103
    assert pair.reader.check_held() == [1, 2, 3]
    assert pair.state()["held"] == 3
    pair.reader.drop_in_threads()
    assert pair.state()["held"] == 0
    assert pair.writer.write(8) == 111
    assert pair.reader.read_up_to(111)[-8:] == list(range(104, 112))


@pytest.mark.parametrize("plain", KINDS)
def test_what_is_overwritten_is_told_and_the_rest_is_whole(pair: Pair, plain: bool) -> None:
    """Reader and writer run at the same time; some views are held for a while."""
    pair.writer.open_writer(pair.root, plain=plain, slot_count=8)
    pair.reader.open_reader(pair.path, start="oldest")
    pair.reader.begin("read_holding", 3000, 1)
    pair.writer.write(3000)
    found = pair.reader.finish()
    told = set(found)
    for first, last in itertools.pairwise(found):
        if first < 0 and last < 0 and first >= last:
            told.update(range(-first, -last + 1))
    assert told >= set(range(1, 3001))


@pytest.mark.parametrize("plain", KINDS)
def test_a_lossless_reader_gets_everything_in_order(pair: Pair, plain: bool) -> None:
    pair.writer.open_writer(pair.root, plain=plain, slot_count=4, when_full=WhenFull.BLOCK)
    pair.reader.open_reader(pair.path, start="oldest")
    pair.reader.begin("read_holding", 1500, 2)
    assert pair.writer.write(1500) == 1500
    assert pair.reader.finish() == list(range(1, 1501))


def test_a_blocking_writer_has_room_as_soon_as_its_reader_has_read(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=2, when_full=WhenFull.BLOCK)
    pair.reader.open_reader(pair.path, start="oldest")
    pair.writer.write(2)
    assert not pair.writer.write_at_once()
    pair.writer.begin("write", 1)
    assert pair.reader.read(3) == [1, 2, 3]
    assert pair.writer.finish() == 3


def test_loans_are_published_or_given_back(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=3, when_full=WhenFull.BLOCK)
    pair.reader.open_reader(pair.path, start="oldest")
    for number in range(1, 10):
        assert pair.writer.lend(commit=False) == number - 1
        assert pair.writer.lend(commit=True) == number
        assert pair.reader.read(1) == [number]


def test_a_group_shares_out_every_item_once(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=4, when_full=WhenFull.BLOCK)
    members = [pair.reader, pair.another(pair.writer.implementation())]
    for index, member in enumerate(members):
        member.open_reader(pair.path, start="first", share=(1, index, 2))
    pair.writer.begin("write", 40)
    found = []
    for number in range(1, 41):
        member = members[number % 2]
        found += member.read(1)
        member.acknowledge(number)
    assert pair.writer.finish() == 40
    assert found == list(range(1, 41))


def test_a_reader_that_fell_behind_gets_a_gap_and_then_the_rest(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=4)
    pair.reader.open_reader(pair.path, start="oldest")
    pair.writer.write(1)
    assert pair.reader.read(1) == [1]
    pair.writer.write(10)
    assert pair.reader.read(5) == [-2, -7, 8, 9, 10, 11]


def test_readers_that_come_while_the_writer_writes_lose_nothing_from_then_on(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=4, when_full=WhenFull.BLOCK)
    pair.writer.begin("write_for_ever")
    for start in ("latest", "oldest") * 5:
        pair.reader.open_reader(pair.path, start=start)
        found = pair.reader.read(50)
        assert found == list(range(found[0], found[0] + 50))
        pair.reader.close_reader()
    pair.writer.kill()


@pytest.mark.parametrize("plain", KINDS)
def test_a_forked_child_that_drops_its_copies_leaves_the_views_of_its_parent(pair: Pair, plain: bool) -> None:
    pair.writer.open_writer(pair.root, plain=plain, slot_count=8)
    pair.reader.open_reader(pair.path, start="oldest", copy="never")
    pair.writer.write(3)
    assert pair.reader.hold(3) == [1, 2, 3]
    assert pair.reader.fork_and_drop() == 0
    assert pair.writer.fork_and_drop() == 0
    assert pair.state()["held"] == 3
    pair.writer.write(50)
    assert pair.reader.check_held() == [1, 2, 3]
    assert pair.reader.read_up_to(53)[-1] == 53


def test_views_outlive_the_reader_and_free_its_file_when_the_last_is_gone(pair: Pair) -> None:
    pair.writer.open_writer(pair.root, slot_count=8)
    pair.reader.open_reader(pair.path, start="oldest", copy="never")
    pair.writer.write(2)
    pair.reader.hold(2)
    pair.reader.close_reader()
    pair.writer.write(50)
    assert pair.reader.check_held() == [1, 2]
    assert pair.state()["held"] == 2
    pair.reader.drop()
    assert (pair.state()["held"], pair.state()["readers"]) == (0, 0)


@pytest.mark.parametrize("plain", KINDS)
def test_a_killed_reader_holds_neither_slots_nor_items(pair: Pair, plain: bool) -> None:
    pair.writer.open_writer(pair.root, plain=plain, slot_count=2, when_full=WhenFull.BLOCK)
    pair.reader.open_reader(pair.path, start="oldest", copy="never")
    pair.writer.write(2)
    pair.reader.hold(2)
    assert not pair.writer.write_at_once()
    pair.reader.kill()
    assert pair.writer.write(10) == 12
    assert pair.state()["readers"] == 0


def test_successors_of_killed_writers_continue_in_the_other_implementation(pair: Pair) -> None:
    """A lossless reader that sleeps over the restarts loses nothing."""
    shape = {"slot_count": 4, "when_full": WhenFull.BLOCK}
    pair.writer.open_writer(pair.root, **shape)
    pair.reader.open_reader(pair.path, start="oldest", wait_for_writer=True)
    writer, head = pair.writer, 0
    found: list[int] = []
    for _ in range(6):
        other = "c" if writer.implementation() == "python" else "python"
        writer.begin("write_for_ever")
        found += pair.reader.read(random.randint(1, 40))
        writer.kill()
        writer = pair.another(other)
        head = writer.open_writer(pair.root, **shape)
        assert head >= found[-1]
    writer.begin("write", 1)
    found += pair.reader.read_up_to(head + 1)
    assert writer.finish() == head + 1
    assert found == list(range(1, head + 2))


def some_word(chance: random.Random) -> int:
    return chance.choice(
        [0, 1, chance.getrandbits(8), chance.getrandbits(62), chance.getrandbits(64), (1 << 64) - 1, 1 << 63]
    )


def test_readers_of_a_ring_with_random_words_get_items_gaps_or_our_errors(pair: Pair) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pair.writer.open_writer(pair.root, slot_count=4)
    geometry = Segment.attach(pair.path).header().geometry
    seen = set()
    for _ in range(40):
        pair.writer.write(chance.randrange(3))
        with open(pair.path, "r+b", buffering=0) as file:
            kept = os.pread(file.fileno(), 8 * HEAD + 8, 0)
            for _ in range(chance.randint(1, 4)):
                word = geometry.line(chance.randrange(4)) + chance.choice([SEQUENCE, LENGTH, HINT])
                os.pwrite(
                    file.fileno(), struct.pack("=Q", some_word(chance)), 8 * chance.choice([word, word, word, HEAD])
                )
            pair.reader.open_reader(pair.path, start=chance.choice(["first", "oldest", "latest"]), copy="never")
            seen.update(pair.reader.try_everything())
            pair.reader.close_reader()
            os.pwrite(file.fileno(), kept[8 * HEAD :], 8 * HEAD)
    assert {"Item", "Gap"} <= seen


def test_a_writer_whose_readers_have_random_or_short_files_writes_or_says_why_not(pair: Pair) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    pair.writer.open_writer(pair.root, slot_count=4, when_full=WhenFull.BLOCK)
    pair.reader.open_reader(pair.path, start="oldest")
    directory = os.path.join(pair.root, Segment.attach(pair.path).header().readers_path)
    (name,) = (name for name in os.listdir(directory) if name.endswith(".reader"))
    for size in (0, 1, 63, 4095):
        path = os.path.join(directory, f"{size}.reader")
        with open(path, "wb") as file:
            file.write(chance.randbytes(size))
        os.chmod(path, 0o600)
        announce(directory)
        assert pair.writer.try_to_write() in ("written", "RingFull")
    for _ in range(20):
        with open(os.path.join(directory, name), "r+b", buffering=0) as file:
            place = 8 * chance.randrange(10)
            os.pwrite(file.fileno(), struct.pack("=Q", some_word(chance)), place)
        assert pair.writer.try_to_write() in ("written", "RingFull")
    pair.reader.close_reader()
    assert pair.writer.try_to_write() == "written"  # what it claimed is gone with its file
