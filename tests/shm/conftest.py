"""A private root in /dev/shm for each test, which must leave no descriptor and no mapping of it behind."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def root() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="mh-test-", dir="/dev/shm")
    try:
        yield path
        if leaks(path):
            gc.collect()  # slow, and seldom needed: pytest.raises keeps frames in cycles
        assert not leaks(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leaks(path: str) -> list[str]:
    """Open descriptors and mappings of anything below `path`."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found += [line.split(maxsplit=5)[-1] for line in maps]
    return [name for name in found if name.startswith(path + "/")]
