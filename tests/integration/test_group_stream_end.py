"""The end of a stream that a group shares: members that leave, die or come then lose nothing of it."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.channels.consumer import attachments
from messagehub.channels.consumer.consumers import Consumer
from tests.conftest import QUICK
from tests.integration.block_processes import Place, Process, place_in
from tests.integration.harness import PATIENCE_SECONDS, Served, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")

ITEMS = 60
# Notes what it has done before it asks for the next item; stops before the item number `stop_at` of its own, if any.
WORKER = """
with open(notes, "a") as out, hub.consumer("work", group="crew", start="oldest") as member:
    say(ready=True)
    for place, item in enumerate(member):
        if place == stop_at:
            say(stopped=True)
            sys.stdin.readline()
        time.sleep(seconds)
        print(bytes(item).decode(), file=out, flush=True)
say(ended=True)
"""


class Crew:
    """Worker processes of one group, and what they have done."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._notes = folder
        self._notes.mkdir()
        self._count = 0

    def worker(self, *, stop_at: int | None = None, seconds: float = 0.0) -> Process:
        self._count += 1
        notes = str(self._notes / str(self._count))
        started = self._place.process(WORKER, notes=notes, stop_at=stop_at, seconds=seconds)
        assert started.hear() == {"ready": True}
        return started

    def done(self) -> set[int]:
        return {int(line) for path in self._notes.iterdir() for line in path.read_text().split()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"groupend{os.getpid()}") as made, Served(made.dir, **QUICK):
        yield made


@pytest.fixture
def crew(place: Place, tmp_path: Path) -> Crew:
    return Crew(place, tmp_path / "notes")


def test_who_has_read_its_share_takes_over_what_a_member_leaves_that_dies_after_the_end(
    place: Place, crew: Crew
) -> None:
    with place.hub().producer("work", capacity=ITEMS, when_full="block") as producer:
        first, second = crew.worker(), crew.worker(stop_at=0)
        for number in range(ITEMS):
            producer.write(b"%d" % number)
        assert second.hear() == {"stopped": True}
    third = crew.worker(stop_at=0)
    assert third.hear() == {"stopped": True}
    second.kill()
    third.kill()
    assert first.hear() == {"ended": True}
    assert crew.done() == set(range(ITEMS))


def test_members_that_are_killed_and_come_around_the_end_lose_nothing(place: Place, crew: Crew) -> None:
    with place.hub().producer("work", capacity=16, when_full="block") as producer:
        workers = [crew.worker(seconds=0.002) for _ in range(3)]
        for number in range(ITEMS):
            producer.write(b"%d" % number, timeout=PATIENCE_SECONDS)
            if number == ITEMS - 12:
                workers.append(crew.worker(seconds=0.02))
            if number == ITEMS - 4:
                workers.pop(0).kill()
    workers.pop(0).kill()
    for worker in workers:
        assert worker.hear() == {"ended": True}
    assert crew.done() == set(range(ITEMS))


def test_members_that_leave_at_the_end_leave_no_share_to_one_that_has_left_too(place: Place, crew: Crew) -> None:
    """Each that leaves has the rest shared out anew, also to those that are about to leave."""
    for _ in range(3):
        with place.hub().producer("work", capacity=ITEMS, when_full="block") as producer:
            workers = [crew.worker(seconds=seconds) for seconds in (0.0, 0.0, 0.01)]
            for number in range(ITEMS):
                producer.write(b"%d" % number, timeout=PATIENCE_SECONDS)
        for worker in workers:
            assert worker.hear() == {"ended": True}
        assert crew.done() == set(range(ITEMS))
        for worker in workers:
            worker.finish()


def test_a_member_that_comes_after_the_producer_has_closed_reads_what_its_group_has_not(place: Place) -> None:
    hub = place.hub()
    with hub.producer("work", capacity=16, when_full="block") as producer:
        with hub.consumer("work", group="crew", start="oldest") as member:
            producer.write(b"0")
            assert member.read(timeout=PATIENCE_SECONDS) == b"0"
        for number in range(1, 6):
            producer.write(b"%d" % number)
    with hub.consumer("work", group="crew", start="oldest") as member:
        read = [bytes(member.read(timeout=PATIENCE_SECONDS) or b"nothing") for _ in range(5)]
        assert read == [b"%d" % number for number in range(1, 6)]
        assert member.missed == 0
    with hub.consumer("work", group="crew", start="oldest", follow=False) as member:
        assert list(member) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_members_of_one_process_are_read_one_after_the_other(place: Place, order: tuple[int, ...]) -> None:
    hub = place.hub()
    with contextlib.ExitStack() as stack:
        with hub.producer("work", capacity=ITEMS, when_full="block") as producer:
            members = [stack.enter_context(hub.consumer("work", group="crew", start="oldest")) for _ in order]
            for number in range(ITEMS):
                producer.write(b"%d" % number)
        read = [list(members[index]) for index in order]
        assert all(member.has_ended for member in members)
    assert sorted(int(bytes(item)) for items in read for item in items) == list(range(ITEMS))


def test_tasks_of_one_event_loop_read_one_member_each(place: Place) -> None:
    async def read(member: Consumer) -> list[int]:
        return [int(bytes(item)) async for item in member]

    async def read_all(members: list[Consumer]) -> list[list[int]]:
        return await asyncio.gather(*map(read, members))

    hub = place.hub()
    with contextlib.ExitStack() as stack:
        with hub.producer("work", capacity=ITEMS, when_full="block") as producer:
            members = [stack.enter_context(hub.consumer("work", group="crew", start="oldest")) for _ in range(3)]
            for number in range(ITEMS):
                producer.write(b"%d" % number)
        found = asyncio.run(read_all(members))
    assert {number for numbers in found for number in numbers} == set(range(ITEMS))


def test_a_thread_takes_over_from_a_member_of_its_process_that_fails_after_the_end(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "TELL_SECONDS", 0.0)
    hub = place.hub()
    done: list[int] = []

    def read_to_the_end(member: Consumer) -> None:
        done.extend(int(bytes(item)) for item in member)

    with hub.producer("work", capacity=ITEMS, when_full="block") as producer:
        staying = hub.consumer("work", group="crew", start="oldest")
        failing = hub.consumer("work", group="crew", start="oldest")
        for number in range(ITEMS):
            producer.write(b"%d" % number)
    with staying:
        assert failing.read(timeout=PATIENCE_SECONDS) is not None
        thread = threading.Thread(target=read_to_the_end, args=(staying,))
        thread.start()
        waits = f"it waits for {ITEMS // 2} items that others of the group (MainThread of this process) have not done"
        eventually(lambda: waits in caplog.text)
        failing.close()  # as its `with` does when what it has read cannot be handled
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert set(done) == set(range(ITEMS))
