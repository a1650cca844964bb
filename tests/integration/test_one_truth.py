"""A ring and a table show the same fields in Python, on the command line and over HTTP, on this host and another.

The other host talks to the broker over TCP. Spark's table is in tests/spark/test_one_truth.py.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import BlockOnOtherHost, TableOnOtherHost
from messagehub.shm.identity import host
from messagehub.shm.tables.tables import TableStore
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served, eventually
from tests.integration.other_host import NAME, Json, OtherHost, Views, delete

TABLE = pa.table({"id": pa.array([1, 2], pa.int64())})
ADDED_BY_CLIENT = {"source", "compatible", "differences"}
ADDED_BY_WIRE = {"type", "id"}
ABOUT_SCHEMA = ("schema", "schema_id", "schema_version", "schema_hash", "schema_type")

PROGRAM = """
from messagehub.errors import HubError
from tests.integration.other_host import Views

views = Views(hub, endpoint, http)
table = pa.table({"id": pa.array([3, 4, 5], pa.int64())})
producer = hub.producer("far.ring", schema=table.schema)
hub.publish_table("far.table", table)
say(pid=os.getpid())

def refusal(call, *arguments):
    try:
        call(*arguments)
    except HubError as error:
        return {"code": error.code, "message": str(error)}

for line in sys.stdin:
    word, _, channel = line.strip().partition(" ")
    if word == "views":
        say(**views.all(channel))
    elif word == "consume":
        say(refused=refusal(hub.consumer, channel))
    elif word == "drop":
        say(refused=refusal(hub.drop_table, channel))
    elif word == "publish":
        say(refused=refusal(hub.publish_table, channel, table))
    elif word == "close":
        producer.close()
        say(refused=None)
