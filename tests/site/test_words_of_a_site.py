"""What people are told when etcd is down or a host is lost: what is the matter, where to look, what is not known."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagehub.errors import HomeHostUnavailable
from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import HOST_LEASE_SECONDS, Site, SiteHub, bind, on, process_on, producing, run_on, site


@pytest.fixture(scope="module")
def without_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hosts alpha, which has HTTP, and beta, a while after their etcd has stopped answering."""
    with etcd() as (alone,):
        started = Site(tmp_path_factory.mktemp("without"), alone.url)
        try:
            bind(started.add("alpha", "--http", "127.0.0.1:0", "--no-gateway"))
            started.add("beta")
            eventually(lambda: len(started["alpha"].hosts()["hosts"]) == 2)
            alone.pause()
            eventually(lambda: all(hub.hosts()["age_seconds"] > 6 for hub in started.hubs.values()))
            yield started
            alone.go_on()
        finally:
            started.close()


def test_a_refused_command_leads_to_etcd_and_not_to_the_disk(without_etcd: Site) -> None:
    for hub in without_etcd.hubs.values():
        code, said = run_on(hub, "channels", "create", "newch")
        assert code == 1
        assert "etcd" in said, said
        assert "messagehub hosts" in said, said
        assert "disk" not in said, said
    _, said = run_on(without_etcd["beta"], "doctor")
    assert "etcd does not confirm" in said, said


def test_a_refused_command_is_retryable_over_http(without_etcd: Site) -> None:
    alpha = without_etcd["alpha"]
    given = {"Authorization": f"Bearer {(alpha.dir / 'http.token').read_text().strip()}"}
    answer = httpx.post(alpha.http + "/api/v1/channels/newch", json={}, headers=given, timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (503, "STORE_READ_ONLY"), answer.text
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["details"]["site"] == without_etcd.name


def test_hosts_of_which_nothing_is_heard_are_not_called_healthy(without_etcd: Site) -> None:
    for hub in without_etcd.hubs.values():
        code, said = run_on(hub, "hosts")
        assert code == 0, said
        rows = [line.split() for line in said.splitlines() if line.startswith(("alpha ", "beta "))]
        assert [row[:3] for row in rows] == [["alpha", "unknown", "-"], ["beta", "unknown", "-"]], said
        assert "etcd has not answered" in said
        code, said = run_on(hub, "hosts", "--json")
        assert [one["host"] for one in json.loads(said)["hosts"]] == ["alpha", "beta"]
        _, said = run_on(hub, "top", "--json", "--every", "0.2")
        assert [(one["health"], one["role"]) for one in json.loads(said)["hosts"]] == [("unknown", None)] * 2, said


def _health(hub: SiteHub, name: str) -> str:
    return str(next(each["health"] for each in hub.hosts()["hosts"] if each["host"] == name))


def test_a_lost_home_host_is_waited_for_and_then_named_and_nothing_is_stored(
    member: EtcdMember, tmp_path: Path
) -> None:
    with site(tmp_path, member.url, "alpha", "beta") as hosts, on(hosts["alpha"]) as client:
        kept = client.topic("orders.eu").keep(100, home="beta", timeout=PATIENCE_SECONDS)
        assert kept.home == "beta"
        first = client.publish("orders.eu", b"before", timeout=PATIENCE_SECONDS)
        hosts["beta"].kill()
        eventually(lambda: _health(hosts["alpha"], "beta") == "lost")
        with pytest.raises(HomeHostUnavailable, match="on host 'beta', whose hub is gone") as refused:
            client.publish("orders.eu", b"refused", timeout=0.5)
        assert refused.value.retryable
        for timeout in (0.1, 0.101, 0.103, 0.105, 0.11):  # no attempt begins so late that its answer cannot come
            with pytest.raises(HomeHostUnavailable):
                client.publish("orders.eu", b"refused", timeout=timeout)
        code, said = run_on(hosts["alpha"], "publish", "orders.eu", "x", "--timeout", "0.5")
        assert (code, "on host 'beta'" in said, "may be stored" in said) == (1, True, False), said
        with ThreadPoolExecutor(1) as patient:
            waiting = patient.submit(client.publish, "orders.eu", b"patient", timeout=PATIENCE_SECONDS)
            hosts["beta"].start()
            assert waiting.result() == first + 1  # what was refused was not stored


def test_a_home_host_that_is_back_within_its_lease_is_waited_for(member: EtcdMember, tmp_path: Path) -> None:
    """As when its hub is restarted; the lease of a host that is killed tells nobody that it is lost."""
    with site(tmp_path, member.url, "alpha", "beta", host_lease_seconds=60) as hosts, on(hosts["alpha"]) as client:
        client.topic("orders.eu").keep(100, home="beta", timeout=PATIENCE_SECONDS)
        client.publish("orders.eu", b"before", timeout=PATIENCE_SECONDS)
        hosts["beta"].kill()
        hosts["beta"].launch()
        assert client.publish("orders.eu", b"meanwhile", timeout=2 * PATIENCE_SECONDS) == 2
        hosts["beta"].await_ready()


TABLE = """
import pyarrow as pa
hub.publish_table("t.far", pa.table({"x": [1, 2]}))
p = hub.producer("r.far", capacity=4)
p.write(b"0")
"""


def test_discover_and_tables_name_a_host_that_is_gone(member: EtcdMember, tmp_path: Path) -> None:
    with site(tmp_path, member.url, "alpha", "beta", host_lease_seconds=4 * HOST_LEASE_SECONDS) as hosts:
        alpha, beta = hosts["alpha"], hosts["beta"]
        with process_on(beta) as there, on(alpha) as here:
            there.do(TABLE)
            producing(here, "r.far", "beta")
            eventually(lambda: here.tables("t.far"))
            for asked in (("tables",), ("discover", "t.far"), ("discover", "r.far")):
                assert "(left)" not in run_on(alpha, *asked)[1]
            beta.stop()
            eventually(lambda: _health(alpha, "beta") == "left")
            said: Any = run_on(alpha, "discover", "r.far")[1]
            assert "beta (left)" in said, said
            assert "host beta is left" in said, said
        eventually(lambda: _health(alpha, "beta") == "lost")
        assert "beta (lost)" in run_on(alpha, "tables")[1]
        said = run_on(alpha, "discover", "t.far")[1]
        assert "host beta is lost" in said, said
        assert json.loads(run_on(alpha, "tables", "--json")[1])[0]["table"]["host"] == "beta"
