"""Tests that are written for a hub on its own, as tests of a hub that follows another one.

A module takes them with `taken`, and the fixtures that start hubs from here. Each test has a site of its own: what it
finds in the registry must be its own.
"""

import contextlib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.etcd_server import EtcdMember, etcd
from tests.integration.harness import Served, eventually
from tests.site.hosts import Site


def taken(module: types.ModuleType, *, quick: set[str], left_out: dict[str, str]) -> dict[str, Any]:
    """Return a module's tests and fixtures. `quick` names the tests that `make test` runs, `left_out` those that nobody
    runs, with the reason."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("test_") and name not in left_out:
            found[name] = _copied(value, *([] if name in quick else [pytest.mark.slow]))
        elif _is_fixture(value) and value.__module__ == module.__name__:
            found[name] = value
    unknown = (quick | left_out.keys()) - vars(module).keys()
    assert not unknown, f"{module.__name__} has no {sorted(unknown)}"
    return found


def _copied(test: Any, *marks: pytest.MarkDecorator) -> Any:
    """Return the test as one of its own, so that marks do not count for the hub on its own."""
    made = types.FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    made.__kwdefaults__ = test.__kwdefaults__
    made.__dict__.update(test.__dict__)
    made.__annotations__ = test.__annotations__
    made.pytestmark = [*getattr(test, "pytestmark", []), *(mark.mark for mark in marks)]  # type: ignore[attr-defined]
    return made


def _is_fixture(value: Any) -> bool:
    return type(value).__name__ == "FixtureFunctionDefinition"


class Follower(Served):
    """A hub of this host that follows one of another host, in a site of their own."""

    def __init__(self, directory: Path, member: EtcdMember, *arguments: str, **settings: Any) -> None:
        self._site = Site(directory.parent / f"{directory.name}-site", member.url, "leader", **settings)
        of_site = ("--site", self._site.name, "--etcd", member.url, "--site-endpoint", "tcp://127.0.0.1:0")
        try:
            super().__init__(directory, *arguments, *of_site, "--no-gateway", **{"beacon_seconds": 0.1, **settings})
            eventually(lambda: [each["health"] for each in self._site["leader"].hosts()["hosts"]] == ["healthy"] * 2)
            assert self._site["leader"].is_leader()
        except BaseException:
            self._site.close()
            raise

    def end_at_once(self) -> None:
        try:
            super().end_at_once()
        finally:
            self._site.close()


@pytest.fixture(scope="module")
def etcd_member() -> Iterator[EtcdMember]:
    with etcd() as (started,):
        yield started


@pytest.fixture
def start_broker(tmp_path: Path, etcd_member: EtcdMember, no_leaks: None) -> Iterator[Callable[..., Served]]:
    """Start followers, instead of hubs on their own; those that still run at the end are checked."""
    with contextlib.ExitStack() as started:

        def start(*arguments: str, dir: Path | None = None, **settings: Any) -> Served:
            follower = Follower(dir or tmp_path / "hub", etcd_member, *arguments, **settings)
            started.callback(follower.close)
            return follower

        yield start


@pytest.fixture
def served(start_broker: Callable[..., Served]) -> Callable[..., Served]:
    return start_broker


@pytest.fixture
def embedded(start_broker: Callable[..., Served]) -> Callable[..., Served]:
    return start_broker
