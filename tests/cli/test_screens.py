"""What a person sees at a terminal of 80 and of 100 columns: a row is a line, sizes have units, states have colours."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.display.columns import columns_of
from tests.cli.program import Program

LONG = "lab.building7.room12.spectrometer.channel_a.intensity_corrected_by_dark_frame"
SCHEMA = pa.schema([("t", pa.float64()), ("value", pa.int32())])
VIEWS = [
    ["status"],
    ["status", "--requests"],
    ["channels"],
    ["channels", "describe", LONG],
    ["discover", LONG],
    ["schemas"],
    ["schemas", LONG],
    ["topics"],
    ["topics", "describe", LONG],
    ["services"],
    ["blocks"],
    ["tables"],
    ["trace"],
    ["doctor"],
    ["tail", LONG, "--start", "oldest", "-n", "1"],
]


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Program]:
    """A hub with long names, a ring, a large table, a retained topic and a service."""
    with tempfile.TemporaryDirectory(prefix="mh-") as place:
        program = Program(Path(place))
        program.configure()
        with program.serve() as broker:
            with (
                MessageHub(dir=program.dir, domain=program.environment["MESSAGEHUB_DOMAIN"]) as hub,
                hub.producer(LONG, schema=SCHEMA, capacity=64, page_size=65536, metadata={"unit": "counts"}) as ring,
                hub.serve("service:resize_pictures_of_the_spectrometer", lambda message, _: message.payload),
            ):
                ring.write(pa.record_batch([[0.0, 0.1], [1, 2]], schema=SCHEMA))
                hub.publish_table("sales.europe.daily.by_customer_and_product_group", pa.table({"id": np.arange(9000)}))
                hub.topic(LONG, keep=100)
                hub.publish(LONG, {"text": "x" * 3000})
                yield program
                hub.drop_table("sales.europe.daily.by_customer_and_product_group")
            assert broker.end() == 0, broker.err
        program.remove_blocks()


def without_escapes(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_no_line_is_wider_than_the_screen_and_lists_take_a_line_for_a_row(
    laboratory: Program, view: list[str], width: int
) -> None:
    shown = [without_escapes(line) for line in laboratory.on_a_screen(width, *view)]
    assert shown
    paths = [word for line in shown for word in line.split() if view == ["doctor"] and "/" in word]
    assert all(columns_of(line) <= width for line in shown if not any(path in line for path in paths)), shown
    if view in (["channels"], ["blocks"], ["schemas"]):
        assert sum("…" in line for line in shown if line.startswith("lab.buil")) == 1, shown
        assert all(line.split()[0] in ("CHANNEL", "SUBJECT", "no") or line[0] in "ls" for line in shown), shown


def test_sizes_have_units_and_states_have_colours(laboratory: Program) -> None:
    assert any("70.6 KiB" in line for line in laboratory.on_a_screen(100, "tables"))
    assert any("64 x 64 KiB" in line for line in laboratory.on_a_screen(100, "discover", LONG))
    assert any("100 messages, 64 MiB" in line for line in laboratory.on_a_screen(100, "topics"))
    assert any("\x1b[32mactive\x1b[0m" in line for line in laboratory.on_a_screen(100, "channels"))
    assert any("\x1b[32mhealthy\x1b[0m" in line for line in laboratory.on_a_screen(100, "status"))


def test_whoever_wants_no_colours_gets_none(laboratory: Program) -> None:
    laboratory.environment["NO_COLOR"] = "1"
    try:
        assert not any("\x1b" in line for line in laboratory.on_a_screen(100, "channels"))
    finally:
        del laboratory.environment["NO_COLOR"]
