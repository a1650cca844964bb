"""Plain topics between the hosts of a site: what is published on one is heard on the others."""

import logging
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
import zmq
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from messagehub.cli.diagnosis import contact
from messagehub.errors import DataLost
from messagehub.security.credentials import KeyPair, server_keys
from messagehub.settings import Settings
from messagehub.topics.subscriptions import Subscription
from registry.records import SiteHost
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.ports import own_ports
from tests.site.hosts import LONG_LEASE_SECONDS, Site, on, process_on, site

NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("topics"), member.url, *NAMES, host_lease_seconds=LONG_LEASE_SECONDS) as started:
        yield started


class Clients:
    """A client on each host, and its subscriptions."""

    def __init__(self, hosts: Site, ending: ExitStack) -> None:
        self.hubs = {name: ending.enter_context(on(hosts[name])) for name in NAMES}
        self._ending = ending

    def __getitem__(self, name: str) -> MessageHub:
        return self.hubs[name]

    def subscribe(self, name: str, pattern: str, group: str | None = None) -> Subscription:
        return self._ending.enter_context(self.hubs[name].subscribe(pattern, group=group))


@pytest.fixture
def clients(hosts: Site) -> Iterator[Clients]:
    with ExitStack() as ending:
        yield Clients(hosts, ending)


def heard(subscription: Subscription, count: int) -> list[object]:
    return [subscription.receive(PATIENCE_SECONDS).payload for _ in range(count)]


def hears(subscription: Subscription) -> bool:
    """Whether a message comes within a moment."""
    try:
        subscription.receive(0.02)
    except TimeoutError:
        return False
    return True


def connect(publisher: MessageHub, topic: str, *subscriptions: Subscription) -> None:
    """Publish until all subscriptions hear it, and have them read what came."""
    for each in subscriptions:
        eventually(lambda each=each: publisher.publish(topic, "probe") and hears(each))
    publisher.publish(topic, "begin")
    for each in subscriptions:
        while each.receive(PATIENCE_SECONDS).payload != "begin":
            pass


def test_a_message_comes_to_every_host_once_from_whichever_it_is_published_on(clients: Clients) -> None:
    subscriptions = {name: clients.subscribe(name, "orders.*") for name in NAMES}
    for publisher in clients.hubs.values():
        connect(publisher, "orders.new", *subscriptions.values())
    for number in range(100):
        for name, publisher in clients.hubs.items():
            publisher.publish("orders.new", [name, number], headers={"host": name})
    for publisher in clients.hubs.values():
        publisher.publish("orders.new", ["end", 0])
    for subscription in subscriptions.values():
        found: dict[str, list[int]] = {}
        while len(found.get("end", [])) < len(NAMES):  # after which nothing may come by way of a third host
            message = subscription.receive(PATIENCE_SECONDS)
            name, number = message.payload
            found.setdefault(name, []).append(number)
            assert name == "end" or message.headers == {"host": name}
        assert found == {each: list(range(100)) for each in NAMES} | {"end": [0, 0, 0]}
        assert subscription.lost == 0
        assert not hears(subscription)


def test_thousands_of_topics_are_heard_from_another_host(clients: Clients) -> None:
    """Unless it is told otherwise, libzmq drops those beyond a thousand."""
    topics = [f"many.{number}" for number in range(3_000)]
    with clients["beta"].subscribe(topics, buffer=10_000) as subscription:
        connect(clients["alpha"], topics[-1], subscription)
        for topic in topics:
            clients["alpha"].publish(topic, b"", timeout=PATIENCE_SECONDS)
        assert [subscription.receive(PATIENCE_SECONDS).topic for _ in topics] == topics


def test_large_messages_come_whole_and_a_table_in_the_memory_of_another_host_says_where_it_is(
    hosts: Site, clients: Clients
) -> None:
    subscription = clients.subscribe("gamma", "large")
    connect(clients["alpha"], "large", subscription)
    clients["alpha"].publish("large", b"\x01" * 1_000_000)
    assert heard(subscription, 1) == [b"\x01" * 1_000_000]
    clients["alpha"].publish("large", pa.table({"a": [1, 2, 3]}))
    assert heard(subscription, 1) == [pa.table({"a": [1, 2, 3]})]
    with process_on(hosts["alpha"]) as there:
        there.do("hub.publish('large', pa.table({'a': np.zeros(100_000)}))")
        message = subscription.receive(PATIENCE_SECONDS)
        with pytest.raises(DataLost, match="alpha"):
            _ = message.payload


