"""The table of docs/explanation/without-a-broker.md, tried line by line."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagehub import HubError, MessageHub
from tests.integration.harness import ROOT, Served

PAGE = ROOT / "docs" / "explanation" / "without-a-broker.md"
STATES = ["with a broker", "none runs", "sick"]


def lines() -> list[tuple[str, dict[str, str]]]:
    """The calls, and what becomes of them in each state."""
    rows = [line.strip("|").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `hub.")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return [(call.strip("`"), dict(zip(STATES, outcomes, strict=True))) for call, *outcomes in cells]


def outcome(hub: MessageHub, call: str) -> Any:
    names = {"hub": hub, "table": pa.table({"a": [1]}), "handler": lambda message, context: message.payload}
    try:
        return eval(call, names)
    except HubError as error:
        return error


def is_as_said(found: Any, said: str) -> bool:
    if said.startswith("`"):
        return repr(found) == said.strip("`")
    if said == "waits":
        return not found and not found.is_closed
    if said.startswith("works"):
        return bool(found) and not isinstance(found, HubError)
    return type(found).__name__ == said


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mh-") as home:
        yield Path(home)


@pytest.mark.parametrize("state", STATES)
def test_every_call_does_what_the_table_says(state: str, place: Path) -> None:
    tried = lines()
    assert len(tried) > 30
    server = None if state == "none runs" else Served(place)
    if server is not None and state == "sick":
        server.signal(signal.SIGSTOP)
    opened: list[Any] = []
    wrong: list[str] = []
    try:
        with MessageHub(dir=place) as hub:
            for call, said in tried:
                found = outcome(hub, call)
                opened.append(found)
                if not is_as_said(found, said[state]):
                    wrong.append(f"{call}: {found!r}, not {said[state]}")
            for one in opened:
                close: Callable[[], object] = getattr(one, "close", lambda: None)
                close()
    finally:
        if server is not None:
            server.signal(signal.SIGCONT)
            server.close()
    assert wrong == []
