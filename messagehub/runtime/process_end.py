"""Say goodbye when the process ends normally, also as a child of `multiprocessing`, which ends without `atexit`.

Rule 1: nothing of `multiprocessing` is imported here: a process that has not imported it is no child of it.
Rule 2: a child forgets, right after the fork, what its parent wanted to have called. So it is asked for anew: after the
fork for what the parent had, and by `expect_end` for what the child makes itself.
"""

import atexit
import os
import sys
from collections.abc import Callable


class ProcessEnd:
    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._asked_in: int | None = None
        atexit.register(call)
        os.register_at_fork(after_in_child=self._after_fork)

    def expect_end(self) -> None:
        """In a child of `multiprocessing`: have the call made at its end."""
        process = sys.modules.get("multiprocessing.process")
        if process is not None and self._asked_in != os.getpid() and process.parent_process() is not None:
            self._ask()

    def _after_fork(self) -> None:
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # which runs this in a child of its own, after it has forgotten everything else
            util.register_after_fork(self, ProcessEnd._ask)

    def _ask(self) -> None:
        self._asked_in = os.getpid()
        sys.modules["multiprocessing.util"].Finalize(None, self._call, exitpriority=0)
