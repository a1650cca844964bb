"""Background threads that no defect ends in silence.

Rule 1: what a thread's function raises is logged with its trace and counted, and the function is called again.
Rule 2: a function that returns has ended. It keeps its state in its owner, so that being called again goes on with it.
"""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("messagehub")

RESTART_SECONDS = 0.2


class Supervisor:
    """Starts the background threads of one owner and counts how often one had to be started again."""

    def __init__(self) -> None:
        self.restarts = 0
        self._counting = threading.Lock()

    def start(self, name: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._supervise, args=(name, run), name=name, daemon=True)
        thread.start()
        return thread

    def _supervise(self, name: str, run: Callable[[], None]) -> None:
        while True:
            try:
                return run()
            except Exception:
                log.exception("the thread %s failed and is started again", name)
                with self._counting:
                    self.restarts += 1
                time.sleep(RESTART_SECONDS)
