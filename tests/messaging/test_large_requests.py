"""Arrow data that is too large for a message goes through shared memory, in requests and replies too."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import MailboxFull, MessageTooLarge
from messagehub.services.context import ServiceContext, ServiceMessage
from tests.integration.harness import Served, eventually
from tests.messaging.service_harness import SECONDS, Gate, patient_hub
from tests.messaging.test_request_paths import WAYS, Way, fill

LARGE = pa.table({"n": pa.array(range(1_000_000), pa.int64())})


@pytest.fixture
def echo(broker: Served) -> Iterator[MessageHub]:
    def answer(message: ServiceMessage, context: ServiceContext) -> Any:
        return message.payload

    async def answer_async(message: ServiceMessage, context: ServiceContext) -> Any:
        return message.payload

    with patient_hub(broker) as hub, hub.serve("service:echo", answer), hub.serve("service:async", answer_async):
        yield hub


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize("address", ["service:echo", "service:async"])
def test_a_large_table_is_asked_with_and_answered(ask: Way, address: str, echo: MessageHub, caller: MessageHub) -> None:
    assert ask(caller, address, LARGE, timeout=SECONDS).equals(LARGE)


@pytest.mark.parametrize("address", ["service:echo", "service:async"])
def test_large_arrays_and_frames_are_asked_with_and_answered(
    address: str, echo: MessageHub, caller: MessageHub
) -> None:
    array = np.arange(600_000, dtype=np.int32).reshape(1000, 600)
    found = caller.request(address, array, timeout=SECONDS)
    assert isinstance(found, np.ndarray)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    frame = pd.DataFrame({"n": np.arange(300_000)})
    assert caller.request(address, frame, timeout=SECONDS).to_pandas().equals(frame)


@pytest.mark.parametrize("rows", [0, 1, 100_000, 131_000, 1_000_000])
def test_batches_of_every_size_arrive_as_they_were(rows: int, echo: MessageHub, caller: MessageHub) -> None:
    batch = pa.record_batch({"n": pa.array(range(rows), pa.int64())})
    found = caller.request("service:echo", batch, timeout=SECONDS)
    assert isinstance(found, pa.RecordBatch)
    assert found.equals(batch)


def test_a_large_table_can_be_sent_without_a_reply(broker: Served, caller: MessageHub) -> None:
    got: list[Any] = []
    with patient_hub(broker) as hub, hub.serve("service:log", lambda message, context: got.append(message.payload)):
        caller.send("service:log", LARGE, timeout=SECONDS)
        asyncio.run(caller.send_async("service:log", LARGE, timeout=SECONDS))
        eventually(lambda: len(got) == 2)
    assert all(each.equals(LARGE) for each in got)


def test_other_large_payloads_are_refused_before_anything_is_sent(echo: MessageHub, caller: MessageHub) -> None:
    with pytest.raises(MessageTooLarge):
        caller.request("service:echo", b"x" * 2**21, timeout=SECONDS)
    with pytest.raises(MessageTooLarge):
        asyncio.run(caller.request_async("service:echo", "x" * 2**21, timeout=SECONDS))


def test_a_large_partial_result_is_refused_where_it_is_given(broker: Served, caller: MessageHub) -> None:
    def stream(message: ServiceMessage, context: ServiceContext) -> Any:
        with pytest.raises(MessageTooLarge):
            context.stream(LARGE)
        return LARGE

    with patient_hub(broker) as hub, hub.serve("service:stream", stream):
        streamed = caller.stream("service:stream", timeout=SECONDS)
        assert list(streamed) == []
        assert streamed.result.equals(LARGE)


def test_a_large_request_that_is_given_up_is_a_dead_letter_without_its_payload(
    broker: Served, caller: MessageHub
) -> None:
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:busy", gate, mailbox=1):
        held = fill(caller, hub, gate)
        with pytest.raises(MailboxFull):
            caller.request("service:busy", LARGE, timeout=SECONDS)
        eventually(lambda: caller.dead_letters("service:busy").letters)
        (letter,) = caller.dead_letters("service:busy").letters
        assert (letter.payload_kind, letter.payload_base64) == ("arrow_table", None)
        assert letter.payload_bytes == LARGE.nbytes
        gate.opened.set()
        assert [each.result() for each in held] == [0, 1]
