"""`messagehub top`: driven by textual's own pilot, printed for a pipe, and once in tmux."""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from messagehub import MessageHub
from messagehub.cli.dashboard.app import TopApp
from messagehub.cli.dashboard.columns import COLUMNS, DEFAULT_SORT, PARTS, fitting, rate
from messagehub.cli.dashboard.line_list import LineList
from messagehub.cli.dashboard.observer import HubObserver
from messagehub.display.columns import columns_of
from messagehub.settings import Settings
from tests.cli.program import DEADLINE_SECONDS, Program, until
from tests.debian import program_or_skip


@pytest.fixture(scope="module")
def watched(hub: Program) -> Iterator[Program]:
    """A hub with two written channels, a slow reader and a service."""
    with MessageHub(dir=hub.dir, domain=hub.environment["MESSAGEHUB_DOMAIN"]) as client:
        quick, idle = client.producer("sensor.quick"), client.producer("sensor.idle")
        slow = client.consumer("sensor.quick", consumer_id="slow-reader", lossless=False)
        client.serve("service:square", lambda message, context: message)
        for _ in range(30):
            quick.write(b"x" * 100)
        idle.write(b"y")
        yield hub
        slow.close()


def observer(program: Program) -> HubObserver:
    return HubObserver(Settings.for_client(dir=program.dir, domain=program.environment["MESSAGEHUB_DOMAIN"]))


def drive(program: Program, steps: Callable[[TopApp, Pilot[None]], Awaitable[None]], size: tuple[int, int]) -> None:
    """Run the screen without a terminal, and close all that it used."""
    watching = observer(program)

    async def run() -> None:
        app = TopApp(watching, contains="", by=DEFAULT_SORT["channels"], every=0.1)
        async with app.run_test(size=size) as pilot:
            await steps(app, pilot)

    try:
        asyncio.run(asyncio.wait_for(run(), DEADLINE_SECONDS))
    finally:
        watching.close()


async def shows(app: TopApp, pilot: Pilot[None], condition: Callable[[], Any], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS / 2
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not shown: {what}; {screen_text(app)}"
        await pilot.pause(0.02)


def screen_text(app: TopApp) -> str:
    """What the widgets say, line by line."""
    said = [str(widget.render()) for widget in app.query(Static) if widget.display]
    listed = app.query_one(LineList)
    return "\n".join([*said, *(" ".join(listed.texts(line)) for line in listed.lines)])


def names(app: TopApp) -> list[str]:
    return [line.channel for line in app.query_one(LineList).lines]  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [(80, 24), (130, 30)])
def test_the_screen_shows_channels_and_opens_one(watched: Program, size: tuple[int, int]) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(app, pilot, lambda: "sensor.quick" in screen_text(app), "the channel")
        assert "healthy" in screen_text(app)
        assert " 1:channels  2:hosts " in screen_text(app), "keys, which nobody takes for counts"
        await pilot.press("s", "s")  # by bytes/s, then by lag
        await shows(app, pilot, lambda: names(app)[0] == "sensor.quick", "the channel that lags most, first")
        for text in app.query_one(LineList).lines:
            assert sum(map(columns_of, app.query_one(LineList).texts(text))) <= size[0]
        await pilot.press("enter")
        await shows(app, pilot, lambda: "slow-reader" in screen_text(app), "the consumer")
        detail = str(app.query_one("#detail", Static).render())
        assert "sensor.quick/default" in detail
        assert "RING" in detail
        assert all(columns_of(line) <= size[0] for line in detail.splitlines())
        await pilot.press("escape")
        await shows(app, pilot, lambda: app.query_one(LineList).display, "the list")

    drive(watched, steps, size)


def test_hosts_services_and_events_have_lists_of_their_own(watched: Program) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(app, pilot, lambda: names(app), "channels")
        await pilot.press("2")
        await shows(app, pilot, lambda: "(this one)" in screen_text(app), "this host")
        await pilot.press("3")
        await shows(app, pilot, lambda: "service:square" in screen_text(app), "the service")
        await pilot.press("4")
        with MessageHub(dir=watched.dir, domain=watched.environment["MESSAGEHUB_DOMAIN"]) as client:
            client.register_producer("sensor.new", schema_hash="h", schema_version="1")
            await shows(app, pilot, lambda: "producer registered" in screen_text(app), "the event")

    drive(watched, steps, (80, 24))


def test_a_filter_is_typed_kept_and_taken_away(watched: Program) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(app, pilot, lambda: len(names(app)) >= 2, "channels")
        await pilot.press("slash", *"idle", "enter")
        await shows(app, pilot, lambda: names(app) == ["sensor.idle"], "that channel alone")
        await shows(app, pilot, lambda: 'with "idle"' in screen_text(app), "the filter")
        await pilot.press("escape")
        await shows(app, pilot, lambda: "sensor.quick" in names(app), "the others again")
        await pilot.press("r")
        await shows(app, pilot, lambda: "reversed" in screen_text(app), "the order")
        await pilot.press("q")

    drive(watched, steps, (80, 24))


