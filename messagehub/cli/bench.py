"""`messagehub bench`: a few figures of this machine, in seconds, and nothing that stays."""

import importlib
import itertools
import logging
import mmap
import os
import platform
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from messagehub.cli.options import Dir, Endpoint, Json, Timeout, seconds
from messagehub.cli.output import echo, echo_json, echo_table
from messagehub.cli.session import Interrupt, interrupt, settings_for
from messagehub.display.values import size
from messagehub.errors import HubError
from messagehub.settings import Settings

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

_SIZES = (1 << 10, 64 << 10, 1 << 20)
_SLOTS = 8
_TURNS = 5
_SMALL_BATCH = 32  # of calls that take about as long as looking at the clock
_LONGEST_WAIT_SECONDS = 5.0
_MOST_QUESTIONS = 200  # in a turn: a broker that others use is not asked for as long as it can answer


class Measured(msgspec.Struct):
    """The median of `count` measurements; `of_memcpy` is the speed as a share of copying the same bytes."""

    name: str
    seconds: float
    count: int
    bytes_per_second: float | None = None
    of_memcpy: float | None = None


def bench(
    *,
    each: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", parser=seconds, help="How long each measurement takes.")
    ] = 0.3,
    endpoint: Endpoint = None,
    dir: Dir = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Measure this machine for a few seconds: rings against memcpy, discovery, a topic.

    Rings are written and read by this process, in a place of its own that is removed afterwards. The broker is asked
    for channels that do not exist, and passes on messages that nobody else subscribes to. Without a broker the rest is
    measured. Figures of one run compare with each other; another run of a busy machine gives others.
    """
    settings = settings_for(endpoint, dir, timeout)
    found: list[Measured] = []
    left_out: dict[str, str] = {}
    with interrupt() as interrupted:
        with _private_hub() as hub:
            for bytes_each in _SIZES:
                found += _ring(hub, bytes_each, each, interrupted)
            found += _discovery(hub, "discovery without a broker, through files", "bench", each, interrupted)
        _through_broker(settings, each, interrupted, found, left_out)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "rings": _rings()}
    if as_json:
        echo_json({**machine, "measured": found, "left_out": left_out, "interrupted": interrupted.has_come})
        return
    echo(f"{machine['cores']} cores, Python {machine['python']}, rings in {machine['rings']}")
    echo_table(("what", "takes", "moves", "of memcpy"), [_row(each) for each in found])
    for reason in dict.fromkeys(left_out.values()):
        what = " and ".join(name for name, its_reason in left_out.items() if its_reason == reason)
        echo(f"left out: {what}, because {reason}")
    if interrupted.has_come:
        echo("left out: the rest, because it was interrupted")


def _ring(hub: "MessageHub", bytes_each: int, each: float, interrupted: Interrupt) -> list[Measured]:
    """Write and read an item, and copy the same bytes into a mapping of as many slots, in turns."""
    payload = bytes(bytes_each)
    channel = f"bench-{bytes_each.bit_length()}"
    with (
        hub.producer(channel, capacity=_SLOTS, page_size=bytes_each) as producer,
        hub.consumer(channel) as consumer,
        mmap.mmap(-1, bytes_each * _SLOTS) as mapping,
        memoryview(mapping) as target,
    ):
        offsets = itertools.cycle(range(0, bytes_each * _SLOTS, bytes_each))
        consumer.read(timeout=0.0)

        def copy() -> None:
            offset = next(offsets)
            target[offset : offset + bytes_each] = payload

        def write_and_read() -> None:
            producer.write(payload)
            if consumer.read(timeout=_LONGEST_WAIT_SECONDS) is None:
                raise HubError("an item that was written could not be read", channel=channel)

        batch = _SMALL_BATCH if bytes_each < 1 << 20 else 1
        taken = _in_turns({"ring": write_and_read, "memcpy": copy}, each, interrupted, batch=batch)
    if not all(taken.values()):
        return []
    ring, memcpy = (statistics.median(taken[name]) for name in ("ring", "memcpy"))
    counts = {name: len(durations) * batch for name, durations in taken.items()}
    what = size(bytes_each)
    return [
        Measured(f"memcpy of {what}", memcpy, counts["memcpy"], bytes_each / memcpy),
        Measured(f"ring, {what} written and read", ring, counts["ring"], bytes_each / ring, memcpy / ring),
    ]


def _discovery(hub: "MessageHub", name: str, prefix: str, each: float, interrupted: Interrupt) -> list[Measured]:
    """Ask for one unknown channel after the other: an answer that is known would come from memory."""
    numbers = itertools.count()

    def ask() -> None:
        if hub.discover(f"{prefix}.c{next(numbers)}", required=False) is not None:
            raise HubError("a channel was found that nobody made", channel=prefix)

    taken = _in_turns({name: ask}, each, interrupted, most=_MOST_QUESTIONS)[name]
    return [Measured(name, statistics.median(taken), len(taken))] if taken else []


def _through_broker(
    settings: Settings, each: float, interrupted: Interrupt, found: list[Measured], left_out: dict[str, str]
) -> None:
    """Measure what a broker answers. What it refuses, or where none is, is left out and said."""
    from messagehub.hub import MessageHub

    name = f"messagehub.bench.b{uuid.uuid4().hex[:12]}"
    parts: dict[str, Callable[[MessageHub], list[Measured]]] = {
        "discovery through the broker": lambda hub: _discovery(
            hub, "discovery through the broker", name, each, interrupted
        ),
        "a message of a topic": lambda hub: _topic(hub, name, each, interrupted),
    }
    try:
        with MessageHub(settings) as hub:
            hub.connect(required=True)
            for what, measure in parts.items():
                try:
                    found += measure(hub)
                except HubError as error:
                    left_out[what] = error.message
    except HubError as error:
        left_out |= {what: error.message for what in parts if what not in left_out}


def _topic(hub: "MessageHub", topic: str, each: float, interrupted: Interrupt) -> list[Measured]:
    name, payload = "topic message of 100 bytes, published and received", bytes(100)
    with hub.subscribe(topic) as subscription:

        def publish_and_receive() -> None:
            hub.publish(topic, payload)
            subscription.receive(_LONGEST_WAIT_SECONDS)

        taken = _in_turns({name: publish_and_receive}, each, interrupted, most=_MOST_QUESTIONS)[name]
    return [Measured(name, statistics.median(taken), len(taken))] if taken else []


def _in_turns(
    calls: Mapping[str, Callable[[], None]],
    each: float,
    interrupted: Interrupt,
    *,
    batch: int = 1,
    most: int | None = None,
) -> dict[str, list[float]]:
    """Return how long a call took, of each, in short turns: neighbours in time share the state of the machine."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in calls.items():
            call()
            until = time.perf_counter() + each / _TURNS
            for _ in itertools.repeat(None) if most is None else itertools.repeat(None, most):
                if interrupted.has_come:
                    break
                began = time.perf_counter()
                for _ in range(batch):
                    call()
                now = time.perf_counter()
                taken[name].append((now - began) / batch)
                if now >= until:
                    break
    return taken


