"""Sending dead letters again.

Rule 1: a letter is removed after it was sent, so that none is lost on the way. Who resends at the same time as somebody
else, or is stopped in between, may send one twice.
Rule 2: a letter that fails again is there once, with the newer reason: sending it has left another one.
"""

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from messagehub.errors import HubError
from messagehub.messaging.service_letters import UNDELIVERABLE
from messagehub.messaging.topic_messages import decode_payload
from messagehub.topic_frames import KIND_OF
from registry.records import DeadLetter


class FailedLetter(msgspec.Struct, frozen=True):
    number: int
    address: str
    code: str
    reason: str


class Resent(msgspec.Struct, kw_only=True):
    """`sent` are in the mailboxes of their workers, `without_payload` too large to have been kept, and still there."""

    sent: int = 0
    without_payload: int = 0
    failed: list[FailedLetter] = []


def resend(
    letters: list[DeadLetter],
    send: Callable[[str, Any, dict[str, Any]], None],
    remove: Callable[[int], object],
) -> Resent:
    """Send each letter to its address, oldest first; nobody waits for replies."""
    done = Resent()
    for letter in letters:
        if letter.payload_base64 is None:
            done.without_payload += 1
            continue
        try:
            body = memoryview(base64.b64decode(letter.payload_base64))
            send(letter.address, decode_payload(KIND_OF[letter.payload_kind], body, letter.address), letter.headers)
        except HubError as error:
            done.failed.append(FailedLetter(letter.number, letter.address, error.code, error.message))
            if isinstance(error, UNDELIVERABLE):
                remove(letter.number)
        else:
            done.sent += 1
            remove(letter.number)
    return done
