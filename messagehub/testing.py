"""Fixtures for pytest: a broker for each test, and the hub that is connected to it.

    pytest_plugins = ["messagehub.testing"]     # in conftest.py

Each test has a broker, a directory and a domain in shared memory of its own, and nothing of them is left after it. The
code under test needs no arguments: `MessageHub.get_instance()`, `MessageHub()` and child processes find that broker.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.broker.embedded import embedded_broker
from messagehub.hub import MessageHub
from messagehub.shm.mapped_file import DEFAULT_ROOT

__all__ = ["broker", "hub"]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a broker in this process for one test, which no other hub sees, and give its endpoint."""
    MessageHub.reset_instance()
    domain = f"test-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    for name in [name for name in os.environ if name.startswith("MESSAGEHUB_")]:
        monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="messagehub-") as directory:
        monkeypatch.setenv("MESSAGEHUB_DIR", directory)
        monkeypatch.setenv("MESSAGEHUB_DOMAIN", domain)
        try:
            with embedded_broker() as endpoint:
                monkeypatch.setenv("MESSAGEHUB_ENDPOINT", endpoint)
                try:
                    yield endpoint
                finally:
                    MessageHub.reset_instance()  # while there is a broker to say goodbye to
        finally:
            _remove(domain)


@pytest.fixture
def hub(broker: str) -> MessageHub:
    """The shared hub (`MessageHub.get_instance()`), connected to the broker of this test."""
    return MessageHub.get_instance(endpoint=broker)


def _remove(domain: str) -> None:
    root = Path(DEFAULT_ROOT)
    shutil.rmtree(root / f"messagehub-{os.geteuid()}" / domain, ignore_errors=True)
    for ring in root.glob(f"*@{domain}"):
        ring.unlink(missing_ok=True)
