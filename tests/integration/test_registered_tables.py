"""Tables are registered like rings: one broker for most tests, a channel of its own for each."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.discovery import Discovery
from messagehub.errors import ConfigurationError, SchemaIncompatible, SchemaMismatch, SubjectNotFound
from messagehub.shm import shared_line_file
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import table_details
from messagehub.shm.identity import host
from messagehub.shm.tables.compaction import MOST_SMALL_PARTS
from messagehub.shm.tables.pending_tables import pending
from messagehub.shm.tables.tables import TableStore
from registry import commands, events
from registry.formats import arrow
from registry.records import SchemaConfig
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import ROOT, Served, clean_environment, eventually
from tests.ports import own_endpoint

PRICES = pa.table({"id": pa.array([1, 2], pa.int64()), "price": [1.5, 2.5]})
NARROWED = pa.table({"id": pa.array([1], pa.int64()), "price": pa.array([1], pa.int32())})
WIDER = PRICES.append_column("note", pa.array(["a", "b"]))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("tables") / "hub", f"tables{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def served(place: Place) -> Iterator[Served]:
    os.environ["MESSAGEHUB_DOMAIN"] = place.domain
    server = Served(place.dir)
    yield server
    server.close()


@pytest.fixture(scope="module")
def hub(place: Place, served: Served) -> Iterator[MessageHub]:
    assert served.endpoint
    with MessageHub(**place.arguments) as opened:
        yield opened


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Place]:
    """No broker runs here, until the test starts one."""
    with place_in(tmp_path / "hub", f"lonely{os.getpid()}") as made:
        yield made


def found(hub: MessageHub, channel: str) -> Discovery:
    """What the broker says, if there is one; while it takes its time, `discover` says what is in the directory."""

    def answer() -> Discovery | None:
        discovery = hub.discover(channel)
        assert discovery is not None
        return discovery if discovery.source == "broker" or not hub.connect(timeout=30.0) else None

    return eventually(answer)


# -- with a broker


def test_a_published_table_shows_what_a_ring_shows(hub: MessageHub) -> None:
    hub.publish_table("shown", PRICES, schema_version="mine", metadata={"a": 1})
    table = found(hub, "shown")
    with hub.producer("shown.ring", schema=PRICES.schema):
        ring = found(hub, "shown.ring")
    assert (table.source, table.status, table.schema) == ("broker", "active", "verified")
    assert (table.schema_version, ring.schema_version) == ("1", "1")
    for name in ("schema", "schema_type", "schema_id", "schema_hash", "status"):
        assert getattr(table, name) == getattr(ring, name), name
    assert [block.host for block in table.blocks] == [block.host for block in ring.blocks] == [host()]
    assert table.table is not None
    assert (table.table.pid, table.table.user, table.table.rows) == (os.getpid(), _user(), 2)
    assert (table.table.hosts, table.table.metadata) == ({host(): 1}, {"a": 1})
    assert [one.version for one in hub.schema_versions("shown")] == [1]


def test_a_compacted_table_is_registered_and_appends_compact_by_themselves(hub: MessageHub) -> None:
    for _ in range(3):
        hub.publish_table("packed", PRICES, mode="append", metadata={"a": 1})
    packed = hub.compact_table("packed")
    assert packed is not None
    shown = found(hub, "packed").table
    assert shown is not None
    assert (shown.generation, shown.parts, shown.rows, shown.metadata) == (4, 1, 6, {"a": 1})
    assert hub.compact_table("packed") is None
    with pytest.raises(ConfigurationError, match="part_bytes"):
        hub.compact_table("packed", part_bytes=0)
    for _ in range(MOST_SMALL_PARTS):
        manifest = hub.publish_table("packed", PRICES, mode="append")
    assert (manifest.generation, len(manifest.parts)) == (4 + MOST_SMALL_PARTS + 1, 1)
    shown = found(hub, "packed").table
    assert shown is not None
    assert (shown.generation, shown.parts, shown.rows) == (manifest.generation, 1, 2 * (3 + MOST_SMALL_PARTS))
    with hub.consumer("packed") as consumer:
        assert consumer.latest().num_rows == shown.rows


def test_an_incompatible_table_is_refused_and_leaves_nothing(hub: MessageHub, place: Place) -> None:
    hub.publish_table("levelled", PRICES)
    with pytest.raises(SchemaIncompatible, match="price"):
        hub.publish_table("levelled", NARROWED)
    assert len(hub.schema_versions("levelled")) == 1
    assert len(os.listdir(place.directory.tables_path("levelled"))) == 3  # the lock, one manifest, one block
    hub.publish_table("levelled", WIDER)
    assert (found(hub, "levelled").schema_version, found(hub, "levelled").generation) == ("2", 2)


def test_a_table_that_is_refused_at_its_end_is_withdrawn(hub: MessageHub, place: Place) -> None:
    """Its schema could be registered when the writing began; then the level was set."""
    hub.publish_table("late", PRICES)
    hub.ask(commands.ConfigureSchemas(subject="late", config=SchemaConfig(compatibility="NONE")))

    def batches() -> Iterator[pa.RecordBatch]:
        yield from NARROWED.to_batches()
        hub.ask(commands.ConfigureSchemas(subject="late", config=SchemaConfig(compatibility="BACKWARD")))

    with pytest.raises(SchemaIncompatible, match="price"):
        hub.publish_table("late", pa.RecordBatchReader.from_batches(NARROWED.schema, batches()))
    assert TableStore(place.directory.tables_path("late")).generations() == [1]
    assert [one.version for one in hub.schema_versions("late")] == [1]
    with hub.consumer("late", start="oldest") as consumer:
        assert consumer.latest().equals(PRICES)
    assert (found(hub, "late").schema, found(hub, "late").conflict) == ("verified", None)


def test_a_declared_schema_binds_tables(hub: MessageHub, place: Place) -> None:
    hub.create_channel("declared", schema=arrow.from_arrow(PRICES.schema), schema_type="ARROW")
    hub.ask(commands.ConfigureSchemas(subject="declared", config=SchemaConfig(compatibility="NONE")))
    with pytest.raises(SchemaMismatch):
        hub.publish_table("declared", WIDER)
    assert not os.path.exists(place.directory.tables_path("declared"))
    hub.publish_table("declared", PRICES)
    assert (found(hub, "declared").schema, found(hub, "declared").schema_version) == ("verified", "1")


def test_a_check_tells_and_registers_nothing(hub: MessageHub) -> None:
    digest = hub.check_table("checked", PRICES.schema)
    assert hub.discover("checked") is None
    with pytest.raises(SubjectNotFound):
        hub.schema_versions("checked")
    hub.publish_table("checked", PRICES)
    assert found(hub, "checked").schema_hash == digest


def test_an_unknown_mode_is_refused(hub: MessageHub, place: Place) -> None:
    with pytest.raises(ConfigurationError, match="'replace' is not one of overwrite, append"):
        hub.publish_table("modes", PRICES, mode="replace")  # type: ignore[arg-type]
    assert "modes" not in place.directory.channels()


@pytest.mark.parametrize(
    "metadata",
    [{"x": float("nan")}, {1: "a"}, {"at": {1, 2}}, {"t": (1, 2)}, ["a"]],
    ids=["nan", "key", "set", "tuple", "list"],
)
def test_metadata_comes_back_as_it_was_or_is_refused(hub: MessageHub, place: Place, metadata: Any) -> None:
    with pytest.raises(ConfigurationError, match="metadata"):
        hub.publish_table("noted", PRICES, metadata=metadata)
    with pytest.raises(ConfigurationError, match="schema_version"):
        hub.publish_table("noted", PRICES, schema_version=2)  # type: ignore[arg-type]
    assert "noted" not in place.directory.channels()


def test_a_table_is_told_of_once_however_it_is_noticed(hub: MessageHub) -> None:
    """By its writer and by the broker's own look: one event a generation, and `verified` from the first on."""
    with hub.watch("noticed") as watch:
        assert watch.wait_current(30.0)
        for _ in range(5):
            hub.publish_table("noticed", PRICES)
        hub.publish_table("noticed", WIDER)  # the last
        told = []
        while not told or told[-1].table.generation < 6:
            event = watch.get(30.0)
            assert event is not None
            if isinstance(event, events.TableCommitted):
                told.append(event)
    assert [event.table.generation for event in told if event.table] == [1, 2, 3, 4, 5, 6]
    assert {event.table.schema for event in told if event.table} == {"verified"}


