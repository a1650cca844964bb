"""The Spark task that this process runs, if it is a Python worker of Spark.

Rule 1: nothing of PySpark is imported here: where a task runs, PySpark has been imported by the worker.
Rule 2: a worker runs one task after the other. What a task opened ends with it, even if something still refers to it.
"""

import logging
import os
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple, Protocol

from messagehub.runtime.supervision import Supervisor

log = logging.getLogger("messagehub")

LOOK_SECONDS = 0.1


class SparkTask(NamedTuple):
    application: str
    stage: int
    partition: int
    attempt: int

    @property
    def producer_id(self) -> str:
        return f"spark-{self.application}-{self.stage}-{self.partition}-{self.attempt}"


class Closable(Protocol):
    def close(self) -> None: ...


def current_task() -> SparkTask | None:
    context = _context()
    if context is None:
        return None
    return SparkTask(
        context.getLocalProperty("spark.app.id") or "application",
        context.stageId(),
        context.partitionId(),
        context.attemptNumber(),
    )


def noted(task: SparkTask | None, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a registration with the task that makes it."""
    return metadata if task is None else {"spark": task._asdict()} | metadata


def close_with_task(opened: Closable) -> None:
    """Close it when the task that runs now has ended, unless nobody refers to it any more by then."""
    with _lock:
        _opened.append((_context(), weakref.ref(opened)))
        if len(_opened) == 1:
            Supervisor().start("messagehub-spark-task", _close_ended)


def _context() -> Any:
    """Return PySpark's context of the task, or None outside of tasks."""
    module = sys.modules.get("pyspark.taskcontext")
    return module.TaskContext.get() if module is not None else None


def _close_ended() -> None:
    """PySpark tells nobody that a task has ended: look for another context, or none."""
    while True:
        time.sleep(LOOK_SECONDS)
        context = _context()
        with _lock:
            ended = [reference for of_task, reference in _opened if of_task is not context]
            _opened[:] = [entry for entry in _opened if entry[0] is context and entry[1]() is not None]
            is_over = not _opened
        for opened in filter(None, (reference() for reference in ended)):
            try:
                opened.close()
            except Exception:
                log.exception("%r could not be closed at the end of its Spark task", opened)
        if is_over:
            return


def _after_fork_in_child() -> None:
    """What the parent opened is the parent's."""
    global _lock
    _lock = threading.Lock()
    _opened.clear()


_lock = threading.Lock()
_opened: "list[tuple[Any, weakref.ref[Any]]]" = []
os.register_at_fork(after_in_child=_after_fork_in_child)
