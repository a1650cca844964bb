"""One connection between a caller and a worker on different hosts, as the relay on one of the hosts has it.

Rule 1: what the other side has not taken stays where it is: at most WINDOW_BYTES of frames are on their way in either
direction, and the local socket is read no further. A full mailbox, or a slow reader, is felt as on one host.
Rule 2: a deadline travels as the seconds that are left, since each host has a clock of its own.
"""

import socket
import struct
from collections import deque
from time import monotonic
from typing import Literal

from messagehub.protocol.stream_frames import CHUNK, Frames, NotAFrame
from messagehub.services.frames import ANSWER, CALL, MAX_FRAME_BYTES, REQUEST, STREAM, WELCOME

WINDOW_BYTES = 4 * 2**20
TOLD_BYTES = WINDOW_BYTES // 4
"""After so much more the other side is told how much was taken."""
_DEADLINE = struct.Struct("<d")
_DEADLINE_AT = struct.calcsize("<IBBBQ")
_FORM_AT = 4


class LinkBroken(Exception):
    """The other side does not keep to the rules, or the local socket has ended."""


class Link:
    """`local` is this relay's end of a pair of sockets; the caller or the worker has the other end."""

    def __init__(self, side: Literal["caller", "worker"], local: socket.socket) -> None:
        local.setblocking(False)
        self.local = local
        self.fd = local.fileno()
        self.why = ""
        """Why it ended, if ZeroMQ said so."""
        self.is_proven = False
        """Whether the worker has let the caller in."""
        self.is_ending = False
        """Whether the other side has ended, so that the local socket is closed once it has taken what came before."""
        self._is_caller = side == "caller"
        self._frames = Frames(CALL if self._is_caller else ANSWER, MAX_FRAME_BYTES)
        self._untaken: deque[memoryview] = deque()
        self._sent = self._taken_there = 0
        self._received = self._taken_here = self._told = 0

    # -- from the local socket to the other host -----------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether more may be sent to the other host."""
        return self._sent - self._taken_there < WINDOW_BYTES

    @property
    def has_untaken(self) -> bool:
        """Whether something waits for the local socket."""
        return bool(self._untaken)

    def read(self) -> list[bytes] | None:
        """Return the frames that are whole by now; None if nothing has come from the local socket. LinkBroken at its
        end."""
        try:
            data = self.local.recv(CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise LinkBroken(str(error)) from None
        if not data:
            raise LinkBroken("it has ended")
        try:
            frames = self._frames.feed(data)
        except NotAFrame:
            raise LinkBroken("it sent what is no frame") from None
        self._sent += sum(map(len, frames))
        if self._is_caller:
            return [_with_seconds_left(frame) for frame in frames]
        self.is_proven = self.is_proven or any(frame[_FORM_AT] == WELCOME for frame in frames)
        return frames

    def other_took(self, total: int) -> None:
        if not self._taken_there <= total <= self._sent:
            raise LinkBroken("it says that it took what was not sent")
        self._taken_there = total

    # -- from the other host to the local socket -----------------------------------------------------------

    def put(self, frame: bytes) -> None:
        """Take over a frame of the other host. LinkBroken if it sends more than it may."""
        self._received += len(frame)
        if self._received - self._taken_here > WINDOW_BYTES + MAX_FRAME_BYTES or len(frame) < CALL.size * (
            not self._is_caller
        ):
            raise LinkBroken("it sends more than there is room for, or what is no frame")
        self._untaken.append(memoryview(frame if self._is_caller else _with_deadline(frame)))

    def give(self) -> int | None:
        """Write what the local socket takes now; return how much it has taken in all when the other side is to know."""
        while self._untaken:
            try:
                sent = self.local.send(self._untaken[0])
            except BlockingIOError:
                break
            except OSError as error:
                raise LinkBroken(str(error)) from None
            self._taken_here += sent
            if sent == len(self._untaken[0]):
                self._untaken.popleft()
            else:
                self._untaken[0] = self._untaken[0][sent:]
        if self._taken_here - self._told < TOLD_BYTES:
            return None
        self._told = self._taken_here
        return self._told


def _with_seconds_left(frame: bytes) -> bytes:
    return _shifted(frame, -monotonic())


def _with_deadline(frame: bytes) -> bytes:
    return _shifted(frame, monotonic())


def _shifted(frame: bytes, seconds: float) -> bytes:
    """Return a frame with another deadline, if it has one."""
    if not REQUEST <= frame[_FORM_AT] <= STREAM:
        return frame
    deadline = _DEADLINE.pack(_DEADLINE.unpack_from(frame, _DEADLINE_AT)[0] + seconds)
    return frame[:_DEADLINE_AT] + deadline + frame[_DEADLINE_AT + _DEADLINE.size :]
