"""The directory of channels is input: whatever lies in it, the broker goes on, and shows what is wrong."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import registry.channels.consumers
import registry.schemas.rules
from messagehub import MessageHub
from messagehub.broker.schema_worker.checker import SchemaChecker
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.channel_directory.entries import table_details
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.tables.tables import TableStore
from messagehub.store.memory import MemoryStore
from registry.formats import arrow
from registry.schemas.checks import SchemaCheck, run_check
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Listener, Peer, eventually

pytestmark = pytest.mark.usefixtures("no_leaks")

SCHEMA = pa.schema([("n", pa.int64())])
LONE = "\ud800"
DEEP: Any = json.loads("[" * 400 + "]" * 400)
COMMAND = {"type": "PRODUCER_REGISTER", "schema_hash": "h", "schema_version": "1", "producer_id": "p", "lease": "L"}
HOSTILE: dict[str, dict[str, Any]] = {
    "surrogate-in-metadata": {"metadata": {"note": LONE}},
    "surrogate-in-version": {"schema_version": LONE},
    "surrogate-in-lease": {"lease": LONE},
    "deep-metadata": {"metadata": {"note": DEEP}},
    "large": {"metadata": {"note": "x" * (1 << 20)}},
    "too-large-to-parse": {"metadata": {"note": "x" * (5 << 20)}},
    "no-command": {"schema_hash": 7},
    "other-type": {"type": "CHANNEL_DESTROY"},
}


@pytest.fixture
def directory() -> Directory:
    return Directory(os.environ["MESSAGEHUB_DOMAIN"])


@pytest.fixture
def entries(directory: Directory) -> Iterator[Callable[..., None]]:
    """Write entries of living producers, as any process of this user may."""
    with ExitStack() as held:

        def write(channel: str, *, schema: Any = None, producer_id: str = "p", **fields: Any) -> None:
            entry = ProducerEntry(
                channel=channel,
                producer_id=producer_id,
                process=ProcessIdentity.current(),
                registered_at=1.0,
                schema=schema,
                details={"command": COMMAND | {"channel": channel} | fields},
            )
            with directory.locked(channel) as locked:
                held.enter_context(locked.register(entry))

        yield write


def conflict(peer: Peer, channel: str) -> str:
    return str(peer.ask({"type": "DISCOVERY_REQUEST", "channel": channel}).get("conflict") or "")


def test_hostile_entries_are_shown_as_conflicts_and_end_nothing(
    embedded: Callable[..., Embedded], entries: Callable[..., None]
) -> None:
    """While the broker runs, and again at its start."""
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        for name, fields in HOSTILE.items():
            entries(name, **fields)
        entries("surrogate-in-schema", schema={"title": LONE})
        entries("good")
        for name in (*HOSTILE, "surrogate-in-schema"):
            if name == "other-type":  # what an entry is follows from where it lies, not from what it says
                continue
            assert "cannot be read" in eventually(conflict, peer, name)
        assert eventually(lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "good"}).get("status")) == "active"
    again = embedded(**QUICK)
    with Peer(again.endpoint) as peer:
        assert "cannot be read" in conflict(peer, "surrogate-in-metadata")
        assert peer.ask({"type": "DISCOVERY_REQUEST", "channel": "good"})["status"] == "active"
        assert peer.counter("internal_errors") == 0


MANIFESTS: dict[str, dict[str, Any]] = {
    "surrogate-in-metadata": {"metadata": {"note": LONE}},
    "surrogate-in-user": {"user": LONE},
    "surrogate-in-schema": {"schema": LONE},
    "metadata-of-no-kind": {"metadata": 7},
    "pid-of-nobody": {"pid": 1 << 70},
    "deep-metadata": {"metadata": {"note": DEEP}},
    "large": {"metadata": {"note": "x" * (1 << 20)}},
    "schema-of-no-kind": {"schema": {"type": "no such type"}},
}
REFUSED = ("deep-metadata", "large", "schema-of-no-kind")  # the others cannot be read at all, and are no tables


def test_hostile_manifests_end_nothing(embedded: Callable[..., Embedded], directory: Directory) -> None:
    """While the broker runs, and again at its start; and without a broker they hide no other table."""
    table = pa.table({"n": [1]})
    text = arrow.from_arrow(SCHEMA)

    def publish(channel: str, **details: Any) -> None:
        directory.make_tables(channel)
        with contextlib.suppress(DataBlockError):  # whoever commits it looks at it, too late
            TableStore(directory.tables_path(channel)).publish(
                table.to_batches(),
                SCHEMA,
                now=1.0,
                schema_hash=arrow.parse(text, {}).hash,
                details=table_details(text) | details,
            )

    for start in ("runs", "starts"):
        broker = embedded(**QUICK)
        with Peer(broker.endpoint) as peer:
            if start == "runs":
                for name, details in MANIFESTS.items():
                    publish(name, **details)
                publish("good")
            good = {"type": "DISCOVERY_REQUEST", "channel": "good"}
            assert eventually(lambda: peer.ask(good).get("status")) == "active"  # noqa: B023
            for name in REFUSED:
                assert "table generation 1" in eventually(conflict, peer, name)
            assert peer.counter("internal_errors") == 0
    with MessageHub(dir=directory.path + "-none") as alone:
        assert "good" in [each.channel for each in alone.tables()]
        assert "good" in [each.channel for each in alone.channels()]


def test_names_that_are_no_text_hide_nobody(
    embedded: Callable[..., Embedded], entries: Callable[..., None], directory: Directory
) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        entries("good")
        channel = os.fsencode(directory.channel_path("good"))
        os.mkdir(os.path.join(os.fsencode(directory.path), b"\xff\xfe"))
        for name in (b"\xff\xfe.json", b" .json", b"x" * 230 + b".json"):
            with open(os.path.join(channel, name), "wb"):
                pass
        os.symlink("/etc/passwd", os.path.join(channel, b"link.json"))
        os.mkfifo(os.path.join(channel, b"fifo.json"))
        (Path(directory.channel_path("good")) / "fifo.lock").touch(mode=0o600)
        (Path(directory.channel_path("good")) / "link.lock").touch(mode=0o600)
        entries("later")
        found = eventually(lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "later"}).get("status"))
        assert found == "active"
        shown = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "good"})
        assert [producer["producer_id"] for producer in shown["producers"]] == ["p"]


def test_adopted_schemas_are_checked_outside_of_the_loop_and_a_refused_one_once(
    embedded: Callable[..., Embedded],
    entries: Callable[..., None],
    directory: Directory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    in_loop: list[object] = []
    checked: list[str] = []
    submit = SchemaChecker.submit

    def counted(checker: SchemaChecker, ticket: Any, check: SchemaCheck) -> bool:
        checked.append(check.text)
        return submit(checker, ticket, check)

    monkeypatch.setattr(SchemaChecker, "submit", counted)

    def watched(check: Any, **options: Any) -> Any:
        if threading.current_thread().name == "messagehub-broker":
            in_loop.append(check)
        return run_check(check, **options)

    for module in (registry.channels.consumers, registry.schemas.rules):
        monkeypatch.setattr(module, "run_check", watched)
    hub = MessageHub(dir=tmp_path / "none")
    with hub.producer("born", schema=SCHEMA):
        entries("refused", schema={"type": "no such type"}, schema_type="JSON")
        broker = embedded(**QUICK)
        with Peer(broker.endpoint) as peer:
            shown = peer.ask({"type": "DISCOVERY_REQUEST", "channel": "born"})
            assert (shown["status"], shown["schema"]) == ("active", "verified"), "from the first answer on"
            said = eventually(conflict, peer, "refused")
            assert "Invalid schema" in said
            entries("refused", schema={"type": "no such type"}, schema_type="JSON", producer_id="q")
            eventually(lambda: sum("no such type" in text for text in checked) == 2)
            for number in range(5):  # the channel is looked at again, five times
                for path in Path(directory.channel_path("refused")).iterdir():
                    if path.is_file():
                        os.close(os.open(path, os.O_WRONLY))
                entries(f"after{number}")
                eventually(
                    lambda n=number: peer.ask({"type": "DISCOVERY_REQUEST", "channel": f"after{n}"}).get("status")
                )
            assert sum("no such type" in text for text in checked) == 2, "once for each of its two producers"
            consumer = {"type": "CONSUMER_REGISTER", "channel": "born | pid:1-0", "consumer_id": "c"}
            refused = peer.ask(consumer | {"expected_schema_hash": "sha256:other"})
            assert refused["code"] == "SCHEMA_MISMATCH"
    hub.close()
    assert in_loop == []


class GatedStore(MemoryStore):
    """Writes wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.is_waiting = threading.Event()

    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        self.is_waiting.set()
        assert self.gate.wait(60)
        super().write(rows, revision=revision, durable=durable)


