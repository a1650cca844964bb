"""Records as keys and values of etcd: what each event puts and removes, and how the records come back.

Keys lie beneath the prefix of a site: `channels/NAME`, `producers/CHANNEL/ID`, `schemas/SUBJECT/VERSION` and so on.
Names in them are percent-encoded, so that a slash only separates. Values are JSON; large ones are compressed, since a
record may be as large as a request, and etcd's limit is near that.

Unlike in SQLite there are also stalls, conflicts, shares of groups and services: a hub that begins to follow cannot
find or make them anew, since only the leader decides. Of retained topics there are the definitions; their messages and
positions are in the stores of their home hosts.
"""

import lzma
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from messagehub.store import Saved
from registry import events
from registry.channels.state import restored
from registry.records import (
    Channel,
    Consumer,
    Group,
    Mode,
    Producer,
    RetainedTopic,
    SchemaConfig,
    SchemaVersion,
    Service,
    Table,
)
from registry.topics.retained import SavedTopic

COMPRESSED_BYTES = 256 << 10
"""From here on values are compressed."""
_PLAIN = re.compile("[A-Za-z0-9_.~-]+").fullmatch
"""Names that percent-encoding leaves as they are, which takes a tenth of the time to see."""
_XZ = b"\xfd7zXZ\x00"
_encode = msgspec.json.Encoder().encode


class Changes(NamedTuple):
    """What one event changes: values by key, None to remove it; and prefixes whose keys are all removed before."""

    revision: int
    values: Sequence[tuple[str, bytes | None]] = ()
    removed_beneath: Sequence[str] = ()
    schema_id: int = 0
    """The id of a schema that is registered, which is never given again."""
    event: bytes = b""
    """The event itself, for the hubs that follow."""


def changes(event: events.AnyEvent) -> Changes:
    return _CHANGES[type(event)](event)._replace(event=_encode(event))


def key(kind: str, *names: str | int) -> str:
    return "/".join([kind, *map(_quoted, map(str, names))])


def _quoted(name: str) -> str:
    return name if _PLAIN(name) else quote(name, safe="")


def pack(value: bytes) -> bytes:
    return value if len(value) < COMPRESSED_BYTES else lzma.compress(value, preset=1)


def unpack(value: bytes) -> bytes:
    return lzma.decompress(value) if value.startswith(_XZ) else value


def load(stored: Iterable[tuple[str, bytes]], *, revision: int, last_schema_id: int) -> Saved:
    """Return the records of a site, from keys without their prefix. Raise KeyError or DecodeError for what misses."""
    found: _Found = {kind: [] for kind in KINDS}
    channels: dict[str, Channel] = {}
    for name, value in stored:
        kind, *names = name.split("/")
        if kind == "channels":  # without lists of names beside: what is left of those stays in the process
            channel = _decoders[kind].decode(unpack(value))
            channels[channel.name] = channel
        elif kind in found:
            parts = [unquote(part) for part in names] if "%" in name else names
            found[kind].append((parts, _read(kind, parts, unpack(value))))
    _complete_channels(channels, found)
    hidden = {(subject, int(version)) for (subject, version), _ in found["hidden"]}
    schemas = sorted((schema for _, schema in found["schemas"]), key=lambda schema: (schema.subject, schema.version))
    schemas = [
        msgspec.structs.replace(schema, is_deleted=True) if (schema.subject, schema.version) in hidden else schema
        for schema in schemas
    ]
    return Saved(
        list(channels.values()),
        schemas,
        revision,
        last_schema_id,
        {subject: config for (subject,), config in found["config"]},
        {subject: mode for (subject,), mode in found["mode"]},
        [SavedTopic(topic, {}) for _, topic in found["topics"]],
        services=[service for _, service in found["services"]],
    )


_Found = dict[str, list[tuple[list[str], Any]]]
"""By kind: the names in the keys, and what the values say. Large registries are not held as bytes beside."""


