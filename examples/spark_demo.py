"""`make demo`: sensors, a ring in shared memory, Spark Structured Streaming, a channel, a plain consumer that plots.

    python examples/spark_demo.py [--seconds 20] [--picture build/demo/demo.png]

Four parties: a process that measures, a Spark query that aggregates, this process as a plain consumer that attaches to
the results without copying them, and a broker that knows them all. Nothing is left in shared memory afterwards.
"""

import argparse
import math
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from messagehub import MessageHub, embedded_broker

ROOT = Path(__file__).resolve().parents[1]
SENSORS = ("boiler", "intake", "turbine")
SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("sensor", pa.string()), ("celsius", pa.float64())])
RAW, RESULTS = "demo.sensors", "demo.averages"
DOMAIN = f"demo-{os.getpid()}"
HERTZ, ROWS = 20, 50
START_SECONDS = 300.0


def measure(endpoint: str, domain: str) -> None:
    """The acquisition loop, in its own process: twenty batches a second into a ring, until stdin ends."""
    with (
        MessageHub(endpoint=endpoint, domain=domain) as hub,
        hub.producer(RAW, schema=SCHEMA, capacity=8192, page_size=8192) as producer,
    ):
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 1 / HERTZ)[0]:
            producer.write(_batch(datetime.now(UTC)))


def _batch(now: datetime) -> pa.RecordBatch:
    names = [random.choice(SENSORS) for _ in range(ROWS)]
    phase = now.timestamp()
    values = [60 + 15 * SENSORS.index(name) + 8 * math.sin(phase / 3) + random.gauss(0, 2) for name in names]
    return pa.RecordBatch.from_pydict({"at": [now] * ROWS, "sensor": names, "celsius": values}, schema=SCHEMA)


def aggregate(spark: Any, options: dict[str, str], checkpoint: str) -> Any:
    """Mean, extremes and count per sensor and second; every micro-batch is a new generation of the results."""
    from pyspark.sql import functions as f

    raw = spark.readStream.format("messagehub").options(channel=RAW, **options).load()
    averages = raw.groupBy(f.window("at", "1 second").start.alias("second"), "sensor").agg(
        f.avg("celsius").alias("mean"),
        f.min("celsius").alias("low"),
        f.max("celsius").alias("high"),
        f.count("*").alias("samples"),
    )
    writing = averages.writeStream.format("messagehub").options(channel=RESULTS, **options)
    return (
        writing.option("checkpointLocation", checkpoint)
        .outputMode("complete")
        .trigger(processingTime="1 second")
        .start()
    )


def watch(hub: MessageHub, query: Any, seconds: float, console: Console) -> pa.Table:
    """Print every generation for so many seconds after the first, and keep the newest."""
    newest: pa.Table | None = None
    deadline = time.monotonic() + START_SECONDS
    with hub.consumer(RESULTS, start="oldest") as consumer:
        while query.exception() is None and time.monotonic() < deadline:
            found = consumer.read(timeout=1.0)
            if found is not None:
                deadline = time.monotonic() + seconds if newest is None else deadline
                newest = found
                console.print(_line(found), soft_wrap=True)
    if query.exception() is not None or newest is None:
        raise SystemExit(f"the query gave no result: {query.exception()}")
    return newest.sort_by("second")


def _line(table: pa.Table) -> str:
    samples = sum(table["samples"].to_pylist())
    means = table.group_by("sensor").aggregate([("mean", "mean")]).sort_by("sensor").to_pylist()
    shown = "  ".join(f"{each['sensor']} {each['mean_mean']:5.1f} °C" for each in means)
    return f"{samples:6d} samples in {table.num_rows:3d} averages, {table.nbytes:,} bytes mapped: {shown}"


def status(hub: MessageHub) -> Table:
    """What the hub knows of both channels."""
    health = hub.health()
    title = f"the hub: {health['status']}, revision {health.get('revision', '?')}"
    shown = Table("channel", "status", "found via", "schema", "generation", "where", title=title, title_justify="left")
    for channel in (RAW, RESULTS):
        found = hub.discover(channel)
        if found is not None:
            generation = str(found.generation or "live")
            digest = (found.schema_hash or "")[:8]
            shown.add_row(channel, found.status, found.source, digest, generation, found.shm_name or "")
    return shown


def draw(table: pa.Table, about: Table, picture: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plain = Console(width=140, record=True, file=Path(os.devnull).open("w"))  # noqa: SIM115  ends with the program
    plain.print(about)
    figure, (chart, text) = plt.subplots(2, 1, figsize=(10, 7), height_ratios=(4, 1), layout="constrained")
    for sensor in SENSORS:
        rows = table.filter(pa.compute.equal(table["sensor"], sensor))
        seconds = rows["second"].to_pylist()
        (line,) = chart.plot(seconds, rows["mean"].to_pylist(), label=sensor)
        chart.fill_between(
            seconds, rows["low"].to_pylist(), rows["high"].to_pylist(), color=line.get_color(), alpha=0.15
        )
    chart.set(title="Mean and extremes per second, aggregated by Spark, read zero-copy", ylabel="°C")
    chart.legend(loc="upper left")
    text.axis("off")
    text.text(0, 1, plain.export_text(), family="monospace", fontsize=7, va="top", transform=text.transAxes)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


@contextmanager
def spark_session(scratch: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from messagehub import spark as hub_spark

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": scratch,
    }
    builder = SparkSession.builder.master("local[2]").appName("messagehub-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    hub_spark.register(session)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def measuring(endpoint: str) -> Iterator[None]:
    command = [sys.executable, __file__, "--measure", endpoint, DOMAIN]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def demo(seconds: float, picture: Path) -> None:
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="messagehub-demo-") as scratch,
        embedded_broker(domain=DOMAIN) as endpoint,
        MessageHub(endpoint=endpoint, domain=DOMAIN) as hub,
    ):
        console.print("starting Spark …")
        with spark_session(scratch) as spark, measuring(endpoint):
            console.print(f"{RAW}: {HERTZ * ROWS} samples a second; the first result takes some seconds")
            query = aggregate(spark, {"endpoint": endpoint, "domain": DOMAIN}, f"{scratch}/checkpoint")
            try:
                table = watch(hub, query, seconds, console)
                about = status(hub)
            finally:
                query.stop()
        console.print(about)
        draw(table, about, picture)
        console.print(f"picture: {picture}")
    shutil.rmtree(f"/dev/shm/messagehub-{os.geteuid()}/{DOMAIN}", ignore_errors=True)
    Path(f"/dev/shm/pylabhub_{RAW}@{DOMAIN}").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch the results")
    parser.add_argument("--picture", type=Path, default=ROOT / "build" / "demo" / "demo.png")
    parser.add_argument("--measure", nargs=2, metavar=("ENDPOINT", "DOMAIN"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        measure(*chosen.measure)
    else:
        demo(chosen.seconds, chosen.picture)


if __name__ == "__main__":
    main()
