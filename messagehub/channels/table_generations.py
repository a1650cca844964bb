"""The tables of a channel as one consumer reads them: each generation once, the oldest first.

Rule: the newest table is on one host, which the registry names. While that is another one, its generations are read
from there; of those, what is not newer than the last one that was read is not read again.
"""

from collections.abc import Callable
from typing import Any

from messagehub.channels.consumer.elsewhere import Elsewhere
from messagehub.channels.consumer.expected_schema import ExpectedSchema
from messagehub.channels.consumer.start import Start
from messagehub.channels.items import Generations, Origin, schema_of_table, table_origin
from messagehub.shm.errors import TableMissing
from messagehub.shm.tables.tables import TableStore

MOST_TRIES = 5
"""Each time another generation was retired between looking and reading."""


class TableGenerations:
    def __init__(
        self,
        store: TableStore,
        elsewhere: Elsewhere,
        start: Start,
        expected: ExpectedSchema,
        *,
        verify: bool,
        ask_again: Callable[[str], bool],
    ) -> None:
        """`ask_again` asks the registry whether a schema, by its hash, can be read; it raises Undecided meanwhile."""
        self._store = store
        self._elsewhere = elsewhere
        self._start = start
        self._expected = expected
        self._verify = verify
        self._ask_again = ask_again
        self._host: str | None = None  # whose generations `_generation` is one of
        self._generation = _before_first(store.generations(), start)  # read last
        self._read_ns = -1  # when the generation that was read last was written

    def next(self) -> tuple[Origin, Any] | None:
        """Return the oldest generation that is newer than the one read last; a superseded one may be gone by then.

        Raises Undecided where the registry has yet to say whether it can be read.
        """
        store = self._current()
        for generation in store.generations():
            if generation > self._generation:
                table = self._read(store, generation)
                self._generation = generation
                if table is not None:
                    origin = table_origin(store, generation)
                    self._read_ns = max(self._read_ns, origin[1])
                    return origin, table
        return None

    def newest(self, after_ns: int) -> tuple[Origin, Any] | None:
        """Return the newest generation if it was written after that, whatever was read. Raises Undecided as `next`."""
        for _ in range(MOST_TRIES):
            store = self._current()
            known = store.generations()
            if not known:
                return None
            origin = table_origin(store, known[-1])
            if 0 < origin[1] <= after_ns:
                return None
            table = self._read(store, known[-1])
            if table is not None:
                return origin, table
            if self._host is not None and self._elsewhere.tables is not None:
                self._elsewhere.tables.look_again()  # it was retired meanwhile, so there is a newer one, or none
        raise TableMissing(self._store.path, known[-1])

    def unread(self) -> int:
        store = self._current()
        return sum(generation > self._generation for generation in store.generations())

    def schema(self) -> Any:
        """Return the schema of the newest generation, or None where there is none."""
        store = self._current()
        known = store.generations()
        return schema_of_table(store, known[-1]) if known else None

    def _current(self) -> Generations:
        """Return the tables of the host that has the newest one."""
        remote = self._elsewhere.tables
        host = None if remote is None else remote.host
        store: Generations = self._store if remote is None or host is None else remote
        if host != self._host:
            self._host = host
            known = store.generations()
            if self._read_ns < 0:
                self._generation = _before_first(known, self._start)
            else:
                newer = [one for one in known if table_origin(store, one)[1] > self._read_ns]
                self._generation = newer[0] - 1 if newer else (known[-1] if known else 0)
        return store

    def _read(self, store: Generations, generation: int) -> Any:
        """Return the table in the expected schema, or None if it was retired meanwhile."""
        try:
            with store.open(generation) as snapshot:
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
