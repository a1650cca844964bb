"""The hub and its rings by themselves, measured in a process of its own: `python -P hub_rows.py ROW PLACE CORE`.

It imports nothing of the benchmarks, only `messagehub`. So the same code measures another checkout, or the rings
without their extension. The process says `ready IMPLEMENTATION PATH`, answers each number of seconds on its stdin with
one figure, and ends when its stdin does. The other side of a row runs on CORE, or anywhere (`-`).
"""

import itertools
import logging
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
START_SECONDS = 60.0
ANSWER_SECONDS = 10.0
COLD_TRIPS = 40
BURST = 64
MESSAGES = 100
SETTINGS = "stall_seconds = 7200.0\nlease_seconds = 14400.0\nrequests_per_second = 0.0\n"
Measure = Callable[[float], float]
_other_core: int | None = None


def hub_in(place: Path, **settings: Any) -> Any:
    from messagehub import MessageHub

    return MessageHub(dir=place, domain=place.name, **settings)


# -- rows: each yields a function from seconds to one figure ------------------------------------------------


@contextmanager
def trip(place: Path) -> Iterator[Measure]:
    """1 KiB through the hub to a process that sleeps, and back: p50 in µs."""
    payload = bytes(KIB)
    with hub_in(place) as hub, hub.producer("there", capacity=8) as producer, _partner("echo", place):
        consumer = hub.consumer("back")
        if consumer.read(timeout=0.0) is not None or consumer.source is None:
            raise RuntimeError("the partner's ring was not found")

        def there_and_back() -> bool:
            producer.write(payload)
            return consumer.read(timeout=ANSWER_SECONDS) is not None

        yield lambda seconds: _p50_us(there_and_back, seconds)


@contextmanager
def ring_trip(place: Path) -> Iterator[Measure]:
    """The same with the rings themselves, without a hub."""
    payload = bytes(KIB)
    with _ring_writer(place, "there") as writer, _partner("ring-echo", place), _ring_reader(place, "back") as reader:

        def there_and_back() -> bool:
            writer.write(payload)
            return reader.read(ANSWER_SECONDS) is not None

        yield lambda seconds: _p50_us(there_and_back, seconds)


def stream(size: int, capacity: int) -> Any:
    """Items of one size to another process, none of them lost: µs an item, from the first to the last one read."""

    @contextmanager
    def row(place: Path) -> Iterator[Measure]:
        payload = bytes(size)
        burst = BURST if size <= KIB else 1
        with hub_in(place) as hub:
            producer = hub.producer("stream", capacity=capacity, page_size=size, when_full="block")
            with _partner("count", place) as reader:

                def measure(seconds: float) -> float:
                    sent, began = 1, perf_counter()
                    while perf_counter() < began + seconds:
                        for _ in range(burst):
                            producer.write(payload, timeout=ANSWER_SECONDS)
                        sent += burst
                    producer.write(b"\0", timeout=ANSWER_SECONDS)  # the last one of this measurement
                    if int(_line(reader)) != sent:
                        raise RuntimeError("items were lost")
                    return (perf_counter() - began) / sent * 1e6

                yield measure

    return row


@contextmanager
def write(place: Path) -> Iterator[Measure]:
    """1 KiB that nobody reads: µs a call."""
    payload = bytes(KIB)
    with hub_in(place) as hub, hub.producer("stream") as producer:
        yield lambda seconds: _each_us(lambda: producer.write(payload), seconds)


@contextmanager
def read_nothing(place: Path) -> Iterator[Measure]:
    """A read that finds nothing new: µs a call."""
    with hub_in(place) as hub, hub.producer("stream") as producer, hub.consumer("stream") as consumer:
        producer.write(b"x")
        consumer.read(timeout=0.0)
        yield lambda seconds: _each_us(lambda: consumer.read(timeout=0.0), seconds)


@contextmanager
def discover_cold(place: Path) -> Iterator[Measure]:
    """`hub.discover` on the hub's own host, of channels that this client never asked for: p50 in µs."""
    with _broker(place), _registered(place, COLD_TRIPS + 1):

        def measure(_seconds: float) -> float:
            durations = []
            with hub_in(place) as hub:
                _check(hub.discover("bench.c0"))
                for number in range(1, COLD_TRIPS + 1):
                    began = perf_counter()
                    found = hub.discover(f"bench.c{number}")
                    durations.append(perf_counter() - began)
                    _check(found)
            return statistics.median(durations) * 1e6

        yield measure


