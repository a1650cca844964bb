"""Background threads that outlive a defect.

Rule: what one turn raises is logged and counted, and the thread goes on after a pause. A thread that nobody sees end
would leave its owner waiting for ever.
"""

import logging
import time
from collections.abc import Callable

PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS = 0.02, 1.0


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
