"""An event loop of the hub's own, for asynchronous handlers that are served by programs without one.

Rule 1: the loop runs until it is closed. A task that exits (`SystemExit`, which asyncio raises out of the loop) ends
itself, and the loop goes on with the others.
Rule 2: a closed loop is not started again, so that a handler that outlasts its hub leaves no thread behind.
"""

import asyncio
import contextlib
import logging
import threading

from messagehub.errors import NotInitialised

log = logging.getLogger("messagehub.services")

CLOSE_SECONDS = 5.0


class HandlerLoop:
    """A loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs; NotInitialised when it was closed."""
        with self._lock:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="messagehub-handlers", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel what still runs, and end the thread. Idempotent."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is None or thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the thread has just seen by itself that it is to end
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while not self._is_closed:
                try:
                    loop.run_forever()
                except BaseException:
                    log.exception("a task of an asynchronous handler failed; the other handlers go on")
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:  # one that does not let itself be cancelled is left behind
                loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS / 2))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
