"""Fixtures of messages between processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from messagehub import MessageHub
from tests.conftest import QUICK
from tests.integration.harness import Served
from tests.messaging.service_harness import WorkerProcess, patient_hub


@pytest.fixture(autouse=True)
def _patient_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker on a loaded machine may need more than half a second to say hello."""
    monkeypatch.setenv("MESSAGEHUB_HELLO_TIMEOUT_SECONDS", "5")


@pytest.fixture
def broker(served: Callable[..., Served]) -> Served:
    return served("--no-http", **QUICK)


@pytest.fixture
def worker(broker: Served) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(address: str, **options: Any) -> WorkerProcess:
        started.append(WorkerProcess(broker, address, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def caller(broker: Served) -> Iterator[MessageHub]:
    with patient_hub(broker) as hub:
        yield hub
