"""A value of the wrong kind is refused by its argument's name in every public call, and NumPy's numbers count."""

import asyncio
import inspect
import json
import math
import os
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from messagehub import Keep, MessageHub, Retention, Watch
from messagehub.channels.consumer.consumers import Consumer
from messagehub.channels.producers import Producer
from messagehub.errors import ConfigurationError, HubError, PayloadRefused
from messagehub.services.workers import ServiceWorker
from messagehub.topics.subscriptions import Subscription
from messagehub.topics.topic import Topic
from tests.integration.block_processes import Place, place_in
from tests.integration.harness import Served as Server

TABLE = pa.table({"t": [1.0], "v": pa.array([1], pa.int32())})
WRONG: dict[Any, Any] = {int: "10", float: "1.5", str: 5, bool: "no"}
RIGHT: dict[Any, Any] = {int: 1, float: 1.0, str: "text", bool: True}


def kind_of(annotation: Any) -> Any:
    """int, float, str, bool or a Literal, also where None is allowed; None for everything else."""
    if isinstance(annotation, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not types.NoneType]
        return kind_of(kinds[0]) if len(kinds) == 1 else None
    return annotation if annotation in WRONG or get_origin(annotation) is Literal else None


def public_arguments(cls: type) -> Iterator[tuple[str, str]]:
    for method, function in inspect.getmembers(cls, inspect.isfunction):
        if not method.startswith("_"):
            for name, parameter in inspect.signature(function).parameters.items():
                if kind_of(parameter.annotation) is not None:
                    yield method, name


def call_wrongly(target: Any, method: str, wrong: str) -> None:
    function = getattr(target, method)
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = kind_of(parameter.annotation)
        if name == wrong:
            given[name] = WRONG.get(kind, "none of them")
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            given[name] = RIGHT.get(kind)
    result = function(**given)
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Any) -> Any:
    return await result


@pytest.mark.parametrize(("method", "name"), list(public_arguments(MessageHub)))
def test_every_argument_of_the_hub_is_refused_by_name(tmp_path: Path, method: str, name: str) -> None:
    with MessageHub(dir=tmp_path) as hub, pytest.raises(ConfigurationError, match=rf"^{name} ") as refused:
        call_wrongly(hub, method, name)
    known = kind_of(inspect.signature(getattr(MessageHub, method)).parameters[name].annotation)
    if get_origin(known) is Literal:
        assert refused.value.message.endswith(", ".join(get_args(known)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        place_in(tmp_path_factory.mktemp("kinds") / "hub", f"kinds{os.getpid()}") as made,
        Server(made.dir),
    ):
        yield made


@pytest.fixture
def hub(place: Place) -> Iterator[MessageHub]:
    with MessageHub(**place.arguments) as opened:
        yield opened


def opened(hub: MessageHub, cls: type) -> Any:
    made: dict[type, Callable[[], Any]] = {
        Consumer: lambda: hub.consumer("opened"),
        Producer: lambda: hub.producer("opened"),
        Subscription: lambda: hub.subscribe("opened"),
        ServiceWorker: lambda: hub.serve("service:opened", lambda message, context: None),
        Topic: lambda: hub.topic("opened"),
        Watch: lambda: hub.watch("opened"),
    }
    return made[cls]()


@pytest.mark.parametrize("cls", [Consumer, Producer, Subscription, ServiceWorker, Topic, Watch])
def test_every_number_given_to_what_a_hub_opens_is_refused_by_name(hub: MessageHub, cls: type) -> None:
    numbers = {"timeout", "drain_seconds", "size"}
    found = [(method, name) for method, name in public_arguments(cls) if name in numbers]
    assert found
    one = opened(hub, cls)
    for method, name in found:
        with pytest.raises(ConfigurationError, match=rf"^{name} "):
            call_wrongly(one, method, name)
    if hasattr(one, "close"):
        one.close()


@pytest.mark.parametrize("timeout", ["1", math.nan, True, timedelta(seconds=1), [1], np.zeros(2)])
def test_what_is_no_number_of_seconds_is_refused(hub: MessageHub, timeout: Any) -> None:
    with hub.producer("seconds") as producer, hub.consumer("seconds") as consumer:
        for call in (
            lambda: consumer.read(timeout=timeout),
            lambda: producer.write(b"", timeout=timeout),
            lambda: hub.discover("nobody.there", timeout=timeout),
        ):
            with pytest.raises(ConfigurationError, match="timeout takes a number of seconds"):
                call()


def test_numbers_of_numpy_are_numbers(hub: MessageHub) -> None:
    metadata = {"n": np.int64(3), "x": [np.float32(0.5)], "is": {"on": np.True_}}
    plain = {"n": 3, "x": [0.5], "is": {"on": True}}
    shape = (4, 5)
    size = np.prod(shape) * np.dtype("f8").itemsize
    short = np.float32(0.01)
    with (
        hub.producer(
            "numpy", schema=np.dtype("f8"), page_size=size, capacity=np.int16(4), metadata=metadata, timeout=np.int8(9)
        ) as producer,
        hub.consumer("numpy", metadata=metadata, timeout=np.float64(9)) as consumer,
    ):
        producer.write(np.ones(shape), timeout=short)
        producer.write(np.float64(3), timeout=np.float16(1))
        assert consumer.read(timeout=np.float32(30)).shape == shape
        assert consumer.read(timeout=np.int64(30)) == 3.0
        assert consumer.read(timeout=short) is None
        found = hub.describe("numpy", timeout=np.float32(30))
        assert found is not None
        (described,) = found.channel.producers.values()
        assert (described.metadata, described.config["page_size"]) == (plain, 160)
        (consuming,) = hub.consumers("numpy", timeout=np.int32(30))
        assert consuming.metadata == plain
    with hub.producer("lent") as producer:
        with producer.loan(np.int64(3)) as loan:
            loan.buffer[:] = b"abc"
        assert producer.sequence == 1
    hub.publish_table("numpy.table", TABLE, metadata=metadata, retention=Retention(generations=np.int64(2)))  # type: ignore[arg-type]
    assert hub.tables("numpy.table")[0].table.metadata == plain
    hub.create_channel("numpy.declared", metadata=metadata, config=metadata)
    with hub.register_producer("numpy.registered", schema_hash="h", config=metadata, metadata=metadata) as registered:
        assert registered
    hub.topic("numpy.kept", keep=Keep(messages=np.int64(10)))  # type: ignore[arg-type]
    with hub.subscribe("numpy.kept", since=np.int64(0), buffer=np.int64(10)) as subscription:  # type: ignore[arg-type]
        hub.publish("numpy.kept", {"n": np.int64(1)}, timeout=np.float32(30))
        assert subscription.receive(timeout=np.float32(30)).payload == {"n": 1}
    with hub.serve("service:numpy", lambda message, context: 1, concurrency=np.int64(2), mailbox=np.int64(3)):
        assert hub.request("service:numpy", timeout=np.float32(30), retries=np.int64(1)) == 1


def test_settings_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path, request_timeout_seconds=np.float32(0.5), trace_size=np.int64(5)) as hub:
        assert (hub.settings.request_timeout_seconds, hub.settings.trace_size) == (0.5, 5)


