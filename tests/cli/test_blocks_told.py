"""`messagehub blocks` tells of damaged tables, and says where there is nothing to tell."""

from pathlib import Path

import pyarrow as pa

from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory
from tests.cli.program import Program


def test_a_damaged_manifest_is_listed_and_fails_the_verification(alone: Program) -> None:
    domain = alone.environment["MESSAGEHUB_DOMAIN"]
    with MessageHub(dir=alone.dir, domain=domain) as hub:
        for _ in range(2):
            hub.publish_table("prices", pa.table({"x": [1]}))
    newest = sorted(Path(Directory(domain).tables_path("prices")).glob("g*.json"))[-1]
    newest.write_text('{"generation": ')
    listed = alone.call_json("blocks", "list", "prices")
    assert [(one["head"], one["state"]) for one in listed] == [(1, "table"), (2, "damaged")]
    assert newest.name in listed[1]["flaw"]
    verified = alone.call_json("blocks", "verify", "prices", code=1)
    assert [one["flaw"] is None for one in verified] == [True, False]
    alone.call("tables", "drop", "prices", "--yes")
    assert alone.call_json("blocks", "list", "prices") == []


def test_verifying_a_mistyped_channel_says_that_nothing_is_there(alone: Program) -> None:
    assert alone.call("blocks", "verify", "prise").stdout == "no blocks of channels that start with 'prise'\n"
    assert alone.call("blocks", "verify").stdout == "no blocks\n"
