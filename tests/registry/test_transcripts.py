"""Golden transcripts: text files of what is asked, when, and what comes of it, for people to read.

A line is a request (`> TYPE field=value …`), seconds that pass (`+ 15`), a broker's `restart`, or a comment (`#`).
What follows it, indented, is written by the registry: `<` the reply, `!` a refusal, `*` an event.
`pytest tests/registry/test_transcripts.py --rewrite-transcripts` writes that part anew; read the difference.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messagehub import protocol
from registry.channels.leases import Terms
from registry.errors import Refusal
from registry.registry import Registry
from tests.registry.observing import Watcher

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
TERMS = Terms(heartbeat_seconds=5.0, stall_seconds=15.0, lease_seconds=30.0)
DEFAULTS: tuple[Any, ...] = (None, "", [], {}, 0, 0.0)


class Player:
    def __init__(self) -> None:
        self.registry = Registry(terms=TERMS)
        self.now = 0.0

    def play(self, line: str) -> Iterator[str]:
        """What the registry says to one line."""
        if line.startswith("> "):
            yield from self._ask(line[2:])
        elif line.startswith("+ "):
            self.now += float(line[2:])
            yield from map(_event, self.registry.expire(now=self.now))
            yield from map(_event, self.registry.services.take_happened())
        elif line == "restart":
            self._restart()
        else:
            raise ValueError(f"neither a request, a wait nor a restart: {line!r}")

    def _ask(self, text: str) -> Iterator[str]:
        wire_type, *fields = text.split()
        message = {"type": wire_type} | {name: _value(value) for name, _, value in (f.partition("=") for f in fields)}
        command = protocol.decode(json.dumps(message).encode())
        try:
            reply, happened = self.registry.apply(command, now=self.now)
        except Refusal as refusal:
            yield f"  ! {refusal.code}: {refusal.message}"
            return
        yield f"  < {_shown(reply)}"
        yield from map(_event, happened)
        yield from map(_event, self.registry.services.take_happened())

    def _restart(self) -> None:
        """What a store would give back."""
        kept, catalog = Watcher(self.registry).channels.values(), self.registry.schemas
        revision = self.registry.revision
        self.registry = Registry(terms=TERMS)
        self.registry.schemas.restore(
            catalog.every(), last_id=catalog.last_id, configs=catalog.configs, modes=catalog.modes, revision=revision
        )
        self.registry.restore(kept, revision=revision, now=self.now)


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _event(event: Any) -> str:
    head = f"{event.revision} (after {event.previous})"
    return f"  * {head} {_shown(event, without=('revision', 'previous', 'at'))}"


def _shown(message: Any, without: tuple[str, ...] = ()) -> str:
    """The wire type, and the fields that say something, nested ones in short JSON."""
    plain = msgspec.to_builtins(message)
    wire_type = plain.pop("type")
    said = {name: _brief(value) for name, value in plain.items() if name not in without}
    return " ".join([wire_type, *(f"{name}={_text(value)}" for name, value in said.items() if _says_something(value))])


def _says_something(value: Any) -> bool:
    return isinstance(value, bool) or value not in DEFAULTS


def _brief(value: Any) -> Any:
    """Records without what is default, and hashes short enough to read."""
    if isinstance(value, dict):
        brief = {name: _brief(inner) for name, inner in value.items()}
        return {name: inner for name, inner in brief.items() if inner not in DEFAULTS}
    if isinstance(value, list):
        return [_brief(inner) for inner in value]
    return f"{value[:8]}…" if isinstance(value, str) and len(value) >= 36 and " " not in value else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def replayed(text: str) -> str:
    player = Player()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += player.play(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_what_the_registry_says(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    now = replayed(text)
    if request.config.getoption("--rewrite-transcripts"):
        path.write_text(now)
    else:
        assert now == text


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 5