def test_a_hub_that_goes_and_comes_back_is_shown(alone: Program) -> None:
    alone.configure()
    first = alone.serve()

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await shows(app, pilot, lambda: "healthy" in screen_text(app), "the hub")
        await asyncio.to_thread(first.end)
        await shows(app, pilot, lambda: "no broker answers" in screen_text(app), "that it is gone")
        await shows(app, pilot, lambda: "sensor.left" in names(app), "what the directory of this host knows")
        with await asyncio.to_thread(alone.serve) as second:
            await shows(app, pilot, lambda: "healthy" in screen_text(app), "that it is back")
            await pilot.press("4")
            await shows(app, pilot, lambda: "answers again" in screen_text(app), "the event")
            await asyncio.to_thread(second.end)

    client = MessageHub(dir=alone.dir, domain=alone.environment["MESSAGEHUB_DOMAIN"])
    with first, client, client.producer("sensor.left"):
        drive(alone, steps, (80, 24))


def test_one_screen_is_printed_where_no_terminal_is(watched: Program) -> None:
    printed = watched.run("top", "--sort", "lag", "--every", "0.6").stdout
    lines = printed.splitlines()
    assert lines[0].startswith("MessageHub healthy")
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:2] == ["CHANNEL", "STATUS"]
    assert table[1].startswith("sensor.quick")
    assert "slow-reader" in table[1]
    assert "service:square" in printed


def test_one_screen_as_json_has_rates_and_lag(watched: Program) -> None:
    found = watched.call_json("top", "quick", "--every", "0.6")
    assert [one["channel"] for one in found["channels"]] == ["sensor.quick"]
    assert found["channels"][0]["flow"]["lag_items"] == 30
    assert found["has_rates"]


def test_without_a_broker_the_directory_is_shown_and_said_to_be(alone: Program) -> None:
    client = MessageHub(dir=alone.dir, domain=alone.environment["MESSAGEHUB_DOMAIN"])
    with client, client.producer("sensor.alone") as producer:
        producer.write(b"x")
        printed = alone.call("top", "--once", "--every", "0.1").stdout
    assert "no broker answers: this is what the directory of this host knows" in printed
    assert "sensor.alone" in printed


def test_a_column_that_does_not_exist_is_refused(alone: Program) -> None:
    assert "there are channel, status" in " ".join(alone.call("top", "--sort", "beauty", code=2).stderr.split())


def test_without_textual_it_says_which_extra_to_install(watched: Program) -> None:
    program = (
        "import sys, os; sys.modules['textual'] = None; sys.modules['textual.app'] = None\n"
        "from messagehub.cli.top import _show\n"  # private: without a terminal nothing else gets there
        "from messagehub.errors import ConfigurationError\n"
        "try:\n    _show(None, '', 0, 1.0)\nexcept ConfigurationError as error:\n    print(error.message)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=watched.environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'messagehub[top]'" in ran.stdout


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("part", PARTS)
def test_columns_fit_into_any_width(part: Any, width: int) -> None:
    kept = fitting(part, width)
    assert kept[0][0] is COLUMNS[part][0]
    if width >= 80:
        assert sum(room for _, room in kept) + len(kept) - 1 <= width


@pytest.mark.parametrize("per_second", [0.0, 0.01234, 99.96, 99_998.0, 123_456.7, 12_345_678.0, 5e9, 1e15])
def test_a_rate_has_at_most_seven_characters(per_second: float) -> None:
    assert len(rate(per_second)) <= 7


def test_in_tmux_it_draws_80_by_24_without_colour_and_q_ends_it(watched: Program, tmp_path: Path) -> None:
    tmux = program_or_skip("tmux", "tmux")
    server = [tmux, "-L", f"messagehub-{uuid.uuid4().hex}", "-f", os.devnull]
    variables = watched.environment | {"TERM": "vt100", "LANG": "C.UTF-8"}
    ended = tmp_path / "ended"
    command = f"{sys.executable} -m messagehub top --every 0.2; echo $? > {ended}"
    environment = [f"{name}={value}" for name, value in variables.items()]
    start = ["new-session", "-d", "-s", "top", "-x", "80", "-y", "24", "env", "-i", *environment, "sh", "-c", command]
    subprocess.run([*server, *start], check=True, timeout=DEADLINE_SECONDS, env=variables)

    def screen(*options: str) -> str:
        asked = [*server, "capture-pane", "-p", *options, "-t", "top"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False).stdout

    def drawn() -> list[str]:
        """The lines of the screen once it is drawn down to the last one."""
        lines = screen().splitlines()
        return lines if any("sensor.quick" in line for line in lines) and lines[-1].startswith("q quit") else []

    try:
        lines = until(drawn, "the channel on the screen")
        assert len(lines) <= 24
        assert lines[0].startswith("MessageHub healthy")
        assert "\x1b[3" not in screen("-e").replace("\x1b[39m", "")  # no colour of the foreground
        subprocess.run([*server, "send-keys", "-t", "top", "q"], check=True, timeout=DEADLINE_SECONDS)
        assert until(lambda: ended.exists() and ended.read_text(), "its end") == "0\n"
    finally:
        subprocess.run([*server, "kill-server"], check=False, timeout=DEADLINE_SECONDS, capture_output=True)


def test_json_of_a_screen_is_json_and_nothing_else(watched: Program) -> None:
    assert json.loads(watched.run("top", "--json", "--every", "0.1").stdout)["health"] == "healthy"
