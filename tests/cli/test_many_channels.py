"""Lists of tens of thousands, for people and for pipes."""

import time
from collections.abc import Collection

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from messagehub.display.columns import aligned, columns_of, paired
from tests.cli.program import Program
from tests.integration.harness import Peer

MANY = 20_000


def test_twenty_thousand_channels_are_listed_in_seconds(alone: Program) -> None:
    alone.configure()
    with alone.serve() as broker:
        with Peer(f"ipc://{alone.dir}/broker.sock", zmq.DEALER) as peer:
            for number in range(MANY):
                peer.send({"type": "CHANNEL_CREATE", "channel": f"many.c{number:05}", "schema_hash": "h" * 40})
                if number % 1000 == 999:
                    for _ in range(1000):
                        assert peer.receive()["type"] == "CHANNEL_CREATE_ACK"
        began = time.process_time()
        lines = alone.call("channels").stdout.splitlines()
        used = time.process_time() - began  # not what others on this machine took
        assert [line.split()[0] for line in lines] == ["CHANNEL", *(f"many.c{number:05}" for number in range(MANY))]
        assert {len(line.split()) for line in lines} == {8}
        assert used < 6.0, "it took 16 s and more"
        assert broker.end() == 0


ROWS = [["a", "short", "active"], ["b", "x" * 30 + "y" * 30, "stalled"], ["名前", "wide", "-"]]


def lines(width: int | None, *, is_coloured: bool = False, whole: Collection[str] = ()) -> list[str]:
    return list(aligned(("NAME", "VALUE", "STATUS"), ROWS, width=width, is_coloured=is_coloured, whole=whole))


def test_a_pipe_gets_whole_lines() -> None:
    room = " " * 55
    assert lines(None) == [
        f"NAME  VALUE  {room}STATUS",
        f"a     short  {room}active",
        f"b     {'x' * 30}{'y' * 30}  stalled",
        f"名前  wide   {room}-",
    ]


def test_on_a_narrow_screen_long_cells_lose_their_middle_and_a_row_stays_a_line() -> None:
    assert lines(40) == [
        "NAME  VALUE                      STATUS",
        "a     short                      active",
        f"b     {'x' * 12}…{'y' * 12}  stalled",
        "名前  wide                       -",
    ]


def test_what_finds_no_room_is_named() -> None:
    assert lines(27) == [
        "NAME  VALUE",
        "a     short",
        f"b     {'x' * 10}…{'y' * 10}",
        "名前  wide",
        "no room for: STATUS",
    ]
    told = lines(70, whole=("VALUE",))
    assert (told[2], told[-1]) == (f"b     {'x' * 30}{'y' * 30}", "no room for: STATUS"), "a key is shown whole"


@pytest.mark.parametrize("width", [1, 5, 12])
def test_a_screen_that_is_far_too_narrow_still_shows_the_names(width: int) -> None:
    assert [line.split()[0] for line in lines(width)[:4]] == ["NAME", "a", "b", "名前"]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=9), st.integers(8, 200))
def test_no_line_of_a_table_is_wider_than_the_screen(cells: list[str], width: int) -> None:
    names = [f"N{at}" for at in range(len(cells))]
    shown = list(aligned(names, [cells], width=width, is_coloured=False))
    assert all(columns_of(line) <= width for line in shown[:2])


def test_names_and_values_are_folded_and_not_shortened() -> None:
    told = list(paired([("shm name", "x" * 30), ("b", "c")], width=25, is_coloured=False))
    assert told == [f"shm name  {'x' * 15}", f"          {'x' * 15}", "b         c"]


def test_headings_are_bold_and_states_have_colours() -> None:
    told = lines(80, is_coloured=True)
    assert told[0].startswith("\x1b[1mNAME ")
    assert told[1].endswith("\x1b[32mactive\x1b[0m")
    assert told[2].endswith("\x1b[33mstalled\x1b[0m")
    assert told[3].endswith("-")
    fields = paired([("health", "read-only: its disk is full")], width=80, is_coloured=True)
    assert list(fields) == ["\x1b[1mhealth\x1b[0m  \x1b[33mread-only: its disk is full\x1b[0m"]
