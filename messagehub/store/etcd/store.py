"""A store in etcd, for the hub that leads a site. Messages and positions of retained topics are not in it: `local` has
what of them the same registry decides. Hubs have a registry of their own for theirs (`broker/site/home_topics`).

Rule 1: every transaction compares the leader key and the head, which each transaction changes. A hub that does not lead
any more cannot write, and a transaction whose answer was lost cannot be carried out after a later one.
Rule 2: events are written in order, cut into transactions. If one fails, the error says how far the others came.
Rule 3: data that is not of this site, or of a version that we do not know, is refused and never written to.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import msgspec

from messagehub.errors import StoreError
from messagehub.store import Saved, Store, StoredTopicReader
from messagehub.store.etcd import messages, rows
from messagehub.store.etcd.batches import Batch, batches
from messagehub.store.etcd.client import EtcdClient
from messagehub.store.etcd.errors import NotLeader
from messagehub.store.etcd.head import Head, decoded_head, head_key
from messagehub.store.etcd.leadership import LeaderKey, prefix_of
from messagehub.store.etcd.rows import Changes
from registry.events import AnyEvent, AnyTopicEvent, TopicDeleted, TopicRetained
from registry.topics.retained import SavedTopic

KEYS_PER_PAGE = 2_000


class LocalRows(msgspec.Struct):
    """Rows of the store of this host."""

    revision: int
    rows: Sequence[object]


class _Reading(msgspec.Struct):
    """What is found while all records are read."""

    head: Head
    head_changed_at: int = 0
    revision: int = 0
    """The revision of etcd that is read; 0: the newest."""


class EtcdStore:
    def __init__(
        self, client: EtcdClient, site: str, leader: LeaderKey | None, local: Store, *, site_id: str = ""
    ) -> None:
        """Without a leader it only reads, until `begin`. `site_id` is that of the site which this hub was a member of;
        an empty one fits every site."""
        self._client = client
        self._site = site
        self._leader = leader
        self._local = local
        self._prefix = prefix_of(site)
        self._head_key = head_key(site)
        self._writer = os.urandom(8).hex()
        self.loaded_at = 0
        """The revision of etcd that the records loaded last are of: what follows comes after it."""
        self._head, self._head_changed_at = self._read_head(site, site_id)

    @property
    def site_id(self) -> str:
        return self._head.site_id

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever written to the site, so that its id is not fixed yet."""
        return not self._head_changed_at

    @property
    def is_empty(self) -> bool:
        """Whether nothing was registered in the site yet, as far as this store has read."""
        return self._head.revision == 0

    @property
    def writer(self) -> str:
        """What heads that this store has written say of their writer."""
        return self._writer

    def prepare(self, leader: LeaderKey) -> tuple[Head, int]:
        """Return the head that a new leadership begins with, for `begin`. A new site gets its id here.

        Whatever earlier leaders asked for is carried out by now, or never will be.
        """
        head, changed_at = self._read_head(self._site, self._head.site_id if self._head_changed_at else "")
        if changed_at:
            return head, changed_at
        request = messages.TxnRequest(
            compare=[messages.created_at(leader.key, leader.created_at), messages.changed_at(self._head_key, 0)],
            success=[messages.put(self._head_key, msgspec.json.encode(head))],
        )
        self._client.ask(messages.TXN, request)
        head, changed_at = self._read_head(self._site, "")
        if not changed_at:
            raise NotLeader("another hub leads the site by now")
        return head, changed_at

    def begin(self, leader: LeaderKey, head: Head, changed_at: int) -> None:
        """Write under this leadership from now on. Nothing may be being written meanwhile."""
        self._head, self._head_changed_at, self._leader = head, changed_at, leader

    def end(self) -> None:
        """Write nothing more until `begin`."""
        self._leader = None

    def load(self) -> Saved:
        read = _Reading(Head(site_id=self._head.site_id))
        try:
            saved = rows.load(self._stored(read), revision=0, last_schema_id=0)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            said = f"the records beneath {self._prefix.decode()} in etcd are damaged ({error!r})"
            raise StoreError(f"{said}: restore etcd from a snapshot") from error
        head, changed_at, revision = read.head, read.head_changed_at, read.revision
        if self._head_changed_at and (not changed_at or head.site_id != self._head.site_id):
            raise StoreError(
                f"the records beneath {self._prefix.decode()} in etcd are not those of this site any more: they were"
                " removed, or etcd was replaced. Restore etcd from a snapshot, or start the hubs in new directories"
            )
        saved.revision, saved.last_schema_id = head.revision, head.last_schema_id
        self._head, self._head_changed_at, self.loaded_at = head, changed_at, revision
        here = self._local.load()
        known = {found.topic.incarnation: found for found in here.topics}
        saved.topics = [_as_here(found, known.get(found.topic.incarnation)) for found in saved.topics]
        saved.positions = here.positions
        saved.revision = max(saved.revision, here.revision)
        return saved

    def _stored(self, read: "_Reading") -> Iterator[tuple[str, bytes]]:
        """Give all keys and values of the site but the head, all of one moment."""
        skipped = len(self._prefix)
        for page in self._pages(read):
            for found in page.kvs:
                if found.key == self._head_key:
                    read.head = decoded_head(found.value, self._head_key)
                    read.head_changed_at = int(found.mod_revision)
                else:
                    yield found.key[skipped:].decode(), found.value

    def _pages(self, read: "_Reading") -> Iterator[Any]:
        """Give answers of etcd with some keys each. While one of them is used, etcd is asked for the next."""
        end = messages.end_of(self._prefix)

        def ask(start: bytes) -> Any:
            asked = messages.RangeRequest(key=start, range_end=end, limit=KEYS_PER_PAGE, revision=read.revision)
            return self._client.ask(messages.RANGE, asked)

        page = ask(self._prefix)
        read.revision = int(page.header.revision)
        with ThreadPoolExecutor(1, "messagehub-etcd-pages") as others:
            while page.more:
                following = others.submit(ask, page.kvs[-1].key + b"\0")
                yield page
                page = following.result()
            yield page

    def rows(self, event: AnyEvent) -> Sequence[Changes | LocalRows]:
        if not isinstance(event, AnyTopicEvent):
            return (rows.changes(event),)
        here = LocalRows(event.revision, self._local.rows(event))
        return (rows.changes(event), here) if isinstance(event, TopicRetained | TopicDeleted) else (here,)

    def write(self, rows: Sequence[Changes | LocalRows], *, revision: int, durable: bool) -> None:
        written = 0
        try:
            for step in _steps(rows, revision):
                if isinstance(step, LocalRows):
                    self._local.write(step.rows, revision=step.revision, durable=durable)
                else:
                    self._write(step)
                written = step.revision
        except (StoreError, OSError) as error:
            failed = error if isinstance(error, StoreError) else StoreError(f"the store failed: {error}")
            failed.written = written
            raise failed from None

    def trim(self, *, now: float) -> bool:
        return self._local.trim(now=now)

    def topic_reader(self) -> StoredTopicReader:
        return self._local.topic_reader()

    def probe(self) -> None:
        self._local.probe()
        leader = self._leader
        if leader is None or not leader.created_at:
            raise NotLeader("this hub does not lead its site")
        fence = messages.created_at(leader.key, leader.created_at)
        request = messages.TxnRequest(compare=[fence], success=[messages.put(self._prefix + b"probe", b"")])
        if not self._client.ask(messages.TXN, request).succeeded:
            raise NotLeader("this hub does not lead its site")

    def close(self) -> None:
        self._local.close()

    def _read_head(self, site: str, site_id: str) -> tuple[Head, int]:
        answer = self._client.ask(messages.RANGE, messages.RangeRequest(key=self._head_key))
        if answer.kvs:
            head = decoded_head(answer.kvs[0].value, self._head_key)
            if site_id and head.site_id != site_id:
                raise StoreError(
                    f"site {site!r} in this etcd is another one than this hub was a member of (its id is"
                    f" {head.site_id}, not {site_id}): name the etcd or the site that is meant, or start the hub in a"
                    " new directory"
                )
            return head, int(answer.kvs[0].mod_revision)
        if site_id:
            raise StoreError(
                f"there is no site {site!r} in this etcd, though this hub was a member of it: name the etcd that is"
                " meant, restore it from a snapshot, or start the hub in a new directory"
            )
        return Head(site_id=os.urandom(8).hex()), 0

    def _write(self, batch: Batch) -> None:
        """Write one transaction, or find that an earlier attempt with a lost answer wrote it."""
        leader, head = self._leader, self._head
        if leader is None or not leader.created_at:
            raise NotLeader("this hub does not lead its site")
        last_schema_id = max(head.last_schema_id, batch.last_schema_id)
        following = Head(
            site_id=head.site_id,
            before=head.revision,
            revision=batch.revision,
            last_schema_id=last_schema_id,
            writer=self._writer,
            events=None if batch.events is None else [msgspec.Raw(event) for event in batch.events],
        )
        value = rows.pack(msgspec.json.encode(following))
        request = messages.TxnRequest(
            compare=[
                messages.created_at(leader.key, leader.created_at),
                messages.changed_at(self._head_key, self._head_changed_at),
            ],
            success=[*self._operations(batch), messages.put(self._head_key, value)],
            failure=[messages.get(leader.key), messages.get(self._head_key)],
        )
        answer = self._client.commit(request)
        if answer.succeeded:
            changed_at = int(answer.header.revision)
        else:
            leading, present = (list(response.response_range.kvs) for response in answer.responses)
            if present and present[0].value == value:
                changed_at = int(present[0].mod_revision)
            elif not leading or leading[0].create_revision != leader.created_at:
                raise NotLeader("another hub leads the site by now: the change was not stored")
            else:
                raise StoreError("an earlier change, which seemed to have failed, was stored after all: try again")
        self._head, self._head_changed_at = following, changed_at

    def _operations(self, batch: Batch) -> Iterator[object]:
        for prefix in batch.removed_beneath:
            yield messages.delete_beneath(self._prefix + prefix.encode())
        for key, value in batch.values.items():
            name = self._prefix + key.encode()
            yield messages.delete(name) if value is None else messages.put(name, value)


def _as_here(defined: SavedTopic, here: SavedTopic | None) -> SavedTopic:
    """Return a topic as it is defined in etcd, with as many messages as the store of this host has."""
    if here is None:
        return defined
    counted = {"next_offset": here.topic.next_offset, "total_bytes": here.topic.total_bytes}
    return SavedTopic(msgspec.structs.replace(defined.topic, **counted), here.publishers)


def _steps(rows: Sequence[Changes | LocalRows], revision: int) -> Iterator[Batch | LocalRows]:
    """Return the transactions of both stores, in the order of the events; the last one has the last revision."""
    made: list[Batch | LocalRows] = []
    for is_local, some in groupby(rows, lambda row: isinstance(row, LocalRows)):
        if is_local:
            here = [row for row in some if isinstance(row, LocalRows)]
            made.append(LocalRows(here[-1].revision, [row for each in here for row in each.rows]))
        else:
            made += batches(row for row in some if isinstance(row, Changes))
    if not made:
        made.append(Batch())
    made[-1].revision = revision
    yield from made
