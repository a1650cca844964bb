"""The lock of a socket that callers use themselves, and that another thread can ask for.

A caller that finds the socket idle sends, waits and receives by itself, which saves two thread switches. A background
thread does so for callers that wait together, for callers that do not wait, and for what arrives unasked.

Rule 1: only the thread that holds the lock waits for the socket and receives from it. It receives for everybody.
Rule 2: the holder polls `fd` beside its socket. It stops within one poll when another thread wants the lock; `fd` stays
readable until that thread has it.
Rule 3: a request is registered before its sender releases the lock, so that a reply that arrives during the hand-over
is received by the next holder.
Rule 4: whoever releases the lock sees to it that another thread receives what is still due.
Rule 5: whoever closes the socket holds the lock. A forked child calls `abandon`, and uses neither lock nor socket.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic


class HandoverLock:
    def __init__(self) -> None:
        self.is_wanted = False
        """Whether another thread waits for the holder to stop."""
        self.fd = -1
        """Readable when the holder is to leave its poll; -1 until `open`, and after `close`."""
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._opening = threading.Lock()
        self.acquire_if_free: Callable[[], bool] = partial(self._lock.acquire, False)
        self.release = self._lock.release

    def open(self) -> int:
        """Return `fd`, opened at the first call. A lock that nobody takes over needs none."""
        with self._opening:
            if self.fd < 0:
                self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self.fd

    @property
    def is_held(self) -> bool:
        return self._lock.locked()

    def acquire(self) -> None:
        """Wait until the holder stops of its own accord."""
        self._lock.acquire()

    def take_over(self, seconds: float = -1) -> bool:
        """Ask the holder, if there is one, to stop. Return whether this thread holds the lock now."""
        if self._lock.acquire(blocking=False):
            return True
        asked_at = monotonic()
        if not self._asking.acquire(timeout=seconds):  # one at a time: the next asks whoever holds it then
            return False
        try:
            self.is_wanted = True
            self.interrupt()
            is_ours = self._lock.acquire(timeout=-1 if seconds < 0 else max(seconds - (monotonic() - asked_at), 0.0))
            if is_ours:
                self.clear()
            return is_ours
        finally:
            self.is_wanted = False
            self._asking.release()

    def interrupt(self) -> None:
        """Have the holder leave its poll, and look at what it is asked to do."""
        with self._opening:  # a descriptor that was closed may be somebody else's by now
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Make `fd` unreadable again. Only the holder may do so, and looks at what it is asked to do afterwards."""
        with self._opening:
            if self.fd >= 0:
                try:
                    os.eventfd_read(self.fd)
                except BlockingIOError:
                    return  # nobody had written

    def drive(self, is_done: Callable[[], bool], step: Callable[[float], object], deadline: float) -> bool:
        """Call `step` with the deadline until `is_done`; the lock is held.

        A step waits for the socket or `fd`, at most until the deadline, and handles what has come. Return False at the
        deadline, or when another thread wants the lock.
        """
        if is_done():
            return True
        while True:
            step(deadline)
            if is_done():
                return True
            self.clear()  # before the look at `is_wanted`: who asks in between is heard by the next step
            if self.is_wanted:
                self.interrupt()  # for a thread that finds the lock free before the one that waits for it wakes up
                return False
            if monotonic() >= deadline:
                return False

    def close(self) -> None:
        """Close the descriptor. The lock itself goes on."""
        with self._opening:
            self.abandon()

    def abandon(self) -> None:
        """In a forked child: close its own descriptor, without locks that a thread of the parent may have held."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
