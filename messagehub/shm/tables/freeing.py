"""Remove blocks without waiting for the kernel to free their memory: 300 MB take 40 ms here.

Rule 1: the name is gone when `remove_blocks` returns. The memory follows when the last descriptor is closed, in a
thread; if the process ends before that, the kernel closes it.
Rule 2: a process that writes the next block waits until what it removed before is free, so that it never meets a full
root because of its own garbage.
"""

import os
import threading
from collections.abc import Iterable
from typing import Final

from messagehub.shm.errors import DataBlockError
from messagehub.shm.locks import Descriptor
from messagehub.shm.mapped_file import open_trusted, remove_file

LARGE_BYTES: Final = 16 << 20
"""Below that, freeing takes less time than starting a thread is worth."""
_MOST_SECONDS: Final = 30.0
_freeing: set[threading.Thread] = set()


def remove_blocks(paths: Iterable[str]) -> list[str]:
    """Unlink files, and return those that were there. Large ones are freed in a thread."""
    removed: list[str] = []
    large: list[Descriptor] = []
    for path in paths:
        descriptor = _opened_if_large(path)
        if remove_file(path):
            removed.append(path)
        if descriptor is not None:
            large.append(descriptor)
    if large:
        thread = threading.Thread(target=_close, args=(large,), name="messagehub-freeing", daemon=True)
        thread.start()
        _freeing.difference_update({each for each in tuple(_freeing) if not each.is_alive()})
        _freeing.add(thread)
    return removed


def wait_until_freed() -> None:
    """Wait for what this process removed before."""
    for thread in tuple(_freeing):
        thread.join(_MOST_SECONDS)
        _freeing.discard(thread)


def _opened_if_large(path: str) -> Descriptor | None:
    """Return the open file if it is large. One that cannot be opened is freed when it is unlinked."""
    try:
        descriptor = open_trusted(path, os.O_RDONLY)
    except DataBlockError:
        return None
    if os.fstat(descriptor.fd).st_size < LARGE_BYTES:
        descriptor.close()
        return None
    return descriptor


def _close(descriptors: list[Descriptor]) -> None:
    for descriptor in descriptors:
        descriptor.close()
