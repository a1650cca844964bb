"""Background threads that outlive a defect.

Rule 1: what a turn or a thread raises is logged with its trace and counted, and it goes on after a pause. A thread that
nobody sees end would leave its owner waiting for ever.
Rule 2: a thread's function that returns has ended. It keeps its state in its owner, so that being called again goes on.
"""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("messagehub")

PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS = 0.02, 1.0
RESTART_SECONDS = 0.2


def keep_turning(
    turn: Callable[[], object],
    *,
    what: str,
    log: logging.Logger,
    is_over: Callable[[], bool],
    on_defect: Callable[[], object] = lambda: None,
) -> None:
    """Call `turn` until `is_over`. After a turn that raised, `on_defect` puts right what it may have left half done."""
    pause = PAUSE_FIRST_SECONDS
    while not is_over():
        try:
            turn()
            pause = PAUSE_FIRST_SECONDS
        except Exception:  # a defect of ours, or of a callback: the thread goes on
            log.exception("%s failed, and goes on", what)
            on_defect()
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_SECONDS)


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