@contextmanager
def discover_watched(place: Path) -> Iterator[Measure]:
    """`hub.discover` of a channel that this client knows: µs a call."""
    with _broker(place), _registered(place, 1), hub_in(place) as hub:
        _check(hub.discover("bench.c0"))
        _each_us(lambda: hub.discover("bench.c0"), 0.1)  # the first ones ask the broker, until the channel is watched
        yield lambda seconds: _each_us(lambda: hub.discover("bench.c0"), seconds)


@contextmanager
def get_by_id(place: Path) -> Iterator[Measure]:
    """`GET /schemas/ids/1` over a connection that stays: p50 in µs."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port: int = unused.getsockname()[1]
    with _broker(place, "--http", f"127.0.0.1:{port}"), hub_in(place) as hub:
        hub.register_schema("bench.sale", {"type": "object", "properties": {"id": {"type": "integer"}}})
        asked = f"GET /schemas/ids/1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def get() -> bool:
                connection.sendall(asked)
                while received := connection.recv(64 * KIB):  # a head without a body may come before it
                    if b"integer" in received:
                        return True
                return False

            yield lambda seconds: _p50_us(get, seconds)


@contextmanager
def publish(place: Path) -> Iterator[Measure]:
    """Messages of 100 bytes to a subscriber in the same process, many at a time: µs a message."""
    payload = bytes(100)
    with _broker(place), hub_in(place) as hub, hub.subscribe("bench.topic", buffer=MESSAGES) as heard:

        def burst() -> None:
            for _ in range(MESSAGES):
                hub.publish("bench.topic", payload)
            for _ in range(MESSAGES):
                next(heard)

        yield lambda seconds: _each_us(burst, seconds) / MESSAGES


@contextmanager
def attach(place: Path) -> Iterator[Measure]:
    """`hub.consumer` and its end, without a broker: µs a call."""
    with hub_in(place) as hub, hub.producer("stream") as producer:
        producer.write(b"x")
        yield lambda seconds: _each_us(lambda: hub.consumer("stream").close(), seconds)


ROWS: dict[str, Any] = {
    "trip": trip,
    "ring-trip": ring_trip,
    "stream-1k": stream(KIB, BURST),
    "stream-64k": stream(64 * KIB, 8),
    "stream-1m": stream(MIB, 8),
    "stream-16m": stream(16 * MIB, 8),
    "write": write,
    "read-nothing": read_nothing,
    "discover-cold": discover_cold,
    "discover-watched": discover_watched,
    "get-by-id": get_by_id,
    "publish": publish,
    "attach": attach,
}


def _p50_us(call: Callable[[], bool], seconds: float) -> float:
    durations = []
    deadline = perf_counter() + seconds
    while perf_counter() < deadline:
        began = perf_counter()
        is_right = call()
        durations.append(perf_counter() - began)
        if not is_right:
            raise RuntimeError("no echo")
    return statistics.median(durations) * 1e6


def _each_us(call: Callable[[], object], seconds: float) -> float:
    count, began = 0, perf_counter()
    while perf_counter() < began + seconds:
        for _ in itertools.repeat(None, BURST):
            call()
        count += BURST
    return (perf_counter() - began) / count * 1e6


def _check(found: Any) -> None:
    if found is None or found.source != "broker":
        raise RuntimeError("the broker did not answer")


# -- the other side -----------------------------------------------------------------------------------------


def echo(place: Path) -> None:
    with hub_in(place) as hub, hub.producer("back", capacity=8) as producer, hub.consumer("there") as consumer:
        _say("ready")
        while True:
            producer.write(consumer.read())


def ring_echo(place: Path) -> None:
    with _ring_writer(place, "back") as writer, _ring_reader(place, "there") as reader:
        _say("ready")
        while True:
            writer.write(reader.read().value)


def swallow(place: Path) -> None:
    _each(place, lambda _: None)


def keep(place: Path) -> None:
    _each(place, deque(maxlen=1000).append)


def count(place: Path) -> None:
    """Say after each item of one byte how many came since the last such item."""
    came = 0

    def note(value: Any) -> None:
        nonlocal came
        came += 1
        if len(value) == 1:
            _say(str(came))
            came = 0

    _each(place, note)


def _each(place: Path, take: Callable[[Any], object]) -> None:
    with hub_in(place) as hub, hub.consumer("stream") as consumer:
        consumer.read(timeout=0.0)
        _say("ready")

        def one() -> bool:
            """Take a value and let go of it, unless the producer has ended."""
            value = consumer.read()
            if value is not None:
                take(value)
            return value is not None

        while one():
            pass


PARTNERS: dict[str, Callable[[Path], None]] = {
    "echo": echo,
    "ring-echo": ring_echo,
    "swallow": swallow,
    "keep": keep,
    "count": count,
}


@contextmanager
def _partner(kind: str, place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with _started([sys.executable, "-P", __file__, "partner", kind, str(place)]) as process:
        if _line(process, START_SECONDS) != "ready":
            raise RuntimeError(f"the partner of {kind} did not start")
        yield process


@contextmanager
def _broker(place: Path, *http: str) -> Iterator[None]:
    (place / "messagehub.toml").write_text(SETTINGS)
    command = [sys.executable, "-P", "-m", "messagehub", "serve", *(http or ["--no-http"]), "--dir", str(place)]
    with (place / "broker.log").open("w+") as log, _started(command, log.fileno()) as process:
        deadline = time.monotonic() + START_SECONDS
        while "ready" not in (said := _line(process, START_SECONDS)):
            if not said or time.monotonic() > deadline:
                log.seek(0)
                raise RuntimeError(f"the broker did not start: {log.read()[-400:]}")
        yield


@contextmanager
def _registered(place: Path, channels: int) -> Iterator[None]:
    """Channels of a hub that shares neither directory nor domain with the one that discovers them."""
    elsewhere = place / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    with hub_in(place) as here:
        endpoint = here.settings.endpoint
    with hub_in(elsewhere, endpoint=endpoint) as hub:
        for number in range(channels):
            made = hub.register_producer(f"bench.c{number}", schema_hash="abc123", schema_version="1.0.0")
            if made.ack is None:
                raise RuntimeError("the broker did not take every registration")
        yield


@contextmanager
def _started(command: list[str], stderr: int | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the other side. It ends with its stdin or, if it does not look at that, by a signal."""
    before = os.sched_getaffinity(0)
    if _other_core is not None:
        os.sched_setaffinity(0, {_other_core})
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
    finally:
        os.sched_setaffinity(0, before)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _line(process: "subprocess.Popen[bytes]", seconds: float = ANSWER_SECONDS) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        raise RuntimeError("the other side says nothing")
    return process.stdout.readline().decode().strip()


