"""Producers, consumers, brokers and cleaners are killed at random while data flows through `hub.producer` and
`hub.consumer`: no wrong byte, no stall, nothing left behind after cleaning."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from messagehub.shm.channel_directory.cleaning import clean
from tests.integration.block_processes import Place, Process, place_in
from tests.integration.harness import Served, eventually
from tests.levels import KILLING_SECONDS

# Arrays, because small raw values are copies.
# A payload says who wrote it, its number and a checksum over all of it, so that nothing else can pass for it.
COMMON = """
import random, zlib
def payload(number):
    body = b"%d:%d:" % (os.getpid(), number) + random.randbytes(random.randrange(2000))
    return np.frombuffer(zlib.crc32(body).to_bytes(4, "little") + body, np.uint8)
def check(value):
    data = bytes(value)
    assert zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4], "a wrong byte"
    pid, number, _ = data[4:].split(b":", 2)
    return int(pid), int(number)
"""
PRODUCE = (
    COMMON
    + """
from messagehub.errors import ProducerAlreadyRegistered
while True:
    try:
        producer = hub.producer("storm", schema=np.dtype("u1"), capacity=16, page_size=4096, checksum="verify")
        break
    except ProducerAlreadyRegistered:  # the broker has not seen yet that the one before is dead
        time.sleep(0.01)
say(ready=True)
number = 0
while True:
    number += 1
    producer.write(payload(number))
    time.sleep(0.0005)
"""
)
CONSUME = (
    COMMON
    + """
from messagehub.shm.rings.read_results import Gap
consumer = hub.consumer("storm", start="oldest")
say(ready=True)
seen, last, told = 0, {}, time.monotonic()
held = []
while True:
    value = consumer.read(timeout=5.0)
    if value is None:
        say(stalled=True)
        continue
    if not isinstance(value, Gap):
        pid, number = check(value)
        assert number > last.get(pid, 0), (number, last)
        last[pid] = number
        seen += 1
        held = [*held[-2:], (value, bytes(value))]
        assert all(bytes(view) == copy for view, copy in held), "a view changed"
    if time.monotonic() - told > 0.2:
        told = time.monotonic()
        say(seen=seen)
"""
)
CLEAN = """
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory
say(ready=True)
while True:
    clean(Directory(hub.settings.domain), now=time.time(), linger_seconds=0.0)
    time.sleep(0.005)
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path / "hub", f"k{os.getpid()}") as made:
        yield made


@pytest.mark.soak
@pytest.mark.timeout(KILLING_SECONDS + 300)
def test_nothing_is_wrong_stalls_or_leaks_whoever_is_killed(place: Place) -> None:
    chance = random.Random(20261116)
    programs = {"producer": PRODUCE, "consumer": CONSUME, "other consumer": CONSUME, "cleaner": CLEAN}
    running = {role: _started(place, text) for role, text in programs.items()}
    broker = Served(place.dir)
    try:
        deadline = time.monotonic() + KILLING_SECONDS
        kills = 0
        while kills < 3 or time.monotonic() < deadline:
            time.sleep(chance.uniform(0.05, 0.4))
            role = chance.choice([*running, "broker"])
            if role == "broker":
                broker.kill()
                broker.start()
            else:
                running[role].signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                _check_end(running[role])
                running[role] = _started(place, programs[role])
            kills += 1
        for role in ("consumer", "other consumer"):
            _flows(running[role])
    finally:
        broker.close()
    for process in running.values():
        process.kill()
        _check_end(process)
    eventually(lambda: _cleaned(place))


def _started(place: Place, text: str) -> Process:
    process = place.process(text)
    assert process.hear() == {"ready": True}
    return process


def _check_end(process: Process) -> None:
    """It was killed; it must not have ended by its own judgement, and must not have stalled while others wrote."""
    code = process.popen.wait(30.0)
    assert process.popen.stderr is not None
    complaint = process.popen.stderr.read()
    assert code in (-signal.SIGKILL, -signal.SIGTERM), complaint
    assert "Error" not in complaint, complaint


def _flows(consumer: Process) -> None:
    """It still gets data: two reports, the second with more."""
    seen = [-1]
    deadline = time.monotonic() + 30.0
    while len(seen) < 4 and time.monotonic() < deadline:
        heard = consumer.hear()
        if heard.get("seen", 0) > seen[-1]:
            seen.append(heard["seen"])
    assert len(seen) == 4, seen


def _cleaned(place: Place) -> bool:
    clean(place.directory, now=time.time(), linger_seconds=0.0)
    return place.blocks() == []
