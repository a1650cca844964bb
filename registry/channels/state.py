"""Channel records: made from events, and changed here only.

Rule 1: what an event carries is never changed afterwards, so an event says the same whenever it is encoded.
Rule 2: members are in the order of their revisions.

The registry, a store that starts and a watcher's view all evolve the same way, so a watcher that has
seen every event holds the registry's own state.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

from msgspec.structs import replace

from registry import events
from registry.records import Block, Channel, Producer, Table
from registry.replies import ChannelSummary, Discovered

BLOCKS_PER_PAGE = 100
SLACK = 1000


class SortedNames:
    """Names in order, for paging.

    Adding is O(1) on average; the first page after a change sorts what is almost sorted. Names that are no longer
    present are passed over, and dropped before they outnumber the others.
    """

    def __init__(self, present: Collection[str]) -> None:
        self._present = present
        self._names: list[str] = []
        self._is_sorted = True

    def add(self, name: str) -> None:
        self._names.append(name)
        self._is_sorted = False
        if len(self._names) > 2 * len(self._present) + SLACK:
            self._names = self._kept()

    def page(self, *, prefix: str = "", after: str, limit: int) -> tuple[list[str], str | None]:
        """Return up to `limit` present names after `after`, and the `after` of the next page or None."""
        if not self._is_sorted:
            self._names = sorted(self._kept())
            self._is_sorted = True
        names = self._names
        start = max(bisect_right(names, after), bisect_left(names, prefix))
        found: list[str] = []
        for name in islice(names, start, None):
            if not name.startswith(prefix):
                break
            if name in self._present:
                if len(found) == limit:
                    return found, found[-1]
                found.append(name)
        return found, None

    def _kept(self) -> list[str]:
        return list(dict.fromkeys(name for name in self._names if name in self._present))


class Channels(dict[str, Channel]):
    """Channel records by name."""

    def evolve(self, event: events.AnyChannelEvent) -> None:
        _EVOLVE[type(event)](self, event)
        channel = self.get(event.channel)
        if channel is not None:
            channel.revision = event.revision


def _created(channels: Channels, event: events.ChannelCreated | events.ChannelDeclared) -> None:
    """Put a channel in place. It goes on with the members it has; the event's record stays as it was."""
    present = channels.get(event.channel)
    channel = channels[event.channel] = replace(
        event.record,
        producers=present.producers if present else {},
        consumers=present.consumers if present else {},
        groups=present.groups if present else {},
        table=present.table if present else None,
        generation=present.generation if present else 0,
        conflict=present.conflict if present else None,
    )
    _settle(channel)


def _removed(channels: Channels, event: events.ChannelDestroyed | events.ChannelEnded) -> None:
    channels.pop(event.channel, None)


def _settle(channel: Channel) -> None:
    """Set what the declaration leaves open: as the newest producer says, else as the table is, else open again."""
    newest = next(reversed(channel.producers.values()), None)
    if newest is None and channel.table is not None and not channel.binds_schema:
        _settle_by_table(channel, channel.table)
    elif not channel.binds_schema:
        channel.schema_hash = newest.schema_hash if newest else None
        channel.schema_version = newest.schema_version if newest else None
        channel.schema_type = newest.schema_type if newest else None
        channel.schema_id = newest.schema_id if newest else None
        channel.schema = newest.schema if newest else "unverified"
    if not channel.binds_access:
        channel.access = newest.access if newest else None


def _settle_by_table(channel: Channel, table: Table) -> None:
    channel.schema_hash, channel.schema_version = table.schema_hash or None, table.schema_version
    channel.schema_type, channel.schema_id, channel.schema = table.schema_type, table.schema_id, table.schema


def _producer_registered(channels: Channels, event: events.ProducerRegistered) -> None:
    """Add a producer.

    Members stay in the order of their revisions, so that one that says something new is the newest.
    """
    channel = channels[event.channel]
    channel.producers.pop(event.producer.producer_id, None)
    channel.producers[event.producer.producer_id] = event.producer
    _settle(channel)


def _producer_unregistered(channels: Channels, event: events.ProducerUnregistered) -> None:
    channel = channels[event.channel]
    channel.producers.pop(event.producer_id, None)
    _settle(channel)


def _producer_stalled(channels: Channels, event: events.ProducerStalled) -> None:
    producers = channels[event.channel].producers
    producers[event.producer_id] = replace(producers[event.producer_id], status="stalled")


def _producer_recovered(channels: Channels, event: events.ProducerRecovered) -> None:
    producers = channels[event.channel].producers
    producer = producers[event.producer_id]
    producers[event.producer_id] = replace(producer, status="active" if producer.ready else "pending")


