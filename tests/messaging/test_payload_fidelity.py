"""What one user publishes, sends or returns is what another reads, value and type, or it is refused."""

import datetime
import decimal
import enum
import itertools
import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagehub import MessageHub
from messagehub.errors import HandlerFailed, InvalidRequest
from messagehub.payloads.encoding import decode_payload, encode_payload
from messagehub.services.context import ServiceContext, ServiceMessage
from tests.conftest import QUICK
from tests.integration.harness import Served
from tests.messaging.service_harness import SECONDS, patient_hub


@dataclass
class Reading:
    value: float


class Unit(enum.Enum):
    VOLT = "V"


OTHERWISE_CHANGED = {
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "datetime": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "date": datetime.date(2026, 1, 1),
    "timedelta": datetime.timedelta(seconds=1),
    "set": {1, 2},
    "frozenset": frozenset({1}),
    "tuple": (1, 2),
    "int key": {1: "a"},
    "float key": {1.5: "a"},
    "bool key": {True: "a"},
    "nested bytes": [b"a"],
    "Decimal": decimal.Decimal("1.10"),
    "UUID": uuid.UUID(int=1),
    "dataclass": Reading(1.0),
    "enum": Unit.VOLT,
    "half a character": "\ud800",
}
NESTED = {name: {"deep": [1, {"in": value}]} for name, value in OTHERWISE_CHANGED.items()}
_numbers = itertools.count()
REFUSED = [*OTHERWISE_CHANGED.values(), *NESTED.values()]
NAMES = [*OTHERWISE_CHANGED, *(f"nested {name}" for name in NESTED)]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ANY_VALUES = st.recursive(
    JSON_VALUES | st.floats() | st.datetimes() | st.sets(st.integers()) | st.binary() | st.decimals() | st.uuids(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageHub]:
    place: Path = tmp_path_factory.mktemp("hub")
    served = Served(place / "hub", "--no-http", **QUICK)
    try:
        with patient_hub(served) as connected:
            connected.topic("retained", keep=100)
            yield connected
    finally:
        served.close()


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down; also a zero's sign."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) and (type(left) is not float or math.copysign(1, left) == math.copysign(1, right))


@given(JSON_VALUES)
def test_a_json_value_arrives_as_it_was(value: Any) -> None:
    kind, body = encode_payload(value)
    assert same(decode_payload(kind, memoryview(body), "t"), value)


@given(ANY_VALUES)
def test_any_value_arrives_as_it_was_or_is_refused(value: Any) -> None:
    try:
        kind, body = encode_payload(value)
    except InvalidRequest:
        return
    assert same(decode_payload(kind, memoryview(body), "t"), value)


@pytest.mark.parametrize("value", REFUSED, ids=NAMES)
def test_a_topic_refuses_what_would_arrive_as_something_else(hub: MessageHub, value: Any) -> None:
    with hub.subscribe(">") as subscription, hub.subscribe("plain", local=True) as local:
        for topic, options in (("plain", {}), ("retained", {}), ("plain", {"local": True})):
            with pytest.raises(InvalidRequest):
                hub.publish(topic, value, **options)
            with pytest.raises(InvalidRequest):
                hub.publish(topic, b"", headers={"h": value}, **options)
        with pytest.raises(InvalidRequest):
            hub.topic("retained").publish_all([1, value])
        hub.publish("plain", "next")
        hub.publish("plain", "next", local=True)
        assert subscription.receive(SECONDS).payload == local.receive(SECONDS).payload == "next"
    assert hub.topic("retained").describe().messages == 0


@pytest.mark.parametrize("value", REFUSED, ids=NAMES)
def test_a_service_refuses_what_would_arrive_as_something_else(hub: MessageHub, value: Any) -> None:
    seen: list[Any] = []
    address = f"service:echo-{next(_numbers)}"  # a caller may know the worker of the test before for a moment

    def handler(message: ServiceMessage, context: ServiceContext) -> Any:
        seen.append(message.payload)
        if message.payload == "partial":
            with pytest.raises(InvalidRequest):
                context.stream(value)
            return "refused"
        return value

    with hub.serve(address, handler):
        for ask in (hub.request, hub.send, hub.stream, hub.begin_request):
            with pytest.raises(InvalidRequest):
                ask(address, value, timeout=SECONDS)
            with pytest.raises(InvalidRequest):
                ask(address, b"", headers={"h": value}, timeout=SECONDS)
        assert seen == []
        with pytest.raises(HandlerFailed, match="cannot be sent"):
            hub.request(address, "reply", timeout=SECONDS)
        assert hub.stream(address, "partial", timeout=SECONDS).result == "refused"


def test_the_refusal_says_where_and_what(hub: MessageHub) -> None:
    with pytest.raises(InvalidRequest, match=r"\['rows'\]\[1\]\['x'\] is nan"):
        hub.publish("t", {"rows": [1, {"x": math.nan}]})
    with pytest.raises(InvalidRequest, match=r"has the key 7 \(int, not str\)"):
        hub.publish("t", {7: 1})
    with pytest.raises(InvalidRequest, match="is of type set"):
        hub.request("service:none", {1})
