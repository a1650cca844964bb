"""The keys that a site would have in etcd, in a dictionary, so that any history can be held against them."""

from collections.abc import Iterable

from messagehub.store import Saved
from messagehub.store.etcd.batches import batches
from messagehub.store.etcd.rows import changes, load
from registry.events import AnyEvent, AnyTopicEvent


class EtcdKeys:
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._last_schema_id = 0

    def write(self, happened: Iterable[AnyEvent]) -> None:
        for batch in batches(changes(event) for event in happened if not isinstance(event, AnyTopicEvent)):
            for prefix in batch.removed_beneath:
                self._values = {name: value for name, value in self._values.items() if not name.startswith(prefix)}
            self._values |= {name: value for name, value in batch.values.items() if value is not None}
            for name in [name for name, value in batch.values.items() if value is None]:
                self._values.pop(name, None)
            self._last_schema_id = max(self._last_schema_id, batch.last_schema_id)

    def load(self, revision: int) -> Saved:
        return load(self._values.items(), revision=revision, last_schema_id=self._last_schema_id)

    def __len__(self) -> int:
        return len(self._values)
