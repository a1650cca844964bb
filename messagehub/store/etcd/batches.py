"""Cuts many events into transactions that etcd takes: at most 128 operations and 1.5 MiB each, by default.

Rule 1: a cut is between two events, and their order is kept: what is written is all events up to one of them.
Rule 2: etcd refuses a transaction that touches a key twice. The last value of a key stands for all of them, and a key
that would be put after all keys beneath a prefix were removed begins a new transaction.
"""

from collections.abc import Iterable, Iterator

from messagehub.store.etcd.rows import Changes, pack

MOST_OPERATIONS = 120
MOST_BYTES = 1 << 20
MOST_EVENT_BYTES = 256 << 10
"""Larger events are not sent to hubs that follow: with the record, the transaction might be too large."""


class Batch:
    """What one transaction changes."""

    def __init__(self) -> None:
        self.revision = 0
        self.last_schema_id = 0
        self.values: dict[str, bytes | None] = {}
        self.removed_beneath: dict[str, None] = {}
        self.events: list[bytes] | None = []
        """The events in order; None if one is too large, so that whoever follows has to load the records."""
        self._size_bytes = 0

    def add(self, changes: Changes) -> bool:
        """Return False, and take nothing, if the changes do not fit. An empty batch takes whatever comes."""
        values = [(key, pack(value) if value is not None else None) for key, value in changes.values]
        size_bytes = len(changes.event) + sum(len(key) + len(value or b"") for key, value in values)
        if self.revision and not self._fits(changes, size_bytes):
            return False
        for prefix in changes.removed_beneath:
            for key in [key for key in self.values if key.startswith(prefix)]:
                del self.values[key]
            self.removed_beneath[prefix] = None
        self.values.update(values)
        if len(changes.event) > MOST_EVENT_BYTES:
            self.events = None
        elif self.events is not None:
            self.events.append(changes.event)
        self._size_bytes += size_bytes
        self.revision = changes.revision
        self.last_schema_id = max(self.last_schema_id, changes.schema_id)
        return True

    def _fits(self, changes: Changes, size_bytes: int) -> bool:
        operations = len(self.values) + len(self.removed_beneath) + len(changes.values) + len(changes.removed_beneath)
        return (
            operations <= MOST_OPERATIONS
            and self._size_bytes + size_bytes <= MOST_BYTES
            and not any(key.startswith(prefix) for prefix in self.removed_beneath for key, _ in changes.values)
        )


def batches(rows: Iterable[Changes]) -> Iterator[Batch]:
    batch = Batch()
    for changes in rows:
        if not batch.add(changes):
            yield batch
            batch = Batch()
            batch.add(changes)
    if batch.revision:
        yield batch
