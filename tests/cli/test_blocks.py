"""`messagehub blocks` and `messagehub tail`: real rings and tables of real processes, without a broker."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.shm.channel_directory.cleaning import LINGER_SECONDS
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.layout import HEADER_BYTES
from messagehub.shm.mapped_file import Segment
from messagehub.shm.rings.ring import peek
from tests import preloaded
from tests.cli.program import Program, until
from tests.integration.harness import eventually

PRODUCE = """
import sys, pyarrow as pa
from messagehub import MessageHub
schema = pa.schema([("n", pa.int64()), ("who", pa.utf8())])
hub = MessageHub()
producer = hub.producer("sensors", schema=schema, capacity=8, page_size=4096, checksum="verify")
for number in range(3):
    producer.write(pa.record_batch([[number], ["eve"]], schema=schema))
print("ready", flush=True)
for line in sys.stdin:
    producer.write(pa.record_batch([[int(line)], ["adam"]], schema=schema))
producer.close()
"""


@contextmanager
def producing(program: Program) -> Iterator[subprocess.Popen[str]]:
    """A process that has written three batches and writes one more for every line it gets; then it ends."""
    process = preloaded.Popen(
        [sys.executable, "-c", PRODUCE],
        env=program.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def killed(alone: Program) -> Program:
    """A program whose only producer was killed."""
    with producing(alone) as process:
        process.kill()
        process.wait()
    return alone


def path_of(program: Program, channel: str = "sensors") -> str:
    return Directory(program.environment["MESSAGEHUB_DOMAIN"]).exclusive_block(channel)


def test_nothing_there(alone: Program) -> None:
    assert alone.call("blocks").stdout == "no blocks\n"
    assert alone.call("blocks", "list", "x").stdout == "no blocks of channels that start with 'x'\n"
    assert alone.call_json("blocks", "list") == []
    assert alone.call_json("blocks", "clean")["producers"] == []


def test_a_live_ring_and_a_table_are_listed_inspected_and_verified(alone: Program) -> None:
    with producing(alone) as process:
        with MessageHub(domain=alone.environment["MESSAGEHUB_DOMAIN"], dir=alone.dir) as hub:
            hub.publish_table("results", pa.table({"x": [1, 2, 3]}))
        table = alone.run("blocks").stdout
        assert "sensors" in table
        assert "generation 1" in table
        results, sensors = sorted(alone.call_json("blocks", "list"), key=lambda block: str(block["channel"]))
        assert (sensors["state"], sensors["head"], sensors["pid"]) == ("live", 3, process.pid)
        assert (results["state"], results["format"]) == ("table", "arrow")
        assert [block["channel"] for block in alone.call_json("blocks", "list", "sens")] == ["sensors"]

        header = alone.call_json("blocks", "inspect", sensors["shm_name"])
        assert (header["channel"], header["kind"], header["slot_count"]) == ("sensors", "RING_BUFFER", 8)
        assert header["writer_pid"] == process.pid
        assert "schema_hash" in alone.call("blocks", "inspect", sensors["shm_name"]).stdout

        checked = {one["channel"]: one for one in alone.call_json("blocks", "verify")}
        assert checked["sensors"]["checked"] == 3
        assert checked["sensors"]["flaw"] is checked["results"]["flaw"] is None
        assert "ok" in alone.call("blocks", "verify").stdout
        assert alone.call_json("blocks", "clean", "--now")["blocks"] == []


def test_what_a_killed_producer_left_is_dead_until_it_is_cleaned(killed: Program) -> None:
    (block,) = killed.call_json("blocks", "list")
    assert (block["state"], block["pid"], block["head"]) == ("dead", None, 3)
    assert killed.call_json("blocks", "verify")[0]["checked"] == 3
    assert "whose producer is gone" in killed.call("doctor", code=1).stdout
    assert killed.call_json("blocks", "clean")["blocks"] == []  # it lingers
    assert killed.run("blocks", "clean", "--now").stdout == "removed 1 dead producers and 1 blocks\n"
    assert killed.call("blocks").stdout == "no blocks\n"
    assert not os.path.exists(path_of(killed))
    assert "0 blocks" in killed.call("doctor", code=1).stdout


def test_without_a_broker_whoever_comes_by_removes_what_has_lingered(killed: Program) -> None:
    domain = killed.environment["MESSAGEHUB_DOMAIN"]
    place = Path(Directory(domain).channel_path("sensors"))

    def come_by() -> None:
        with MessageHub(domain=domain, dir=killed.dir) as hub:
            hub.channels()

    come_by()
    eventually(lambda: list(place.glob("*.dead")))
    assert os.path.exists(path_of(killed)), "it lingers"
    (seen,) = place.glob("*.dead")
    seen.write_text(repr(float(seen.read_text()) - LINGER_SECONDS))
    come_by()
    eventually(lambda: not os.path.exists(path_of(killed)))
    with MessageHub(domain=domain, dir=killed.dir) as hub:
        assert hub.channels() == []


def test_rings_with_another_prefix_are_shown_and_cleaned(alone: Program) -> None:
    alone.dir.mkdir(mode=0o700, exist_ok=True)
    (alone.dir / "messagehub.toml").write_text('shm_prefix = "lab_"\n')
    ring = Path(f"/dev/shm/lab_sensors@{alone.environment['MESSAGEHUB_DOMAIN']}")
    with producing(alone) as process:
        (block,) = alone.call_json("blocks", "list")
        assert (block["shm_name"], block["state"]) == (f"/{ring.name}", "live")
        process.kill()
        process.wait()
    assert ring.exists()
    assert "whose producer is gone" in alone.call("doctor", code=1).stdout
    assert alone.call_json("blocks", "verify")[0]["checked"] == 3
    assert alone.run("blocks", "clean", "--now").stdout == "removed 1 dead producers and 1 blocks\n"
    assert not ring.exists()


def test_a_changed_byte_is_found(killed: Program) -> None:
    segment = Segment.attach(path_of(killed), writable=True)
    start = segment.header().geometry.slot_offset(0)
    segment.data[start + 8] ^= 1
    done = killed.call("blocks", "verify", code=1)
    assert "checksum" in done.stdout.lower()
    assert killed.call_json("blocks", "verify", code=1)[0]["flaw"]


def test_a_damaged_header_is_told_by_everyone_and_changed_by_none(killed: Program) -> None:
    segment = Segment.attach(path_of(killed), writable=True)
    segment.data[:8] = b"GARBAGE!"
    before = bytes(segment.data[:HEADER_BYTES])
    (block,) = killed.call_json("blocks", "list")
    assert block["state"] == "damaged"
    assert block["flaw"]
    killed.call("blocks", "inspect", block["shm_name"], code=1)
    assert "is damaged" in killed.call("doctor", code=1).stdout
    assert bytes(segment.data[:HEADER_BYTES]) == before


@pytest.mark.parametrize("name", ["/pylabhub_nobody", "../../etc/passwd", "/", "x" * 300, "a\0b"])
def test_inspecting_what_is_no_block_is_refused(alone: Program, name: str) -> None:
    done = alone.call("blocks", "inspect", name, code=1)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("messagehub: ")


def test_tail_prints_batches_as_they_come_and_ends_with_the_producer(alone: Program) -> None:
    with producing(alone) as process:
        assert process.stdin is not None
        lines = alone.start("tail", "sensors", "--start", "oldest", "--no-follow", "--json")
        with lines, alone.start("tail", "sensors", "-n", "1") as table:
            lines.says('"who":"eve"', count=3)
            until(lambda: alone.call_json("blocks", "list")[0]["readers"] == 2, "both read")
            process.stdin.write("7\n")
            process.stdin.flush()
            lines.says('{"n":7,"who":"adam"}')
            assert "WHO" in table.says("adam")
            assert table.process.wait(30) == 0
            process.stdin.close()
            assert process.wait(30) == 0
            assert lines.process.wait(30) == 0
    assert lines.out.splitlines()[:2] == ['{"n":0,"who":"eve"}', '{"n":1,"who":"eve"}']


def test_tail_follows_until_it_is_interrupted(alone: Program) -> None:
    with producing(alone) as process, alone.start("tail", "sensors", "--start", "oldest", "--json") as follower:
        follower.says('"who":"eve"', count=3)
        process.kill()
        process.wait()
        with producing(alone):
            follower.says('"who":"eve"', count=6)
        assert follower.end(signal.SIGINT) in (0, 130)
        assert "Traceback" not in follower.err


def test_tail_waits_for_the_first_producer_and_says_so(alone: Program) -> None:
    with alone.start("tail", "sensors", "--start", "oldest", "-n", "3", "--json") as early:
        early.tells("nobody produces channel 'sensors' yet")
        with producing(alone):
            early.says('"who":"eve"', count=3)
            assert early.process.wait(30) == 0


def test_tail_counts_batches_and_tells_of_a_gap_besides(alone: Program) -> None:
    with producing(alone) as process, alone.start("tail", "sensors", "-n", "2", "--json") as slow:
        assert process.stdin is not None
        until(lambda: alone.call_json("blocks", "list")[0]["readers"] == 1, "it reads")
        slow.process.send_signal(signal.SIGSTOP)
        process.stdin.write("".join(f"{number}\n" for number in range(20)))  # the ring has 8 slots
        process.stdin.flush()
        until(lambda: peek(path_of(alone))[1]["head"] == 23, "all is written")
        slow.process.send_signal(signal.SIGCONT)
        assert slow.process.wait(30) == 0
    assert len(slow.out.splitlines()) == 2
    assert "were overwritten before they were read" in slow.err