def _read(kind: str, names: list[str], value: bytes) -> Any:
    """Return what a value says."""
    if kind in ("producers", "consumers") and len(names) == _STALL_NAMES + 1:
        return int(value)
    decoder = _decoders.get(kind)
    return decoder.decode(value) if decoder is not None else value


def _complete_channels(channels: dict[str, Channel], found: _Found) -> None:
    """Add what has keys of its own."""
    stalled: dict[tuple[str, ...], int] = {}
    for kind in ("producers", "consumers"):
        stalled |= {(kind, *names[:-1]): value for names, value in found[kind] if len(names) == _STALL_NAMES + 1}
    for kind in ("producers", "consumers"):
        for names, member in found[kind]:
            if len(names) == _STALL_NAMES:
                channel, member_id = names
                if stalled.get((kind, channel, member_id), 0) > member.revision:
                    member.status = "stalled"
                getattr(channels[channel], kind)[member_id] = member
    for (channel,), table in found["tables"]:
        channels[channel].table = table
    for (channel,), reason in found["conflicts"]:
        channels[channel].conflict = reason.decode()
    for (channel, group), assigned in found["groups"]:
        channels[channel].groups[group] = assigned
    for channel_record in channels.values():
        restored(channel_record)
    for (channel,), value in found["revisions"]:
        channels[channel].revision = max(channels[channel].revision, int(value))


_STALL_NAMES = 2
"""Names before `stalled`: channel and member."""
KINDS = (
    *("channels", "producers", "consumers", "tables", "conflicts", "groups", "revisions"),
    *("schemas", "hidden", "config", "mode", "services", "topics"),
)
_decoders: dict[str, msgspec.json.Decoder[Any]] = {
    "channels": msgspec.json.Decoder(Channel),
    "producers": msgspec.json.Decoder(Producer),
    "consumers": msgspec.json.Decoder(Consumer),
    "tables": msgspec.json.Decoder(Table),
    "groups": msgspec.json.Decoder(Group),
    "schemas": msgspec.json.Decoder(SchemaVersion),
    "config": msgspec.json.Decoder(SchemaConfig),
    "mode": msgspec.json.Decoder(Mode),
    "services": msgspec.json.Decoder(Service),
    "topics": msgspec.json.Decoder(RetainedTopic),
}


def _put_channel(event: events.ChannelCreated | events.ChannelDeclared) -> Changes:
    bare = msgspec.structs.replace(event.record, producers={}, consumers={}, groups={}, table=None, conflict=None)
    return Changes(event.revision, [(key("channels", event.channel), _encode(bare))])


def _remove_channel(event: events.ChannelDestroyed) -> Changes:
    members = [key(kind, event.channel, "") for kind in ("producers", "consumers", "groups")]
    values = [(key(kind, event.channel), None) for kind in ("channels", "tables", "conflicts", "revisions")]
    return Changes(event.revision, values, members)


def _end_channel(event: events.ChannelEnded) -> Changes:
    """Nothing else of it is there: its members, groups, table and conflict have ended before."""
    return Changes(event.revision, [(key(kind, event.channel), None) for kind in ("channels", "revisions")])


def _put_producer(event: events.ProducerRegistered) -> Changes:
    producer = event.producer
    return Changes(event.revision, [(key("producers", event.channel, producer.producer_id), _encode(producer))])


def _put_consumer(event: events.ConsumerRegistered) -> Changes:
    consumer = event.consumer
    return Changes(event.revision, [(key("consumers", event.channel, consumer.consumer_id), _encode(consumer))])


def _put_table(event: events.TableCommitted) -> Changes:
    value = _encode(event.table) if event.table is not None else None
    return _revised(event, (key("tables", event.channel), value))


def _put_schema(event: events.SchemaRegistered) -> Changes:
    schema = event.schema
    values = [(key("schemas", schema.subject, schema.version), _encode(schema))]
    return Changes(event.revision, values, schema_id=schema.schema_id)


