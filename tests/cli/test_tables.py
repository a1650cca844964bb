"""`messagehub tables`, `channels destroy --data`, and `blocks` of tables."""

import os
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.cli.watch import line
from messagehub.shm.channel_directory.directory import Directory
from registry import events
from registry.records import Table
from tests.cli.program import Program

TABLE = pa.table({"x": pa.array(range(1000))})


@pytest.fixture
def results(alone: Program) -> Program:
    with MessageHub(domain=alone.environment["MESSAGEHUB_DOMAIN"], dir=alone.dir) as hub:
        hub.publish_table("results", TABLE, metadata={"run": 7})
        hub.publish_table("checked", TABLE, checksum="write")
    return alone


def blocks(program: Program) -> dict[str, dict[str, object]]:
    return {str(block["channel"]): block for block in program.call_json("blocks", "list")}


def change_a_byte(program: Program, channel: str) -> None:
    """In the middle of the values, where nothing but a checksum tells."""
    (path,) = Path(Directory(program.environment["MESSAGEHUB_DOMAIN"]).tables_path(channel)).glob("*.arrow")
    with path.open("r+b") as block:
        block.seek(os.path.getsize(path) * 3 // 4)
        byte = block.read(1)
        block.seek(-1, os.SEEK_CUR)
        block.write(bytes([byte[0] ^ 1]))


def test_tables_are_listed_and_dropped_without_a_broker(results: Program) -> None:
    listed = results.call_json("tables")
    assert [(one["channel"], one["table"]["rows"]) for one in listed] == [("checked", 1000), ("results", 1000)]
    assert listed[1]["table"]["metadata"] == {"run": 7}
    assert results.call("tables", "list", "res").stdout.split()[:2] == ["CHANNEL", "ROWS"]
    done = results.call("tables", "drop", "results", code=1, stdin="n\n")
    assert "Drop the table of channel results?" in done.stderr
    assert "is dropped (generation 1, 1000 rows)" in results.call("tables", "drop", "results", "--yes").stdout
    assert results.call("tables", "list", "res").stdout == "no tables of channels that start with 'res'\n"
    assert '"code": "TABLE_NOT_FOUND"' in results.call("tables", "drop", "results", "-y", "--json", code=1).stdout


def test_small_parts_are_packed(results: Program) -> None:
    with MessageHub(domain=results.environment["MESSAGEHUB_DOMAIN"], dir=results.dir) as hub:
        hub.publish_table("results", TABLE, mode="append")
    assert "has 1 part now (generation 3, 2000 rows)" in results.call("tables", "compact", "results").stdout
    assert "no small parts" in results.call("tables", "compact", "results").stdout
    assert results.call_json("tables", "compact", "results") == {
        "channel": "results",
        "generation": None,
        "parts": None,
    }
    assert "has no table in the memory of this host" in results.call("tables", "compact", "nobody", code=1).stderr


def test_a_tables_manifest_is_inspected(results: Program) -> None:
    block = blocks(results)["results"]
    assert str(block["shm_name"]).endswith("/tables/g000000000001.json")
    shown = results.call_json("blocks", "inspect", str(block["shm_name"]))
    assert (shown["kind"], shown["generation"], shown["rows"]) == ("TABLE", 1, 1000)
    assert shown["metadata"] == {"run": 7}
    assert '"name":"x"' in shown["schema"]
    (part,) = shown["parts"]
    assert "generation" in results.call("blocks", "inspect", str(block["shm_name"])).stdout
    directory = os.path.dirname(str(block["shm_name"]))
    assert results.call_json("blocks", "inspect", directory)["generation"] == 1
    whole = results.call_json("blocks", "inspect", f"{directory}/{part['name']}")
    assert (whole["kind"], whole["checksum"], whole["channel"]) == ("TABLE", "NONE", "results")


def test_verify_says_where_there_is_nothing_to_compare(results: Program) -> None:
    for channel in ("results", "checked"):
        change_a_byte(results, channel)
    verified = {one["channel"]: one for one in results.call_json("blocks", "verify", code=1)}
    plain = verified["results"]
    assert (plain["checked"], plain["unchecked"], plain["flaw"]) == (0, 1, None)
    assert "checksum" in verified["checked"]["flaw"]
    said = results.call("blocks", "verify", "res").stdout
    assert "no checksum, nothing to compare" in said
    assert "ok" not in said.split()


def test_watch_says_what_was_committed_by_whom_and_that_it_is_gone() -> None:
    table = Table(generation=2, shm_name="/t", rows=5, host="far", user="eve\x1b[31m", application="app-1", pid=7)
    said = line(events.TableCommitted(channel="c", table=table))
    assert "table committed  generation 2, 5 rows, schema unverified, on far, by eve" in said
    assert "app-1 pid 7" in said
    assert "\x1b" not in said
    assert line(events.TableCommitted(channel="c", table=None)).endswith("no table is left")
    assert line(events.ChannelConflicted(channel="c", reason="two claim it")).endswith("two claim it")


def test_with_a_broker_a_channel_is_destroyed_with_its_data(hub: Program) -> None:
    with MessageHub(dir=hub.dir, domain=hub.environment["MESSAGEHUB_DOMAIN"]) as client:
        client.publish_table("cli.table", TABLE)
    listed = hub.call_json("tables", "list", "cli.")
    assert [(one["channel"], one["table"]["schema"]) for one in listed] == [("cli.table", "verified")]
    assert "schema verified (id" in hub.call("discover", "cli.table").stdout
    refused = hub.call("channels", "destroy", "cli.table", "--yes", code=1)
    assert "--data" in refused.stderr
    done = hub.call("channels", "destroy", "cli.table", "--data", stdin="y\n")
    assert "a table of 1000 rows" in done.stderr
    assert "is destroyed" in done.stdout
    assert hub.call_json("tables", "list", "cli.") == []
    assert hub.call("channels", "cli.table").stdout == "no channel starts with 'cli.table'\n"
