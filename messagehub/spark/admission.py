"""How much one micro-batch takes."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from messagehub.shm.rings.read_results import Gap


class Budget:
    """Shared by all blocks of a micro-batch. The first payload always fits: a stream never stands still."""

    def __init__(self, limit: ReadLimit) -> None:
        self._counts_rows = isinstance(limit, ReadMaxRows)
        self._left: int | None = None
        if isinstance(limit, ReadMaxRows):
            self._left = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            self._left = limit.max_bytes
        self._has_taken = False

    @property
    def is_unlimited(self) -> bool:
        return self._left is None

    def spend(self, items: Iterable[pa.RecordBatch | Gap], before: int, last: int) -> tuple[int, int]:
        """The last sequence that fits, and how many on the way to it are lost."""
        sequence, lost = before, 0
        for found in items:
            if isinstance(found, Gap):
                gone = min(found.last, last)
                lost, sequence = lost + gone - sequence, gone
            elif self._left is None:
                return last, lost
            elif not self._take(found.num_rows if self._counts_rows else found.nbytes):
                break
            else:
                sequence += 1
        return sequence, lost

    def _take(self, cost: int) -> bool:
        assert self._left is not None
        if self._has_taken and cost > self._left:
            return False
        self._has_taken = True
        self._left -= cost
        return True