@pytest.mark.parametrize(
    "metadata",
    [{"x": math.nan}, {"x": {1: 2}}, {"x": [{1, 2}]}, {"x": (1, 2)}, {"x": np.arange(2)}, {"x": 1 << 70}, ["x"], "x"],
    ids=["nan", "key", "set", "tuple", "array", "huge", "list", "text"],
)
def test_metadata_that_would_not_come_back_is_refused_with_its_place(hub: MessageHub, metadata: Any) -> None:
    where = r"metadata\['x'\]" if isinstance(metadata, dict) else "metadata takes a dict"
    for call in (
        lambda: hub.producer("noted", metadata=metadata),
        lambda: hub.consumer("noted", metadata=metadata),
        lambda: hub.register_producer("noted", schema_hash="h", metadata=metadata),
        lambda: hub.register_consumer("noted", metadata=metadata),
        lambda: hub.create_channel("noted", metadata=metadata),
        lambda: hub.publish_table("noted", TABLE, metadata=metadata),
    ):
        with pytest.raises(ConfigurationError, match=where):
            call()
    assert hub.discover("noted") is None


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        (TABLE, r"give \.schema of it"),
        (TABLE.to_batches()[0], r"give \.schema of it"),
        (pa.float64(), r"the Arrow type double, not a schema: give pa\.schema"),
        (pa.field("a", pa.int8()), r"pa\.schema\(\[field\]\)"),
        (np.zeros(3), r"give \.dtype of it"),
        (pd.DataFrame({"a": [1]}), r"pa\.Schema\.from_pandas"),
        (5, "is no"),
    ],
    ids=["table", "batch", "type", "field", "array", "frame", "number"],
)
def test_what_is_no_schema_is_refused_with_what_would_be_one(hub: MessageHub, schema: Any, advice: str) -> None:
    for call in (
        lambda: hub.producer("schemas", schema=schema),
        lambda: hub.create_channel("schemas", schema=schema),
        lambda: hub.register_schema("schemas", schema),
        lambda: hub.check_table("schemas", schema),
    ):
        with pytest.raises(HubError, match=f"^schema .*{advice}"):
            call()
    for call in (
        lambda: hub.consumer("schemas", expected_schema=schema),
        lambda: hub.discover("schemas", expected_schema=schema),
    ):
        with pytest.raises(HubError, match=f"^expected_schema .*{advice}"):
            call()


