"""Committed tables of one channel: transactions in, generations out.

    commit.lock                      around every change; holds the last generation number given out
    g<generation>.json               manifests
    g<generation>.dropped            manifests of dropped tables that somebody still reads
    <transaction>.txn                who keeps an uncommitted transaction alive
    registered.mark                  which generation the registry of a site has had (`registered_mark`)
    <hash of a host>.parts           which blocks of this host manifests of that host name (`parts_for_others`)
    <transaction>-<part>-<attempt>   blocks

Rule 1: one link(2) publishes a generation. Before it nothing is visible, after it everything is.
Rule 2: under the commit lock, a block is garbage exactly if the file of its transaction is gone and no manifest names
it: no visible one, none that was dropped while somebody reads it, and none of another host. Every crash leaves either
a state that counts or such garbage.
Rule 3: a committed table belongs to nobody: it ends by being superseded, by retention or by being dropped, never
because a process died. The generation just superseded stays for the grace time: a Spark job planned with it may be on
its way to open it.
Rule 4: a compaction takes nothing from those before it: it shares the place of the generation that it compacts, among
those that are kept, and leaves the age of the rows as it was.
"""

import contextlib
import os
import secrets
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, Literal, get_args

from messagehub.shm.errors import PayloadSchemaMismatch, TableMissing, TransactionEnded
from messagehub.shm.identity import ProcessIdentity, host
from messagehub.shm.layout import Checksum
from messagehub.shm.locks import OWNER, Descriptor, exclusive, lock_within
from messagehub.shm.mapped_file import make_own_directory, open_lock, remove_file, replace_file
from messagehub.shm.tables import manifests, parts_for_others
from messagehub.shm.tables.column_statistics import Collector
from messagehub.shm.tables.freeing import remove_blocks, wait_until_freed
from messagehub.shm.tables.manifests import Manifest, Part, Retention
from messagehub.shm.tables.nulls import checked
from messagehub.shm.tables.snapshot import FetchParts, Snapshot
from messagehub.shm.tables.table_blocks import write_block

_OWNED: Final = exclusive(OWNER)
_OPEN_ATTEMPTS: Final = 100
COMMIT_LOCK: Final = "commit.lock"
Mode = Literal["overwrite", "append"]
MODES: Final = get_args(Mode)