def _remove_schema(event: events.SchemaDeleted) -> Changes:
    hidden = key("hidden", event.subject, event.version)
    if not event.permanent:
        return Changes(event.revision, [(hidden, b"1")])
    return Changes(event.revision, [(key("schemas", event.subject, event.version), None), (hidden, None)])


def _put_setting(event: events.SchemaConfigured | events.SchemaModeChanged) -> Changes:
    kind, setting = ("config", event.config) if isinstance(event, events.SchemaConfigured) else ("mode", event.mode)
    value = _encode(setting) if setting is not None else None
    return Changes(event.revision, [(key(kind, event.subject), value)])


def _put_service(event: events.ServiceChanged) -> Changes:
    value = _encode(event.service) if event.service is not None else None
    return Changes(event.revision, [(key("services", event.address), value)])


def _put_topic(event: events.TopicRetained) -> Changes:
    record = msgspec.structs.replace(event.record, revision=event.revision)
    return Changes(event.revision, [(key("topics", event.name), _encode(record))])


def _remove_topic(event: events.TopicDeleted) -> Changes:
    return Changes(event.revision, [(key("topics", event.name), None)])


def _revised(event: events.AnyChannelEvent, *values: tuple[str, bytes | None]) -> Changes:
    """Add the channel's revision, which no record that stays would tell."""
    return Changes(event.revision, [*values, (key("revisions", event.channel), str(event.revision).encode())])


def _member(event: Any) -> tuple[str, str]:
    """Return the key of the member that an event names, and that of its stall."""
    if isinstance(event, events.ProducerUnregistered | events.ProducerStalled | events.ProducerRecovered):
        names = ("producers", event.channel, event.producer_id)
    else:
        names = ("consumers", event.channel, event.consumer_id)
    return key(*names), key(*names, "stalled")


def _remove_member(event: events.ProducerUnregistered | events.ConsumerUnregistered) -> Changes:
    return _revised(event, *((name, None) for name in _member(event)))


def _stall(event: events.ProducerStalled | events.ConsumerStalled) -> Changes:
    """Put the revision of the stall: a member that has registered since is not stalled any more."""
    return _revised(event, (_member(event)[1], str(event.revision).encode()))


def _recover(event: events.ProducerRecovered | events.ConsumerRecovered) -> Changes:
    return _revised(event, (_member(event)[1], None))


def _put_conflict(event: events.ChannelConflicted) -> Changes:
    value = event.reason.encode() if event.reason is not None else None
    return _revised(event, (key("conflicts", event.channel), value))


def _put_group(event: events.GroupAssigned) -> Changes:
    value = _encode(event.assigned) if event.assigned.members else None
    return _revised(event, (key("groups", event.channel, event.group), value))


_CHANGES: dict[type[events.Event], Callable[[Any], Changes]] = {
    events.ChannelCreated: _put_channel,
    events.ChannelDeclared: _put_channel,
    events.ChannelDestroyed: _remove_channel,
    events.ChannelEnded: _end_channel,
    events.ProducerRegistered: _put_producer,
    events.ProducerUnregistered: _remove_member,
    events.ProducerStalled: _stall,
    events.ProducerRecovered: _recover,
    events.ConsumerRegistered: _put_consumer,
    events.ConsumerUnregistered: _remove_member,
    events.ConsumerStalled: _stall,
    events.ConsumerRecovered: _recover,
    events.ChannelConflicted: _put_conflict,
    events.GroupAssigned: _put_group,
    events.TableCommitted: _put_table,
    events.SchemaRegistered: _put_schema,
    events.SchemaDeleted: _remove_schema,
    events.SchemaConfigured: _put_setting,
    events.SchemaModeChanged: _put_setting,
    events.ServiceChanged: _put_service,
    events.TopicRetained: _put_topic,
    events.TopicDeleted: _remove_topic,
}