def test_a_table_whose_writer_died_before_it_could_register_it_is_registered(hub: MessageHub, place: Place) -> None:
    place.directory.make_channel("orphan")
    text = arrow.from_arrow(PRICES.schema)
    TableStore(place.directory.tables_path("orphan")).publish(
        PRICES.to_batches(),
        PRICES.schema,
        now=time.time(),
        schema_hash=hub.check_table("orphan", text),
        details=table_details(text),
    )
    eventually(lambda: (_from_broker(place, "orphan") or found_nothing).schema == "verified")
    assert found(hub, "orphan").schema_version == "1"


def test_numpy_dtypes_are_registered_and_raw_bytes_are_not(hub: MessageHub) -> None:
    dtype = np.dtype([("t", "<f8"), ("v", "<i4", (3,))])
    with hub.producer("arrays", schema=dtype) as producer, hub.consumer("arrays", expected_schema=dtype) as consumer:
        ring = found(hub, "arrays")
        assert (ring.schema, ring.schema_type, ring.schema_version) == ("verified", "ARROW", "1")
        text = hub.schema("arrays").schema.schema
        assert '"t"' in text
        assert "fixed_size_list[3]" in text
        values = np.zeros(2, dtype=dtype)
        producer.write(values)
        assert (consumer.read(timeout=10.0) == values).all()
    with hub.producer("bytes"):
        assert found(hub, "bytes").schema == "unverified"
    with hub.producer("complex", schema=np.dtype("c16")):
        assert found(hub, "complex").schema == "unverified"


