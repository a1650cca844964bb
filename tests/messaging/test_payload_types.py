"""Payloads type by type: what arrives as it was, and what is refused with what to send instead."""

import dataclasses
import datetime
import decimal
import enum
import os
import re
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest

from messagehub import MessageHub
from messagehub.errors import InvalidRequest, MalformedRequest
from messagehub.payloads.arrow_values import ARRAY
from messagehub.payloads.encoding import decode_payload, encode_payload
from tests.conftest import QUICK
from tests.integration.harness import Embedded, hub_of

SECONDS = 30.0


@pytest.fixture(scope="module")
def hub() -> Iterator[MessageHub]:
    """Its blocks are removed with the domains of this process; a wider fixture is made before a test has its own."""
    domain = f"pytest-{os.getpid()}-payloads"
    broker = Embedded(**QUICK, domain=domain)
    try:
        with hub_of(broker, domain=domain) as connected:
            connected.topic("retained", keep=100)
            connected.serve("service:echo", lambda message, _: message.payload)
            yield connected
    finally:
        broker.close()


def everywhere(hub: MessageHub, value: Any, *, is_large: bool = False) -> list[Any]:
    """What arrives of a value on each way that a payload can take."""
    with hub.subscribe("plain") as plain, hub.subscribe("plain", local=True) as local:
        hub.publish("plain", value)
        hub.publish("plain", value, local=True)
        arrived = [plain.receive(SECONDS).payload, local.receive(SECONDS).payload]
    if not is_large:
        with hub.subscribe("retained", since="newest") as retained:
            hub.publish("retained", value)
            hub.topic("retained").publish_all([value])
            arrived += [retained.receive(SECONDS).payload for _ in range(2)]
        arrived.append(hub.request("service:echo", value, timeout=SECONDS))
    return arrived


