"""A DataFrame, until a second Python process holds it as Arrow."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, CannotMeasure, comparison
from benchmarks.processes import ROOT, stop
from benchmarks.spark_sessions import seconds, session
from benchmarks.verdicts import at_least, at_most, beside

REPETITIONS = 5
ATTACHMENTS = 20
DOMAIN = "benchmark-spark"
OURS, FLOOR = "MessageHub", "Arrow writer that discards"
TO_ARROW, TO_PANDAS, PARQUET = "toArrow (this process only)", "toPandas (this process only)", "Parquet in /dev/shm"


@comparison("a Spark DataFrame to a second process, as Arrow")
def spark_to_another_process(bench: Bench) -> None:
    """4 million rows of 76 bytes; with --quick a tenth of them."""
    rows = bench.scaled(4_000_000, 400_000)
    with session(bench) as spark, _consumer(bench) as take, tempfile.TemporaryDirectory(dir="/dev/shm") as parquet:
        from benchmarks.spark_floor import DiscardingSource
        from messagehub import spark as hub_spark

        spark.dataSource.register(DiscardingSource)
        df = spark.range(0, rows, 1, 2).selectExpr(
            "id", "id * 0.5d as a", "id + 1 as b", "rand(1) as c", "cast(id as string) as d", "repeat('x', 36) as e"
        )

        def ours() -> None:
            hub_spark.publish(df, "frames", progress=False, domain=DOMAIN, dir=str(bench.directory))
            _all(take("channel"), rows)

        def parquet_file() -> None:
            df.write.mode("overwrite").parquet(f"{parquet}/frames")
            _all(take(f"parquet {parquet}/frames"), rows)

        contenders: dict[str, Callable[[], Any]] = {
            OURS: ours,
            FLOOR: lambda: df.write.format("discard").mode("append").save(),
            TO_ARROW: lambda: _all(df.toArrow().num_rows, rows),
            TO_PANDAS: lambda: _all(len(df.toPandas()), rows),
            PARQUET: parquet_file,
        }
        for warm_up in contenders.values():
            warm_up()
        bench.compare(
            {name: seconds(run) for name, run in contenders.items()},
            unit="s",
            claims=[
                at_most(1.15, OURS, FLOOR),
                at_least(2.0, TO_PANDAS, OURS),
                at_least(2.0, PARQUET, OURS),
                beside(TO_ARROW, OURS),
            ],
            repetitions=REPETITIONS,
        )
        ours()
        again = "each further consumer"
        bench.compare(
            {again: seconds(lambda: [take("channel") for _ in range(ATTACHMENTS)], ATTACHMENTS * 1e-3)},
            unit="ms",
            claims=[beside(again)],
            repetitions=REPETITIONS,
        )


def _all(found: int, rows: int) -> None:
    if found != rows:
        raise CannotMeasure(f"{found} of {rows} rows arrived")


@contextmanager
def _consumer(bench: Bench) -> Iterator[Callable[[str], int]]:
    """Asks the second process to take something; returns how many rows it then holds."""
    command = [sys.executable, "-m", "benchmarks.spark_consumer", str(bench.directory), DOMAIN, "frames"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()

    def take(what: str) -> int:
        process.stdin.write(f"{what}\n".encode())  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        return int(process.stdout.readline() or 0)  # type: ignore[union-attr]

    try:
        yield take
    finally:
        process.stdin.close()
        stop(process)
        process.stdout.close()
        shutil.rmtree(Path("/dev/shm") / f"messagehub-{os.geteuid()}" / DOMAIN, ignore_errors=True)