@pytest.mark.parametrize("kind", ["ring", "table"])
@pytest.mark.parametrize("moment", ["before the broker", "while it runs"])
def test_an_adopted_schema_is_shown_only_when_it_is_stored(
    embedded: Callable[..., Embedded], tmp_path: Path, kind: str, moment: str
) -> None:
    """By no request, no discovery and no event: a crash in between would give its id to another schema."""
    store = GatedStore()
    with ExitStack() as stack:
        hub = stack.enter_context(MessageHub(dir=tmp_path / "none"))

        def bear() -> None:
            if kind == "ring":
                stack.enter_context(hub.producer("born", schema=SCHEMA))
            else:
                hub.publish_table("born", pa.table({"n": [1]}))

        if moment == "before the broker":
            bear()
        broker = embedded(store=store, **QUICK)
        stack.callback(store.gate.set)
        peer, discovering, other = (stack.enter_context(Peer(broker.endpoint)) for _ in range(3))
        listener = stack.enter_context(Listener(broker.endpoint, b"schema/"))
        if moment == "while it runs":
            bear()
        assert store.is_waiting.wait(30)
        peer.send({"type": "SCHEMA_REQUEST", "subject": "born"})
        discovering.send({"type": "DISCOVERY_REQUEST", "channel": "born"})
        assert other.ask({"type": "PING"})["type"] == "PONG"
        assert peer.hears_nothing(0.3)
        assert discovering.hears_nothing(0.0)
        heard = []
        while listener.socket.poll(0):
            heard.append(listener.next()[1]["type"])
        assert set(heard) <= {"BEACON"}
        store.gate.set()
        assert peer.receive()["schema"]["schema_id"] == 1
        assert discovering.receive()["schema_id"] == 1
        if moment == "while it runs":  # or else it happened before anybody listened
            assert listener.event()[1]["type"] == "SCHEMA_REGISTERED"


def test_a_flood_of_new_channels_does_not_hold_up_requests(
    embedded: Callable[..., Embedded], directory: Directory
) -> None:
    broker = embedded(**QUICK)
    with Peer(broker.endpoint) as peer:
        for number in range(2000):
            os.mkdir(os.path.join(directory.path, f"c{number}"), 0o700)
        for _ in range(50):
            assert peer.ask({"type": "PING"})["type"] == "PONG"
