"""The example of a FastAPI app: it runs under uvicorn as it would for a user, beside a broker and a worker."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from messagehub import MessageHub
from tests import preloaded
from tests.integration.harness import ROOT, Served, clean_environment, eventually
from tests.messaging.service_harness import SECONDS

EXAMPLE = ROOT / "examples" / "fastapi_app.py"


@pytest.fixture
def environment(broker: Served) -> dict[str, str]:
    return clean_environment() | {"MESSAGEHUB_ENDPOINT": broker.endpoint, "MESSAGEHUB_HELLO_TIMEOUT_SECONDS": "5"}


@pytest.fixture
def url(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    log = tmp_path / "uvicorn"
    with log.open("w") as written:
        process = preloaded.Popen(
            [sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--port", "0"],
            env=environment,
            cwd=ROOT,
            stderr=written,
            stdout=written,
        )
    said = eventually(lambda: re.search(r"running on (http://\S+:\d+) ", log.read_text()))
    yield said[1]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(SECONDS)
    finally:
        process.kill()
        process.wait()
    assert not re.search("Traceback|Error", log.read_text()), log.read_text()


@pytest.fixture
def prices(environment: dict[str, str]) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    yield process
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_app_publishes_asks_and_streams(url: str, prices: "subprocess.Popen[str]", caller: MessageHub) -> None:
    with caller.subscribe("orders.>", timeout=SECONDS) as orders, httpx.Client(timeout=SECONDS) as client:
        assert client.post(f"{url}/orders/eu?quantity=2").status_code == 202
        received = orders.receive(timeout=SECONDS)
        assert (received.topic, received.payload) == ("orders.eu", {"quantity": 2})
        assert client.get(f"{url}/prices/eu").json() == {"price": 10}
        assert client.get(f"{url}/prices/mars").status_code == 404
        assert client.post(f"{url}/orders/a b?quantity=2").status_code == 422
        assert client.get(f"{url}/countdown").text == "3\n2\n1\n"


def test_the_app_says_that_nobody_serves(url: str) -> None:
    with httpx.Client(timeout=SECONDS) as client:
        assert client.get(f"{url}/prices/eu").status_code == 503
