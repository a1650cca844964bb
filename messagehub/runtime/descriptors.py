"""Wait for descriptors, whatever their numbers: `select.select` fails for those from 1024 on."""

import math
import select
from collections.abc import Iterable


def wait_readable(fds: Iterable[int], seconds: float | None) -> set[int]:
    """Return the descriptors that can be read, or are at their end; none when the time is up. None waits for ever."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else math.ceil(max(seconds, 0.0) * 1000))}
