"""The Arrow Flight gateway of a host: who may read through it, and that it is there when its process was killed."""

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from messagehub.security.credentials import AccessFile, allow_token, revoke
from messagehub.settings import Settings
from tests import preloaded
from tests.access.test_http_rights import certificate
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, children, eventually
from tests.site.hosts import Site, SiteHub, gateway_of, gateway_pid, on

TABLE = pa.table({"x": [1, 2, 3], "name": ["a", "b", None]})


def call(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=30, headers=[(b"authorization", f"Bearer {token}".encode())])


def owner(hub: SiteHub) -> flight.FlightCallOptions:
    return call((hub.dir / "http.token").read_text().strip())


def command(hub: SiteHub, *arguments: str) -> str:
    full = [sys.executable, "-m", "messagehub", *arguments, "--dir", str(hub.dir)]
    return preloaded.run(full, env=hub.environment | {"COLUMNS": "300"}, timeout=60).stdout


def test_every_hub_knows_the_gateway_of_every_host(hosts: Site) -> None:
    for hub in hosts.hubs.values():
        known = {name: gateway_of(hub, name) for name in hosts.hubs}
        assert all(location.startswith("grpc://127.0.0.1:") for location in known.values())
        assert len(set(known.values())) == 2
        listed = httpx.get(f"{hub.http}/api/v1/hosts", timeout=PATIENCE_SECONDS).json()["hosts"]
        assert {each["host"]: each["gateway"] for each in listed} == known


def test_commands_show_the_gateways(hosts: Site) -> None:
    beta = hosts["beta"]
    known = {name: gateway_of(beta, name) for name in hosts.hubs}
    listed = command(beta, "hosts")
    assert all(location in listed for location in known.values())
    told = command(beta, "doctor")
    for name, location in known.items():
        assert f"the gateway of host {name} answers at {location}" in told
    assert "messagehub_gateway_restarts_total" in httpx.get(f"{beta.http}/metrics", timeout=PATIENCE_SECONDS).text


def test_a_plain_flight_client_lists_and_reads_tables_and_rings(hosts: Site) -> None:
    alpha = hosts["alpha"]
    schema = pa.schema([("value", pa.int64())])
    batches = [pa.record_batch([[number]], schema=schema) for number in range(5)]
    with on(alpha) as there, ExitStack() as opened, flight.connect(gateway_of(alpha, "alpha")) as client:
        there.publish_table("plain.table", TABLE)
        ring = opened.enter_context(there.producer("plain.ring", schema=schema, capacity=8))
        arrays = opened.enter_context(there.producer("plain.array", schema=np.dtype("f8"), capacity=8))
        for batch in batches:
            ring.write(batch)
        arrays.write(np.arange(3.0))
        listed = {each.descriptor.path[0].decode(): each for each in client.list_flights(b"plain.", owner(alpha))}
        assert sorted(listed) == ["plain.array", "plain.ring", "plain.table"]
        assert listed["plain.table"].schema == TABLE.schema
        assert listed["plain.table"].total_records == 3
        info = client.get_flight_info(flight.FlightDescriptor.for_path("plain.ring"), owner(alpha))
        assert info.schema == schema
        [endpoint] = info.endpoints
        assert client.do_get(endpoint.ticket, owner(alpha)).read_all() == pa.Table.from_batches(batches)
        [endpoint] = listed["plain.table"].endpoints
        assert client.do_get(endpoint.ticket, owner(alpha)).read_all() == TABLE
        assert client.do_get(flight.Ticket(b'{"channel":"plain.table"}'), owner(alpha)).read_all() == TABLE
        [row] = client.do_get(flight.Ticket(b'{"channel":"plain.array"}'), owner(alpha)).read_all().to_pylist()
        assert row["sequence"] == 1
        assert np.frombuffer(row["value"]).tolist() == [0.0, 1.0, 2.0]
        last = flight.Ticket(b'{"channel":"plain.ring","kind":"items","start":-2}')
        assert client.do_get(last, owner(alpha)).read_all().to_pylist() == [{"value": 3}, {"value": 4}]


