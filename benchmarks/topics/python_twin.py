"""Rings without their extension (MESSAGEHUB_PURE_PYTHON=1), on both sides: what a machine without a compiler gets."""

from importlib.util import find_spec

from benchmarks.harness import Bench, PeerMissing, comparison
from benchmarks.hub_rows import KIB, MIB
from benchmarks.placement import Placement
from benchmarks.topics.shared_memory import against_memcpy


def _twin(bench: Bench, row: str, size: int, bound: float) -> None:
    if find_spec("messagehub.shm.core") is None:
        raise PeerMissing("these rings have one implementation only: messagehub.shm.core does not exist")
    against_memcpy(bench, row, size, bound, is_pure=True)


@comparison("64 KiB payloads to a reader, rings in Python", headline=True, placements=[Placement.TWO_CORES])
def twin_64_kib(bench: Bench) -> None:
    _twin(bench, "stream-64k", 64 * KIB, 0.3)


@comparison("1 MiB payloads to a reader, rings in Python", headline=True, placements=[Placement.TWO_CORES])
def twin_1_mib(bench: Bench) -> None:
    _twin(bench, "stream-1m", MIB, 0.6)
