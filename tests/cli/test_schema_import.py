"""`messagehub schemas import` with many requests in flight: order, refusals, and an end before the end."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messagehub import MessageHub
from messagehub.cli.schema_import import SchemaImport
from messagehub.errors import ModeNotSet
from registry.commands import RequestSchemaMode
from registry.records import SchemaVersion
from tests.access.shared import SharedHub
from tests.cli.program import DEADLINE_SECONDS, Program, Running, until
from tests.faults.chaos.storm import command_line, descendants

COUNT = 300


def line(
    subject: str, schema: Any, schema_id: int, *, version: int = 1, refers_to: tuple[str, ...] = ()
) -> dict[str, Any]:
    references = [{"name": name, "subject": name, "version": 1} for name in refers_to]
    place = {"subject": subject, "version": version, "schema_id": schema_id, "schema_type": "JSON", "schema_hash": "x"}
    return {"line": "schema", "schema": {**place, "schema": json.dumps(schema), "references": references}}


def text(lines: list[dict[str, Any]]) -> str:
    return "\n".join(map(json.dumps, lines))


def small(number: int) -> dict[str, Any]:
    return line(f"s{number}", {"title": f"{number}", "type": "object"}, number + 1)


@pytest.fixture
def empty(alone: Program) -> Iterator[Program]:
    alone.configure()
    with alone.serve() as broker:
        yield alone
        assert broker.end() == 0, broker.err


@contextmanager
def stopped_schema_worker(broker: Running) -> Iterator[None]:
    """No schema is checked meanwhile, so that every registration is under way or not begun."""

    def workers() -> list[int]:
        return [pid for pid in descendants(broker.process.pid) if "schema_worker" in command_line(pid)]

    (worker,) = until(workers, "a schema worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ends with its broker
            os.kill(worker, signal.SIGCONT)


def in_import_mode(hub: Program, subjects: list[str]) -> list[str]:
    """Those whose mode the import has changed and not given back."""
    found = []
    with MessageHub(dir=hub.dir) as connected:
        for subject in subjects:
            with contextlib.suppress(ModeNotSet):
                connected.ask(RequestSchemaMode(subject=subject))
                found.append(subject)
    return found


def test_what_is_referred_to_is_registered_before_what_refers_to_it(empty: Program) -> None:
    """Names are against the order, one chain is long, and one schema is referred to by all of the others."""
    base = line("zz.base", {"type": "integer"}, 1)
    chain = [
        line(
            f"c{COUNT - number:03}",
            {"$ref": f"c{COUNT - number + 1:03}"},
            number + 2,
            refers_to=(f"c{COUNT - number + 1:03}",),
        )
        for number in range(1, 30)
    ]
    chain.append(line(f"c{COUNT:03}", {"$ref": "zz.base"}, 2, refers_to=("zz.base",)))
    wide = [
        line(f"a{number}", {"items": {"$ref": "zz.base"}, "title": f"{number}"}, 100 + number, refers_to=("zz.base",))
        for number in range(COUNT)
    ]
    lines = [*wide, *chain, base]
    found = empty.json("schemas", "import", "-", stdin=text(lines))
    assert (len(found["imported"]), found["refused"], found["left"]) == (len(lines), [], 0)
    assert all(one["id"] == one["was"] for one in found["imported"])
    assert empty.call_json("schemas", "get", "c271")["references"] == [
        {"name": "c272", "subject": "c272", "version": 1}
    ]
    assert in_import_mode(empty, [one["schema"]["subject"] for one in lines]) == []


def test_versions_of_one_subject_keep_their_order_and_numbers(empty: Program) -> None:
    lines = [line("history", {"title": f"{number}"}, 500 - number, version=3 * number) for number in range(1, 100)]
    found = empty.call_json("schemas", "import", "-", stdin=text(lines))
    assert [one["version"] for one in found["imported"]] == [3 * number for number in range(1, 100)]
    listed = empty.call_json("schemas", "history")
    assert [(one["version"], one["schema_id"]) for one in listed] == [(3 * n, 500 - n) for n in range(1, 100)]


def test_a_bad_schema_is_named_with_its_reason_and_the_good_ones_are_imported(empty: Program) -> None:
    bad = line("bad", {"type": "strin"}, 1000)
    after_bad = line("bad", {"type": "string"}, 1001, version=2)
    refers = line("refers", {"$ref": "bad"}, 1002, refers_to=("bad",))
    lines = [*(small(number) for number in range(100)), bad, after_bad, refers]
    told = empty.call("schemas", "import", "-", stdin=text(lines), code=1)
    assert told.stdout == "imported 101, skipped 0, refused 2\n"
    said = told.stderr.splitlines()
    assert said[0].startswith("refused: bad version 1: Invalid schema: 'strin'")
    assert said[1].startswith("refused: refers version 1: Invalid schema: reference 'bad'")
    assert len(said) == 2
    again = empty.call_json("schemas", "import", "-", stdin=text(lines), code=1)
    assert (len(again["skipped"]), len(again["refused"]), again["left"]) == (101, 2, 0)
    assert in_import_mode(empty, ["bad", "refers", "s1"]) == []


def test_an_interrupted_import_completes_what_it_began_and_says_what_is_left(alone: Program) -> None:
    alone.configure()
    file = alone.place / "many.jsonl"
    file.write_text(text([small(number) for number in range(COUNT)]))
    with alone.serve() as broker:
        with stopped_schema_worker(broker):
            importing = alone.start("schemas", "import", str(file), "--json")
            until(lambda: in_import_mode(alone, ["s0"]), "a registration under way")
            importing.process.send_signal(signal.SIGINT)
        with importing:
            assert importing.process.wait(DEADLINE_SECONDS) == 1
            found = json.loads(importing.out)
            assert f"left: {found['left']} line" in importing.err
        assert 0 < len(found["imported"]) < COUNT
        assert len(found["imported"]) + found["left"] == COUNT
        assert (found["refused"], found["unrestored"]) == ([], [])
        assert in_import_mode(alone, [f"s{number}" for number in range(COUNT)]) == []
        assert len(alone.call_json("schemas")) == len(found["imported"]), "what was told is what is there"
        again = alone.call_json("schemas", "import", str(file))
        assert (len(again["skipped"]), len(again["imported"])) == (len(found["imported"]), found["left"])
        assert broker.end() == 0, broker.err


def test_an_import_whose_broker_is_killed_tells_what_is_done_and_goes_on_when_repeated(alone: Program) -> None:
    alone.configure()
    file = alone.place / "many.jsonl"
    file.write_text(text([small(number) for number in range(COUNT)]))
    with (
        alone.serve() as broker,
        stopped_schema_worker(broker),
        alone.start("schemas", "import", str(file), "--json") as importing,
    ):
        until(lambda: in_import_mode(alone, ["s0"]), "registrations under way")
        broker.process.kill()
        assert importing.process.wait(DEADLINE_SECONDS) == 3
        found = json.loads(importing.out)
    assert (found["imported"], found["left"], found["error"]["code"]) == ([], COUNT, "BROKER_UNAVAILABLE")
    assert found["unrestored"]
    assert "may still be in mode IMPORT" in importing.err
    with alone.serve() as broker:
        again = alone.call_json("schemas", "import", str(file))
        assert (len(again["imported"]), again["refused"], again["left"]) == (COUNT, [], 0)
        assert broker.end() == 0, broker.err


def test_an_import_that_is_too_fast_for_the_hub_waits_and_goes_on(tmp_path: Path) -> None:
    schemas = [msgspec.convert(small(number)["schema"], SchemaVersion) for number in range(100)]
    with SharedHub(tmp_path / "hub").running(requests_per_second=80) as shared, shared.local() as local:
        with shared.hub("schemas") as hub:
            importing = SchemaImport(hub, schemas, [])
            importing.run(lambda _: None, lambda: False)
        assert importing.failure is None
        assert (len(importing.imported), importing.refused, importing.left) == (100, [], 0)
        assert local.counter("refused_rate_limited") > 0
