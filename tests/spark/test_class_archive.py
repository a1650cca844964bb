"""Sessions of tests start from the archive of Spark's classes that `make setup` makes."""

from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.class_archive import ARCHIVE


@pytest.mark.skipif(not ARCHIVE.exists(), reason="make setup has made no archive of Spark's classes (no Java?)")
def test_the_driver_maps_the_archive_of_classes(spark: SparkSession) -> None:
    maps = Path(
        f"/proc/{SparkContext._gateway.proc.pid}/maps"
    ).read_text()  # private: PySpark tells its JVM nowhere else
    assert str(ARCHIVE.resolve()) in maps
