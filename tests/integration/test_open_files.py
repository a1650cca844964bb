"""Open files: a producer holds two, and a process that has no more to give says so in our words."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.integration.harness import Served, eventually, run_script
from tests.levels import IS_QUICK

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("when_full", ["overwrite", "block"])
def test_a_producer_holds_two_descriptors(tmp_path: Path, when_full: str) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.producer("first"):
        before = len(os.listdir("/proc/self/fd"))
        producers = [hub.producer(f"p{number}", when_full=when_full) for number in range(10)]
        for producer in producers:
            producer.write(b"1")
        # a thread may open one for a moment
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 2 * len(producers))


PROGRAM = """
import os, resource, sys, time
from messagehub import MessageHub
from messagehub.errors import TooManyOpenFiles
from messagehub.runtime import forgotten
hub = MessageHub(dir=sys.argv[1])
made = [hub.producer("first")]
# private: whether it still cleans, which it does in the place of a broker and which takes descriptors too
while forgotten._closing.locked():
    time.sleep(0.01)
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


LATEST = """
import os, resource, sys, time
from messagehub import MessageHub
from messagehub.errors import TooManyOpenFiles

def is_refused(read):
    try:
        return read()  # nothing, while it is being asked where the channel is
    except TooManyOpenFiles as error:
        return "ulimit -n" in error.message

def value(read):
    try:
        return read()
    except TooManyOpenFiles:
        return None  # as it was when that was asked

def outcome(look, read):
    until = time.monotonic() + 30
    while (found := look(read)) is None and time.monotonic() < until:
        time.sleep(0.01)
    return found

with MessageHub(dir=sys.argv[1]) as hub, hub.consumer("later") as consumer, hub.producer("later") as producer:
    producer.write(b"1")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        print(len(held) > 0)
    for read in (consumer.latest, lambda: consumer.read(timeout=1)):
        print(outcome(is_refused, read))
    for each in held:
        os.close(each)
    for read in (consumer.latest, lambda: consumer.read(timeout=1)):
        print(outcome(value, read))
"""


def test_what_cannot_be_opened_is_an_error_for_a_reader_and_not_nothing(tmp_path: Path) -> None:
    assert run_script(LATEST, str(tmp_path)).splitlines() == ["True", "True", "True", "b'1'", "b'1'"]


WITH_A_BROKER = """
import os, resource, sys
from messagehub import MessageHub
from messagehub.errors import ServiceNotFound, TooManyOpenFiles

def echo(message, context):
    return message.payload

name = sys.argv[2]
hub = MessageHub(dir=sys.argv[1], request_timeout_seconds=10)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + int(sys.argv[2]), most))
made = []
for call in (
    lambda: hub.connect(required=True),
    lambda: hub.register_producer("c" + name, schema_hash="h"),
    lambda: hub.publish("news" + name, b"1"),
    lambda: hub.subscribe("news" + name),
    lambda: hub.serve("service:echo" + name, echo),
    lambda: hub.request("service:echo" + name, 1, timeout=10),
):
    try:
        made.append(call())
    except TooManyOpenFiles as error:
        assert "ulimit -n" in error.message, error.message
    except ServiceNotFound:
        assert len(made) < 5, "it is served"
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
with hub.subscribe("new.news" + name, timeout=30) as subscription, hub.serve("service:again" + name, echo):
    hub.publish("new.news" + name, b"2", timeout=30)
    assert subscription.receive(30).payload == b"2"
    assert hub.request("service:again" + name, 7, timeout=30) == 7
assert hub.metrics()["defects"] == 0
hub.close()
"""


def test_no_descriptor_left_for_a_broker_is_an_error_and_not_the_end(served: Callable[..., Served]) -> None:
    """libzmq ends a process that has no descriptor for its threads. Each count runs out of them at another place."""
    broker = served()
    programs = {
        spare: subprocess.Popen(
            [sys.executable, "-c", WITH_A_BROKER, str(broker.dir), str(spare)], stderr=subprocess.PIPE, text=True
        )
        for spare in range(0, 60, 4 if IS_QUICK else 1)
    }
    said = {spare: program.communicate(timeout=100)[1] for spare, program in programs.items()}
    assert {spare: (program.returncode, said[spare]) for spare, program in programs.items() if program.returncode} == {}
