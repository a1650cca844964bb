"""The tables of a channel as one consumer reads them: each generation once, the oldest first."""

from collections.abc import Callable
from typing import Any

from messagehub.channels.consumer.expected_schema import ExpectedSchema
from messagehub.channels.consumer.start import Start
from messagehub.channels.items import Origin, schema_of_table, table_origin
from messagehub.shm.errors import TableMissing
from messagehub.shm.tables.tables import TableStore


class TableGenerations:
    def __init__(
        self,
        store: TableStore,
        start: Start,
        expected: ExpectedSchema,
        *,
        verify: bool,
        ask_again: Callable[[str], bool],
    ) -> None:
        """`ask_again` asks the registry whether a schema, by its hash, can be read; it raises Undecided meanwhile."""
        self._store = store
        self._expected = expected
        self._verify = verify
        self._ask_again = ask_again
        self._generation = _before_first(store.generations(), start)  # read last

    def next(self) -> tuple[Origin, Any] | None:
        """Return the oldest generation that is newer than the one read last; a superseded one may be gone by then.

        Raises Undecided where the registry has yet to say whether it can be read.
        """
        for generation in self._store.generations():
            if generation > self._generation:
                table = self._read(generation)
                self._generation = generation
                if table is not None:
                    return table_origin(self._store, generation), table
        return None

    def newest(self, after_ns: int) -> tuple[Origin, Any] | None:
        """Return the newest generation if it was written after that, whatever was read. Raises Undecided as `next`."""
        known = self._store.generations()
        if not known:
            return None
        origin = table_origin(self._store, known[-1])
        if origin[1] <= after_ns:
            return None
        table = self._read(known[-1])
        return None if table is None else (origin, table)

    def unread(self) -> int:
        return sum(generation > self._generation for generation in self._store.generations())

    def schema(self) -> Any:
        """Return the schema of the newest generation, or None where there is none."""
        known = self._store.generations()
        return schema_of_table(self._store, known[-1]) if known else None

    def _read(self, generation: int) -> Any:
        """Return the table in the expected schema, or None if it was retired meanwhile."""
        try:
            with self._store.open(generation) as snapshot:
                written = snapshot.manifest.schema_hash
                if not self._expected.is_readable(written):
                    self._ask_again(written)
                if not self._expected.is_readable(written):
                    raise self._expected.mismatch(written)
                return self._expected.applied(snapshot.table(verify=self._verify))
        except TableMissing:
            return None


def _before_first(known: list[int], start: Start) -> int:
    """Return the generation before the first one to be read; all that are committed from now on are read."""
    if not known:
        return 0
    if isinstance(start, int):
        return known[max(len(known) + start, 0)] - 1
    return known[-1] - 1 if start == "latest" else known[0] - 1
