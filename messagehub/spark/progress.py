"""A bar over the tasks of one Spark action, for whoever watches: in a terminal, or in a notebook."""

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from pyspark.sql import SparkSession

from messagehub.runtime.supervision import Supervisor

LOOK_SECONDS: Final = 0.2
WIDTH: Final = 30
Show = Callable[[int, int], None]


@contextlib.contextmanager
def showing_progress(spark: SparkSession, title: str, is_wanted: bool | None) -> Iterator[None]:
    """`is_wanted`: None shows it where a person can see it."""
    notebook = _notebook()
    if not (notebook is not None or sys.stderr.isatty() if is_wanted is None else is_wanted):
        yield
        return
    draw = _in_notebook(notebook) if notebook is not None else _in_terminal
    started = time.monotonic()
    latest = (0, 0)

    def show(done: int, total: int) -> None:
        nonlocal latest
        latest = (done, total)
        draw(_bar(title, done, total, time.monotonic() - started))

    show(0, 0)
    with _told_by_connect(spark, show) if "connect" in type(spark).__module__ else _told_by_tracker(spark, show):
        yield
    total = max(latest[1], 1)
    draw(_bar(title, total, total, time.monotonic() - started) + "\n")


def _bar(title: str, done: int, total: int, seconds: float) -> str:
    full = WIDTH * done // total if total else 0
    return f"{title} {'━' * full}{'╌' * (WIDTH - full)} {done}/{total or '?'} tasks, {seconds:.0f} s"


def _in_terminal(line: str) -> None:
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def _notebook() -> Any:
    """IPython, if this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return ipython if hasattr(shell, "kernel") else None


def _in_notebook(ipython: Any) -> Callable[[str], None]:
    handle = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line.strip()}, raw=True)


@contextlib.contextmanager
def _told_by_connect(spark: Any, show: Show) -> Iterator[None]:
    def heard(stages: Any, **_: Any) -> None:
        known = list(stages or ())
        show(sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known))

    spark.registerProgressHandler(heard)
    try:
        yield
    finally:
        spark.removeProgressHandler(heard)


@contextlib.contextmanager
def _told_by_tracker(spark: SparkSession, show: Show) -> Iterator[None]:
    """Jobs started by this thread belong to a group of their own; another thread looks after them."""
    context = spark.sparkContext
    group = f"messagehub-{uuid.uuid4().hex}"
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(group, "MessageHub publish")
    over = threading.Event()

    def follow() -> None:
        tracker = context.statusTracker()
        while not over.wait(LOOK_SECONDS):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            known = [stage for stage in stages if stage is not None]
            show(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    watcher = Supervisor().start("messagehub-progress", follow)
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it
