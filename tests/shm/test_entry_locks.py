"""Locks that many entries of one process share: alike for whoever looks, and none brings another back to life."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.channel_directory.entry_locks import ProcessLock
from messagehub.shm.errors import NameTaken
from messagehub.shm.identity import ProcessIdentity
from tests import preloaded
from tests.integration.harness import ROOT, clean_environment

FORK = """
import os, sys, time
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.channel_directory.entry_locks import ProcessLock
from messagehub.shm.identity import ProcessIdentity
directory, lock = Directory("d", root=sys.argv[1]), ProcessLock()
for name in sys.argv[2:]:
    with directory.locked(name) as channel:
        channel.register(ProducerEntry(name, "p", ProcessIdentity.current(), time.time()), lock)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm")
    return Directory("d", root=str(tmp_path))


def entry(channel: str) -> ProducerEntry:
    return ProducerEntry(channel, "p", ProcessIdentity.current(), time.time())


def living(directory: Directory) -> list[str]:
    return [name for name in directory.channels() if any(one.is_alive for one in directory.producers(name))]


def another(directory: Directory, *channels: str) -> "subprocess.Popen[str]":
    process = preloaded.Popen(
        [sys.executable, "-c", FORK, directory.root, *channels],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=30.0)


def test_all_entries_of_a_process_live_and_die_with_it(directory: Directory) -> None:
    process = another(directory, "a", "b", "c")
    try:
        assert living(directory) == ["a", "b", "c"]
        with directory.locked("a") as channel, pytest.raises(NameTaken):
            channel.register(entry("a"))
        with directory.locked("a") as channel, pytest.raises(NameTaken):
            channel.register(entry("a"), ProcessLock())
    finally:
        end(process)
    assert living(directory) == []


def test_a_successor_does_not_bring_the_others_back(directory: Directory) -> None:
    end(another(directory, "a", "b", "c"))
    with directory.locked("a") as channel:
        own = channel.register(entry("a"))
    shared = ProcessLock()
    with directory.locked("b") as channel:
        channel.register(entry("b"), shared)
    assert living(directory) == ["a", "b"]
    own.close()
    shared.close()
    assert living(directory) == []


def test_cleaning_one_of_the_dead_leaves_the_others_dead(directory: Directory) -> None:
    end(another(directory, "a", "b"))
    done = clean(directory, now=time.time(), linger_seconds=0.0)
    assert sorted(done.producers) == ["p", "p"]
    assert living(directory) == []
    process = another(directory, "a", "b")
    try:
        assert clean(directory, now=time.time(), linger_seconds=0.0).producers == []
        assert living(directory) == ["a", "b"]
    finally:
        end(process)


def test_one_open_file_serves_any_number_of_entries_also_after_all_were_removed(directory: Directory) -> None:
    lock = ProcessLock()
    for _ in range(3):
        before = len(os.listdir("/proc/self/fd"))
        for name in ("a", "b", "c"):
            with directory.locked(name) as channel:
                channel.register(entry(name), lock)
        assert len(os.listdir("/proc/self/fd")) - before <= 1
        assert living(directory) == ["a", "b", "c"]
        for name in ("a", "b", "c"):
            for suffix in (".json", ".lock"):
                os.unlink(os.path.join(directory.channel_path(name), f"p{suffix}"))
    lock.close()