@contextmanager
def _private_hub() -> Iterator["MessageHub"]:
    """A hub without a broker, in a directory and a domain that are removed afterwards."""
    from messagehub.hub import MessageHub
    from messagehub.shm.channel_directory.directory import Directory

    log = logging.getLogger("messagehub")
    level = log.level
    log.setLevel(logging.ERROR)  # that there is no broker is wanted here
    domain = f"bench-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="messagehub-bench-") as place:
        try:
            with MessageHub(dir=Path(place), domain=domain, endpoint="") as hub:
                yield hub
        finally:
            log.setLevel(level)
            directory = Directory(domain)
            for ring in Path(directory.root).glob(f"*@{domain}"):
                ring.unlink(missing_ok=True)
            shutil.rmtree(Path(directory.path).parent, ignore_errors=True)


def _rings() -> str:
    """Which implementation of the rings this installation has."""
    if find_spec("messagehub.shm.core") is None:
        return "python"
    core: Any = importlib.import_module("messagehub.shm.core")
    return str(core.IMPLEMENTATION)


def _row(found: Measured) -> tuple[Any, ...]:
    moves = None if found.bytes_per_second is None else f"{size(round(found.bytes_per_second))}/s"
    share = None if found.of_memcpy is None else f"{found.of_memcpy:.2g}x"
    return found.name, _duration(found.seconds), moves, share


def _duration(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