@pytest.mark.parametrize(
    ("schema", "payload", "advice"),
    [
        (None, "abc", r"a str\. Encode it: text\.encode\(\)"),
        (None, 3, "Give bytes"),
        (None, TABLE, "schema=, an Arrow schema"),
        (None, np.zeros((4, 4))[:, 1], r"np\.ascontiguousarray"),
        (np.dtype("f8"), 3.0, r"np\.asarray\(value, dtype='float64'\)"),
        (np.dtype("f8"), [1.0], r"np\.asarray\(value, dtype='float64'\)"),
        (np.dtype("f8"), "abc", "a NumPy array or number of that dtype"),
        (np.dtype("f8"), np.float32(1), "holds float64, the payload is float32. Cast it"),
        (TABLE.schema, "abc", "give a pyarrow RecordBatch or Table"),
        (TABLE.schema, np.float64(3), "the payload is float64"),
    ],
)
def test_a_payload_of_another_kind_is_refused_with_what_to_write(
    hub: MessageHub, schema: Any, payload: Any, advice: str
) -> None:
    with hub.producer("payloads", schema=schema) as producer:
        with pytest.raises(PayloadRefused, match=advice):
            producer.write(payload)
        assert producer.sequence == 0


# -- where a consumer starts -------------------------------------------------------------------------------


def write(producer: Producer, numbers: range) -> None:
    for number in numbers:
        producer.write(json.dumps(number).encode())


def read(consumer: Consumer) -> list[int]:
    found = []
    while (value := consumer.read(timeout=0.0)) is not None:
        found.append(json.loads(value))
    return found


def test_a_negative_start_gives_the_last_items(hub: MessageHub) -> None:
    with hub.producer("last", capacity=8) as producer:
        write(producer, range(20))
        for start, expected in ((-3, [17, 18, 19]), (np.int64(-1), [19]), (-8, list(range(12, 20)))):
            with hub.consumer("last", start=start) as consumer:
                assert read(consumer) == expected
                write(producer, range(0))
        with hub.consumer("last", start=-1000) as consumer:
            assert (read(consumer), consumer.missed) == (list(range(12, 20)), 0)
        with hub.consumer("last", start=-2) as consumer:
            write(producer, range(20, 22))
            assert read(consumer) == [18, 19, 20, 21]


def test_a_negative_start_counts_for_each_producer_and_for_tables(hub: MessageHub) -> None:
    with (
        hub.producer("several", access="shared") as first,
        hub.producer("several", access="shared") as second,
    ):
        write(first, range(5))
        write(second, range(10, 15))
        with hub.consumer("several", start=-2) as consumer:
            assert sorted(read(consumer)) == [3, 4, 13, 14]
    for number in range(4):
        hub.publish_table("tables", pa.table({"n": [number]}), retention=Retention(generations=10))
    for start, expected in ((-2, [2, 3]), (-9, [0, 1, 2, 3])):
        with hub.consumer("tables", start=start) as consumer:
            assert [consumer.read(timeout=30.0)["n"][0].as_py() for _ in expected] == expected
            assert consumer.read(timeout=0.0) is None


def test_a_position_goes_through_json(hub: MessageHub) -> None:
    with hub.producer("saved") as producer:
        write(producer, range(6))
        with hub.consumer("saved", start="oldest") as consumer:
            assert [json.loads(consumer.read(timeout=0.0)) for _ in range(3)] == [0, 1, 2]
            saved = json.dumps(consumer.position)
        with hub.consumer("saved", start=json.loads(saved)) as consumer:
            assert (read(consumer), consumer.missed) == ([3, 4, 5], 0)


@pytest.mark.parametrize(
    "start",
    [0, 5, 1.5, True, None, "newest", "-10", [1], {"a": 5}, {"a": ["b", 1, 2]}, {"a": ["a", 1, -2]}, {1: [1, 1, 1]}],
)
def test_what_is_no_start_is_refused_with_all_that_is(hub: MessageHub, start: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"start takes 'latest' .*'oldest' .*-N .*position"):
        hub.consumer("started", start=start)
