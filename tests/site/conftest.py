"""A site of two hosts whose gateways serve, for the tests of data between hosts."""

from collections.abc import Iterator

import pytest

from tests.etcd_server import EtcdMember, etcd
from tests.site.hosts import LONG_LEASE_SECONDS, Site, gateway_of


@pytest.fixture(scope="module")
def member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hosts alpha and beta, each with a gateway that the other one knows."""
    started = Site(tmp_path_factory.mktemp("gateways"), member.url, host_lease_seconds=LONG_LEASE_SECONDS)
    try:
        for name in ("alpha", "beta"):
            started.add(name, "--http", "127.0.0.1:0")
        for hub in started.hubs.values():
            for name in started.hubs:
                gateway_of(hub, name)
        yield started
    finally:
        started.close()
