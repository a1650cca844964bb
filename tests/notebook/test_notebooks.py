"""Notebooks: a real one, run by nbclient in a real kernel against a real hub; and the HTML that it is made of."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest
from IPython.core.formatters import HTMLFormatter
from nbclient import NotebookClient

from messagehub import MessageHub, embedded_broker
from messagehub.display import markup
from messagehub.display.listing import Listing
from registry.replies import ChannelSummary

html_of = HTMLFormatter()
NASTY = "<script>alert('x')</script>"
CELLS = {
    "hub": "hub = MessageHub(endpoint=ENDPOINT, domain=DOMAIN)\nhub.connect(required=True)\nhub",
    "producer": "producer = hub.producer('nb.ticks', schema=pa.schema([('t', pa.int64())]), metadata={'unit': NASTY})\n"
    "producer.write(pa.record_batch([pa.array([7, 8])], names=['t']))\nproducer",
    "consumer": "consumer = hub.consumer('nb.ticks', start='oldest')\nconsumer",
    "channels": "hub.channels()",
    "some": "hub.channels()[:1]",
    "consumers": "hub.consumers('nb.ticks')",
    "tables": "hub.publish_table('nb.table', pa.table({'a': [1, 2, 3]}))\nhub.tables()",
    "discovery": "other = pa.schema([('t', pa.string())])\nhub.register_schema('nb.other', other)\n"
    "hub.discover('nb.ticks', expected_schema=other)",
    "nobody": "hub.consumers('nb.table')",
    "load": "%load_ext messagehub",
    "status": "%hub status",
    "magic": "%hub channels nb.ti",
    "tail": "%hub tail nb.ticks",
    "describe": "hub.describe('nb.ticks')",
    "wrong": "%hub dance",
    "closed": "consumer.close(); producer.close(); hub.close()\nhub",
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the last line of each cell showed, by media type."""
    place = tmp_path_factory.mktemp("notebook")
    domain = f"pytest-{os.getpid()}-notebook"
    first = "import pyarrow as pa\nfrom messagehub import MessageHub\n"
    with embedded_broker(dir=place / "hub", domain=domain) as endpoint:
        first += f"ENDPOINT, DOMAIN, NASTY = {endpoint!r}, {domain!r}, {NASTY!r}"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(source) for source in (first, *CELLS.values())],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        NotebookClient(notebook, timeout=60, allow_errors=True, kernel_name="python3").execute()
    found: dict[str, dict[str, Any]] = {}
    for name, cell in zip(CELLS, notebook.cells[1:], strict=True):
        outputs = [one for one in cell.outputs if one.output_type in ("execute_result", "error")]
        errors = [one for one in cell.outputs if one.output_type == "error" and name != "wrong"]
        assert not errors, errors
        found[name] = dict(outputs[-1].get("data", {})) if outputs else {"said": str(cell.outputs)}
        found[name]["all"] = str(cell.outputs)
    return found


def test_a_hub_shows_where_and_how_it_is(shown: dict[str, dict[str, Any]]) -> None:
    assert "healthy" in shown["hub"]["text/html"]
    assert "endpoint" in shown["hub"]["text/html"]
    assert shown["hub"]["text/plain"].startswith("<MessageHub at ")
    assert "closed" in shown["closed"]["text/html"]


def test_lists_are_tables(shown: dict[str, dict[str, Any]]) -> None:
    for name, expected in {
        "channels": "nb.ticks",
        "some": "nb.",
        "consumers": "consumer-",
        "tables": "nb.table",
    }.items():
        assert shown[name]["text/html"].startswith("<table"), name
        assert expected in shown[name]["text/html"]
    assert shown["channels"]["text/plain"].startswith("CHANNEL")
    assert shown["nobody"]["text/html"] == "<p>none</p>"


def test_members_show_what_they_are(shown: dict[str, dict[str, Any]]) -> None:
    assert "producer of nb.ticks" in shown["producer"]["text/html"]
    assert "t: int64" in shown["producer"]["text/html"]
    assert "1 item" in shown["consumer"]["text/html"]


def test_a_discovery_shows_the_differences_of_schemas_and_escapes_what_peers_said(
    shown: dict[str, dict[str, Any]],
) -> None:
    html = shown["discovery"]["text/html"]
    assert "compatible" in html
    assert "int64" in html  # the difference, in words
    for name in ("discovery", "describe"):
        assert NASTY not in shown[name]["text/html"]
    assert "&lt;script&gt;" in shown["describe"]["text/html"]
    assert "schema_id=None" not in shown["discovery"]["text/plain"]


def test_the_magic_shows_status_channels_and_the_newest_items(shown: dict[str, dict[str, Any]]) -> None:
    assert "healthy" in shown["status"]["text/html"]
    assert "nb.ticks" in shown["magic"]["text/html"]
    assert "nb.table" not in shown["magic"]["text/html"]
    assert ">7<" in shown["tail"]["text/html"]
    assert ">8<" in shown["tail"]["text/html"]
    assert "ChannelDescription" in shown["describe"]["text/html"]
    assert "%hub status" in shown["wrong"]["all"]


def test_importing_the_hub_imports_neither_ipython_nor_html() -> None:
    program = (
        "import sys, messagehub.hub; print(*{'IPython', 'html', 'messagehub.display.markup'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == []


def a_channel(name: str) -> ChannelSummary:
    return ChannelSummary(
        channel=name,
        status="active",
        declared=False,
        schema_hash="0123456789abcdef",
        schema_version=NASTY,
        producer_count=1,
        consumer_count=0,
        revision=1,
    )


def test_a_listing_is_a_list_in_all_respects() -> None:
    listed = Listing([a_channel("a"), a_channel("b")])
    assert listed == [a_channel("a"), a_channel("b")]
    assert pickle.loads(pickle.dumps(listed)) == listed
    assert msgspec.json.encode(listed) == msgspec.json.encode(list(listed))
    assert isinstance(listed[:1], Listing)
    assert listed[0].channel == "a"
    assert repr(Listing()) == "[]"
    assert repr(Listing(["plain", "text"])) == "['plain', 'text']"


def test_many_rows_are_bounded_and_counted() -> None:
    listed = Listing([a_channel(f"c{number}") for number in range(1000)])
    assert html_of(listed).count("<tr>") == markup.MAX_ROWS + 1
    assert "800 more" in html_of(listed)
    assert "940 more" in repr(listed)
    assert NASTY not in html_of(listed)


def test_a_hub_that_nobody_answers_is_shown_without_asking(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path / "hub") as hub:
        assert "not connected" in html_of(hub)
