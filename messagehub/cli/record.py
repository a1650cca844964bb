"""`messagehub record` and `messagehub replay`: a channel's data into a file and back."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from messagehub.cli.blocks import Domain
from messagehub.cli.options import Channel, Dir, Endpoint, Follow, Json, Start, seconds
from messagehub.cli.output import complain, echo, echo_json
from messagehub.cli.session import TURN_SECONDS, Interrupt, check_known, interrupt
from messagehub.display.values import counted, size
from messagehub.errors import ConfigurationError, ProducerAlreadyRegistered

if TYPE_CHECKING:
    from messagehub.channels.items import ReadItem
    from messagehub.channels.recording import Recorder

SLOT_BYTES = 4096


def record(
    channel: Channel,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The recording, an Arrow IPC stream; a new file.")],
    *,
    start: Start = "latest",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many items.")] = None,
    for_seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="SECONDS", parser=seconds, help="End after this many seconds.")
    ] = None,
    follow: Follow = True,
    domain: Domain = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Write the items of a channel to a file, until Ctrl-C; `messagehub replay` plays them.

    Arrow channels become an Arrow IPC stream that pyarrow and polars read. Every item has the time at which it was
    written. A producer with when_full=block waits for the recording, so that nothing is missed. Of a table, each
    generation is one item. A file has one schema: where a producer comes with another one, the recording goes on in
    FILE with `-2`, `-3`, … before its ending.
    """
    import numpy as np  # noqa: F401  now: a ring may be overwritten in the time that loading these takes
    import pyarrow as pa  # noqa: F401

    from messagehub.hub import MessageHub
    from messagehub.shm.rings.read_results import Gap

    _check_new(file)
    deadline = None if for_seconds is None else time.monotonic() + for_seconds
    files = _Files(file)
    with (
        MessageHub(endpoint=endpoint, dir=dir, domain=domain) as hub,
        interrupt() as interrupted,
        hub.consumer(channel, start=start, on_lag="gap", follow=follow) as consumer,
    ):
        try:
            while not interrupted.has_come and files.items != count:
                if deadline is not None and time.monotonic() >= deadline:
                    break
                item = consumer.read_item(timeout=TURN_SECONDS)
                if isinstance(item, Gap):
                    if consumer.missed == item.last - item.first + 1:  # the first one; the others are counted
                        complain(f"items {item.first} to {item.last} were overwritten before they were read")
                elif item is not None:
                    files.write(consumer.channel, item)
                elif not follow and consumer.has_ended:
                    break
        finally:
            files.close()
        missed = consumer.missed
        if not files.paths and consumer.source is None:
            check_known(hub, channel)
    if not files.paths:
        complain(f"nothing came, so {file} was not written")
        return
    size_bytes = sum(path.stat().st_size for path in files.paths)
    names = [str(path) for path in files.paths]
    if as_json:
        echo_json({"file": names[0], "files": names, "items": files.items, "size_bytes": size_bytes, "missed": missed})
    else:
        told = f"{counted(files.items, 'item')}, {size(size_bytes)}" + (f", {missed:,} missed" if missed else "")
        echo(f"{', '.join(names)}: {told}")


class _Files:
    """The files of a recording: the next one begins where the items have another schema."""

    def __init__(self, first: Path) -> None:
        self.paths: list[Path] = []
        self.items = 0
        self._first = first
        self._recorder: Recorder | None = None

    def write(self, channel: str, item: "ReadItem") -> None:
        from messagehub.channels.recording import Recorder

        if self._recorder is None or not self._recorder.takes(item):
            self.close()
            path = self._first
            if self.paths:
                path = path.with_stem(f"{path.stem}-{len(self.paths) + 1}")
                complain(
                    f"item {item.sequence} has another schema than those before it: the recording goes on in {path}"
                )
                _check_new(path)
            self._recorder = Recorder(path, channel, item)
            self.paths.append(path)
        self._recorder.write(item)
        self.items += 1

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None


def _check_new(file: Path) -> None:
    if str(file) == "-":
        raise ConfigurationError("a recording is written to a file, not to stdout: for that there is `messagehub tail`")
    if file.exists():
        raise ConfigurationError(f"{file} exists already: a recording is a new file")
    if not os.access(file.absolute().parent, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{file.absolute().parent} is not a directory that you may write")


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `messagehub record` wrote, or any IPC stream.")],
    *,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="NAME", help="Default: the channel that was recorded.")
    ] = None,
    speed: Annotated[
        float, typer.Option("--speed", min=0.0, help="How many times as fast as recorded; 0 is as fast as possible.")
    ] = 1.0,
    capacity: Annotated[int, typer.Option("--capacity", min=1, help="Slots of the ring.")] = 16,
    domain: Domain = None,
    endpoint: Endpoint = None,
    dir: Dir = None,
    as_json: Json = False,
) -> None:
    """Write the items of a recording to a channel, at the pace at which they were recorded.

    Readers that are there get every item: the ring waits for them (when_full=block).
    """
    from messagehub.channels.recording import Pace, Recording
    from messagehub.hub import MessageHub

    if not file.exists():
        raise ConfigurationError(f"there is no file {file}")
    recording = Recording(file)
    name = channel or recording.channel
    if name is None:
        raise ConfigurationError(f"{file} does not say of which channel it is: give --channel")
    pace, written, began_at = Pace(speed), 0, time.monotonic()
    with (
        _in_own_words(name),
        MessageHub(endpoint=endpoint, dir=dir, domain=domain) as hub,
        interrupt() as interrupted,
        hub.producer(
            name,
            schema=recording.schema,
            capacity=capacity,
            page_size=max(recording.largest_bytes(), SLOT_BYTES),
            when_full="block",
        ) as producer,
    ):
        for item in recording.items():
            if not _wait(pace.seconds_until(item.written_at), interrupted):
                break
            if not _write(producer, item.value, interrupted):
                break
            written += 1
    if recording.flaw is not None:
        complain(f"{file} ends within an item, which was left out: {recording.flaw}")
    done = {"channel": name, "items": written, "seconds": round(time.monotonic() - began_at, 3)}
    if as_json:
        echo_json(done)
    else:
        echo(f"{name}: {counted(written, 'item')} in {done['seconds']} s")


@contextmanager
def _in_own_words(channel: str) -> Iterator[None]:
    """Say what can be done about a channel that somebody else writes."""
    try:
        yield
    except ProducerAlreadyRegistered as refused:
        said = f"{refused.message}: end it, or play into another channel with --channel"
        raise ConfigurationError(said, channel=channel) from None


def _wait(seconds: float, interrupted: Interrupt) -> bool:
    """Wait until an item is due; False when the user ends it."""
    until = time.monotonic() + seconds
    while not interrupted.has_come and (remaining := until - time.monotonic()) > 0:
        time.sleep(min(remaining, TURN_SECONDS))
    return not interrupted.has_come


def _write(producer: Any, value: Any, interrupted: Interrupt) -> bool:
    """Write as soon as its readers leave room; False when the user ends it."""
    from messagehub.shm.errors import RingFull

    while not interrupted.has_come:
        try:
            producer.write(value, timeout=TURN_SECONDS)
        except RingFull:
            continue
        return True
    return False