def test_a_table_of_another_host_is_known_and_survives_the_broker(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("another host takes a namespace of its own, and that takes root")
    with place_in(tmp_path / "hub", f"hosts{os.getpid()}") as place:
        server = Served(place.dir)
        try:
            program = (
                "import json, sys, pyarrow as pa\n"
                "from messagehub import MessageHub\n"
                "with MessageHub(**json.loads(sys.argv[1])) as hub:\n"
                "    hub.publish_table('far', pa.table({'x': [1, 2, 3]}))\n"
            )
            setup = 'mount -t tmpfs tmpfs /dev/shm && hostname elsewhere && exec "$@"'
            command = [sys.executable, "-c", program, json.dumps(place.arguments)]
            full = ["unshare", "-mu", "sh", "-c", setup, "sh", *command]
            subprocess.run(full, check=True, timeout=60, env=clean_environment(), cwd=ROOT)
            for _ in range(2):
                with MessageHub(**place.arguments) as hub:
                    far = found(hub, "far")
                    assert far.table is not None
                    assert (far.table.host, far.table.hosts) == ("elsewhere", {"elsewhere": 1})
                    assert (far.schema, far.schema_version, far.status) == ("verified", "1", "active")
                    assert (far.blocks[0].host, far.table.rows) == ("elsewhere", 3)
                server.kill()
                server.start()
        finally:
            server.close()


# -- without one


def test_without_a_broker_the_newest_table_here_decides(lonely: Place) -> None:
    hub = lonely.hub()
    hub.publish_table("alone", PRICES, schema_version="mine")
    with pytest.raises(SchemaIncompatible, match=r"price.*start a hub"):
        hub.publish_table("alone", NARROWED)
    hub.publish_table("alone", WIDER)
    with pytest.raises(SchemaIncompatible, match="Column 'note' is missing"):
        hub.publish_table("alone", PRICES, mode="append")
    alone = found(hub, "alone")
    assert (alone.source, alone.generation, alone.schema) == ("files", 2, "unverified")
    assert alone.table is not None
    assert (alone.table.host, alone.table.pid) == (host(), os.getpid())


def test_without_a_broker_rings_and_tables_of_a_channel_agree(lonely: Place) -> None:
    hub = lonely.hub()
    hub.publish_table("both", PRICES)
    with pytest.raises(SchemaIncompatible, match=r"price.*start a hub"):
        hub.producer("both", schema=NARROWED.schema)
    with pytest.raises(SchemaIncompatible, match=r"price.*start a hub"):
        hub.register_producer(
            "both", schema=arrow.from_arrow(NARROWED.schema), schema_type="ARROW", schema_hash=_hash(NARROWED)
        )
    assert found(hub, "both").producers == []
    with hub.producer("both", schema=WIDER.schema) as producer:
        producer.write(WIDER)
    with hub.producer("ring", schema=PRICES.schema):
        with pytest.raises(SchemaIncompatible, match=r"price.*start a hub"):
            hub.publish_table("ring", NARROWED)
        hub.publish_table("ring", WIDER)
    assert [each.channel for each in hub.tables()] == ["both", "ring"]


def test_without_a_broker_a_table_whose_schema_is_damaged_speaks_against_nobody(lonely: Place) -> None:
    hub = lonely.hub()
    lonely.directory.make_tables("damaged")
    TableStore(lonely.directory.tables_path("damaged")).publish(
        PRICES.to_batches(), PRICES.schema, now=time.time(), schema_hash="x", details=table_details("no schema")
    )
    with hub.producer("damaged", schema=NARROWED.schema) as producer:
        producer.write(NARROWED)
    hub.publish_table("damaged", WIDER)


def test_what_was_published_without_a_broker_is_registered_when_one_comes(lonely: Place) -> None:
    hub = lonely.hub()
    hub.publish_table("early", PRICES)
    hub.close()
    server = Served(lonely.dir)
    try:
        other = lonely.hub()
        eventually(lambda: (other.discover("early") or found_nothing).schema == "verified")
        early = found(other, "early")
        assert (early.source, early.schema_version, early.generation) == ("broker", "1", 1)
        revision = early.revision
        server.kill()
        server.start()
        again = eventually(lambda: _from_broker(lonely, "early"))
        assert (again.schema, again.schema_version) == ("verified", "1")
        assert again.revision <= revision
    finally:
        server.close()


def test_what_a_process_left_unregistered_is_registered_by_the_next_that_connects(
    lonely: Place, tmp_path: Path
) -> None:
    """As Spark commits: in a process that ends, perhaps before a broker on another host can be reached."""
    endpoint = own_endpoint()
    there = {"endpoint": endpoint, "domain": lonely.domain, "request_timeout_seconds": 0.2}
    with MessageHub(**there) as gone:
        for channel in ("left", "newer", "dropped"):
            gone.publish_table(channel, PRICES)
        gone.publish_table("newer", WIDER)
        gone.drop_table("dropped")
    assert pending(lonely.directory, endpoint) == ["left", "newer"]
    os.environ["MESSAGEHUB_DOMAIN"] = f"{lonely.domain}-elsewhere"  # this broker finds nothing here by itself
    server = Served(tmp_path / "elsewhere", "--endpoint", endpoint)
    try:
        with MessageHub(endpoint=endpoint, domain=lonely.domain) as other:
            for channel, generation in (("left", 1), ("newer", 2)):
                eventually(lambda name=channel: (other.discover(name) or found_nothing).source == "broker")
                table = found(other, channel).table
                assert table is not None
                assert (table.generation, table.schema) == (generation, "verified")
            eventually(lambda: pending(lonely.directory, endpoint) == [])
            assert [each.channel for each in other.tables()] == ["left", "newer"]
            other.publish_table("left", WIDER)
            assert pending(lonely.directory, endpoint) == []
    finally:
        server.close()
        shutil.rmtree(Path(Directory(f"{lonely.domain}-elsewhere").path).parent, ignore_errors=True)


def test_notes_of_tables_that_somebody_holds_or_that_cannot_be_written_stop_nobody(
    lonely: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = own_endpoint()
    there = {"endpoint": endpoint, "domain": lonely.domain, "request_timeout_seconds": 0.2}
    with MessageHub(**there) as gone:
        gone.publish_table("held", PRICES)
        with monkeypatch.context() as full:
            full.setattr(shared_line_file, "os", SimpleNamespace(**vars(os) | {"pwrite": _no_space}))
            gone.publish_table("full", PRICES)
    assert pending(lonely.directory, endpoint) == ["held"]
    os.environ["MESSAGEHUB_DOMAIN"] = f"{lonely.domain}-elsewhere"
    server = Served(tmp_path / "elsewhere", "--endpoint", endpoint)
    holder = lonely.process(HOLD, path=str(Path(lonely.directory.path).parent / "pending-tables"))
    holder.hear()
    try:
        with MessageHub(endpoint=endpoint, domain=lonely.domain) as other:
            assert other.connect(timeout=30.0)
            assert other.discover("held").source == "files"
            holder.tell("over")
            eventually(lambda: (other.discover("held") or found_nothing).source == "broker")
            eventually(lambda: pending(lonely.directory, endpoint) == [])
    finally:
        server.close()
        shutil.rmtree(Path(Directory(f"{lonely.domain}-elsewhere").path).parent, ignore_errors=True)


HOSTILE_NOTES = [
    b"\xff\xfe\x00",
    b"[" * 1000,
    b'["%s", "../../etc", 1]',
    b'["%s", "/etc/passwd", 1]',
    b'["%s", "\\ud800", 1]',
    b'["%s", "unknown", 1]',
    b'["%s", "unknown", ' + b"9" * 400 + b"]",
    b'["%s", "left"',
    b"7",
    b'{"a": 1}',
]


def test_whatever_the_notes_of_tables_say_what_is_left_is_registered(lonely: Place, tmp_path: Path) -> None:
    endpoint = own_endpoint()
    there = {"endpoint": endpoint, "domain": lonely.domain, "request_timeout_seconds": 0.2}
    with MessageHub(**there) as gone:
        gone.publish_table("left", PRICES)
    notes = Path(lonely.directory.path).parent / "pending-tables"
    hostile = b"".join(note.replace(b"%s", endpoint.encode()) + b"\n" for note in HOSTILE_NOTES)
    notes.write_bytes(hostile + notes.read_bytes() + b"cut off")
    os.environ["MESSAGEHUB_DOMAIN"] = f"{lonely.domain}-elsewhere"
    server = Served(tmp_path / "elsewhere", "--endpoint", endpoint)
    try:
        with MessageHub(endpoint=endpoint, domain=lonely.domain) as other:
            assert other.connect(timeout=30.0)
            eventually(lambda: (other.discover("left") or found_nothing).source == "broker")
            eventually(lambda: pending(lonely.directory, endpoint) == [])
            assert other.metrics()["defects"] == 0
    finally:
        server.close()
        shutil.rmtree(Path(Directory(f"{lonely.domain}-elsewhere").path).parent, ignore_errors=True)


HOLD = """
from messagehub.shm.locks import OWNER, exclusive, lock_within
from messagehub.shm.mapped_file import open_lock
descriptor = open_lock(path)
lock_within(descriptor, exclusive(OWNER), path, 5.0)
say(ready=True)
sys.stdin.readline()
"""


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_clash_that_only_the_directory_shows_is_a_conflict(lonely: Place) -> None:
    server = Served(lonely.dir)
    try:
        hub = lonely.hub()
        hub.create_channel("clash", schema=arrow.from_arrow(PRICES.schema), schema_type="ARROW")
        hub.publish_table("open", PRICES)
        hub.close()
        server.kill()
        alone = lonely.hub()
        alone.publish_table("clash", WIDER)
        alone.tables()
        shutil.rmtree(lonely.directory.tables_path("open"))  # so that nothing here speaks against the next
        alone.publish_table("open", NARROWED)
        alone.close()
        server.start()
        other = lonely.hub()
        for channel, said in (("clash", "declared with schema"), ("open", "price")):
            eventually(lambda name=channel: (other.discover(name) or found_nothing).status == "conflict")
            clash = found(other, channel)
            assert clash.conflict is not None
            assert said in clash.conflict
            assert "table generation 1" in clash.conflict
        assert found(other, "clash").table is None
        assert len(other.schema_versions("open")) == 1
        other.ask(commands.ConfigureSchemas(subject="open", config=SchemaConfig(compatibility="NONE")))
        eventually(lambda: found(other, "open").status == "active")
        assert found(other, "open").schema_version == "2"
    finally:
        server.close()


def test_a_paused_broker_hears_of_the_table_later(lonely: Place) -> None:
    server = Served(lonely.dir)
    try:
        hub = MessageHub(**lonely.arguments, request_timeout_seconds=0.5)
        assert hub.connect(timeout=30.0)
        server.signal(signal.SIGSTOP)
        threading.Timer(1.5, server.signal, [signal.SIGCONT]).start()
        hub.publish_table("paused", PRICES)
        eventually(lambda: (_from_broker(lonely, "paused") or found_nothing).schema == "verified")
        hub.close()
    finally:
        server.signal(signal.SIGCONT)
        server.close()


found_nothing = Discovery(channel="", shm_name=None, schema_hash=None, schema_version=None, status="", source="files")


def _from_broker(place: Place, channel: str) -> Discovery | None:
    with MessageHub(**place.arguments) as hub:
        discovery = hub.discover(channel)
    return discovery if discovery is not None and discovery.source == "broker" else None


def _hash(table: pa.Table) -> str:
    return arrow.parse(arrow.from_arrow(table.schema), {}).hash


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name
