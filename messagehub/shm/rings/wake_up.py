"""Wake a sleeping process without a daemon and without polling.

The owner of a FIFO sleeps on it. It first stores a ticket in a word that the other side can see; the other side writes
one byte for each ticket, so a busy reader costs its writer no system call.
The owner keeps the FIFO open for reading and writing, so it never sees an end of file; when the owner died, the other
side gets EPIPE or ENXIO. The death of the other side shows on a pidfd (`ProcessWatch`), exactly once and at once.
"""

import contextlib
import os
import select
from typing import Final

from messagehub.runtime.descriptors import wait_readable
from messagehub.shm.channel_directory.ownership import FILE_MODE, parent_of, share
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.layout import WRITER_TICKET
from messagehub.shm.locks import Descriptor
from messagehub.shm.mapped_file import open_fifo, remove_file

# How often the lock of a process is probed that has no pidfd here (a writer in another pid namespace).
PROBE_SECONDS: Final = 0.25
# How often the owner looks by itself where nobody can wake it.
LOOK_SECONDS: Final = 0.01


class WakeUp:
    """The owner's end of the FIFO."""

    look_seconds: float | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        is_new = True
        try:
            with parent_of(path) as (parent, name):
                os.mkfifo(name, FILE_MODE if parent is not None else 0o600, dir_fd=parent)
        except FileExistsError:
            is_new = False  # a writer before this one made it; the owner's lock says whose it is now
        self._watched = -1
        self.ticket = 1
        self._listen_on(open_fifo(path, os.O_RDWR))
        if is_new:
            share(self._descriptor.fd, path)

    def _listen_on(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor.fd, select.POLLIN)
        self.was_woken = True  # it is not known: read once

    def stop_listening(self) -> None:
        """Close the descriptor until `listen` is called: nobody has to wake the owner before that."""
        self._descriptor.close()
        self._poll = select.poll()

    def listen(self) -> None:
        """Open the FIFO again. If that fails (no file, no descriptor left), only the timeout ends a sleep."""
        if self._descriptor.fd < 0:
            with contextlib.suppress(OSError, DataBlockError):
                self._listen_on(open_fifo(self.path, os.O_RDWR))

    def fileno(self) -> int:
        return self._descriptor.fd

    def forget(self) -> None:
        """Forget wake-ups that came before a new ticket is stored."""
        if self.was_woken and self._descriptor.fd >= 0:
            self.was_woken = False
            try:
                os.read(self._descriptor.fd, 4096)
            except BlockingIOError:
                pass  # it was read meanwhile

    def next_ticket(self) -> int:
        """Return the ticket to store before looking once more and going to sleep; forget wake-ups before it."""
        self.forget()
        self.ticket += 1
        return self.ticket

    def sleep(self, timeout_seconds: float | None, watch: "ProcessWatch | None" = None) -> bool:
        """Sleep until the owner is woken, the watched process dies (True), or the time is up."""
        self._listen_also(-1 if watch is None else watch.fileno())
        if watch is not None and self._watched < 0:
            timeout_seconds = PROBE_SECONDS if timeout_seconds is None else min(timeout_seconds, PROBE_SECONDS)
        events = self._poll.poll(None if timeout_seconds is None else max(0.0, timeout_seconds) * 1000)
        if not events:
            return False
        self.was_woken = events[0][0] == self._descriptor.fd
        return events[-1][0] == self._watched  # registered after the FIFO

    def close(self, *, remove: bool) -> None:
        if remove and self._descriptor.fd >= 0:
            remove_file(self.path)
        self._descriptor.close()

    def _listen_also(self, fd: int) -> None:
        if fd == self._watched:
            return
        if self._watched >= 0:
            self._poll.unregister(self._watched)
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)
        self._watched = fd


class NoWakeUp:
    """Stands in for a FIFO that nobody would find: a sleep ends by itself after LOOK_SECONDS."""

    look_seconds: float | None = LOOK_SECONDS

    def __init__(self) -> None:
        self.was_woken = False

    def fileno(self) -> int:
        return -1

    def forget(self) -> None:
        """Do nothing: nobody wakes it."""

    def sleep(self, timeout_seconds: float | None, watch: "ProcessWatch | None" = None) -> bool:
        watched = -1 if watch is None else watch.fileno()
        seconds = LOOK_SECONDS if timeout_seconds is None else min(max(timeout_seconds, 0.0), LOOK_SECONDS)
        return bool(wait_readable([watched] if watched >= 0 else [], seconds))


def wake(fifo: int) -> None:
    """Wake the owner of a FIFO. This neither blocks nor raises. A lock tells if the owner lives."""
    try:
        os.write(fifo, b"!")
    except OSError:
        return  # full of wake-ups that were not read yet, or no owner


class WriterWakeUp:
    """Wakes a writer that waits for room, once a ticket. Runs in finalizers; refers to no reader, so that
    dropping a reader frees it at once."""

    def __init__(self, words: memoryview, path: str) -> None:
        self._words = words
        self._path = path
        self._fifo: Descriptor | None = None
        self._woken_ticket = 0

    def wake(self) -> None:
        ticket = self._words[WRITER_TICKET]
        if ticket and ticket != self._woken_ticket:
            self._woken_ticket = ticket
            try:
                if self._fifo is None:
                    self._fifo = open_fifo(self._path, os.O_WRONLY)
            except (OSError, DataBlockError):
                return  # no owner, or no FIFO
            wake(self._fifo.fd)


class ProcessWatch:
    """A descriptor that becomes readable when one process (not merely its pid) has ended."""

    def __init__(self, pid: int, start_time: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self._descriptor: Descriptor | None = None
        try:
            self._descriptor = Descriptor(lambda: os.pidfd_open(pid))
        except (OSError, OverflowError):
            return  # ended, in another namespace, or no pid at all: in every case the lock decides
        found = ProcessIdentity.of(pid)
        if found is None or found.start_time != start_time:
            self.close()

    def fileno(self) -> int:
        return -1 if self._descriptor is None else self._descriptor.fd

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()


async def sleep_async(wake_up: WakeUp | NoWakeUp, timeout_seconds: float | None, watch: ProcessWatch | None) -> bool:
    """Do what `WakeUp.sleep` does, in the running event loop."""
    import asyncio  # it takes longer to load than all else that a writer needs

    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    has_died = False
    watched = -1 if watch is None else watch.fileno()
    limits = [seconds for seconds in (timeout_seconds, wake_up.look_seconds) if seconds is not None]
    limits += [PROBE_SECONDS] if watch is not None and watched < 0 else []

    def died() -> None:
        nonlocal has_died
        has_died = True
        woken.set()

    listening = [fd for fd in (wake_up.fileno(), watched) if fd >= 0]
    for fd in listening:
        loop.add_reader(fd, died if fd == watched else woken.set)
    try:
        await asyncio.wait_for(woken.wait(), min(limits, default=None))
    except TimeoutError:
        pass  # the caller looks at its deadline
    finally:
        for fd in listening:
            loop.remove_reader(fd)
        wake_up.was_woken = True  # perhaps: the next ticket reads it
    return has_died
