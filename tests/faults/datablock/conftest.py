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
        gc.collect()
        open_files = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                open_files.append(os.readlink(f"/proc/self/fd/{fd}"))
            except FileNotFoundError:
                continue  # the descriptor of the listing itself
        leaked = [name for name in open_files if name.startswith(path + "/")]
        assert not leaked, f"descriptors left open: {leaked}"
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert not [line for line in maps if path + "/" in line], "mappings left"
    finally:
        shutil.rmtree(path, ignore_errors=True)
