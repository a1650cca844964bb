"""What a new user gets wrong is refused by name before anything is written, and says what would be right."""

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub, Retention
from messagehub.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ConsumerAlreadyRegistered,
    PayloadRefused,
    ProducerAlreadyRegistered,
    SchemaMismatch,
)
from messagehub.settings import Settings
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served

TABLE = pa.table({"t": [1.0], "v": pa.array([1], pa.int32())})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        place_in(tmp_path_factory.mktemp("wrong") / "hub", f"wrong{os.getpid()}") as made,
        Served(made.dir),
    ):
        yield made


@pytest.fixture
def hub(place: Place) -> Iterator[MessageHub]:
    with MessageHub(**place.arguments) as opened:
        yield opened


@pytest.mark.parametrize(
    "retention",
    [
        3,
        {"generations": 3},
        Retention(generations=0),
        Retention(max_bytes=-1),
        Retention(max_age_seconds=math.nan),
        Retention(generations="3"),  # type: ignore[arg-type]
    ],
    ids=["number", "dict", "none", "negative", "nan", "text"],
)
def test_a_wrong_retention_leaves_the_table_readable(hub: MessageHub, retention: Any) -> None:
    hub.publish_table("kept", TABLE, retention=Retention(generations=2, max_age_seconds=3600))
    with pytest.raises(ConfigurationError, match=r"retention .* Retention\(generations=3"):
        hub.publish_table("kept", TABLE, retention=retention)
    with hub.consumer("kept") as consumer:
        assert consumer.latest() == TABLE


def test_a_wrong_access_is_refused_by_name(hub: MessageHub, place: Place) -> None:
    with pytest.raises(ConfigurationError, match="access 'multi' is not one of exclusive, shared"):
        hub.producer("acquired", schema=TABLE.schema, access="multi")  # type: ignore[arg-type]
    assert "acquired" not in place.directory.channels()


@pytest.mark.parametrize("payload", [{"t": 1.0, "v": 1}, [1, 2], None, b"abc"], ids=["dict", "list", "none", "bytes"])
def test_what_is_no_arrow_batch_is_refused_with_what_makes_one(hub: MessageHub, payload: Any) -> None:
    with hub.producer("batches", schema=TABLE.schema) as producer:
        with pytest.raises(PayloadRefused, match=f"a {type(payload).__name__} is no payload .* RecordBatch"):
            producer.write(payload)
        producer.write(TABLE)


@pytest.mark.parametrize("handler", [lambda message: message, lambda: 1, None, "resize"])
def test_a_handler_that_no_request_could_call_is_refused_when_it_is_served(hub: MessageHub, handler: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"handler\(message, context\)"):
        hub.serve("service:wrong", handler)
    assert hub.services() == []


def test_handlers_of_every_form_are_taken(hub: MessageHub) -> None:
    class Called:
        def __call__(self, message: Any, context: Any) -> Any:
            return message.payload

        def method(self, message: Any, context: Any = None, *more: Any) -> Any:
            return message.payload

    for number, handler in enumerate([Called(), Called().method, lambda *given: given[0].payload]):
        with hub.serve(f"service:form{number}", handler):
            assert hub.request(f"service:form{number}", {"n": number}, timeout=30.0) == {"n": number}


def test_arrow_schemas_are_declared_and_registered_as_they_are(hub: MessageHub) -> None:
    hub.create_channel("declared", schema=TABLE.schema)
    hub.publish_table("declared", TABLE)
    registered = hub.register_schema("registered", TABLE.schema)
    found = hub.discover("declared")
    assert found is not None
    assert found.schema_id == registered.schema_id
    with pytest.raises(ConfigurationError, match="no Arrow schema"):
        hub.register_schema("registered", int)


def test_a_second_producer_is_told_who_the_first_is(hub: MessageHub, place: Place) -> None:
    with hub.producer("taken", schema=TABLE.schema), MessageHub(**place.arguments) as other:
        with pytest.raises(ProducerAlreadyRegistered, match=f"pid {os.getpid()} on host"):
            other.producer("taken", schema=TABLE.schema)
        hub.register_consumer("taken", consumer_id="one")
        with pytest.raises(ConsumerAlreadyRegistered, match=f"pid {os.getpid()} on host"):
            other.register_consumer("taken", consumer_id="one")


def test_a_refused_reader_is_told_why(hub: MessageHub) -> None:
    narrow = pa.schema([("t", pa.float64())])
    with hub.producer("expected", schema=TABLE.schema):
        with pytest.raises(SchemaMismatch, match="is not registered, so only an equal hash can be read: register it"):
            hub.consumer("expected", expected_schema=narrow)
        hub.register_schema("reader", narrow)
        hub.consumer("expected", expected_schema=narrow).close()


def test_an_address_where_nobody_listens_is_not_a_connection_that_was_lost() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with (
            MessageHub(endpoint=endpoint) as hub,
            pytest.raises(BrokerUnavailable, match=f"no broker answers at {endpoint}"),
        ):
            hub.discover("any", required=True)


def test_a_mistyped_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'endpont'; is 'endpoint' meant"):
        MessageHub(endpont="tcp://127.0.0.1:1")
    (tmp_path / "messagehub.toml").write_text("lease_second = 3\n")
    with pytest.raises(ConfigurationError, match="'lease_second'; is 'lease_seconds' meant"):
        Settings.load(dir=tmp_path)