def _consumer_registered(channels: Channels, event: events.ConsumerRegistered) -> None:
    consumers = channels[event.channel].consumers
    consumers.pop(event.consumer.consumer_id, None)
    consumers[event.consumer.consumer_id] = event.consumer


def _consumer_unregistered(channels: Channels, event: events.ConsumerUnregistered) -> None:
    channels[event.channel].consumers.pop(event.consumer_id, None)


def _consumer_stalled(channels: Channels, event: events.ConsumerStalled) -> None:
    consumers = channels[event.channel].consumers
    consumers[event.consumer_id] = replace(consumers[event.consumer_id], status="stalled")


def _consumer_recovered(channels: Channels, event: events.ConsumerRecovered) -> None:
    consumers = channels[event.channel].consumers
    consumers[event.consumer_id] = replace(consumers[event.consumer_id], status="active")


def _conflicted(channels: Channels, event: events.ChannelConflicted) -> None:
    channels[event.channel].conflict = event.reason


def _table_committed(channels: Channels, event: events.TableCommitted) -> None:
    channel = channels[event.channel]
    channel.table = table = event.table
    channel.generation = table.generation if table is not None else 0
    _settle(channel)


def _group_assigned(channels: Channels, event: events.GroupAssigned) -> None:
    channel = channels[event.channel]
    others = {name: group for name, group in channel.groups.items() if name != event.group}
    channel.groups = others | ({event.group: event.assigned} if event.assigned.members else {})


_EVOLVE: dict[type[events.Event], Callable[[Channels, Any], None]] = {
    events.ChannelCreated: _created,
    events.ChannelDeclared: _created,
    events.ChannelDestroyed: _removed,
    events.ChannelEnded: _removed,
    events.ProducerRegistered: _producer_registered,
    events.ProducerUnregistered: _producer_unregistered,
    events.ProducerStalled: _producer_stalled,
    events.ProducerRecovered: _producer_recovered,
    events.ConsumerRegistered: _consumer_registered,
    events.ConsumerUnregistered: _consumer_unregistered,
    events.ConsumerStalled: _consumer_stalled,
    events.ConsumerRecovered: _consumer_recovered,
    events.ChannelConflicted: _conflicted,
    events.TableCommitted: _table_committed,
    events.GroupAssigned: _group_assigned,
}


def restored(channel: Channel) -> Channel:
    """Return a record put together from stored parts, with members in the order in which they came."""
    producers = sorted(channel.producers.values(), key=lambda producer: producer.revision)
    consumers = sorted(channel.consumers.values(), key=lambda consumer: consumer.revision)
    channel.producers = {producer.producer_id: producer for producer in producers}
    channel.consumers = {consumer.consumer_id: consumer for consumer in consumers}
    channel.generation = channel.table.generation if channel.table is not None else 0
    _settle(channel)
    newest = max([*(p.revision for p in producers), *(c.revision for c in consumers)], default=0)
    channel.revision = max(channel.revision, newest)
    return channel


def discovered(channel: Channel, *, blocks_offset: int = 0) -> Discovered:
    """Return the answer to a discovery, from the registry's record or from a watcher's copy of it."""
    lead = channel.lead()
    blocks = list(_blocks(channel))
    return Discovered(
        channel=channel.name,
        shm_name=lead.shm_name if lead else (channel.table.shm_name if channel.table else None),
        schema_hash=channel.schema_hash,
        schema_version=channel.schema_version,
        status=channel.status(),
        conflict=channel.conflict,
        schema=channel.schema if channel.schema_hash is not None else None,
        schema_type=channel.schema_type,
        schema_id=channel.schema_id,
        access=channel.access,
        priority=channel.priority,
        generation=channel.generation,
        table=channel.table,
        consumer_count=len(channel.consumers),
        producers=list(channel.producers.values()),
        blocks=blocks[blocks_offset : blocks_offset + BLOCKS_PER_PAGE],
        blocks_total=len(blocks),
        metadata=channel.metadata,
        revision=channel.revision,
    )


def summary(channel: Channel) -> ChannelSummary:
    return ChannelSummary(
        channel=channel.name,
        status=channel.status(),
        declared=channel.declared,
        schema_hash=channel.schema_hash,
        schema_version=channel.schema_version,
        producer_count=len(channel.producers),
        consumer_count=len(channel.consumers),
        revision=channel.revision,
    )


def _blocks(channel: Channel) -> Iterable[Block]:
    """Return the blocks of a channel: those that a producer lists, or the one of its name; of a table, its manifest."""
    for producer in channel.producers.values():
        yield from blocks_of(producer)
    if channel.table is not None:
        yield Block(shm_name=channel.table.shm_name, host=channel.table.host, format="manifest")


def blocks_of(producer: Producer) -> Iterable[Block]:
    return producer.blocks or (Block(shm_name=producer.shm_name, host=producer.host),)
