"""Retained topics of a site: one home host each, and the same from every host."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from messagehub import MessageHub
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, on, site

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("retained"), member.url, *NAMES) as started:
        yield started


@pytest.fixture(scope="module")
def clients(hosts: Site) -> Iterator[dict[str, MessageHub]]:
    with ExitStack() as ending:
        yield {name: ending.enter_context(on(hosts[name])) for name in NAMES}


@pytest.fixture(scope="module")
def orders(clients: dict[str, MessageHub]) -> str:
    """A topic whose home is beta, which does not lead."""
    kept = clients["beta"].topic("orders.eu").keep(100_000, timeout=PATIENCE_SECONDS)
    assert kept.home == "beta"
    return kept.name


def test_what_is_published_anywhere_is_read_everywhere_in_one_order(clients: dict[str, MessageHub], orders: str) -> None:
    offsets = []
    for number in range(30):
        for name in NAMES:
            offsets.append(clients[name].publish(orders, [name, number], headers={"n": number}, timeout=PATIENCE_SECONDS))
    assert offsets == list(range(offsets[0], offsets[0] + 90))
    found = []
    for name in NAMES:
        with clients[name].subscribe(orders, since=offsets[0]) as subscription:
            found.append([(m.number, m.payload, m.headers) for m in (subscription.receive(PATIENCE_SECONDS) for _ in range(90))])
    assert found[0] == found[1] == found[2]
    assert [number for number, _, _ in found[0]] == offsets
