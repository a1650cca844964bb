"""Hosts of a site whose wall clocks are hours apart: nothing that decides is by them.

All processes of a host load a library that shows them another time, in Python as in C.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.security.gateway_tokens import CLOCKS_APART_SECONDS, TOKEN_SECONDS, GatewayClaim, claim_of, signed_token
from tests.etcd_server import EtcdMember
from tests.integration.harness import eventually
from tests.site.clocks import HOUR, shifted
from tests.site.hosts import LONG_LEASE_SECONDS, Site, gateway_of, on, process_on, producing


@pytest.fixture(params=[-HOUR, pytest.param(HOUR, marks=pytest.mark.slow)], ids=["behind", "ahead"])
def hosts(request: pytest.FixtureRequest, member: EtcdMember, tmp_path: Path) -> Iterator[Site]:
    """Alpha leads, by the clock of this machine; the clock of beta is an hour ahead or behind."""
    terms = {"heartbeat_seconds": 0.4, "stall_seconds": 4.0, "lease_seconds": 5.0}
    started = Site(tmp_path, member.url, host_lease_seconds=LONG_LEASE_SECONDS, **terms)
    try:
        started.add("alpha", "--no-http", "--gateway", "127.0.0.1:0")
        eventually(started["alpha"].is_leader)
        library = shifted(tmp_path, request.param)
        said = "import time; print(time.time())"
        shown = subprocess.run(
            ["python3", "-c", said],
            env=os.environ | {"LD_PRELOAD": library},
            capture_output=True,
            text=True,
            check=True,
        )
        assert abs(float(shown.stdout) - time.time() - request.param) < 60
        started.add("beta", "--no-http", "--gateway", "127.0.0.1:0", preload=library)
        yield started
    finally:
        started.close()


def test_an_hour_between_the_clocks_of_hosts_changes_nothing(hosts: Site) -> None:
    alpha, beta = hosts["alpha"], hosts["beta"]
    for hub in (alpha, beta):
        for name in ("alpha", "beta"):
            gateway_of(hub, name)
    with process_on(beta) as there, on(alpha) as here, here.producer("of.alpha") as own, here.watch("of.beta") as watch:
        there.do("""
            producer = hub.producer("of.beta")
            consumer = hub.consumer("of.alpha", start="oldest", timeout=30.0)
            subscription = hub.subscribe("news")
        """)
        producing(here, "of.beta", "beta")
        with here.consumer("of.beta", start="oldest", timeout=30.0) as consumer:
            own.write(b"1")
            there.do("""
                assert bytes(consumer.read(timeout=30.0)) == b"1"
                assert list(consumer.block_sources.values()) == ["flight"]
                producer.write(b"2")
            """)
            assert bytes(consumer.read(timeout=30.0)) == b"2"
            beats = alpha.ask({"type": "STATS_REQUEST"})["requests"]["HEARTBEAT"]["count"]
            eventually(
                lambda: alpha.ask({"type": "STATS_REQUEST"})["requests"]["HEARTBEAT"]["count"] > beats + 15
            )  # longer than a lease: nobody is stalled, ended or taken for lost
            assert alpha.ask({"type": "DISCOVERY_REQUEST", "channel": "of.beta"})["status"] == "active"
            assert [each["health"] for each in alpha.hosts()["hosts"]] == ["healthy"] * 2
            hosts["alpha"].kill()
            eventually(beta.is_leader)
            there.do("""
                hub.create_channel("by.beta", timeout=30.0)
                producer.write(b"3")
            """)
            assert bytes(consumer.read(timeout=30.0)) == b"3"
            hosts["alpha"].start()
            eventually(lambda: here.describe("by.beta"))
            own.write(b"4")
            there.do("""assert bytes(consumer.read(timeout=30.0)) == b"4" """)
            assert watch.wait_current(30.0)
            there.kill()
            eventually(lambda: here.discover("of.beta") is None or not here.discover("of.beta").is_active)


def test_a_token_is_good_for_hours_more_than_it_says_and_no_longer() -> None:
    token = signed_token("secret", GatewayClaim(host="beta", channel="c", user="u", expires_at=TOKEN_SECONDS))
    newest = TOKEN_SECONDS + CLOCKS_APART_SECONDS
    assert claim_of("secret", token, host="beta", now=-CLOCKS_APART_SECONDS) is not None
    assert claim_of("secret", token, host="beta", now=newest - 1) is not None
    assert claim_of("secret", token, host="beta", now=newest) is None
    assert claim_of("other", token, host="beta", now=0) is None
    assert claim_of("secret", token, host="alpha", now=0) is None
