"""A bar over the tasks of one Spark action, for whoever watches: in a terminal, or in a notebook."""

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LOOK_SECONDS: Final = 0.2


@contextlib.contextmanager
def showing_progress(spark: SparkSession, title: str, is_wanted: bool | None) -> Iterator[None]:
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter if is_wanted is None else is_wanted):
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            if total:
                bar.update(task, completed=done, total=total)

        with _told_by_connect(spark, show) if _is_connect(spark) else _told_by_tracker(spark, show):
            yield
        total = bar.tasks[0].total or 1
        bar.update(task, completed=total, total=total)


def _is_connect(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__


@contextlib.contextmanager
def _told_by_connect(spark: Any, show: Any) -> Iterator[None]:
    def heard(stages: Any, **_: Any) -> None:
        stages = list(stages or ())
        show(sum(stage.num_completed_tasks for stage in stages), sum(stage.num_tasks for stage in stages))

    spark.registerProgressHandler(heard)
    try:
        yield
    finally:
        spark.removeProgressHandler(heard)


@contextlib.contextmanager
def _told_by_tracker(spark: SparkSession, show: Any) -> Iterator[None]:
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

    watcher = threading.Thread(target=follow, name="messagehub-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for name, value in before.items():
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None removes it