def _ring_writer(place: Path, name: str) -> Any:
    from messagehub.shm.payloads import RawCodec
    from messagehub.shm.rings.ring import RingSpec, open_writer

    spec = RingSpec(channel=name, producer_id=name, readers_path="readers", slot_bytes=KIB, slot_count=8)
    return open_writer(_ring(place, name), spec, RawCodec())


def _ring_reader(place: Path, name: str) -> Any:
    from messagehub.shm.rings.ring import open_reader

    return open_reader(_ring(place, name))


def _ring(place: Path, name: str) -> str:
    """In the directory of the domain, which its maker removes."""
    from messagehub.shm.channel_directory.directory import Directory

    directory = Path(Directory(place.name).path).parent
    directory.mkdir(parents=True, exist_ok=True)
    return str(directory / f"ring-{name}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def implementation() -> str:
    """Which rings this process has."""
    if find_spec("messagehub.shm") is None or find_spec("messagehub.shm.core") is None:
        return "layout-2"
    from messagehub.shm import core  # type: ignore[attr-defined]

    return str(core.IMPLEMENTATION)


def end_with_stdin() -> None:
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()


def main() -> None:
    logging.getLogger("messagehub").setLevel(logging.ERROR)  # most rows have no broker, and say so
    global _other_core
    if sys.argv[1] == "partner":
        end_with_stdin()
        PARTNERS[sys.argv[2]](Path(sys.argv[3]))
        return
    import messagehub

    row, place, core = sys.argv[1:4]
    _other_core = None if core == "-" else int(core)
    os.chdir(place)  # what a checkout's processes import is theirs, wherever this was started
    with suppress(KeyboardInterrupt), ROWS[row](Path(place)) as measure:
        _say(f"ready {implementation()} {Path(messagehub.__file__).parents[1]}")
        for line in sys.stdin:
            _say(repr(measure(float(line))))


if __name__ == "__main__":
    main()
