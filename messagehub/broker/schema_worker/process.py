"""The process that checks schemas for the broker: checks in, results out.

Rule: the results of light checks that wait together leave together, since every result that leaves alone wakes two
threads of the broker. Before and after any other check everything is sent, so that one which takes too long or ends
the process holds no result of another.

This module imports nothing of the broker, so the process starts in a third of the time.
"""

import os
import select
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from registry.schemas.checks import SchemaCheck, preload, run_check

LENGTH: Final = struct.Struct("<I")
READY: Final = b"ready"
READ_BYTES: Final = 65_536
LIGHT_CHARACTERS: Final = 4096
TOGETHER_SECONDS: Final = 0.005
IDLE_SECONDS: Final = 1.0
"""After so long without a check all formats are imported. That takes 0.1 s, which no start and no check waits for."""


def framed(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def whole_frames(received: bytearray) -> Iterator[bytes]:
    """Yield the complete frames, and then remove them from the front of the buffer."""
    start = 0
    while len(received) >= (body := start + LENGTH.size):
        end = body + LENGTH.unpack_from(received, start)[0]
        if len(received) < end:
            break
        yield bytes(received[body:end])
        start = end
    del received[:start]


def is_light(check: SchemaCheck) -> bool:
    """Whether the check only reads a small text, which takes a fraction of a millisecond."""
    return not (check.against or check.attached or check.references) and len(check.text) <= LIGHT_CHARACTERS


def main() -> None:
    """Run checks until the broker closes the pipe."""
    os.nice(5)  # on a busy host, discoveries beside long checks had a lower p99 with this, in four of four comparisons
    checks = sys.stdin.fileno()
    _say(framed(READY))
    if not select.select([checks], [], [], IDLE_SECONDS)[0]:
        preload()
    received = bytearray()
    while part := os.read(checks, READ_BYTES):
        received += part
        _run(whole_frames(received))


def _run(frames: Iterator[bytes]) -> None:
    unsent = bytearray()
    since = time.monotonic()
    for frame in frames:
        check = _decode(frame)
        is_alone = not is_light(check)
        if unsent and (is_alone or time.monotonic() - since > TOGETHER_SECONDS):
            _say(unsent)
            unsent, since = bytearray(), time.monotonic()
        result = run_check(check, between=os.sched_yield)
        unsent += framed(_encode(replace(result, check=None)))
        if is_alone:
            _say(unsent)
            unsent, since = bytearray(), time.monotonic()
    _say(unsent)


def _say(data: bytes | bytearray) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the broker was killed, so nobody reads the results; exit without an error message


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SchemaCheck).decode
