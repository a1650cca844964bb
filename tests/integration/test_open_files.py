"""Open files: a producer holds two, and a process that has no more to give says so in our words."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from messagehub import MessageHub

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("when_full", ["overwrite", "block"])
def test_a_producer_holds_two_descriptors(tmp_path: Path, when_full: str) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("first"):
        before = len(os.listdir("/proc/self/fd"))
        producers = [hub.producer(f"p{number}", when_full=when_full) for number in range(10)]
        for producer in producers:
            producer.write(b"1")
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * len(producers)


PROGRAM = """
import os, resource, sys
from messagehub import MessageHub
from messagehub.errors import TooManyOpenFiles
hub = MessageHub(dir=sys.argv[1])
made = [hub.producer("first")]
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + int(sys.argv[2]), most))
for make in (hub.producer, hub.consumer):
    try:
        for number in range(100):
            made.append(make(f"c{number}"))
    except TooManyOpenFiles as error:
        assert "ulimit -n" in error.message, error.message
    else:
        raise AssertionError("there was no limit")
made[0].write(b"1")
for each in made:
    each.close()
hub.producer("again").close()
hub.close()
"""


@pytest.mark.parametrize("spare", [2, 3, 4, 5, 39, 40, 41, 42])  # each runs out of them at another place
def test_no_descriptor_left_is_an_error_that_names_the_limit(tmp_path: Path, spare: int) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), str(spare)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
