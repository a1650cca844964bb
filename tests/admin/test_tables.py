"""Tables over HTTP: shown like rings, listed, dropped, destroyed with their channel."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import MessageHub
from tests.admin.conftest import Web

TABLE = pa.table({"x": [1, 2, 3]})


@pytest.fixture
def hub(web: Web) -> Iterator[MessageHub]:
    domain = f"pytest-{os.getpid()}-{web.directory.name}"
    with MessageHub(dir=web.directory, domain=domain) as connected:
        yield connected
    for ring in Path("/dev/shm").glob(f"pylabhub_*@{domain}"):
        ring.unlink()


def test_a_table_is_shown_like_a_ring(web: Web, hub: MessageHub) -> None:
    hub.publish_table("web.table", TABLE)
    with hub.producer("web.ring", schema=TABLE.schema):
        ring = web.ask("GET", "/api/v1/channels/web.ring/discovery").json()
        table = web.ask("GET", "/api/v1/channels/web.table/discovery").json()
    assert ring.keys() == table.keys()
    for name in ("schema", "schema_id", "schema_version", "schema_hash", "schema_type", "status"):
        assert ring[name] == table[name], name
    assert ring["blocks"][0]["host"] == table["blocks"][0]["host"] == table["table"]["host"]
    assert (table["table"]["pid"], table["schema"]) == (os.getpid(), "verified")


def test_tables_are_listed_and_dropped(web: Web, hub: MessageHub) -> None:
    hub.publish_table("web.dropped", TABLE)
    listed = web.ask("GET", "/api/v1/tables?prefix=web.dropped").json()
    assert [(one["channel"], one["table"]["rows"]) for one in listed] == [("web.dropped", 3)]
    assert web.ask("DELETE", "/api/v1/tables/web.dropped", headers={"authorization": ""}).status_code == 401
    dropped = web.ask("DELETE", "/api/v1/tables/web.dropped")
    assert (dropped.status_code, dropped.json()["table"]["generation"]) == (200, 1)
    assert web.ask("GET", "/api/v1/tables?prefix=web.dropped").json() == []
    again = web.ask("DELETE", "/api/v1/tables/web.dropped")
    assert (again.status_code, again.json()["code"]) == (404, "TABLE_NOT_FOUND")


def test_a_channel_is_destroyed_with_its_table_or_not_at_all(web: Web, hub: MessageHub) -> None:
    hub.publish_table("web.whole", TABLE)
    refused = web.ask("DELETE", "/api/v1/channels/web.whole")
    assert (refused.status_code, refused.json()["code"]) == (409, "CHANNEL_HAS_TABLE")
    assert web.ask("DELETE", "/api/v1/channels/web.whole?data=true").status_code == 200
    assert web.ask("GET", "/api/v1/channels/web.whole").status_code == 404
    hub.disconnect()  # whose memory of it would answer
    assert hub.discover("web.whole") is None
