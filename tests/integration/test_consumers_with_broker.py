"""Consumers beside a broker: data of other hosts, schemas that the registry calls compatible, waiting by event."""

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.channels.consumer.consumers import Consumer
from messagehub.channels.consumer.expected_schema import as_expected_array
from messagehub.channels.payload_schema import arrow_schema
from messagehub.discovery import Discovery
from messagehub.errors import SchemaIncompatible, SchemaMismatch
from messagehub.shm.errors import BlockOnOtherHost
from messagehub.shm.identity import host
from tests.integration.block_processes import PREAMBLE, Place, place_in
from tests.integration.harness import PATIENCE_SECONDS, ROOT, Peer, Served, clean_environment, eventually
from tests.integration.harness import producer as register

QUICK = {"heartbeat_seconds": 0.5, "stall_seconds": 30.0, "lease_seconds": 60.0, "beacon_seconds": 0.1}
HOST_ELSEWHERE = "elsewhere"
OLD = pa.schema([("n", pa.int32()), ("text", pa.string()), ("extra", pa.float64())])
NEW = pa.schema([("text", pa.string()), ("n", pa.int64()), ("note", pa.string())])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_in(tmp_path_factory.mktemp("hub"), f"d{os.getpid()}") as made:
        yield made


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Served]:
    with Served(place.dir, **QUICK) as served:
        yield served


@pytest.fixture
def hub(place: Place, server: Served) -> Iterator[MessageHub]:
    with MessageHub(**place.arguments) as made:
        yield made


@pytest.fixture
def peer(server: Served) -> Iterator[Peer]:
    with Peer(server.endpoint) as made:
        yield made


def claim(peer: Peer, channel: str, **fields: Any) -> None:
    """Register a producer of another host, as its own client would."""
    name = f"/pylabhub_{channel}"
    blocks = [{"shm_name": name, "host": HOST_ELSEWHERE, "format": "raw"}]
    said = register(channel, lease=f"far {channel}", host=HOST_ELSEWHERE, pid=1, blocks=blocks, **fields)
    assert peer.ask(said)["type"] == "PRODUCER_REGISTER_ACK"


# -- other hosts -------------------------------------------------------------------------------------------


def test_data_of_another_host_is_an_error_that_names_both(hub: MessageHub, peer: Peer) -> None:
    claim(peer, "far")
    with pytest.raises(BlockOnOtherHost, match=HOST_ELSEWHERE) as refused:
        hub.consumer("far")
    assert repr(host()) in str(refused.value)


def test_a_namesake_on_this_host_is_not_read(place: Place, hub: MessageHub, peer: Peer) -> None:
    with hub.producer("namesake") as producer:
        producer.write(b"of this host, long ago")
    claim(peer, "namesake")
    assert os.path.exists(place.directory.exclusive_block("namesake"))
    with pytest.raises(BlockOnOtherHost, match=HOST_ELSEWHERE):
        hub.consumer("namesake", start="oldest")


def test_a_consumer_that_waits_hears_that_the_producer_came_on_another_host(hub: MessageHub, peer: Peer) -> None:
    with hub.consumer("comes_there") as consumer:
        timer = threading.Timer(0.2, claim, (peer, "comes_there"))
        timer.start()
        with pytest.raises(BlockOnOtherHost, match=HOST_ELSEWHERE):
            consumer.read(timeout=PATIENCE_SECONDS)
        timer.join()
        with pytest.raises(BlockOnOtherHost):
            consumer.read(timeout=0.0)


