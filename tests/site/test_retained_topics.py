"""Retained topics of a site: one home host each, and the same from every host."""

import json
import signal
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from typer.testing import CliRunner

from messagehub import MessageHub
from messagehub.cli import app
from messagehub.errors import (
    HomeHostUnavailable,
    HubError,
    InvalidRequest,
    SendTimeout,
    TopicAlreadyExists,
    TopicLimitExceeded,
    TopicNotFound,
)
from messagehub.topics.messages import Message as TopicMessage
from messagehub.topics.subscriptions import Subscription
from registry.records import RetainedTopic
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, Embedded, Message, eventually
from tests.site.hosts import Site, SiteHub, await_known, on, process_on, site

NAMES = ("alpha", "beta", "gamma")
Clients = dict[str, MessageHub]


@pytest.fixture(scope="module")
def hosts(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Alpha leads. A home host that does not answer is lost some seconds later."""
    directory = tmp_path_factory.mktemp("retained")
    with site(directory, member.url, *NAMES, kept_limit_bytes=2**30, host_lease_seconds=10) as started:
        yield started


@pytest.fixture(scope="module")
def clients(hosts: Site) -> Iterator[Clients]:
    with ExitStack() as ending:
        yield {name: ending.enter_context(on(hosts[name])) for name in NAMES}


@pytest.fixture(scope="module")
def orders(clients: Clients) -> str:
    """A topic whose home is beta, which does not lead."""
    kept = clients["beta"].topic("orders.eu").keep(100_000, timeout=PATIENCE_SECONDS)
    assert kept.home == "beta"
    return kept.name


def keep(hub: SiteHub, topic: str, **more: object) -> Message:
    """Retain a topic to which nobody has published, without waiting for publishers."""
    return hub.ask({"type": "TOPIC_KEEP", "topic": topic, **more})


def received(subscription: Subscription, count: int) -> list[object]:
    return [subscription.receive(PATIENCE_SECONDS).payload for _ in range(count)]


def test_what_is_published_anywhere_is_read_everywhere_in_one_order(clients: Clients, orders: str) -> None:
    offsets = []
    for number in range(30):
        for name in NAMES:
            said = {"n": number}
            offsets.append(clients[name].publish(orders, [name, number], headers=said, timeout=PATIENCE_SECONDS))
    assert offsets == list(range(offsets[0], offsets[0] + 90))
    found = []
    for name in NAMES:
        with clients[name].subscribe(orders, since=offsets[0]) as subscription:
            messages = [subscription.receive(PATIENCE_SECONDS) for _ in offsets]
            found.append([(one.number, one.payload, one.headers) for one in messages])
    assert found[0] == found[1] == found[2]
    assert [number for number, _, _ in found[0]] == offsets


def test_a_follower_on_another_host_hears_a_message_when_it_is_stored(clients: Clients, orders: str) -> None:
    with clients["gamma"].subscribe(orders, since="newest") as there, clients["alpha"].subscribe(orders) as plain:
        # also a subscription without a position hears it
        eventually(lambda: clients["alpha"].publish(orders, "probe", timeout=PATIENCE_SECONDS) and _hears(plain))
        at_once = 0
        for number in range(10):
            began = time.monotonic()
            clients["alpha"].publish(orders, number, timeout=PATIENCE_SECONDS)
            while there.receive(PATIENCE_SECONDS).payload != number:
                pass
            at_once += time.monotonic() - began < 0.8  # a subscriber looks once a second by itself
        assert at_once >= 3


def test_every_host_lists_and_describes_the_topic_with_its_home_and_its_end(clients: Clients, orders: str) -> None:
    last = clients["alpha"].publish(orders, "last", timeout=PATIENCE_SECONDS)
    for name in NAMES:
        (listed,) = eventually(_known_to_the_end, clients[name], orders)
        assert (listed.home, listed.next_offset) == ("beta", last + 1)
        described = clients[name].topic(orders).describe()
        assert (described.topic.home, described.topic.next_offset) == ("beta", last + 1)
        assert described.messages >= 1


def test_the_same_is_said_again_anywhere_and_another_home_or_other_bounds_are_refused(
    hosts: Site, clients: Clients
) -> None:
    kept = keep(hosts["gamma"], "said.again")["topic"]
    assert kept["home"] == "gamma"
    again = eventually(lambda: keep(hosts["beta"], "said.again").get("topic"))
    assert (again["home"], again["incarnation"]) == ("gamma", kept["incarnation"])
    with pytest.raises(TopicAlreadyExists, match="'gamma' as its home host, not 'alpha'"):
        clients["beta"].topic("said.again", keep=None).keep("1h", home="alpha")
    with pytest.raises(TopicAlreadyExists):
        clients["beta"].topic("said.again").keep(5)
    with pytest.raises(InvalidRequest, match="no host of this site"):
        clients["beta"].topic("elsewhere").keep(5, home="nowhere")
    assert (
        clients["alpha"].topic("at.alpha", keep=5, home="beta", timeout=PATIENCE_SECONDS).describe().topic.home
        == "beta"
    )


def test_a_hub_on_its_own_has_no_home_hosts(embedded: Callable[..., Embedded]) -> None:
    broker = embedded()
    with MessageHub(endpoint=broker.endpoint) as hub, pytest.raises(InvalidRequest, match="this hub is on its own"):
        hub.topic("here").keep(5, home="alpha")


def test_a_publisher_that_repeats_a_request_at_another_hub_is_stored_once(hosts: Site, orders: str) -> None:
    said = {"type": "TOPIC_PUBLISH", "topic": orders, "publisher": "me", "number": 7, "messages": [{"payload": "YQ=="}]}
    first, second = (hosts[name].ask(said) for name in ("alpha", "gamma"))
    assert (first["offset"], first["duplicate"], second["duplicate"]) == (second["offset"], False, True)
    refused = hosts["gamma"].ask({**said, "number": 6})
    assert (refused["code"], refused["details"]["last_number"]) == ("INVALID_REQUEST", 7)


def test_the_limit_is_that_of_the_home_host(hosts: Site) -> None:
    most = {"size_bytes": 2**30}
    for topic, home in (("much.alpha", "alpha"), ("much.gamma", "gamma")):
        refused = keep(hosts["beta"], topic, keep=most, home=home)
        assert refused["code"] == TopicLimitExceeded.code if refused["type"] == "ERROR" else True
    refused = keep(hosts["beta"], "too.much", keep=most)  # beta has some topics already
    assert (refused["code"], refused["details"]["limit_bytes"]) == (TopicLimitExceeded.code, 2**30)
    assert "host 'beta'" in refused["message"]


def test_readers_of_one_durable_name_on_several_hosts_share_the_messages(hosts: Site, clients: Clients) -> None:
    keep(hosts["beta"], "jobs", home="beta")
    eventually(lambda: _is_retained(clients, "jobs"))
    sent = list(range(60))
    clients["alpha"].topic("jobs").publish_all(sent)
    done: list[object] = []
    with ExitStack() as ending:
        readers = [ending.enter_context(clients[name].subscribe("jobs", durable="workers")) for name in NAMES]
        for reader in readers:
            reader.call(lambda message: done.append(message.payload))
        eventually(lambda: len(done) >= len(sent))
        members = clients["gamma"].topic("jobs").position("workers").members
        assert {one.host for one in members} == set(NAMES)
    assert sorted(done) == sent
    (position,) = clients["beta"].topic("jobs").positions()
    assert eventually(lambda: clients["beta"].topic("jobs").positions()[0].lag == 0) or position


def test_what_a_killed_reader_held_on_another_host_is_free_at_once(hosts: Site, clients: Clients) -> None:
    keep(hosts["beta"], "held", home="beta")
    eventually(lambda: _is_retained(clients, "held"))
    clients["beta"].topic("held").publish_all(["a", "b", "c"])
    with process_on(hosts["gamma"]) as there:
        there.do(
            """
            reader = hub.subscribe("held", durable="one", ack="manual", ack_wait=300)
            first = [reader.receive(20).payload for _ in range(3)]
            """
        )
        there.kill()
        with clients["alpha"].subscribe("held", durable="one") as reader:
            assert sorted(map(str, received(reader, 3))) == ["a", "b", "c"]


def test_positions_are_reset_and_deleted_and_dead_letters_reported_from_another_host(
    hosts: Site, clients: Clients
) -> None:
    keep(hosts["beta"], "bad", home="beta")
    eventually(lambda: _is_retained(clients, "bad"))
    clients["alpha"].publish("bad", "poison", timeout=PATIENCE_SECONDS)
    options = {"durable": "one", "ack": "manual", "ack_wait": 0.2, "max_deliveries": 1}
    with clients["gamma"].subscribe("bad", **options) as reader:
        assert received(reader, 1) == ["poison"]
        letter = eventually(
            lambda: next((x for x in clients["gamma"].dead_letters() if x.address == "topic:bad"), None)
        )
        assert letter.sender == "one"
    topic = clients["alpha"].topic("bad")
    assert topic.reset_position("one", "oldest").next_offset == 1
    topic.delete_position("one")
    assert clients["gamma"].topic("bad").positions() == []


def test_a_topic_is_deleted_from_any_host_and_begins_anew(hosts: Site, clients: Clients) -> None:
    keep(hosts["gamma"], "brief")
    eventually(lambda: _is_retained(clients, "brief"))
    with clients["alpha"].subscribe("brief", since="oldest") as reader:
        clients["beta"].publish("brief", 1, timeout=PATIENCE_SECONDS)
        assert received(reader, 1) == [1]
        clients["alpha"].topic("brief").delete()
        with pytest.raises(TopicNotFound):
            reader.receive(PATIENCE_SECONDS)
    eventually(lambda: not any(client.topics("brief") for client in clients.values()))
    keep(hosts["beta"], "brief")
    eventually(lambda: _is_retained(clients, "brief"))
    assert clients["gamma"].topic("brief").publish_all(["new"]) == 1
    assert clients["gamma"].topic("brief").describe().topic.home == "beta"


def test_commands_show_the_home_and_an_admin_of_another_host_changes_the_bounds(hosts: Site, clients: Clients) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["topics", *arguments, "--dir", str(hosts["gamma"].dir)])
        assert done.exit_code == 0, done.output
        return done.output

    run("keep", "by.command", "--messages", "2", "--home", "beta", "--timeout", str(PATIENCE_SECONDS))
    assert "beta" in next(line for line in run("list").splitlines() if line.startswith("by.command"))
    assert json.loads(run("describe", "by.command", "--json"))["topic"]["home"] == "beta"
    clients["alpha"].topic("by.command").publish_all([1, 2, 3])
    eventually(lambda: clients["gamma"].topic("by.command").describe().messages == 2)
    run("keep", "by.command", "--messages", "1", "--replace")
    eventually(lambda: clients["alpha"].topic("by.command").describe().messages == 1)
    run("delete", "by.command", "--yes")
    eventually(lambda: "by.command" not in run("list", "--json"))


def test_http_of_any_hub_shows_reads_and_publishes(hosts: Site, clients: Clients, orders: str) -> None:
    hub = hosts.add("epsilon", "--http", "127.0.0.1:0", "--no-gateway")
    for name in NAMES:
        await_known(hosts[name], "epsilon")
    token = (hub.dir / "http.token").read_text().strip()

    def ask(path: str, body: Message | None = None) -> Message:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{hub.http}/api/v1/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)

    listed = {one["name"]: one for one in ask("topics")}
    assert listed[orders]["home"] == "beta"
    offset = ask(f"topics/{orders}/messages", {"json": "by http"})["offset"]
    assert ask(f"topics/{orders}/messages?offset={offset}")["messages"][0]["payload"] == "ImJ5IGh0dHAi"
    assert ask("topics/by.http", {"keep": {"messages": 5}, "home": "gamma"})["topic"]["home"] == "gamma"
    hub.stop()


def test_rights_and_audit_are_those_of_the_hub_that_is_asked(hosts: Site, clients: Clients, orders: str) -> None:
    delta = hosts.add("delta", "--no-http", "--no-gateway", "--endpoint", "tcp://127.0.0.1:0", "--curve")
    runner = CliRunner()
    made = runner.invoke(app, ["keys", "new", "reader", "--role", "consume:other.>", "--dir", str(delta.dir)])
    assert made.exit_code == 0, made.output
    with on(delta) as there:
        offset = there.publish(orders, "from delta", timeout=PATIENCE_SECONDS)
        with there.subscribe(orders, since=offset) as reader:
            assert received(reader, 1) == ["from delta"]
        eventually(lambda: keep(hosts["alpha"], "of.delta", home="delta").get("topic"))  # once alpha knows delta
        eventually(lambda: there.topics("of.delta"))
        eventually(lambda: _is_retained(clients, "of.delta"))
        clients["gamma"].publish("of.delta", "stored there", timeout=PATIENCE_SECONDS)
        with clients["alpha"].subscribe("of.delta", durable="one") as reader:
            assert received(reader, 1) == ["stored there"]
        said = "".join(path.read_text() for path in delta.dir.glob("audit*"))
        assert "POSITION_OPEN" in said
        assert "host:alpha" in said
    delta.stop()


def test_a_home_that_does_not_answer_is_named_in_time_and_nothing_is_stored_twice(
    hosts: Site, clients: Clients, orders: str
) -> None:
    with clients["alpha"].subscribe(orders, since="newest") as reader, clients["alpha"].subscribe("plain") as plain:
        hosts["beta"].signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(SendTimeout, match="messages on host 'beta', which does not answer"):
                clients["alpha"].publish(orders, "given up", timeout=4.0)
            with pytest.raises(HomeHostUnavailable, match="'beta'"):
                clients["alpha"].topic(orders).describe(timeout=5.0)
            with pytest.raises(HomeHostUnavailable, match="'beta'"):
                clients["alpha"].subscribe(orders, since="oldest", timeout=5.0)
            assert time.monotonic() - began < 25
            (listed,) = clients["alpha"].topics(orders)
            assert (listed.home, listed.next_offset) == ("beta", 0)
            clients["gamma"].publish("plain", "goes on", timeout=PATIENCE_SECONDS)
            clients["alpha"].publish("plain", "goes on here", timeout=PATIENCE_SECONDS)
            assert "goes on here" in received(plain, 1) or received(plain, 1)
            results: list[int] = []
            waiting = threading.Thread(
                target=lambda: results.append(clients["alpha"].publish(orders, "patient", timeout=PATIENCE_SECONDS))
            )
            waiting.start()
        finally:
            hosts["beta"].signal(signal.SIGCONT)
        waiting.join(PATIENCE_SECONDS)
        assert results
        clients["alpha"].publish(orders, "end", timeout=PATIENCE_SECONDS)
        seen: list[object] = []
        while "end" not in seen:
            seen += received(reader, 1)
        assert seen.count("patient") == 1
        assert seen.count("given up") <= 1


def test_publishing_and_reading_go_on_while_no_hub_leads_and_etcd_is_away(
    hosts: Site, clients: Clients, orders: str, member: EtcdMember
) -> None:
    with clients["gamma"].subscribe(orders, since="newest") as stored, clients["gamma"].subscribe("new.plain") as plain:
        member.pause()
        try:
            eventually(lambda: "etcd does not confirm" in str(hosts["gamma"].ask({"type": "PING"}).get("problems")))
            refused = keep(hosts["gamma"], "another")
            assert (refused["code"], refused["retryable"]) == ("STORE_READ_ONLY", True)
            assert clients["alpha"].publish(orders, "stored", timeout=PATIENCE_SECONDS)
            assert received(stored, 1) == ["stored"]
            began = time.monotonic()
            for number in range(5):  # topics of which nobody has asked before
                clients["gamma"].publish(f"never.heard.of.{number}", b"x")
            assert time.monotonic() - began < 4.0
            clients["gamma"].publish("new.plain", "plain")
            assert received(plain, 1) == ["plain"]
        finally:
            member.go_on()
    eventually(lambda: any(hosts[name].is_leader() for name in NAMES))
    assert eventually(lambda: keep(hosts["gamma"], "another").get("topic"))["home"] == "gamma"


def test_each_message_that_was_acknowledged_is_there_once_after_the_home_was_killed_while_others_published(
    hosts: Site, clients: Clients, orders: str
) -> None:
    first = clients["alpha"].publish(orders, "begin", timeout=PATIENCE_SECONDS)
    acknowledged: dict[str, list[int]] = {"alpha": [], "gamma": []}
    stop, failures = threading.Event(), []

    def publish(name: str) -> None:
        number = 0
        while not stop.is_set():
            try:
                clients[name].publish(orders, [name, number], timeout=PATIENCE_SECONDS)
            except HubError as error:
                failures.append(error)
                return
            acknowledged[name].append(number)
            number += 1

    with clients["gamma"].subscribe(orders, since=first) as reader:
        threads = [threading.Thread(target=publish, args=(name,)) for name in acknowledged]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                before = {name: len(done) for name, done in acknowledged.items()}
                eventually(lambda before=before: all(len(acknowledged[n]) > before[n] + 5 for n in before))
                hosts["beta"].kill()
                hosts["beta"].start()
            before = {name: len(done) for name, done in acknowledged.items()}
            eventually(lambda: all(len(acknowledged[n]) > before[n] + 5 for n in before))
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
        assert not failures
        with on(hosts["beta"]) as there:
            end = eventually(lambda: _published(there, orders, "end"))
        found: dict[str, list[int]] = {"alpha": [], "gamma": []}
        for _ in range(end - first):
            message = reader.receive(PATIENCE_SECONDS)
            if isinstance(message.payload, list):
                found[message.payload[0]].append(message.payload[1])
        assert found == acknowledged
        assert reader.lost == 0


def test_readers_on_other_hosts_go_on_with_their_position_after_the_home_was_started_again(
    hosts: Site, clients: Clients
) -> None:
    keep(hosts["beta"], "steady", home="beta")
    eventually(lambda: _is_retained(clients, "steady"))
    with clients["gamma"].subscribe("steady", durable="one") as reader:
        clients["alpha"].publish("steady", 1, timeout=PATIENCE_SECONDS)
        assert received(reader, 1) == [1]
        hosts["beta"].kill()
        hosts["beta"].start()
        clients["alpha"].publish("steady", 2, timeout=PATIENCE_SECONDS)
        assert set(map(int, _until(reader, 2))) <= {1, 2}  # 1 may come again: it was not acknowledged
        clients["alpha"].publish("steady", 3, timeout=PATIENCE_SECONDS)
        assert 3 in _until(reader, 3)


def test_a_topic_is_given_up_while_its_home_is_away_and_gone_when_it_is_back(hosts: Site, clients: Clients) -> None:
    keep(hosts["beta"], "given.up", home="beta")
    eventually(lambda: _is_retained(clients, "given.up"))
    clients["alpha"].publish("given.up", b"x", timeout=PATIENCE_SECONDS)
    hosts["beta"].stop()
    try:
        eventually(lambda: "beta" not in _alive(hosts["alpha"]))
        with pytest.raises(HomeHostUnavailable, match="whose hub is gone"):
            clients["alpha"].topic("given.up").describe()
        done = CliRunner().invoke(app, ["topics", "list", "--dir", str(hosts["alpha"].dir)])
        assert "beta (does not answer)" in done.output
        said = CliRunner().invoke(app, ["topics", "delete", "given.up", "--yes", "--dir", str(hosts["alpha"].dir)])
        assert said.exit_code == 0, said.output
    finally:
        hosts["beta"].start()
    with on(hosts["beta"]) as there:
        eventually(lambda: not there.topics("given.up"))
    with closing(sqlite3.connect(hosts["beta"].dir / "retained.db")) as database:
        eventually(lambda: not _stored(database, "given.up"))


def test_a_message_is_traced_at_its_home_and_elsewhere(hosts: Site, clients: Clients) -> None:
    orders = "traced.here"
    keep(hosts["beta"], orders)
    eventually(lambda: _is_retained(clients, orders))
    with clients["beta"].subscribe(orders, durable="traced", since="newest") as reader:
        offset = _published(clients["alpha"], orders, "traced")
        assert _until_offset(reader, offset).payload == "traced"
        found = clients["beta"].trace_message(orders, offset=offset, wait=False)
        assert found.home is None
        assert [each.position for each in found.positions if each.position == "traced"] == ["traced"]
        assert found.published_at is not None
    elsewhere = clients["alpha"].trace_message(orders, offset=offset, wait=False)
    assert (elsewhere.home, elsewhere.positions) == ("beta", [])
    with pytest.raises(InvalidRequest, match="has no message at offset"):
        clients["beta"].trace_message(orders, offset=10**6, wait=False)


def test_a_trace_away_from_home_says_where_to_ask(hosts: Site, clients: Clients, orders: str) -> None:
    offset = _published(clients["alpha"], orders, "shown")
    asked = ["trace", "--topic", orders, "--offset", str(offset), "--dir"]
    said = CliRunner().invoke(app, [*asked, str(hosts["alpha"].dir)])
    assert said.exit_code == 0, said.output
    assert "run this on beta" in said.output
    assert "run this on" not in CliRunner().invoke(app, [*asked, str(hosts["beta"].dir)]).output


def test_a_home_that_begins_in_a_new_directory_refuses_what_it_has_lost(hosts: Site, clients: Clients) -> None:
    keep(hosts["gamma"], "left.behind")
    eventually(lambda: _is_retained(clients, "left.behind"))
    clients["alpha"].publish("left.behind", b"x", timeout=PATIENCE_SECONDS)
    hosts["gamma"].stop()
    for name in ("retained.db", "retained.db-wal", "retained.db-shm", "retained-since"):
        (hosts["gamma"].dir / name).unlink(missing_ok=True)
    hosts["gamma"].start()
    refused = eventually(lambda: _refusal(hosts["alpha"], "left.behind", "STORE_ERROR"))
    assert "another directory of the hub of host 'gamma'" in refused["message"]
    assert "left.behind" in str(hosts["gamma"].ask({"type": "PING"})["problems"])
    delete = {"type": "TOPIC_DELETE", "topic": "left.behind"}
    while (said := hosts["alpha"].ask(delete)).get("code") == "STORE_READ_ONLY":
        pass  # gamma may have led the site
    assert said["type"] == "TOPIC_DELETE_ACK" or said["code"] == "TOPIC_NOT_FOUND"  # carried out without an answer
    eventually(lambda: "left.behind" not in str(hosts["gamma"].ask({"type": "PING"}).get("problems")))


def _is_retained(clients: Clients, topic: str) -> bool:
    """Whether every hub has the definition, so that no publisher takes the topic for a plain one."""
    try:
        return all(client.topics(topic) for client in clients.values())
    except HubError:  # of a hub that was started again a moment ago
        return False


def _hears(subscription: Subscription) -> bool:
    """Whether a message comes within a moment."""
    try:
        subscription.receive(0.3)
    except TimeoutError:
        return False
    return True


def _known_to_the_end(client: MessageHub, topic: str) -> list[RetainedTopic]:
    """The topic as it is listed, once its home host has said in time how far it is."""
    return [listed for listed in client.topics(topic) if listed.next_offset]


def _alive(hub: SiteHub) -> set[str]:
    return {each["host"] for each in hub.hosts()["hosts"] if each["health"] != "lost"}


def _published(hub: MessageHub, topic: str, payload: object) -> int:
    return hub.publish(topic, payload, timeout=PATIENCE_SECONDS)


def _until_offset(reader: Subscription, offset: int) -> TopicMessage:
    while (message := reader.receive(PATIENCE_SECONDS)).offset != offset:
        pass
    return message


def _until(reader: Subscription, last: int) -> list[int]:
    seen: list[int] = []
    while last not in seen:
        seen.append(reader.receive(PATIENCE_SECONDS).payload)
    return seen


def _refusal(hub: SiteHub, topic: str, code: str) -> Message | None:
    said = hub.ask({"type": "TOPIC_DESCRIBE_REQUEST", "topic": topic})
    return said if said.get("code") == code else None


def _stored(database: sqlite3.Connection, topic: str) -> bool:
    query = "SELECT count(*) FROM topics WHERE json_extract(record, '$.name') = ?"
    return bool(database.execute(query, (topic,)).fetchone()[0])
