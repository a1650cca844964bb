"""What a producer that has ended left in a ring of this host, read by consumers that are on their own, in a site."""

import pytest

from tests.integration.harness import PATIENCE_SECONDS
from tests.site.hosts import Site, on, process_on, producing

ENDED = """
with hub.producer("%s", access="shared", producer_id="ended", capacity=8) as p:
    for number in range(3):
        p.write(b"ended %%d" %% number)
"""
GOES_ON = """
p = hub.producer("%s", access="shared", producer_id="goes-on", capacity=8)
p.write(b"goes on")
"""


def test_an_ended_ring_of_this_host_is_read_when_nobody_produces(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["alpha"]) as here:
        there.do(ENDED % "ended.alone")
        with here.consumer("ended.alone", start="oldest") as consumer:
            assert [consumer.read(timeout=PATIENCE_SECONDS) for _ in range(3)] == [b"ended 0", b"ended 1", b"ended 2"]


@pytest.mark.parametrize(("start", "left"), [("oldest", 3), (-2, 2), ("latest", 0)])
def test_an_ended_ring_of_this_host_is_read_while_another_host_produces(
    hosts: Site, start: str | int, left: int
) -> None:
    channel = f"ended.n{left}"
    with (
        process_on(hosts["alpha"]) as same,
        process_on(hosts["beta"]) as other,
        on(hosts["alpha"]) as here,
    ):
        same.do(ENDED % channel)
        other.do(GOES_ON % channel)
        producing(here, channel, "beta")
        with here.consumer(channel, start=start) as consumer:
            other.do('p.write(b"last")')
            found: set[bytes] = set()
            while b"last" not in found or len(found) < left:
                value = consumer.read(timeout=PATIENCE_SECONDS)
                assert value is not None, found
                found.add(value)
            while (more := consumer.read(timeout=0.0)) is not None:
                found.add(more)
        assert sorted(each for each in found if each.startswith(b"ended")) == [
            b"ended %d" % number for number in range(3 - left, 3)
        ]


def test_a_ring_of_a_producer_that_goes_on_at_another_host_is_not_read_here(hosts: Site) -> None:
    """Its ring here has the name of the one that is written now, and is not that data."""
    moves = GOES_ON.replace("goes-on", "ended")
    with process_on(hosts["alpha"]) as same, process_on(hosts["beta"]) as other, on(hosts["alpha"]) as here:
        same.do(ENDED % "ended.moves")
        other.do(moves % "ended.moves")
        producing(here, "ended.moves", "beta")
        with here.consumer("ended.moves", start="oldest") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"goes on"
            assert list(consumer.block_sources.values()) == ["flight"]