def test_a_group_shares_what_is_published_on_its_own_host_and_says_so(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    alone = clients.subscribe("beta", "jobs")
    with caplog.at_level(logging.WARNING, logger="messagehub"):
        here, there = (clients.subscribe(name, "jobs", "workers") for name in ("alpha", "beta"))
    assert "group 'workers' shares what is published on this host" in caplog.text
    connect(clients["alpha"], "jobs", alone, here)
    for number in range(20):
        clients["alpha"].publish("jobs", number)
    assert heard(here, 20) == heard(alone, 20) == list(range(20))
    assert not hears(there)  # though its socket is that of `alone`


def test_a_hub_that_was_killed_is_heard_again(hosts: Site, clients: Clients) -> None:
    subscription = clients.subscribe("beta", "again")
    connect(clients["gamma"], "again", subscription)
    hosts["gamma"].kill()
    hosts["gamma"].start()
    with on(hosts["gamma"]) as there:
        eventually(lambda: there.publish("again", "probe") and hears(subscription))


def test_subscribers_hear_other_hosts_again_after_their_own_hub_was_killed(hosts: Site, clients: Clients) -> None:
    subscription = clients.subscribe("gamma", "after.restart")
    connect(clients["alpha"], "after.restart", subscription)
    hosts["gamma"].kill()
    hosts["gamma"].start()
    eventually(lambda: clients["alpha"].publish("after.restart", "probe") and hears(subscription))


def test_a_hub_with_keys_hears_and_is_heard_also_after_a_key_was_revoked(hosts: Site, clients: Clients) -> None:
    delta = hosts.add("delta", "--no-http", "--no-gateway", "--endpoint", "tcp://127.0.0.1:0", "--curve")
    with on(delta) as there, there.subscribe("keys") as far, clients.subscribe("alpha", "keys") as near:
        connect(there, "keys", near)
        connect(clients["alpha"], "keys", far)
        for command in (["new", "somebody", "--role", "admin"], ["revoke", "somebody"]):
            done = CliRunner().invoke(app, ["keys", *command, "--dir", str(delta.dir)])
            assert done.exit_code == 0, done.output
        connect(there, "keys", near)
        connect(clients["alpha"], "keys", far)
    delta.stop()


def test_what_is_no_subscription_harms_no_hub(hosts: Site, clients: Clients) -> None:
    endpoint = hosts["beta"].ask({"type": "HELLO"})["endpoints"]["topics_site"]
    with zmq.Context() as context, context.socket(zmq.XSUB) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(endpoint)
        for number in range(10_000):
            peer.send(random.Random(number).randbytes(number % 300))
        subscription = clients.subscribe("beta", "harmless")
        connect(clients["alpha"], "harmless", subscription)


def test_a_hub_whose_port_for_topics_is_taken_does_not_start_on_another_one(
    hosts: Site, member: EtcdMember, tmp_path: Path
) -> None:
    first, _, third = own_ports(3)
    with socket.create_server(("127.0.0.1", third)):
        started = Site(tmp_path, member.url)
        with pytest.raises(AssertionError, match=r"two ports above --site-endpoint.*Address already in use"):
            started.add("epsilon", "--no-http", "--no-gateway", "--site-endpoint", f"tcp://127.0.0.1:{first}")


def test_doctor_names_a_host_whose_topics_cannot_be_heard() -> None:
    (port,) = own_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        host = SiteHost(host="far", health="healthy", topics=f"tcp://127.0.0.1:{port}")
        assert list(contact.check_topics(host)) == []
    (found,) = contact.check_topics(host)
    assert (found.check, found.severity) == ("topics", "error")
    assert f"host far is not heard here: tcp://127.0.0.1:{port} cannot be reached" in found.message


def test_only_hubs_of_the_site_hear_what_hubs_send_each_other(hosts: Site, clients: Clients) -> None:
    alpha, beta = (server_keys(Settings.load(dir=hosts[name].dir).keys_path) for name in ("alpha", "beta"))
    with zmq.Context() as context, ExitStack() as closing:
        stranger, hub = (
            closing.enter_context(_listening(context, _topics_of(hosts, "alpha"), keys, alpha.public))
            for keys in (KeyPair.new(), beta)
        )
        eventually(lambda: _hears(clients["alpha"], "secret", hub))
        assert not stranger.poll(200)


def _topics_of(hosts: Site, name: str) -> str:
    def told() -> str:
        return next(str(each["topics"]) for each in hosts["beta"].hosts()["hosts"] if each["host"] == name)

    return eventually(told)


def _listening(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, keys: KeyPair, server: str
) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SUBSCRIBE, b"secret")
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode())
    socket.setsockopt(zmq.CURVE_SERVERKEY, server.encode())
    socket.connect(endpoint)
    return socket


def _hears(publisher: MessageHub, topic: str, listening: "zmq.Socket[bytes]") -> bool:
    publisher.publish(topic, b"x")
    return bool(listening.poll(20))