def test_what_no_token_allows_is_refused_before_anything_is_read(hosts: Site) -> None:
    alpha = hosts["alpha"]
    access = AccessFile(Settings.for_client(dir=alpha.dir).access_path)
    looker = call(allow_token(access, "looker", ["observe"]))
    reader = call(allow_token(access, "reader", ["consume:open.*"]))
    with on(alpha) as there, flight.connect(gateway_of(alpha, "alpha")) as client:
        for channel in ("open.table", "closed.table"):
            there.publish_table(channel, TABLE)
        tickets = {name: flight.Ticket(f'{{"channel":"{name}"}}'.encode()) for name in ("open.table", "closed.table")}
        assert client.do_get(tickets["open.table"], reader).read_all() == TABLE
        for options in (reader, looker):
            with pytest.raises(flight.FlightUnauthorizedError, match="takes the right consume"):
                client.do_get(tickets["closed.table"], options).read_all()
        with pytest.raises(flight.FlightUnauthorizedError):
            list(client.do_action(flight.Action("manifests", b'{"channel":"closed.table"}'), looker))
        assert [each.descriptor.path[0] for each in client.list_flights(b"", reader)] == [b"open.table"]
        for options in (flight.FlightCallOptions(timeout=30), call("site.e30=.00"), call("nobody's token")):
            with pytest.raises(flight.FlightUnauthenticatedError):
                client.do_get(tickets["open.table"], options).read_all()
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(client.list_flights(b"", options))
    assert '"code":"FORBIDDEN"' in (alpha.dir / "audit-gateway.log").read_text()


def test_a_stream_ends_with_its_token(hosts: Site) -> None:
    alpha = hosts["alpha"]
    access = AccessFile(Settings.for_client(dir=alpha.dir).access_path)
    follower = call(allow_token(access, "follower", ["consume"]))
    with (
        on(alpha) as there,
        flight.connect(gateway_of(alpha, "alpha")) as client,
        there.producer("followed", capacity=8) as ring,
    ):
        ring.write(b"before")
        stream = client.do_get(flight.Ticket(b'{"channel":"followed","kind":"items","follow":true}'), follower)
        assert stream.read_chunk().data.column("value").to_pylist() == [b"before"]
        revoke(access, "token", "follower")
        with pytest.raises(flight.FlightUnauthenticatedError, match="was revoked"):
            stream.read_all()


