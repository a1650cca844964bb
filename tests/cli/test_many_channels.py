"""Lists of tens of thousands, for people and for pipes."""

import time

import pytest
import zmq

from messagehub.cli.columns import aligned
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


def lines(width: int | None, *, is_bold: bool = False) -> list[str]:
    rows = [["a", "short"], ["b", "x" * 30], ["名前", "wide"]]
    return list(aligned(("NAME", "VALUE"), rows, width=width, is_bold=is_bold))


def test_a_pipe_gets_whole_lines() -> None:
    assert lines(None) == ["NAME  VALUE", "a     short", f"b     {'x' * 30}", "名前  wide"]


def test_a_narrow_screen_gets_folded_cells() -> None:
    assert lines(20) == [
        "NAME  VALUE",
        "a     short",
        f"b     {'x' * 14}",
        f"      {'x' * 14}",
        "      xx",
        "名前  wide",
    ]


@pytest.mark.parametrize("width", [1, 5])
def test_a_screen_that_is_far_too_narrow_still_shows_everything(width: int) -> None:
    assert "".join(lines(width)).count("x") == 30


def test_headings_are_bold_and_without_them_the_first_column_is() -> None:
    assert lines(None, is_bold=True)[:2] == ["\x1b[1mNAME  VALUE\x1b[0m", "a     short"]
    fields = aligned((), [["health", "fine"]], width=80, is_bold=True)
    assert list(fields) == ["\x1b[1mhealth\x1b[0m  fine"]