ARRAYS = {
    "numbers": np.arange(12, dtype="f8").reshape(3, 4),
    "columns first": np.asfortranarray(np.arange(12, dtype="i2").reshape(3, 4)),
    "every second": np.arange(12, dtype="u4")[::2],
    "one number": np.array(7.5),
    "none": np.zeros((0, 3), dtype="f4"),
    "half": np.arange(3, dtype="f2"),
    "truth": np.array([[True], [False]]),
    "complex": np.array([1 + 2j]),
    "long": np.array([1, 2], dtype="longdouble"),
    "other byte order": np.array([1, 2], dtype=">i4"),
    "text": np.array(["ab", "ü"]),
    "bytes": np.array([b"ab", b"c"]),
    "times": np.array(["2026-01-01", "NaT"], dtype="M8[ns]"),
    "NaN": np.array([np.nan, np.inf]),
    "fields": np.array([(1, [2.5, 3.5])], dtype=[("n", "i4"), ("v", "f8", (2,))]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_arrives_as_it_was(hub: MessageHub, name: str) -> None:
    array = ARRAYS[name]
    for arrived in everywhere(hub, array):
        assert type(arrived) is np.ndarray
        assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
        assert arrived.tobytes() == np.ascontiguousarray(array).tobytes()


def test_a_large_array_is_read_where_it_lies(hub: MessageHub) -> None:
    image = np.arange(4_000_000, dtype="u2").reshape(2000, 2000)
    for arrived in everywhere(hub, image, is_large=True):
        assert np.array_equal(arrived, image)
        assert not arrived.flags.writeable


@pytest.mark.parametrize(
    "array", [np.ma.masked_array([1, 2], [True, False]), np.rec.array([(1,)]), np.array([{}]), np.zeros(2, "V0")]
)
def test_an_array_that_would_arrive_as_another_is_refused(hub: MessageHub, array: Any) -> None:
    with pytest.raises(InvalidRequest):
        hub.publish("plain", array)
    with pytest.raises(InvalidRequest):
        hub.request("service:echo", array)


@pytest.mark.parametrize(
    ("number", "arrives"),
    [
        *((np.float64(1.5), 1.5), (np.float32(0.1), float(np.float32(0.1)))),
        *((np.int64(-7), -7), (np.uint8(7), 7), (np.True_, True)),
    ],
)
def test_a_number_of_numpy_arrives_as_the_same_number_of_python(hub: MessageHub, number: Any, arrives: Any) -> None:
    for said in everywhere(hub, number):
        assert (type(said), said) == (type(arrives), arrives)
    for said in everywhere(hub, {"rows": [number]}):
        assert (type(said["rows"][0]), said["rows"][0]) == (type(arrives), arrives)
    with hub.subscribe("plain") as plain:
        hub.publish("plain", b"", headers={"n": number})
        assert plain.receive(SECONDS).headers == {"n": arrives}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_arrives_as_the_arrow_table_that_restores_it(hub: MessageHub, library: str) -> None:
    columns = {"n": [1, 2], "name": ["a", None]}
    frame: Any = pd.DataFrame(columns, index=[5, 9]) if library == "pandas" else pl.DataFrame(columns)
    for arrived in everywhere(hub, frame):
        assert isinstance(arrived, pa.Table)
        if library == "pandas":
            pd.testing.assert_frame_equal(arrived.to_pandas(), frame)
        else:
            assert pl.from_arrow(arrived).equals(frame)  # type: ignore[union-attr]


def test_a_large_frame_is_read_where_it_lies(hub: MessageHub) -> None:
    frame = pd.DataFrame({"n": np.arange(500_000)})
    for arrived in everywhere(hub, frame, is_large=True):
        pd.testing.assert_frame_equal(arrived.to_pandas(), frame)


class Model(pydantic.BaseModel):
    n: int


@dataclasses.dataclass
class Reading:
    n: int


class Struct(msgspec.Struct):
    n: int


class Unit(enum.Enum):
    VOLT = "V"


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Model(n=1), r'value\.model_dump\(mode="json"\)'),
        (Reading(1), r"dataclasses\.asdict\(value\)"),
        (Struct(1), r"msgspec\.to_builtins\(value\)"),
        (Unit.VOLT, r"value\.value"),
        ((1, 2), r"list\(value\)"),
        ({1, 2}, r"sorted\(value\)"),
        ([b"a"], "base64"),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), r"value\.isoformat\(\)"),
        (datetime.timedelta(1), r"value\.total_seconds\(\)"),
        (decimal.Decimal("1.10"), r"str\(value\)"),
        (uuid.UUID(int=1), r"str\(value\)"),
        (Text("a"), r"str\(value\)"),
        ({"a": np.arange(3)}, r"value\.tolist\(\)"),
        ([np.longdouble(1)], r"value\.tolist\(\)"),
        ([np.datetime64("2026-01-01")], r"value\.astype\(str\)\.tolist\(\)"),
        ([pd.DataFrame({"a": [1]})], "as the whole payload"),
        (pd.Series([1]), "as the whole payload"),
        ([pa.table({"a": [1]})], "as the whole payload"),
        (np.float64("nan"), "send None"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_refused_says_what_to_send_instead(hub: MessageHub, value: Any, advice: str) -> None:
    for call in (lambda: hub.publish("plain", value), lambda: hub.request("service:echo", value)):
        with pytest.raises(InvalidRequest, match=advice):
            call()


def test_a_frame_that_arrow_has_no_form_for_is_refused(hub: MessageHub) -> None:
    with pytest.raises(InvalidRequest, match="pandas frame"):
        hub.publish("plain", pd.DataFrame({"mixed": [1, "a", object()]}))


@pytest.mark.parametrize(
    "description",
    [
        *(b"", b"[]", b"{}", b'{"dtype": "<f8"}', b'{"dtype": "O", "shape": [2]}', b'{"dtype": "<f8", "shape": [3]}'),
        *(b'{"dtype": "<f8", "shape": [-1]}', b'{"dtype": "<f8", "shape": "2"}', b'{"dtype": "<f4", "shape": [2]}'),
        *(b'{"dtype": {"a": 1}, "shape": [2]}', b"[" * 5000, b'{"dtype": "<f8", "shape": [%s1]}' % (b"1," * 99)),
    ],
)
def test_an_array_that_is_described_wrongly_is_malformed(description: bytes) -> None:
    schema = pa.schema([("item", pa.float64())], metadata={ARRAY: description})
    kind, body = encode_payload(pa.record_batch([pa.array([1.0, 2.0])], schema=schema))
    with pytest.raises(MalformedRequest):
        decode_payload(kind, memoryview(body), "t")


@pytest.mark.parametrize("column", [pa.array(["a"]), pa.array([1.0, None])], ids=["text", "null"])
def test_an_array_of_a_column_that_is_none_is_malformed(column: pa.Array) -> None:
    schema = pa.schema([("item", column.type)], metadata={ARRAY: b'{"dtype": "<f8", "shape": [1]}'})
    for batch in (pa.record_batch([column], schema=schema), pa.record_batch([], schema=pa.schema([], schema.metadata))):
        kind, body = encode_payload(batch)
        with pytest.raises(MalformedRequest):
            decode_payload(kind, memoryview(body), "t")


@pytest.mark.parametrize("value", [np.datetime64("2026-11-17T22:00"), np.timedelta64(5, "s")])
def test_the_advice_for_times_of_numpy_works(value: Any) -> None:
    for each in (value, np.array([value])):
        with pytest.raises(InvalidRequest) as refused:
            encode_payload({"at": each})
        call = re.search(r"send (?:the seconds, )?(.*\.tolist\(\))", refused.value.message)
        assert call is not None, refused.value.message
        encode_payload({"at": eval(call[1], {"value": each, "numpy": np})})  # what the advice says
