"""Spark sessions for tests: small, quiet, on loopback, and gone afterwards."""

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
AUTO_REGISTRATION = ROOT / "messagehub" / "spark" / "auto_registration"
PRELOADING = ROOT / "tests" / "spark" / "preloading"
# For programs that make a session of their own: compiling takes longer than anything that they compute.
SMALL = {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN"
    " --conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false"
    " --driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell"
}


def environment() -> dict[str, str]:
    """Workers import this checkout, find the source by its name, and have imported it before they begin."""
    path = os.pathsep.join([str(ROOT), str(AUTO_REGISTRATION), str(PRELOADING), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def new_session(work_dir: Path, master: str = "local[2, 3]", **config: Any) -> SparkSession:
    os.environ.update(environment())
    work_dir.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={work_dir}",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work_dir),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than anything that is computed here
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(master).appName("messagehub-tests")
    for name, value in (settings | config).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def close(session: SparkSession) -> None:
    """Stop the session and end its JVM, so that the next one is new."""
    from pyspark import SparkContext

    session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = SparkContext._jvm = None