class TableStore:
    """The tables of one channel, in one directory."""

    def __init__(self, path: str, fetch: FetchParts | None = None) -> None:
        """`fetch` is for readers of generations that have parts on other hosts."""
        self.path = path
        self._fetch = fetch

    # --- reading

    def generations(self) -> list[int]:
        return manifests.generations(self.path)

    def open(self, generation: int | None = None) -> Snapshot:
        """Return the latest generation, or the one named. It stays whole until the snapshot is closed."""
        for _ in range(_OPEN_ATTEMPTS):
            wanted = generation
            if wanted is None:
                known = self.generations()
                if not known:
                    break
                wanted = known[-1]
            held = manifests.hold(self.path, wanted)
            if held is not None:
                return Snapshot(self.path, *held, self._fetch)
            if generation is not None:
                break
        raise TableMissing(self.path, generation)

    # --- writing

    def begin(
        self, *, now: float, transaction_id: str | None = None, keeper: ProcessIdentity | None = None
    ) -> "Transaction":
        """Begin a transaction whose uncommitted blocks live as long as `keeper` (by default this process).

        Beginning it again (a replay after a crash) gives it a new keeper.
        """
        make_own_directory(self.path)
        transaction = Transaction(self, transaction_id or uuid.uuid4().hex)
        keeper = keeper or ProcessIdentity.current()
        with self.locked():
            replace_file(transaction.path, parts_for_others.transaction_bytes(keeper, now))
        return transaction

    def transaction(self, transaction_id: str) -> "Transaction":
        """Return a transaction that another process began."""
        return Transaction(self, transaction_id)

    def publish(
        self,
        batches: Iterable[Any],
        schema: Any,
        *,
        now: float,
        mode: Mode = "overwrite",
        schema_hash: str = "",
        checksum: Checksum = Checksum.NONE,
        retention: Retention | None = None,
        details: dict[str, Any] | None = None,
    ) -> Manifest:
        """Publish a generation of one part that this process writes."""
        transaction = self.begin(now=now)
        try:
            part = transaction.write_part(batches, schema, checksum=checksum)
            return transaction.commit(
                [part], now=now, mode=mode, schema_hash=schema_hash, retention=retention, details=details
            )
        except BaseException:
            transaction.abort()
            raise

    # --- ending

    def drop(self) -> list[int]:
        """Make every generation invisible, free its memory, and return which there were.

        A generation that somebody reads is freed by the first cleaner after its last reader has closed it.
        Transactions that have begun continue, and may publish a later generation.
        """
        if not os.path.isdir(self.path):
            return []
        with self.locked():
            dropped = [generation for generation in self.generations() if manifests.drop(self.path, generation)]
            self.collect()
            return dropped

    def withdraw(self, generation: int) -> None:
        """Undo a commit that was refused after all; the generation before it is the newest again."""
        with self.locked():
            manifests.drop(self.path, generation)
            self.collect()

    def sweep(self, *, now: float, retention: Retention | None = None, foreign_seconds: float = 3600.0) -> list[str]:
        """Retire generations that retention ends; drop transactions whose keeper is dead (on other hosts: old ones).

        The retention is the one that the last commit set, unless another is given. Return the names of the blocks
        that became garbage.
        """
        with self.locked():
            self._retire(retention, now)
            for name in os.listdir(self.path):
                if name.endswith(".txn") and self._is_abandoned(name, now, foreign_seconds):
                    remove_file(os.path.join(self.path, name))
            return self.collect()

    def commit(
        self,
        transaction: "Transaction",
        parts: Iterable[Part],
        *,
        now: float,
        mode: Mode,
        schema_hash: str,
        retention: Retention | None,
        details: dict[str, Any] | None,
    ) -> Manifest:
        with self.locked() as lock:
            visible = self._visible()
            current = visible[-1] if visible else None
            if current is not None and transaction.id in current.recent:
                remove_file(transaction.path)
                self.collect()
                return next((m for m in visible if m.transaction == transaction.id), current)
            parts = tuple(parts)
            here = [self._block(part) for part in parts if part.host in ("", host())]
            if not all(os.path.exists(path) for path in (transaction.path, *here)):
                raise TransactionEnded(transaction.id)
            if mode == "append" and current is not None:
                if current.schema_hash != schema_hash:
                    raise PayloadSchemaMismatch(f"schema {current.schema_hash!r}", f"schema {schema_hash!r}")
                parts = current.parts + parts
            manifest = Manifest(
                generation=_next_generation(lock, visible),
                committed_at=now,
                transaction=transaction.id,
                parts=parts,
                schema_hash=schema_hash,
                recent=_remembered(current, transaction),
                retention=retention or (current.retention if current else Retention()),
                details=details or {},
            )
            return self._publish(transaction, manifest, now=now)

    def commit_in_place(
        self, transaction: "Transaction", before: Manifest, parts: Iterable[Part], *, now: float
    ) -> Manifest | None:
        """Publish a generation in which `parts` stand for the parts of `before`, with what was appended since.

        Return None if the table no longer begins with those parts.
        """
        with self.locked() as lock:
            visible = self._visible()
            names = [part.name for part in before.parts]
            if not visible or [part.name for part in visible[-1].parts[: len(names)]] != names:
                return None
            current = visible[-1]
            manifest = replace(
                current,
                generation=_next_generation(lock, visible),
                compacted_at=now,
                transaction=transaction.id,
                parts=(*parts, *current.parts[len(names) :]),
                recent=_remembered(current, transaction),
            )
            return self._publish(transaction, manifest, now=now)

    def _publish(self, transaction: "Transaction", manifest: Manifest, *, now: float) -> Manifest:
        """Make the manifest the newest one. The caller holds the lock."""
        manifests.publish_manifest(self.path, manifest)
        remove_file(transaction.path)
        self._retire(None, now)
        self.collect()
        return manifest

    def abort(self, transaction: "Transaction") -> None:
        with self.locked():
            remove_file(transaction.path)
            self.collect()

    @contextlib.contextmanager
    def locked(self, timeout_seconds: float = 30.0) -> Iterator[Descriptor]:
        """Be the only one who changes anything here."""
        path = os.path.join(self.path, COMMIT_LOCK)
        lock = open_lock(path)
        try:
            lock_within(lock, _OWNED, path, timeout_seconds)
            yield lock
        finally:
            lock.close()

    def _visible(self) -> list[Manifest]:
        """Return the manifests, oldest first."""
        found = (manifests.load(self.path, generation) for generation in self.generations())
        return [manifest for manifest in found if manifest is not None]

    def _block(self, part: Part) -> str:
        return os.path.join(self.path, part.name)

    def _retire(self, retention: Retention | None, now: float) -> None:
        visible = self._visible()
        if not visible:
            return
        retention = retention or visible[-1].retention
        sizes: dict[str, int] = {}
        newer: Manifest | None = None
        place = 0
        for manifest in reversed(visible):
            is_compacted = newer is not None and newer.compacted_at is not None
            if newer is not None and not is_compacted:
                place += 1
            sizes |= {part.name: part.size_bytes for part in manifest.parts}
            since = manifest.committed_at if newer is None else newer.superseded_before_at
            age = now - since
            is_over = retention.max_age_seconds is not None and age > retention.max_age_seconds
            if newer is not None:
                is_over |= place + is_compacted >= retention.generations
                is_over |= retention.max_bytes is not None and sum(sizes.values()) > retention.max_bytes
                is_over &= place > 1 or age > retention.grace_seconds
            if is_over:
                manifests.retire(self.path, manifest.generation)
            newer = manifest

    def _is_abandoned(self, name: str, now: float, foreign_seconds: float) -> bool:
        said = parts_for_others.read_transaction(os.path.join(self.path, name))
        if said is None:
            return False
        is_alive = said.keeper.is_alive()
        return not is_alive if is_alive is not None else now - said.begun_at > foreign_seconds

    def in_use(self) -> list[Manifest]:
        """Return the manifests whose parts are in use: the visible ones, and dropped ones that somebody still reads.

        The caller holds the lock.
        """
        return [*self._visible(), *manifests.dropped_in_use(self.path)]

    def collect(self) -> list[str]:
        """Remove garbage (rule 2) and temporary files. The caller holds the lock, so nobody uses a temporary file."""
        names = os.listdir(self.path)
        named = {part.name for manifest in self.in_use() for part in manifest.parts}
        named.update(name for each in parts_for_others.named_by_others(self.path, names) for name in each.parts)
        alive = {name[:-4] for name in names if name.endswith(".txn")}
        garbage = [
            name
            for name in names
            if name.endswith(".arrow") and name not in named and name.rsplit("-", 2)[0] not in alive
        ]
        for name in names:
            if name.endswith(".new"):
                remove_file(os.path.join(self.path, name))
        return [os.path.basename(path) for path in remove_blocks(os.path.join(self.path, name) for name in garbage)]