"""


class Hosts(NamedTuple):
    """This host with its broker, and another one."""

    broker: Served
    hub: MessageHub
    here: Views
    there: OtherHost
    pid_there: int

    def views_there(self, channel: str) -> dict[str, Json]:
        self.there.tell(f"views {channel}")
        return self.there.hear()

    def refused_there(self, word: str, channel: str) -> Any:
        self.there.tell(f"{word} {channel}")
        return self.there.hear()["refused"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("truth") / "hub", f"truth{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def hosts(place: Place) -> Iterator[Hosts]:
    addresses = ("--endpoint", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0")
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(Served(place.dir, *addresses, with_http=True))
        arguments = {"endpoint": broker.endpoint, "domain": place.domain}
        there = OtherHost(arguments, PROGRAM, endpoint=broker.endpoint, http=broker.http)
        stack.callback(there.close)
        hub = stack.enter_context(MessageHub(**arguments))
        stack.enter_context(hub.producer("near.ring", schema=TABLE.schema))
        hub.publish_table("near.table", TABLE)
        pid = there.hear()["pid"]
        yield Hosts(broker, hub, Views(hub, broker.endpoint, broker.http), there, pid)


@pytest.fixture(autouse=True)
def _domain_of_the_module(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", place.domain)


CHANNELS = ("near.ring", "near.table", "far.ring", "far.table")


@pytest.mark.parametrize("channel", CHANNELS)
def test_all_ways_to_ask_show_the_same_on_both_hosts(hosts: Hosts, channel: str) -> None:
    here, there = hosts.here.all(channel), hosts.views_there(channel)
    truth = here["python"]
    for shown in (here["cli"], there["cli"]):
        del shown["readers"]  # of the memory of the host that asks: nobody else can see them
    assert here["cli"] == there["python"] == there["cli"] == truth
    assert truth["source"] == "broker"
    for shown in (here["http"], there["http"]):
        assert shown.keys() - ADDED_BY_WIRE == truth.keys() - ADDED_BY_CLIENT
        assert {name: shown[name] for name in shown.keys() - ADDED_BY_WIRE} == {
            name: truth[name] for name in truth.keys() - ADDED_BY_CLIENT
        }


def test_a_ring_and_a_table_show_the_same_fields_wherever_they_are(hosts: Hosts) -> None:
    shown = {channel: hosts.here.python(channel) for channel in CHANNELS}
    for name in (*ABOUT_SCHEMA, "status"):
        assert len({one[name] for one in shown.values()}) == 1, name
    assert (shown["far.table"]["schema"], shown["far.table"]["schema_version"]) == ("verified", "1")
    for side, name, pid in (("near", host(), os.getpid()), ("far", NAME, hosts.pid_there)):
        [producer], table = shown[f"{side}.ring"]["producers"], shown[f"{side}.table"]["table"]
        for record in (producer, table):
            assert (record["host"], record["pid"]) == (name, pid)
            assert [record[field] for field in ABOUT_SCHEMA] == [shown["near.ring"][field] for field in ABOUT_SCHEMA]
        assert {one["host"] for kind in ("ring", "table") for one in shown[f"{side}.{kind}"]["blocks"]} == {name}
        assert table["hosts"] == {name: 1}


@pytest.mark.parametrize("kind", ["ring", "table"])
def test_a_consumer_on_the_wrong_host_is_told_both(hosts: Hosts, kind: str) -> None:
    with pytest.raises(BlockOnOtherHost, match=f"{NAME}.*{host()}"):
        hosts.hub.consumer(f"far.{kind}")
    refused = hosts.refused_there("consume", f"near.{kind}")
    assert refused["code"] == "BLOCK_ON_OTHER_HOST"
    assert f"'{host()}'" in refused["message"]
    assert f"'{NAME}'" in refused["message"]


def test_a_table_is_dropped_on_its_own_host_and_gone_for_all(hosts: Hosts) -> None:
    with pytest.raises(TableOnOtherHost, match=f"{NAME}.*{host()}"):
        hosts.hub.drop_table("far.table")
    assert hosts.here.cli("tables", "drop", "far.table", "--yes", code=1)["error"]["code"] == "TABLE_ON_OTHER_HOST"
    status, answer = delete(hosts.broker.http, "/api/v1/tables/far.table", hosts.broker.dir)
    assert (status, answer["code"]) == (409, "TABLE_ON_OTHER_HOST")
    assert hosts.refused_there("drop", "near.table")["code"] == "TABLE_ON_OTHER_HOST"
    listed = [one["channel"] for one in hosts.here.cli("tables")]
    assert listed == ["far.table", "near.table"]
    assert hosts.refused_there("drop", "far.table") is None
    eventually(lambda: hosts.hub.discover("far.table") is None)
    assert [one["channel"] for one in hosts.here.cli("tables")] == ["near.table"]


@pytest.mark.parametrize("way", ["python", "cli", "http"])
def test_of_two_hosts_that_publish_one_channel_each_drops_its_own_table(hosts: Hosts, place: Place, way: str) -> None:
    channel = f"both.{way}"
    hosts.hub.publish_table(channel, TABLE)
    assert hosts.refused_there("publish", channel) is None
    assert hosts.here.python(channel)["table"]["host"] == NAME
    if way == "python":
        assert hosts.hub.drop_table(channel).table.host == host()
    elif way == "cli":
        assert hosts.here.cli("tables", "drop", channel, "--yes")["host"] == host()
    else:
        status, answer = delete(hosts.broker.http, f"/api/v1/tables/{channel}", hosts.broker.dir)
        assert (status, answer["table"]["host"]) == (200, host())
    assert TableStore(place.directory.tables_path(channel)).generations() == []
    assert hosts.here.python(channel)["table"]["host"] == NAME, "the table of the other host stays"
    with pytest.raises(TableOnOtherHost, match=NAME):
        hosts.hub.drop_table(channel)
    assert hosts.refused_there("drop", channel) is None
    eventually(lambda: hosts.hub.discover(channel) is None)


def test_a_ring_that_is_closed_there_is_gone_here(hosts: Hosts) -> None:
    assert hosts.refused_there("close", "far.ring") is None
    eventually(lambda: hosts.hub.discover("far.ring") is None)
    assert hosts.here.cli("discover", "far.ring", code=1)["error"]["code"] == "CHANNEL_NOT_FOUND"
