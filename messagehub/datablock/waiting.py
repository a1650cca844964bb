"""Sleeping until any of several readers, or something else, has news."""

import select
import time
from collections.abc import Iterable

from .reader import RingReader
from .wakeup import PROBE_SECONDS


def wait_any(readers: Iterable[RingReader], deadline: float | None, also: Iterable[int] = ()) -> set[int]:
    """Sleep over armed readers until the deadline; returns those of `also` that are readable."""
    poll = select.poll()
    owners: dict[int, RingReader] = {}
    timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
    for reader in readers:
        for fd in reader.wake_fds():
            poll.register(fd, select.POLLIN)
            owners[fd] = reader
        if reader.needs_probing():
            timeout = PROBE_SECONDS if timeout is None else min(timeout, PROBE_SECONDS)
    others = set(also)
    for fd in others:
        poll.register(fd, select.POLLIN)
    ready = [fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]
    for fd in ready:
        if fd in owners:
            owners[fd].woken(fd)
    return others.intersection(ready)
