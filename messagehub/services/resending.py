"""Sending dead letters again.

Rule 1: a letter is removed after it was sent, so that none is lost on the way. Who resends at the same time as somebody
else, or is stopped in between, may send one twice.
Rule 2: a letter that fails again is there once, with the newer reason: sending it has left another one.
Rule 3: the deadline is for all of them. Those that it leaves no time for stay as they are, and are counted.
"""

import base64
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec

from messagehub.errors import HubError
from messagehub.payloads.encoding import decode_payload
from messagehub.protocol.topic_frames import KIND_OF
from registry.records import DeadLetter

LEAST_SECONDS = 1.0
"""A letter that was sent is removed, or else it would be sent again: so long the broker has for it at any rate."""


class FailedLetter(msgspec.Struct, frozen=True):
    number: int
    address: str
    code: str
    reason: str


class Resent(msgspec.Struct, kw_only=True):
    """`sent` are in the mailboxes of their workers. Still there are those `without_payload`, which were too large to be
    kept whole, those that `failed`, and those that were `left` when the time was up."""

    sent: int = 0
    without_payload: int = 0
    left: int = 0
    failed: list[FailedLetter] = []


def resend(
    letters: list[DeadLetter],
    send: Callable[[str, Any, dict[str, Any], float], None],
    remove: Callable[[int, float], object],
    *,
    deadline: float,
) -> Resent:
    """Send each letter to its address, oldest first, until the deadline (`time.monotonic()`). Nobody waits for replies.

    `send` and `remove` are given the seconds that are left.
    """
    done = Resent()
    for place, letter in enumerate(letters):
        remaining = deadline - monotonic()
        if remaining <= 0:
            done.left = len(letters) - place
            break
        if letter.payload_base64 is None:
            done.without_payload += 1
            continue
        try:
            body = memoryview(base64.b64decode(letter.payload_base64))
            payload = decode_payload(KIND_OF[letter.payload_kind], body, letter.address)
            send(letter.address, payload, letter.headers, remaining)
        except HubError as error:
            done.failed.append(FailedLetter(letter.number, letter.address, error.code, error.message))
        else:
            done.sent += 1
            remove(letter.number, max(deadline - monotonic(), LEAST_SECONDS))
    return done
