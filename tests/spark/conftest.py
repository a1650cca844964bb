"""One Spark session for all tests here, and for each test a domain of its own in shared memory."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.integration.harness import Served
from tests.spark.sessions import close, new_session

PRIORITY = -10


@pytest.fixture(scope="session", autouse=True)
def _goes_first() -> None:
    """Let Spark's processes run before those of other tests: it gives its Python workers 10 s to start."""
    with contextlib.suppress(PermissionError):  # only root may
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    close(session)


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Removed afterwards with everything in it."""
    name = f"spark-test-{uuid.uuid4().hex[:12]}"
    yield name
    directory = Directory(name)
    for path in Path(directory.root).glob(f"pylabhub_*@{name}"):
        path.unlink()
    shutil.rmtree(Path(directory.path).parent, ignore_errors=True)


@pytest.fixture
def channel_options(domain: str, tmp_path: Path) -> dict[str, str]:
    """No broker runs in this directory: everything must work without one."""
    return {"channel": "sales", "domain": domain, "dir": str(tmp_path / "hub")}


@pytest.fixture
def tables(domain: str) -> TableStore:
    return TableStore(Directory(domain).tables_path("sales"))


@pytest.fixture
def server(domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A hub of the test's own, for those that need a broker."""
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", domain)
    served = Served(tmp_path / "hub")
    yield served
    served.close()


@pytest.fixture
def hub(domain: str, server: Served) -> Iterator[MessageHub]:
    with MessageHub(dir=server.dir, domain=domain) as opened:
        yield opened
