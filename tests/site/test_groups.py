"""Consumer groups whose members are on several hosts of a site, for rings on any of them: as on one host."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from messagehub import Gap, MessageHub
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.levels import KILLING_SECONDS
from tests.site.hosts import Elsewhere, Site, await_producers, gateway_of, gateway_pid, on, process_on, producing

ITEMS = 40
PRODUCER = 'p = hub.producer("%s", capacity=64, when_full="block")'
WRITE = 'for n in range(%d, %d): p.write(b"%%d" %% n, timeout=30)'
# Notes what it has done before it asks for the next item, in the background.
MEMBER = """
import threading, pathlib
member = hub.consumer({channel!r}, group="crew", start="oldest")
def work(notes=pathlib.Path({notes!r}), stop_at={stop_at!r}):
    with notes.open("a") as out:
        for place, item in enumerate(member):
            if place == stop_at:
                return
            print(bytes(item).decode(), file=out, flush=True)
working = threading.Thread(target=work, daemon=True)
working.start()
"""


class Crew:
    """Members of one group on any hosts, and what they have done."""

    def __init__(self, channel: str, folder: Path) -> None:
        self.channel = channel
        self.folder = folder
        self._count = 0

    def join(self, process: Elsewhere, *, stop_at: int | None = None) -> None:
        self._count += 1
        process.do(MEMBER.format(channel=self.channel, notes=str(self.folder / str(self._count)), stop_at=stop_at))

    def done(self) -> Counter[int]:
        return Counter(int(line) for path in self.folder.iterdir() for line in path.read_text().split())

    def by_member(self) -> dict[str, int]:
        return {path.name: len(path.read_text().split()) for path in self.folder.iterdir()}

    def wait_for(self, items: int) -> None:
        eventually(lambda: set(self.done()) == set(range(items)))


@pytest.fixture
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Crew:
    folder = tmp_path / "notes"
    folder.mkdir()
    return Crew(f"g.{request.node.originalname.removeprefix('test_')[:60]}", folder)


def test_members_on_two_hosts_share_a_ring_and_each_item_goes_to_one(hosts: Site, crew: Crew) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near:
        there.do(PRODUCER % crew.channel)
        await_producers(hosts["beta"], crew.channel, "alpha")
        crew.join(there)
        crew.join(near)
        there.do(WRITE % (0, ITEMS))
        crew.wait_for(ITEMS)
        assert crew.done().total() == ITEMS
        assert sorted(crew.by_member().values()) == [ITEMS // 2, ITEMS // 2]


def test_a_stream_ends_for_members_on_two_hosts_when_the_group_is_done(hosts: Site, crew: Crew) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near:
        there.do(PRODUCER % crew.channel)
        await_producers(hosts["beta"], crew.channel, "alpha")
        crew.join(there)
        crew.join(near)
        there.do(WRITE % (0, ITEMS) + "\np.close()")
        for process in (there, near):
            process.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
        assert crew.done() == Counter(range(ITEMS))


def test_what_a_member_on_another_host_had_not_done_when_it_was_killed_goes_to_one_here(
    hosts: Site, crew: Crew
) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near:
        there.do(PRODUCER % crew.channel)
        await_producers(hosts["beta"], crew.channel, "alpha")
        crew.join(there)
        crew.join(near, stop_at=5)
        there.do(WRITE % (0, ITEMS))
        eventually(lambda: crew.done().total() >= ITEMS // 2 + 5)
        near.kill()
        crew.wait_for(ITEMS)
        there.do(WRITE % (ITEMS, 2 * ITEMS) + "\np.close()")
        there.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
        assert set(crew.done()) == set(range(2 * ITEMS))
        assert crew.done().total() <= 2 * ITEMS + 6, "only what it did last, and was working on, comes again"


def test_a_member_alone_reads_a_ring_of_another_host_and_goes_on_where_the_group_was(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(PRODUCER % "g.alone" + "\n" + WRITE % (0, 10))
        producing(here, "g.alone", "alpha")
        with here.consumer("g.alone", group="crew", start="oldest") as member:
            assert list(member.block_sources.values()) == ["flight"]
            assert [member.read(timeout=PATIENCE_SECONDS) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
            assert member.lag == 6
        with here.consumer("g.alone", group="crew", start="oldest") as member:
            assert [member.read(timeout=PATIENCE_SECONDS) for _ in range(2)] == [b"4", b"5"]
        there.do("""
            with hub.consumer("g.alone", group="crew", start="oldest") as member:
                assert [member.read(timeout=20) for _ in range(4)] == [b"6", b"7", b"8", b"9"]
        """)
        with here.consumer("g.alone", group="crew", start="oldest") as member:
            assert member.read(timeout=0.3) is None
            assert member.latest() == b"9"


def test_rings_on_two_hosts_are_shared_by_members_on_both(hosts: Site, crew: Crew) -> None:
    make = 'p = hub.producer("%s", access="shared", producer_id="%s", capacity=64, when_full="block")'
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near, process_on(hosts["beta"]) as third:
        there.do(make % (crew.channel, "far"))
        near.do(make % (crew.channel, "near"))
        for process in (there, near, third):
            crew.join(process)
        there.do(WRITE % (0, ITEMS))
        near.do(WRITE % (ITEMS, 2 * ITEMS))
        crew.wait_for(2 * ITEMS)
        there.do("p.close()")
        third.kill()
        near.do(WRITE % (2 * ITEMS, 3 * ITEMS) + "\np.close()")
        for process in (there, near):
            process.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
        assert set(crew.done()) == set(range(3 * ITEMS))


FILL = """
from messagehub.shm.errors import RingFull
while written < room:
    p.write(b"%d" % written, timeout=30)  # what the group has done is told a moment later
    written += 1
