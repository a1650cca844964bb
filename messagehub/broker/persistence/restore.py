"""Restores a registry from the store: at the start, and after a failure of the store."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

from messagehub.settings import Settings
from messagehub.store import Saved, Store
from registry.channels.leases import Terms
from registry.registry import Registry


def load(
    store: Store, settings: Settings, *, now: float, at_least: int = 0, saved: Saved | None = None
) -> tuple[Registry, int]:
    """Return the registry that was written, and its revision. `saved` is what the store holds, if it was loaded.

    Revisions up to `at_least` were shown to clients and are not used again.
    """
    registry = _empty(settings)
    with _without_collecting():
        saved = saved or store.load()
        revision = max(saved.revision, at_least)
        _restore_schemas(registry, saved, revision)
        registry.topics.restore(saved.topics)
        registry.positions.restore(saved.positions, now=now)
        registry.restore(saved.channels, revision=revision, epoch_floor=_epoch_floor(), now=now)
    return registry, saved.revision


def load_copy(store: Store, settings: Settings) -> Registry:
    """Return a copy of the registry of a site, which another hub may lead. No lease begins, and nothing is decided."""
    registry = _empty(settings, logs_services=True)
    with _without_collecting():
        saved = store.load()
        _restore_schemas(registry, saved, saved.revision)
        registry.topics.is_of_site = True
        registry.topics.restore(saved.topics)
        registry.restore_copy(saved.channels, saved.services, revision=saved.revision)
    return registry


def _empty(settings: Settings, *, logs_services: bool = False) -> Registry:
    terms = Terms(
        heartbeat_seconds=settings.heartbeat_seconds,
        stall_seconds=settings.stall_seconds,
        lease_seconds=settings.lease_seconds,
    )
    registry = Registry(terms=terms, shm_prefix=settings.shm_prefix, logs_services=logs_services)
    registry.topics.limit_bytes = settings.kept_limit_bytes
    return registry


def _restore_schemas(registry: Registry, saved: Saved, revision: int) -> None:
    registry.schemas.restore(
        saved.schemas,
        last_id=saved.last_schema_id,
        configs=saved.configs,
        modes=saved.modes,
        revision=revision,
    )


def _epoch_floor() -> int:
    """Return an epoch above that of any consumer group whose files may still be in shared memory.

    Shared memory lives as long as the host runs, and so does this clock, which nobody sets back. It counts faster than
    revisions do, so the epoch is new even when the store that knew the old ones is gone. Earlier versions used
    milliseconds of the wall clock, which are less than the constant.
    """
    return (1 << 50) + time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Turn the garbage collector off while loading: all new objects stay, and scanning them doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