def test_what_happens_while_a_consumer_is_made_is_not_missed(
    hub: MessageHub, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer comes after the second consumer was told that there is none, and before it is handed out. The first
    one has heard of that by then, so no event and no beacon says it again."""
    log = logging.getLogger("messagehub")
    caplog.set_level(logging.DEBUG, "messagehub")  # it is logged as a warning once
    with hub.consumer("meanwhile") as first:
        assert first.read(timeout=0.2) is None

        def produce(record: logging.LogRecord) -> bool:
            if "'meanwhile'" in record.getMessage():
                claim(peer, "meanwhile")
                with pytest.raises(BlockOnOtherHost, match=HOST_ELSEWHERE):
                    first.read(timeout=PATIENCE_SECONDS)
            return True

        log.addFilter(produce)
        try:
            second = hub.consumer("meanwhile")
        finally:
            log.removeFilter(produce)
        with second, pytest.raises(BlockOnOtherHost, match=HOST_ELSEWHERE):
            second.read(timeout=10.0)


def test_a_consumer_whose_producer_moved_to_another_host_is_told(hub: MessageHub, peer: Peer) -> None:
    with hub.consumer("moves", start="oldest") as consumer:
        with hub.producer("moves") as producer:
            producer.write(b"1")
            assert bytes(consumer.read(timeout=PATIENCE_SECONDS)) == b"1"
            producer.write(b"2")
        claim(peer, "moves")
        assert bytes(consumer.read(timeout=PATIENCE_SECONDS)) == b"2"
        with pytest.raises(BlockOnOtherHost):
            consumer.read(timeout=PATIENCE_SECONDS)


def test_of_a_shared_channel_what_is_here_is_read_with_a_warning(
    hub: MessageHub, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    claim(peer, "both", access="shared", producer_id="there", config={"policy": "RingBuffer"})
    with (
        hub.producer("both", access="shared", schema_hash="h") as producer,
        caplog.at_level(logging.WARNING),
        hub.consumer("both", start="oldest") as consumer,
    ):
        producer.write(b"1")
        assert bytes(consumer.read(timeout=PATIENCE_SECONDS)) == b"1"
        eventually(
            lambda: (
                consumer.read(timeout=0.05) is None
                and any(HOST_ELSEWHERE in record.getMessage() for record in caplog.records)
            )
        )


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="another host needs root and unshare")
def test_a_process_in_another_hosts_namespaces(place: Place, hub: MessageHub) -> None:
    with hub.producer("real") as producer:
        producer.write(b"here")
        text = """
        from messagehub.shm.errors import BlockOnOtherHost
        found = hub.discover("real")
        with MessageHub(dir=hub.settings.dir / "alone", domain=hub.settings.domain) as alone:
            with alone.producer("real") as namesake:
                namesake.write(b"namesake")
        try:
            hub.consumer("real", start="oldest")
        except BlockOnOtherHost as error:
            say(source=found.source, host=error.host, said=str(error))
        """
        heard, _ = _elsewhere(place, text, own_memory=True)
        assert (heard["source"], heard["host"]) == ("broker", host())
        assert "'other-host'" in heard["said"]


def _elsewhere(place: Place, text: str, *, own_memory: bool) -> tuple[Any, str]:
    """Run a program under another host name: what it says, and its complaints."""
    mount = "mount -t tmpfs -o size=16m tmpfs /dev/shm && " if own_memory else ""
    command = ["unshare", "-mu", "sh", "-c", mount + 'hostname other-host && exec "$@"', "sh", sys.executable]
    done = subprocess.run(
        [*command, "-c", PREAMBLE + textwrap.dedent(text), json.dumps(place.arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        cwd=ROOT,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


# -- waiting -----------------------------------------------------------------------------------------------


def test_a_consumer_that_waits_asks_nobody(hub: MessageHub, peer: Peer) -> None:
    with hub.consumer("awaited") as consumer:
        eventually(lambda: _is_quiet(consumer, peer))
        with hub.producer("awaited") as producer:
            producer.write(b"1")
            assert bytes(consumer.read(timeout=PATIENCE_SECONDS)) == b"1"
            assert eventually(lambda: hub.consumers("awaited"))[0].pid == os.getpid()


def test_a_discovery_that_waits_asks_when_it_hears_of_the_channel(hub: MessageHub, peer: Peer) -> None:
    assert hub.discover("awaited_too", wait=True, timeout=0.3) is None
    before = _discoveries(peer)
    assert hub.discover("awaited_too", wait=True, timeout=1.5) is None
    assert _discoveries(peer) <= before + 3  # at the beginning, at the end, and perhaps for a new connection
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(hub.discover("awaited_too", wait=True, timeout=60.0)))
    waiting.start()
    claim(peer, "awaited_too")
    waiting.join(PATIENCE_SECONDS)
    assert found[0].is_active


def _is_quiet(consumer: Consumer, peer: Peer) -> bool:
    """Whether it asks for nothing in a second; at first it does, until its connection and subscription stand."""
    before = _discoveries(peer)
    assert consumer.read(timeout=1.0) is None
    return _discoveries(peer) == before


def _discoveries(peer: Peer) -> int:
    return int(peer.stats()["requests"]["DISCOVERY_REQUEST"]["count"])


# -- schemas -----------------------------------------------------------------------------------------------


def old_batch(*numbers: int) -> pa.RecordBatch:
    columns = [pa.array(numbers, pa.int32()), pa.array([f"item {n}" for n in numbers]), pa.array([0.5] * len(numbers))]
    return pa.record_batch(columns, schema=OLD)


@pytest.mark.parametrize("as_hash", [False, True])
def test_data_of_a_compatible_schema_comes_in_the_expected_one(hub: MessageHub, as_hash: bool) -> None:
    channel = f"evolved_{as_hash}"
    expected = _registered(hub, NEW)
    with (
        hub.producer(channel, schema=OLD) as producer,
        hub.consumer(channel, start="oldest", expected_schema=expected if as_hash else NEW) as consumer,
    ):
        producer.write(old_batch(1, 2))
        found = consumer.read(timeout=PATIENCE_SECONDS)
        assert found.schema.equals(NEW)
        assert found.to_pydict() == {"text": ["item 1", "item 2"], "n": [1, 2], "note": [None, None]}
        assert consumer.latest().schema.equals(NEW)


@pytest.mark.parametrize("as_hash", [False, True])
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (np.dtype("<i4"), np.dtype("<i8")),
        (np.dtype("<f4"), np.dtype("<f8")),
        (np.dtype([("n", "<i4"), ("x", "<f4"), ("more", "<u1")]), np.dtype([("x", "<f8"), ("n", "<i8")])),
    ],
    ids=["integers", "floats", "fields"],
)
def test_arrays_of_a_compatible_dtype_come_in_the_expected_one(
    hub: MessageHub, written: np.dtype[Any], expected: np.dtype[Any], as_hash: bool
) -> None:
    channel = f"widened_{written.kind}_{as_hash}"
    wanted = _registered(hub, arrow_schema(expected))
    with hub.producer(channel, schema=written) as producer:
        asked: Any = wanted if as_hash else expected
        with hub.consumer(channel, start="oldest", expected_schema=asked) as consumer:
            array = np.zeros(3, written)
            array["n" if written.names else ...] = [1, 2, 3]
            producer.write(array)
            value = consumer.read(timeout=PATIENCE_SECONDS)
            assert value.dtype == expected
            assert value["n" if written.names else ...].tolist() == [1, 2, 3]
            if not as_hash:
                assert consumer.schema == expected


def test_fields_of_fields_are_taken_by_name(hub: MessageHub) -> None:
    written = np.dtype([("n", "<i4"), ("p", [("x", "<f8"), ("y", "<f8"), ("z", "<f8")])])
    expected = np.dtype([("p", [("y", "<f8"), ("x", "<f8")]), ("n", "<i8")])
    _registered(hub, arrow_schema(expected))
    with (
        hub.producer("nested", schema=written) as producer,
        hub.consumer("nested", start="oldest", expected_schema=expected) as consumer,
    ):
        producer.write(np.array([(7, (1.0, 2.0, 3.0))], written))
        value = consumer.read(timeout=PATIENCE_SECONDS)
        assert value.dtype == expected
        assert (value["p"]["x"][0], value["p"]["y"][0], value["n"][0]) == (1.0, 2.0, 7)


def test_texts_of_another_length_have_the_same_schema_and_come_as_they_are(hub: MessageHub) -> None:
    with (
        hub.producer("texts", schema=np.dtype("<U8")) as producer,
        hub.consumer("texts", start="oldest", expected_schema=np.dtype("<U2")) as consumer,
    ):
        producer.write(np.array(["longer"], "<U8"))
        assert consumer.read(timeout=PATIENCE_SECONDS).tolist() == ["longer"]


def test_a_time_that_does_not_fit_is_refused() -> None:
    late = np.array(["300000-01-01"], "M8[s]")
    with pytest.raises(SchemaMismatch, match="cannot be read as"):
        as_expected_array(late, np.dtype("M8[us]"), "times")
    assert as_expected_array(np.array(["2020-01-01", "NaT"], "M8[s]"), np.dtype("M8[us]"), "times").dtype == "M8[us]"


def test_arrays_that_the_expected_dtype_cannot_hold_are_refused(hub: MessageHub) -> None:
    with hub.producer("narrowed", schema=np.dtype("<i8")), pytest.raises(SchemaMismatch):
        hub.consumer("narrowed", start="oldest", expected_schema=np.dtype("<i4"))


def test_a_table_of_a_compatible_schema_comes_in_the_expected_one(hub: MessageHub) -> None:
    _registered(hub, NEW)
    with hub.producer("evolved_table", schema=OLD), hub.consumer("evolved_table", expected_schema=NEW) as consumer:
        hub.publish_table("evolved_table", pa.Table.from_batches([old_batch(1)]))
        assert consumer.read(timeout=PATIENCE_SECONDS).to_pydict() == {"text": ["item 1"], "n": [1], "note": [None]}


def test_a_successor_with_another_compatible_schema_is_read_too(hub: MessageHub) -> None:
    _registered(hub, NEW)
    with hub.consumer("succeeded", start="oldest", expected_schema=NEW) as consumer:
        with hub.producer("succeeded", schema=NEW) as producer:
            producer.write(pa.record_batch([["a"], [1], ["b"]], schema=NEW))
            assert consumer.read(timeout=PATIENCE_SECONDS)["n"].to_pylist() == [1]
        assert consumer.read() is None
        hub.ask(_level("succeeded", "NONE"))
        with hub.producer("succeeded", schema=OLD) as producer:
            producer.write(old_batch(2))
            assert consumer.read(timeout=PATIENCE_SECONDS)["n"].to_pylist() == [2]


@pytest.mark.parametrize("as_hash", [False, True])
def test_what_an_ended_producer_has_left_is_read_in_a_compatible_schema(hub: MessageHub, as_hash: bool) -> None:
    channel = f"left_{as_hash}"
    expected = _registered(hub, NEW)
    with hub.producer(channel, schema=OLD) as producer:
        producer.write(old_batch(1))
    eventually(lambda: channel not in [one.channel for one in hub.channels()])
    with hub.consumer(channel, start="oldest", expected_schema=expected if as_hash else NEW, follow=False) as consumer:
        assert [batch.to_pydict() for batch in consumer] == [{"text": ["item 1"], "n": [1], "note": [None]}]


def test_what_an_ended_producer_has_left_is_refused_to_a_reader_that_it_would_break(hub: MessageHub) -> None:
    wrong = pa.schema([("n", pa.int8())])
    _registered(hub, wrong)
    with hub.producer("left_wrong", schema=OLD) as producer:
        producer.write(old_batch(1))
    eventually(lambda: "left_wrong" not in [one.channel for one in hub.channels()])
    with pytest.raises(SchemaMismatch, match="left_wrong"):
        hub.consumer("left_wrong", start="oldest", expected_schema=wrong)


def test_an_incompatible_schema_is_refused_with_the_differences(hub: MessageHub) -> None:
    wrong = pa.schema([("n", pa.int8())])
    _registered(hub, wrong)
    with hub.producer("refused", schema=OLD), pytest.raises(SchemaMismatch) as refused:
        hub.consumer("refused", expected_schema=wrong)
    assert refused.value.details["differences"]


def test_a_producer_that_comes_back_with_another_field_is_told_what_it_can_do(hub: MessageHub) -> None:
    hub.producer("grown", schema=np.dtype([("a", "<f8")])).close()
    with pytest.raises(SchemaIncompatible) as refused:
        hub.producer("grown", schema=np.dtype([("a", "<f8"), ("b", "<f8")]))
    assert "the fields of a NumPy dtype never are: give an Arrow schema), use another channel" in str(refused.value)


def test_equal_schemas_with_other_bytes_come_as_expected(hub: MessageHub) -> None:
    """Widths of offsets are no part of the hash, but of what the reader's code relies on."""
    wide = pa.schema([("text", pa.large_string())])
    with (
        hub.producer("widths", schema=pa.schema([("text", pa.string())])) as producer,
        hub.consumer("widths", start="oldest", expected_schema=wide) as consumer,
    ):
        producer.write(pa.record_batch([["a", "b"]], names=["text"]))
        assert consumer.read(timeout=PATIENCE_SECONDS).schema.equals(wide)


def _registered(hub: MessageHub, schema: pa.Schema) -> str:
    from messagehub.channels.payload_schema import payload_schema

    text = payload_schema(schema)
    assert text.schema is not None
    hub.register_schema(f"expected_{text.schema_hash[:8]}", text.schema, schema_type="ARROW")
    return text.schema_hash


def _level(subject: str, level: Any) -> Any:
    from registry.commands import ConfigureSchemas
    from registry.records import SchemaConfig

    return ConfigureSchemas(subject=subject, config=SchemaConfig(compatibility=level))


# -- asking before reading ---------------------------------------------------------------------------------


def test_discovery_says_whether_an_expected_schema_can_read_the_channel(hub: MessageHub, peer: Peer) -> None:
    wrong = pa.schema([("n", pa.int8())])
    _registered(hub, NEW)
    _registered(hub, wrong)
    with hub.producer("asked", schema=OLD) as producer:
        for _ in range(2):  # asked, and then from memory as far as that can answer
            for schema, is_compatible in ((OLD, True), (NEW, True), (wrong, False)):
                found = eventually(_asked_of_broker, hub, schema)
                assert found.compatible is is_compatible
                assert bool(found.differences) is not is_compatible
            plain = hub.discover("asked")
            assert plain is not None
            assert plain.compatible is None
        asked = {"type": "DISCOVERY_REQUEST", "channel": "asked"}
        told = peer.ask(asked | {"expected_schema_hash": producer.schema_hash})
        assert (told["compatible"], told["differences"]) == (True, [])
        told = peer.ask(asked | {"expected_schema_hash": "unknown"})
        assert (told["compatible"], told["differences"][0]["version"]) == (False, 0)
        assert "compatible" not in peer.ask(asked)


def _asked_of_broker(hub: MessageHub, schema: pa.Schema) -> Discovery | None:
    """None while the broker takes its time: then what the directory says is returned."""
    found = hub.discover("asked", expected_schema=schema)
    assert found is not None
    return found if found.source == "broker" else None


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="another name needs root and unshare")
def test_a_process_with_another_host_name_and_the_same_memory_is_here(place: Place, hub: MessageHub) -> None:
    """As two containers that share /dev/shm."""
    with hub.producer("contained") as producer:
        producer.write(b"same memory")
        text = """
        with hub.consumer("contained", start="oldest") as consumer:
            say(read=bytes(consumer.read(timeout=30.0)).decode())
        """
        heard, complaint = _elsewhere(place, text, own_memory=False)
        assert heard == {"read": "same memory"}
        assert "also produced" not in complaint