def test_a_new_certificate_is_served_and_told_after_sighup(member: EtcdMember, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    site = Site(tmp_path, member.url)
    asked = {"type": "GATEWAY_REQUEST", "channel": "renewed", "host": "renewing"}
    try:
        secure = ("--http-cert", str(cert), "--http-key", str(key), "--gateway", "localhost:0")
        hub = site.add("renewing", "--http", "127.0.0.1:0", *secure)
        with on(hub) as there:
            there.publish_table("renewed", TABLE)
        gateway_of(hub, "renewing")
        before = gateway_pid(hub)
        hub.signal(signal.SIGHUP)  # nothing changed: streams need not break off
        eventually(lambda: "reloaded settings" in hub.log())
        (tmp_path / "new").mkdir()
        new_cert, new_key = certificate(tmp_path / "new")
        new_key.replace(key)
        new_cert.replace(cert)
        assert gateway_pid(hub) == before
        hub.signal(signal.SIGHUP)
        found = eventually(lambda: got if (got := hub.ask(asked)).get("certificate") == cert.read_text() else None)
        assert gateway_pid(hub) != before
        with flight.connect(found["location"], tls_root_certs=found["certificate"]) as client:
            assert client.do_get(flight.Ticket(b'{"channel":"renewed"}'), call(found["token"])).read_all() == TABLE
    finally:
        site.close()


def test_a_hub_gives_a_token_for_one_channel_of_one_host(hosts: Site) -> None:
    beta = hosts["beta"]
    with on(hosts["alpha"]) as there:
        there.publish_table("given", TABLE)
        there.publish_table("not_given", TABLE)
    location = gateway_of(beta, "alpha")
    gateway_of(beta, "beta")
    found = beta.ask({"type": "GATEWAY_REQUEST", "channel": "given", "host": "alpha"})
    assert found["location"] == location
    with flight.connect(location) as client, flight.connect(gateway_of(beta, "beta")) as other:
        assert client.do_get(flight.Ticket(b'{"channel":"given"}'), call(found["token"])).read_all() == TABLE
        with pytest.raises(flight.FlightUnauthorizedError):
            client.do_get(flight.Ticket(b'{"channel":"not_given"}'), call(found["token"])).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            other.do_get(flight.Ticket(b'{"channel":"given"}'), call(found["token"])).read_all()
    refused = beta.ask({"type": "GATEWAY_REQUEST", "channel": "given", "host": "nobody"})
    assert refused["code"] == "GATEWAY_UNAVAILABLE"
    assert "'nobody' is no member" in refused["message"]


@pytest.mark.parametrize(
    "ticket",
    [
        b"no json",
        b'{"channel":"bad/name"}',
        b'{"channel":"odd","kind":"ring"}',
        b'{"channel":"odd","kind":"ring","block":"/../../etc/passwd"}',
        b'{"channel":"odd","kind":"table","part":"../../x.arrow"}',
        b'{"channel":"odd","kind":"items"}',
        b'{"channel":"odd","generation":77}',
        b'{"channel":"odd","kind":"items","start":"yesterday"}',
        b'{"channel":"odd","kind":"items","folow":true}',
    ],
)
def test_a_ticket_that_leads_nowhere_is_refused_with_a_text(hosts: Site, ticket: bytes) -> None:
    alpha = hosts["alpha"]
    with on(alpha) as there, flight.connect(gateway_of(alpha, "alpha")) as client:
        there.publish_table("odd", TABLE)
        with pytest.raises(flight.FlightServerError) as refused:
            client.do_get(flight.Ticket(ticket), owner(alpha)).read_all()
        assert b'"code":' in refused.value.extra_info
        assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("signals", [["SIGKILL"], ["SIGSTOP", "SIGTERM", "SIGINT", "SIGCONT"]], ids="+".join)
def test_a_gateway_that_ended_is_started_again_and_announced(hosts: Site, signals: list[str]) -> None:
    beta = hosts["beta"]
    before = gateway_pid(beta)
    with on(beta) as here:
        restarts = here.stats().counters["gateway_restarts"]
    for name in signals:
        os.kill(before, signal.Signals[name])
    after = eventually(lambda: pid if (pid := gateway_pid(beta)) != before else None)
    with on(beta) as here:
        here.publish_table("after.kill", TABLE)

    def answers() -> bool:
        try:
            with flight.connect(gateway_of(hosts["alpha"], "beta")) as client:
                ticket = flight.Ticket(b'{"channel":"after.kill"}')
                return bool(client.do_get(ticket, owner(beta)).read_all() == TABLE)
        except flight.FlightError:
            return False

    eventually(answers)
    assert gateway_pid(beta) == after
    with on(beta) as here:
        assert eventually(lambda: here.health()["status"] == "healthy")
        assert here.stats().counters["gateway_restarts"] == restarts + 1


def test_a_gateway_ends_with_its_hub(member: EtcdMember, tmp_path: Path) -> None:
    site = Site(tmp_path, member.url)
    before = children()
    try:
        for end in (SiteHub.stop, SiteHub.kill):
            hub = site.add("gamma", "--no-http")
            pid = gateway_pid(hub)
            end(hub)
            eventually(lambda pid=pid: not os.path.exists(f"/proc/{pid}/exe"))
    finally:
        site.close()
    assert children() <= before


def test_a_gateway_beyond_loopback_takes_a_certificate_or_a_word(member: EtcdMember, tmp_path: Path) -> None:
    site = Site(tmp_path, member.url)
    with pytest.raises(AssertionError, match="--gateway-unencrypted"):
        site.add("open", "--no-http", "--gateway", "192.0.2.1:0")
    with pytest.raises(AssertionError, match="name an address of this host"):
        site.add("any", "--no-http", "--gateway", "0.0.0.0:0")
    site.close()


def test_an_address_where_nothing_can_listen_is_refused_before_the_hub_starts(
    member: EtcdMember, tmp_path: Path
) -> None:
    site = Site(tmp_path, member.url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address in (f"127.0.0.1:{taken.getsockname()[1]}", "no-such-host.invalid:0", "192.0.2.1:0"):
            with pytest.raises(
                AssertionError, match=f"the gateway cannot listen at {address.removesuffix(':0')}: "
            ) as no:
                site.add("deaf", "--no-http", "--gateway", address, "--gateway-unencrypted")
            assert "Traceback" not in str(no.value)
    site.close()


def test_a_hub_on_its_own_has_no_gateway_to_leave_out(tmp_path: Path) -> None:
    arguments = ["serve", "--dir", str(tmp_path / "hub"), "--no-http", "--no-gateway"]
    done = preloaded.run([sys.executable, "-m", "messagehub", *arguments], timeout=60)
    assert done.returncode == 2
    assert "it goes with --site" in " ".join(done.stderr.replace("│", " ").split())


def test_doctor_names_a_host_that_is_lost_and_a_certificate_for_another_name(
    member: EtcdMember, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    site = Site(tmp_path, member.url)
    secure = ("--http", "127.0.0.1:0", "--http-cert", str(cert), "--http-key", str(key))
    try:
        for name, address in (("right", "localhost:0"), ("misnamed", "127.0.0.1:0")):
            site.add(name, *secure, "--gateway", address)
        looking = site.add("looking", "--no-http")

        def are_named() -> bool:
            known = {name: gateway_of(looking, name) for name in ("right", "misnamed")}  # a new one has another port
            told = command(looking, "doctor")
            print(told)
            return (
                f"the gateway of host right answers at {known['right']}" in told
                and f"the gateway of host misnamed at {known['misnamed']} has a wrong certificate: " in told
            )

        eventually(are_named, timeout=2 * PATIENCE_SECONDS)
        site["misnamed"].kill()
        eventually(lambda: "host misnamed is lost" in command(looking, "doctor"))
    finally:
        site.close()


def test_with_a_certificate_the_gateway_is_encrypted_and_hubs_hand_it_out(member: EtcdMember, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    site = Site(tmp_path, member.url)
    try:
        secure = site.add(
            "secure",
            "--http",
            "127.0.0.1:0",
            "--http-cert",
            str(cert),
            "--http-key",
            str(key),
            "--gateway",
            "localhost:0",
        )
        with on(secure) as there:
            there.publish_table("secret", TABLE)
        location = gateway_of(secure, "secure")
        assert location.startswith("grpc+tls://localhost:")
        found = secure.ask({"type": "GATEWAY_REQUEST", "channel": "secret", "host": "secure"})
        assert found["certificate"] == cert.read_text()
        with flight.connect(location, tls_root_certs=found["certificate"]) as client:
            ticket = flight.Ticket(b'{"channel":"secret"}')
            assert client.do_get(ticket, call(found["token"])).read_all() == TABLE
        with (
            flight.connect(location.replace("+tls", "")) as client,
            pytest.raises((flight.FlightUnavailableError, flight.FlightTimedOutError)),
        ):
            client.do_get(ticket, call(found["token"])).read_all()
    finally:
        site.close()


def test_a_gateway_that_is_killed_while_its_hub_starts_is_started_again(member: EtcdMember, tmp_path: Path) -> None:
    with ExitStack() as ending:
        alone = Site(tmp_path, member.url)
        ending.callback(alone.close)
        hub = alone.add("alpha", "--no-http")
        hub.kill()
        before = hub.process
        with ThreadPoolExecutor(1) as threads:
            started = threads.submit(hub.start)
            eventually(lambda: hub.process is not before)
            os.kill(gateway_pid(hub), signal.SIGKILL)
            started.result(60)
        assert gateway_of(hub, "alpha")
