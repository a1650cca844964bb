"""Waking a sleeping process without a daemon and without polling.

A bell is a FIFO that its owner sleeps on. The owner first stores a ticket in a word that the other side can
see; the other side writes one byte per ticket, so a busy reader costs its writer no system call.
The owner keeps the FIFO open for reading and writing: it never hangs up, and for everyone else an owner that
died is EPIPE or ENXIO. Death of the other side comes through a pidfd (`ProcessWatch`), exactly once, at once.
"""

import contextlib
import os
import select
from typing import Final

from messagehub.runtime.descriptors import wait_readable

from .errors import DataBlockError
from .identity import ProcessIdentity
from .layout import WRITER_TICKET
from .locks import Descriptor
from .mapped_file import open_bell, remove_file
from .ownership import FILE_MODE, parent_of, share

# Where no pidfd can be had (a writer in another pid namespace) its lock is probed this often instead.
PROBE_SECONDS: Final = 0.25
# Where nobody can ring, the owner looks for itself this often.
LOOK_SECONDS: Final = 0.01


class Bell:
    """The owner's end."""

    look_seconds: float | None = None

    def __init__(self, path: str) -> None:
        self.path = path
        is_new = True
        try:
            with parent_of(path) as (parent, name):
                os.mkfifo(name, FILE_MODE if parent is not None else 0o600, dir_fd=parent)
        except FileExistsError:
            is_new = False  # a bell of a writer before this one; the owner's lock says whose it is now
        self._watched = -1
        self.ticket = 1
        self._listen(open_bell(path, os.O_RDWR))
        if is_new:
            share(self._descriptor.fd, path)

    def _listen(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor.fd, select.POLLIN)
        self.has_rung = True  # unknown: look once

    def rest(self) -> None:
        """Hold no descriptor until `wait_for_rings`: nobody needs to be heard until then."""
        self._descriptor.close()
        self._poll = select.poll()

    def wait_for_rings(self) -> None:
        """Be heard again. Where that cannot be (no file, no descriptor left), sleeping ends at its timeout only."""
        if self._descriptor.fd < 0:
            with contextlib.suppress(OSError, DataBlockError):
                self._listen(open_bell(self.path, os.O_RDWR))

    def fileno(self) -> int:
        return self._descriptor.fd

    def next_ticket(self) -> int:
        """What to store before looking once more and going to sleep; what rang before is forgotten."""
        if self.has_rung and self._descriptor.fd >= 0:
            self.has_rung = False
            try:
                os.read(self._descriptor.fd, 4096)
            except BlockingIOError:
                pass  # a forked child of the owner heard it
        self.ticket += 1
        return self.ticket

    def sleep(self, timeout_seconds: float | None, watch: "ProcessWatch | None" = None) -> bool:
        """Until the bell rings, the watched process dies (True), or the time is up."""
        self._listen_also(-1 if watch is None else watch.fileno())
        if watch is not None and self._watched < 0:
            timeout_seconds = PROBE_SECONDS if timeout_seconds is None else min(timeout_seconds, PROBE_SECONDS)
        events = self._poll.poll(None if timeout_seconds is None else max(0.0, timeout_seconds) * 1000)
        if not events:
            return False
        self.has_rung = events[0][0] == self._descriptor.fd
        return events[-1][0] == self._watched  # registered after the bell

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


class NoBell:
    """In the place of a bell that nobody would find: sleeping ends by itself, after LOOK_SECONDS."""

    look_seconds: float | None = LOOK_SECONDS

    def __init__(self) -> None:
        self.has_rung = False

    def fileno(self) -> int:
        return -1

    def next_ticket(self) -> int:
        return 0

    def sleep(self, timeout_seconds: float | None, watch: "ProcessWatch | None" = None) -> bool:
        watched = -1 if watch is None else watch.fileno()
        seconds = LOOK_SECONDS if timeout_seconds is None else min(max(timeout_seconds, 0.0), LOOK_SECONDS)
        return bool(wait_readable([watched] if watched >= 0 else [], seconds))


class Ringer:
    """The other end. The FIFO is opened at the first ring, because it may not exist yet before that."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: Descriptor | None = None

    def ring(self) -> None:
        """Neither blocks nor raises: finalizers call it. Whether anyone lives to hear it, locks tell."""
        try:
            if self._descriptor is None:
                self._descriptor = open_bell(self._path, os.O_WRONLY)
            os.write(self._descriptor.fd, b"!")
        except (OSError, DataBlockError):
            return  # full of rings not yet heard (it will wake), nobody there, or no bell

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()


class WriterBell:
    """Wakes a writer that waits for room, once a ticket. Runs in finalizers; refers to no reader, so that
    dropping a reader frees it at once."""

    def __init__(self, words: memoryview, ringer: Ringer) -> None:
        self._words = words
        self._ringer = ringer
        self._rung = 0

    def ring(self) -> None:
        ticket = self._words[WRITER_TICKET]
        if ticket and ticket != self._rung:
            self._rung = ticket
            self._ringer.ring()


class ProcessWatch:
    """A descriptor that becomes readable when one process (not merely its pid) has ended."""

    def __init__(self, pid: int, start_time: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self._descriptor: Descriptor | None = None
        try:
            self._descriptor = Descriptor(lambda: os.pidfd_open(pid))
        except (OSError, OverflowError):
            return  # gone, in another namespace, no pid at all: the lock has the last word in every case
        found = ProcessIdentity.of(pid)
        if found is None or found.start_time != start_time:
            self.close()

    def fileno(self) -> int:
        return -1 if self._descriptor is None else self._descriptor.fd

    def close(self) -> None:
        if self._descriptor is not None:
            self._descriptor.close()


async def sleep_async(bell: Bell | NoBell, timeout_seconds: float | None, watch: ProcessWatch | None) -> bool:
    """As `sleep` of a bell, in the running event loop."""
    import asyncio  # which takes longer to load than all else that a writer needs

    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    has_died = False
    watched = -1 if watch is None else watch.fileno()
    limits = [seconds for seconds in (timeout_seconds, bell.look_seconds) if seconds is not None]
    limits += [PROBE_SECONDS] if watch is not None and watched < 0 else []

    def died() -> None:
        nonlocal has_died
        has_died = True
        woken.set()

    listening = [fd for fd in (bell.fileno(), watched) if fd >= 0]
    for fd in listening:
        loop.add_reader(fd, died if fd == watched else woken.set)
    try:
        await asyncio.wait_for(woken.wait(), min(limits, default=None))
    except TimeoutError:
        pass  # the caller looks at its deadline
    finally:
        for fd in listening:
            loop.remove_reader(fd)
        bell.has_rung = True  # perhaps: look
    return has_died
