"""What a user forgets to close is closed when it is collected, with a ResourceWarning that names it.

Rule 1: a finalizer runs anywhere, also in a thread that holds a lock of ours. So it takes no lock and closes nothing:
it hands the object to a thread, which is started when there is something to close and ends afterwards.
Rule 2: an object is handed over once. The thread holds it until it is closed, and forgets it then.
Rule 3: in a forked child, what the parent opened is the parent's.
"""

import _thread
import contextlib
import logging
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, SupportsIndex

log = logging.getLogger("messagehub")


class ClosedWhenForgotten:
    """A base of what users hold and close. `_opened_in` is set once there is something to close."""

    _opened_in: int | None = None

    def close(self) -> None:
        raise NotImplementedError

    def _is_forgotten(self) -> bool:
        """Return whether there is something to close, now that nobody refers to the object any more."""
        raise NotImplementedError

    def _named(self) -> str:
        """What it is, and how to close it: the text of the warning."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Refuse `copy`, `deepcopy` and `pickle`: two objects would close the same descriptors."""
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: make one where it is used. A function that Spark or"
            " another process runs calls MessageHub.get_instance() itself"
        )

    def __del__(self) -> None:
        if self._opened_in is None or sys.is_finalizing() or self._opened_in != os.getpid():
            return
        if self._is_forgotten():
            self._opened_in = None
            run_soon(self.close)
            warn(self._named(), self)


def run_soon(close: Callable[[], object]) -> None:
    """Have it called on another thread. For finalizers."""
    _waiting.put(close)
    _start()


def warn(said: str, source: object = None) -> None:
    warnings.warn(f"{said} was never closed", ResourceWarning, stacklevel=3, source=source)


_waiting: "queue.SimpleQueue[Callable[[], object]]" = queue.SimpleQueue()  # written in C, so that finalizers may put
_closing = threading.Lock()  # held while a thread closes


def _start() -> None:
    """Starting a `threading.Thread` takes locks that the interrupted thread may hold: a bare thread does it."""
    if _closing.acquire(blocking=False):
        try:
            _thread.start_new_thread(_start_thread, ())
        except RuntimeError:  # no thread can be had now: the next one that is forgotten tries again
            _closing.release()


def _start_thread() -> None:
    try:
        threading.Thread(target=_close_all, name="messagehub-closing", daemon=True).start()
    except RuntimeError:
        _closing.release()


def _close_all() -> None:
    try:
        while True:
            try:
                close = _waiting.get_nowait()
            except queue.Empty:
                break
            try:
                close()
            except Exception:  # a defect, or somebody else's: the others are closed all the same
                log.exception("what was forgotten could not be closed: %r", close)
            del close
    finally:
        _closing.release()
        if not _waiting.empty():  # put after the last look
            _start()


def _after_fork_in_child() -> None:
    global _closing
    with contextlib.suppress(queue.Empty):  # what the parent forgot is the parent's
        while True:
            _left_by_parent.append(_waiting.get_nowait())
    _closing = threading.Lock()


_left_by_parent: list[Callable[[], object]] = []
os.register_at_fork(after_in_child=_after_fork_in_child)
