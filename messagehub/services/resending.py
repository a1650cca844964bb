"""Sending dead letters again.

Rule 1: a letter is removed after it was sent, so that none is lost on the way. Who resends at the same time as somebody
else, or is stopped in between, may send one twice.
Rule 2: a letter that fails again stays as it is, and is there once.
Rule 3: the deadline is for all of them. Those that it leaves no time for stay as they are, and are counted.
Rule 4: letters that fail keep no others from being tried. The addresses share the time that is left, and one that used
up its share is not tried again in this call: its later letters would wait as long, and are left.
"""

import base64
from collections import Counter
from collections.abc import Callable, Sequence
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
    kept whole, those that `failed`, and those that were `left`: beyond the limit, or without time."""

    sent: int = 0
    without_payload: int = 0
    left: int = 0
    failed: list[FailedLetter] = []


def resend(
    letters: Sequence[DeadLetter],
    send: Callable[[str, Any, dict[str, Any], float], None],
    remove: Callable[[int, float], object],
    *,
    limit: int | None,
    deadline: float,
) -> Resent:
    """Send each letter to its address, oldest first, until `limit` were sent or the deadline (`time.monotonic()`) has
    come. Nobody waits for replies.

    `letters` are the oldest first. `send` and `remove` are given the seconds that they have.
    """
    done = Resent()
    open_addresses = Counter(letter.address for letter in letters)
    for letter in letters:
        began_at = monotonic()
        is_enough = limit is not None and done.sent >= limit
        if is_enough or began_at >= deadline or letter.address not in open_addresses:
            done.left += 1
            continue
        share = (deadline - began_at) / len(open_addresses)
        open_addresses[letter.address] -= 1
        is_last = not open_addresses[letter.address]
        if letter.payload_base64 is None:
            done.without_payload += 1
        else:
            try:
                send(letter.address, _payload(letter), letter.headers, share)
            except HubError as error:
                done.failed.append(FailedLetter(letter.number, letter.address, error.code, error.message))
                is_last = is_last or monotonic() - began_at >= share
            else:
                done.sent += 1
                remove(letter.number, max(deadline - monotonic(), LEAST_SECONDS))
        if is_last:
            del open_addresses[letter.address]
    return done


def _payload(letter: DeadLetter) -> Any:
    assert letter.payload_base64 is not None
    body = memoryview(base64.b64decode(letter.payload_base64))
    return decode_payload(KIND_OF[letter.payload_kind], body, letter.address)