try:
    p.write(b"%d" % written, timeout=0.3)
    raise AssertionError("nobody held it back")
except RingFull as error:
    assert "group 'crew'" in str(error), error
"""


def test_a_producer_waits_for_a_group_elsewhere_also_while_nobody_is_in_it(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("g.waits", capacity=4, when_full="block")\nwritten = 0')
        producing(here, "g.waits", "alpha")
        with here.consumer("g.waits", group="crew", start="oldest") as member:
            there.do("room = 4" + FILL)
            assert [member.read(timeout=PATIENCE_SECONDS) for _ in range(3)] == [b"0", b"1", b"2"]
            there.do("room = 6" + FILL)  # the third is not done until the next one is asked for
        there.do("room = 7" + FILL)  # but who leaves has done it
        with here.consumer("g.waits", group="crew", start="oldest") as member:
            assert [member.read(timeout=PATIENCE_SECONDS) for _ in range(4)] == [b"3", b"4", b"5", b"6"]


def test_who_has_read_its_share_takes_over_from_one_elsewhere_that_dies_after_the_end(hosts: Site, crew: Crew) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near, process_on(hosts["beta"]) as other:
        there.do(PRODUCER % crew.channel)
        await_producers(hosts["beta"], crew.channel, "alpha")
        crew.join(near)
        crew.join(other, stop_at=0)
        there.do(WRITE % (0, ITEMS) + "\np.close()")
        eventually(lambda: crew.done().total() >= ITEMS // 2)
        other.kill()
        near.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
        assert set(crew.done()) == set(range(ITEMS))


def test_a_member_that_comes_after_the_producer_has_ended_reads_what_its_group_has_left_on_another_host(
    hosts: Site,
) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(PRODUCER % "g.left")
        producing(here, "g.left", "alpha")
        with here.consumer("g.left", group="crew", start="oldest") as member:
            there.do(WRITE % (0, 6) + "\np.close()")
            assert member.read(timeout=PATIENCE_SECONDS) == b"0"
        eventually(lambda: here.discover("g.left") is None)
        with here.consumer("g.left", group="crew", start="oldest", follow=False) as member:
            assert list(member) == [b"1", b"2", b"3", b"4", b"5"]
        with here.consumer("g.left", group="crew", start="oldest", follow=False) as member:
            assert list(member) == []


def test_a_gateway_that_is_killed_costs_a_group_no_item(hosts: Site, crew: Crew) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near:
        there.do(PRODUCER % crew.channel)
        await_producers(hosts["beta"], crew.channel, "alpha")
        crew.join(there)
        crew.join(near)
        there.do(WRITE % (0, ITEMS))
        crew.wait_for(ITEMS)
        os.kill(gateway_pid(hosts["alpha"]), signal.SIGKILL)
        there.do(WRITE % (ITEMS, 3 * ITEMS) + "\np.close()")
        for process in (there, near):
            process.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
        assert set(crew.done()) == set(range(3 * ITEMS))
        assert crew.done().total() <= 3 * ITEMS + 2


def test_members_of_one_process_read_a_ring_elsewhere_one_after_the_other(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(PRODUCER % "g.turns")
        producing(here, "g.turns", "alpha")
        with (
            here.consumer("g.turns", group="crew", start="oldest") as first,
            here.consumer("g.turns", group="crew", start="oldest") as second,
        ):
            there.do(WRITE % (0, ITEMS) + "\np.close()")
            read = [list(first), list(second)]
            assert sorted(int(item) for items in read for item in items) == list(range(ITEMS))
            assert first.has_ended
            assert second.has_ended


def test_what_an_overwriting_producer_drops_is_told_to_a_group_elsewhere(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("g.lag", capacity=4)')
        producing(here, "g.lag", "alpha")
        with here.consumer("g.lag", group="crew", start="oldest") as member:
            there.do(WRITE.replace(", timeout=30", "") % (0, 2))
            assert [member.read(timeout=PATIENCE_SECONDS) for _ in range(2)] == [b"0", b"1"]
        there.do(WRITE.replace(", timeout=30", "") % (2, 30))
        with here.consumer("g.lag", group="crew", start="oldest", on_lag="gap") as member:
            found = member.read(timeout=PATIENCE_SECONDS)
            assert isinstance(found, Gap)
            assert (found.first, member.missed) == (3, found.last - 2)
            assert member.read(timeout=PATIENCE_SECONDS) == b"%d" % found.last


def test_a_member_elsewhere_is_read_in_an_event_loop(hosts: Site) -> None:
    async def read(here: MessageHub) -> list[bytes]:
        async with here.consumer("g.async", group="crew", start="oldest") as member:
            return [bytes(item) async for item in member]

    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do(PRODUCER % "g.async")
        producing(here, "g.async", "alpha")
        there.do("import threading\n" + "def write():\n    " + WRITE % (0, ITEMS) + "\n    time.sleep(0.3); p.close()")
        there.do("threading.Thread(target=write).start()")
        assert asyncio.run(read(here)) == [b"%d" % n for n in range(ITEMS)]


def test_what_members_of_a_lost_host_had_not_done_goes_to_the_others(
    member: EtcdMember, tmp_path: Path, crew: Crew
) -> None:
    site = Site(tmp_path / "site", member.url)
    try:
        for name in ("stays", "goes"):
            site.add(name, "--http", "127.0.0.1:0")
        gateway_of(site["goes"], "stays")
        with process_on(site["stays"]) as here, process_on(site["goes"]) as there:
            here.do(PRODUCER % crew.channel)
            await_producers(site["goes"], crew.channel, "stays")
            crew.join(here)
            crew.join(there, stop_at=5)
            here.do(WRITE % (0, ITEMS))
            eventually(lambda: crew.done().total() >= ITEMS // 2 + 5)
            site["goes"].kill()
            there.kill()
            here.do("p.close()")
            crew.wait_for(ITEMS)
            here.do(f"working.join({PATIENCE_SECONDS})\nassert not working.is_alive() and member.has_ended")
    finally:
        site.close()


def test_members_and_gateways_that_are_killed_at_random_lose_nothing(hosts: Site, crew: Crew) -> None:
    """Two producers, on two hosts, and members that come and are killed on both."""
    seconds = KILLING_SECONDS
    rng = random.Random(time.time_ns())
    make = 'p = hub.producer("%s", access="shared", producer_id="%s", capacity=32, when_full="block")'
    write = """
        import threading
        last = None
        def write(first={0}, seconds={1}):
            global last
            end, n = time.monotonic() + seconds, first
            while time.monotonic() < end:
                p.write(b"%d" % n, timeout=60)
                n += 1
                time.sleep(0.002)
            last = n
            p.close()
        writing = threading.Thread(target=write)
        writing.start()
    """
    with contextlib.ExitStack() as stack:
        producers = {name: stack.enter_context(process_on(hosts[name])) for name in ("alpha", "beta")}
        for name, process in producers.items():
            process.do(make % (crew.channel, name))
        await_producers(hosts["alpha"], crew.channel, *producers)
        members = [stack.enter_context(process_on(hosts["alpha"]))]
        crew.join(members[0])
        for place, process in enumerate(producers.values()):
            process.do(write.format(place * 1_000_000, seconds))
        for turn in range(int(seconds)):
            members.append(stack.enter_context(process_on(hosts[rng.choice(["alpha", "beta"])])))
            crew.join(members[-1])
            if len(members) > 3:
                members.pop(rng.randrange(3)).kill()
            if turn % 4 == 3:
                os.kill(gateway_pid(hosts[rng.choice(["alpha", "beta"])]), signal.SIGKILL)
                gateway_pid(hosts["alpha"]), gateway_pid(hosts["beta"])  # they are started again
        for process in producers.values():
            process.do(f"writing.join({seconds + 60})\nassert not writing.is_alive(), 'it still waits for the group'")
        expected: set[int] = set()
        for place, process in enumerate(producers.values()):
            notes = crew.folder.parent / "last"
            process.do(f"import pathlib; pathlib.Path({str(notes)!r}).write_text(str(last))")
            expected |= set(range(place * 1_000_000, int(notes.read_text())))
        eventually(lambda: set(crew.done()) == expected)  # who came when all was over waits for the next producer
