"""A streamed reply that somebody else closes: whoever reads it comes to its end at once."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from messagehub import MessageHub
from messagehub.errors import RequestCancelled
from messagehub.services.streams import StreamedReply
from tests.integration.harness import Served
from tests.messaging.service_harness import SECONDS, SOON, Gate, patient_hub


@pytest.fixture
def streamed(broker: Served, caller: MessageHub) -> Iterator[StreamedReply]:
    """Nothing comes of it until the end of the test."""
    gate = Gate()
    with patient_hub(broker) as hub, hub.serve("service:gate", gate):
        reply = caller.stream("service:gate", timeout=SECONDS)
        assert gate.entered.acquire(timeout=SECONDS)
        yield reply
        gate.opened.set()


def test_a_thread_that_reads_is_told(streamed: StreamedReply) -> None:
    timer = threading.Timer(0.1, streamed.close)
    timer.start()
    began_at = time.monotonic()
    assert list(streamed) == []
    assert time.monotonic() - began_at < SOON
    timer.join()


def test_a_task_that_reads_is_told(streamed: StreamedReply) -> None:
    async def run() -> list[Any]:
        asyncio.get_running_loop().call_later(0.1, streamed.close)
        async with asyncio.timeout(SOON):
            return [partial async for partial in streamed]

    assert asyncio.run(run()) == []


def test_a_closed_stream_has_no_result(streamed: StreamedReply) -> None:
    streamed.close()
    with pytest.raises(RequestCancelled, match="closed"):
        print(streamed.result)

    async def run() -> Any:
        return await streamed

    with pytest.raises(RequestCancelled, match="closed"):
        asyncio.run(run())
