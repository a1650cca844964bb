"""An event loop of the hub's own, for asynchronous handlers that are served by programs without one."""

import asyncio
import threading

CLOSE_SECONDS = 5.0


class HandlerLoop:
    """A loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def get(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="messagehub-handlers", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel what still runs, and end the thread. Idempotent."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:  # one that does not let itself be cancelled is left behind
            loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
