"""Fixtures for tests with a running hub; `no_leaks` is asked for by name, since other parts keep helper processes."""

import contextlib
import functools
import gc
import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from xdist.scheduler import LoadScopeScheduling

from messagehub import MessageHub
from tests import class_archive, preloaded, rewritten, stopped
from tests.integration.harness import AnyBroker, Embedded, Held, Peer, Served, eventually
from tests.levels import IS_QUICK

# Without compiled files, every process that a test starts compiles the whole package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
class_archive.use()
stopped.wait_for_stops()

QUICK = {"heartbeat_seconds": 0.5, "stall_seconds": 20.0, "lease_seconds": 40.0, "beacon_seconds": 0.1}


# httpx reads the certificates of all authorities for every client, which takes 30 ms.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)

LONGEST = ("tests/spark/", "tests/faults/", "tests/site/", "tests/console/", "tests/docs/")
"""Folders whose tests mostly wait. Beside them there are always some that keep the processors busy."""
LONGEST_SHARE = 0.55
"""How much of the list of files they are spread over: a long test that begins last keeps the others waiting."""
TOGETHER = ("tests/spark/", "tests/console/")
"""Folders whose tests share one process."""
COLLECT_SECONDS = 0.2
_domains = itertools.count(1)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None):  # the process that starts those of pytest-xdist
        rewritten.compile_once(config.rootpath / name.partition("::")[0] for name in config.args)
    elif not config.option.collectonly:
        preloaded.start()


@pytest.fixture(autouse=True)
def _own_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has a directory of channels of its own, apart from the user's hub and from other runs and tests."""
    domain = f"pytest-{os.getpid()}-{next(_domains)}"
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", domain)
    yield
    shutil.rmtree(f"/dev/shm/messagehub-{os.geteuid()}/{domain}", ignore_errors=True)
    for ring in Path("/dev/shm").glob(f"pylabhub_*@{domain}"):
        ring.unlink(missing_ok=True)
    for shared in Path("/dev/shm").glob(f"messagehub@*/{domain}"):
        shutil.rmtree(shared, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in it
            shared.parent.rmdir()


def pytest_unconfigure() -> None:
    """Remove what hubs that live longer than one test leave."""
    for domain in Path(f"/dev/shm/messagehub-{os.geteuid()}").glob(f"pytest-{os.getpid()}-*"):
        shutil.rmtree(domain, ignore_errors=True)
    for ring in Path("/dev/shm").glob(f"pylabhub_*@pytest-{os.getpid()}-*"):
        ring.unlink(missing_ok=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out `slow` tests of a quick run unless `-m slow` asks for them. Spread what waits among what computes."""
    if IS_QUICK and "slow" not in config.getoption("-m"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    place = _places(dict.fromkeys(_scope(item.nodeid) for item in items))
    items.sort(key=lambda item: place[_scope(item.nodeid)])


def _places(scopes: Iterable[str]) -> dict[str, float]:
    """Return where in a run each scope begins, between 0 and 1."""
    long = sorted((one for one in scopes if one.startswith(LONGEST)), key=lambda one: one not in TOGETHER)
    short = [one for one in scopes if not one.startswith(LONGEST)]
    return {one: LONGEST_SHARE * at / len(long) for at, one in enumerate(long)} | {
        one: at / len(short) for at, one in enumerate(short)
    }


def _scope(nodeid: str) -> str:
    """Return what one process runs: a file, or a folder of TOGETHER."""
    return next((one for one in TOGETHER if nodeid.startswith(one)), nodeid.partition("::")[0])


def pytest_collection_finish() -> None:
    """Let no collection of garbage look through all that is imported, which takes 0.3 s."""
    gc.collect()
    gc.freeze()


class FileByFile(LoadScopeScheduling):
    """Under pytest-xdist a file's tests run in one process. So do all of Spark's: a session takes seconds and 1 GB, and
    beside a second one its Python workers may take longer to start than Spark waits for them (10 s). So do all of the
    console's, in one browser."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileByFile:
    config.option.loadscopereorder = False  # else files with the most tests would be first, not those that take longest
    return FileByFile(config, log)


@pytest.fixture(autouse=True)
def _own_log_levels() -> Iterator[None]:
    """A command that runs in this process sets levels, which must not change what later tests log."""
    loggers = [logging.getLogger(name) for name in (None, "messagehub")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Captured output may hold half a character, which a worker of pytest-xdist cannot send to its controller."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail when a thread, descriptor, socket or child process outlives the test.

    What is left after a moment may be garbage that nobody has collected yet. A collection takes longer than most tests.
    """
    before = Held()
    yield
    MessageHub.reset_instance()
    leaked: list[str] = []
    collect_at = time.monotonic() + COLLECT_SECONDS

    def is_clean() -> bool:
        nonlocal collect_at
        leaked[:] = before.leaked_since()
        if leaked and time.monotonic() > collect_at:
            gc.collect()
            collect_at = time.monotonic() + COLLECT_SECONDS
        return not leaked

    try:
        eventually(is_clean, timeout=10.0)
    except AssertionError:
        pytest.fail(f"leaked: {leaked}")


@pytest.fixture
def served(tmp_path: Path, no_leaks: None) -> Iterator[Callable[..., Served]]:
    """Start `messagehub serve` processes; those that still run at the end are checked and killed."""
    with contextlib.ExitStack() as started:

        def start(*arguments: str, dir: Path | None = None, **settings: Any) -> Served:
            server = Served(dir or tmp_path / "hub", *arguments, **settings)
            started.callback(server.close)
            return server

        yield start


@pytest.fixture
def embedded(no_leaks: None) -> Iterator[Callable[..., Embedded]]:
    with contextlib.ExitStack() as started:

        def start(**settings: Any) -> Embedded:
            broker = Embedded(**settings)
            started.callback(broker.close)
            return broker

        yield start


@pytest.fixture(params=["embedded", "serve", "embedded-zmq"])
def start_broker(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    served: Callable[..., Served],
    embedded: Callable[..., Embedded],
) -> Callable[..., AnyBroker]:
    """The same test over the embedded broker and over a process of its own, by the local socket and by ZeroMQ."""
    if request.param.endswith("zmq"):
        monkeypatch.setenv("MESSAGEHUB_TRANSPORT", "zmq")
    return served if request.param == "serve" else embedded


@pytest.fixture
def broker(start_broker: Callable[..., AnyBroker]) -> AnyBroker:
    return start_broker(**QUICK)


@pytest.fixture
def peer(broker: AnyBroker) -> Iterator[Peer]:
    with Peer(broker.endpoint) as connected:
        yield connected
