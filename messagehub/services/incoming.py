"""What the frames of a caller that is welcome say: a message for a worker, or that a stream may go on."""

from messagehub.protocol.topic_frames import IN_BLOCK
from messagehub.services.frames import CALL, GREETING, PRIORITIES, STREAM, read_more
from messagehub.services.mailbox import Job
from messagehub.services.payloads import attached, is_known_kind
from messagehub.services.server_connections import ServerConnection

MOST_DEADLINE = 4e9  # a host does not run that long, and threads can be told to wait that long
_unpack = CALL.unpack_from


def job_of(caller: ServerConnection, frame: bytes) -> Job | None:
    """Return the message of a frame; None if the frame is none."""
    _, form, priority, kind, number, deadline, target_bytes, headers_bytes = _unpack(frame)
    headers_at = CALL.size + target_bytes
    body_at = headers_at + headers_bytes
    is_known = GREETING < form <= STREAM and priority < len(PRIORITIES) and is_known_kind(kind)
    if not is_known or body_at > len(frame) or not deadline < MOST_DEADLINE:  # nor what is no number
        return None
    block = attached(kind, frame, body_at, caller.sender) if kind & IN_BLOCK else None
    return Job(caller, form, priority, kind, number, deadline, frame, headers_at, body_at, block)


def hear_more(caller: ServerConnection, frame: bytes) -> bool:
    """Take note how much the reader of a stream has taken. Return False if the frame does not say it."""
    amount = read_more(memoryview(frame)[CALL.size :])
    if amount is None:
        return False
    caller.took(_unpack(frame)[4], amount)
    return True