class Transaction:
    """The blocks of one commit to come. It is plain data, so it may be pickled to the tasks that write parts."""

    def __init__(self, store: TableStore, transaction_id: str) -> None:
        if "/" in transaction_id or transaction_id.startswith("."):
            raise TransactionEnded(transaction_id)
        self.store = store
        self.id = transaction_id

    @property
    def path(self) -> str:
        return os.path.join(self.store.path, f"{self.id}.txn")

    def is_open(self) -> bool:
        return os.path.exists(self.path)

    def write_part(
        self,
        batches: Iterable[Any],
        schema: Any,
        *,
        part: int = 0,
        attempt: int = 0,
        checksum: Checksum = Checksum.NONE,
        every_text: bool = False,
    ) -> Part:
        """Write one immutable block. A task that comes after the transaction's end leaves nothing and gets an error.

        `every_text`: the manifest has bounds of all texts, not only of short ones of one length.
        """
        if not self.is_open():
            raise TransactionEnded(self.id)
        wait_until_freed()
        # The token tells a replayed attempt from the one that a crash left behind.
        name = f"{self.id}-{part}-{attempt}x{secrets.token_hex(4)}.arrow"
        path = os.path.join(self.store.path, name)
        statistics = Collector(schema, every_text=every_text)
        rows, size_bytes = write_block(path, statistics.passing(checked(batches, schema)), schema, checksum)
        if not self.is_open():
            self.store.abort(self)  # collects this block unless a commit named it meanwhile
            raise TransactionEnded(self.id)
        return Part(name, rows, size_bytes, host(), statistics.found())

    def commit(
        self,
        parts: Iterable[Part],
        *,
        now: float,
        mode: Mode = "overwrite",
        schema_hash: str = "",
        retention: Retention | None = None,
        details: dict[str, Any] | None = None,
    ) -> Manifest:
        """Publish in one step. Committing again returns the generation of the first commit."""
        return self.store.commit(
            self,
            parts,
            now=now,
            mode=mode,
            schema_hash=schema_hash,
            retention=retention,
            details=details,
        )

    def abort(self) -> None:
        """Drop the blocks, except those that a commit has made part of a table."""
        self.store.abort(self)


def _remembered(current: Manifest | None, transaction: Transaction) -> tuple[str, ...]:
    return ((current.recent if current else ()) + (transaction.id,))[-manifests.RECENT_TRANSACTIONS :]


def _next_generation(lock: Descriptor, visible: list[Manifest]) -> int:
    """Return the next generation number. No number is given twice, even after every manifest has been retired."""
    last = int(os.pread(lock.fd, 32, 0) or b"0")
    generation = max([last, *(manifest.generation for manifest in visible)]) + 1
    os.pwrite(lock.fd, b"%020d" % generation, 0)
    return generation
