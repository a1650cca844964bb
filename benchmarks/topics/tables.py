"""What a checksum adds to publishing a table: it is the default only if that is little."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pyarrow as pa

from benchmarks.harness import Bench, comparison
from benchmarks.placement import Placement
from benchmarks.verdicts import beside
from messagehub import MessageHub
from messagehub.shm.channel_directory.directory import Directory


@comparison("publishing a table of 64 MB with a checksum against without, no broker", placements=[Placement.SAME_CORE])
def table_checksums(bench: Bench) -> None:
    """With --quick: 8 MB."""
    table = pa.table({"n": pa.array(range(bench.scaled(8_000_000, 1_000_000)), pa.int64())})
    with tempfile.TemporaryDirectory(prefix="tables-", dir=bench.directory) as name:
        place = Path(name)
        try:
            with MessageHub(dir=place, domain=place.name) as hub:

                def publish(checksum: str) -> Callable[[], float]:
                    def measure() -> float:
                        began = perf_counter()
                        hub.publish_table("bench", table, checksum=checksum)
                        seconds = perf_counter() - began
                        hub.drop_table("bench")
                        return seconds * 1000

                    return measure

                ours, without = "with a checksum", "without"
                bench.compare(
                    {ours: publish("write"), without: publish("none")}, unit="ms", claims=[beside(ours, without)]
                )
        finally:
            shutil.rmtree(Path(Directory(place.name).path).parent, ignore_errors=True)
