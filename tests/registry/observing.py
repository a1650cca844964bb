"""What the tests see of a registry: its whole state as bytes, and its events as a watcher gets them."""

from typing import Any

import msgspec

from messagehub.protocol import Beacon, decode_event, encode
from registry import events
from registry.records import Channel
from registry.registry import Registry
from registry.schemas.checks import SchemaCheck, run_check, text_of
from registry.topics.positions import SavedPosition
from registry.topics.retained import SavedTopic


def whole_state(registry: Registry) -> bytes:
    """Everything that a later answer could depend on. Equal bytes mean that nothing changed."""
    return msgspec.json.encode(
        {
            "revision": registry.revision,
            "channels": list(registry.channels.items()),
            "leases": _leases(registry),
            "next_deadline": registry.next_deadline(),
            "priorities": registry.priorities,
            "schemas": _schemas(registry),
            "topics": registry.topics.every(),
            "positions": registry.positions.every(),
            "subscribers": registry.subscribers.every(),
            "services": _services(registry),
            "unsent": registry.log.pending,
        }
    )


def _schemas(registry: Registry) -> dict[str, Any]:
    catalog = registry.schemas
    kept = {"last_id": catalog.last_id, "configs": catalog.configs, "modes": catalog.modes}
    return kept | {"versions": catalog.every(), "revisions": _schema_revisions(registry)}


def _schema_revisions(registry: Registry) -> dict[str, int]:
    """Also of subjects that are gone, since an event about one that comes again names the event before."""
    return dict(registry.schemas._revisions)  # private: the catalogue lists no subject that is gone


def _services(registry: Registry) -> dict[str, Any]:
    services = registry.services
    unsent = services._happened  # private: taking them would change the registry
    return {"revision": services.revision, "addresses": services.addresses(), "unsent": unsent}


def _leases(registry: Registry) -> list[dict[str, Any]]:
    return [
        {
            "id": lease.lease_id,
            "renewed_at": lease.renewed_at,
            "is_stalled": lease.is_stalled,
            "members": list(lease.members),
            "notices": lease.notices,
        }
        for lease in registry.leases._leases.values()  # private: a lease without members is found only by its id
    ]


def members_of_leases(registry: Registry) -> dict[str, set[tuple[str, str, str]]]:
    return {lease["id"]: {tuple(member) for member in lease["members"]} for lease in _leases(registry)}


def encoded_channels(channels: dict[str, Any]) -> dict[str, bytes]:
    return {name: msgspec.json.encode(channel) for name, channel in channels.items()}


def followed_state(registry: Registry) -> bytes:
    """What a copy has in common with the registry that it follows: all but leases, services and subscribers."""
    catalog = registry.schemas
    return msgspec.json.encode(
        {
            "revision": registry.revision,
            "channels": sorted(registry.channels.items()),
            "priorities": registry.priorities,
            "schemas": [catalog.last_id, catalog.configs, catalog.modes, catalog.every()],
            "topics": [topic for topic, _ in registry.topics.every()],
            "positions": registry.positions.every(),
        },
        order="sorted",
    )


def _copy_of(registry: Registry) -> Registry:
    """Return another registry with the same records, in objects of its own."""
    copy, catalog = Registry(terms=registry.terms), registry.schemas
    copy.schemas.restore(
        catalog.every(),
        last_id=catalog.last_id,
        configs=dict(catalog.configs),
        modes=dict(catalog.modes),
        revision=registry.revision,
    )
    saved = msgspec.json.encode([registry.topics.every(), registry.positions.every(), list(registry.channels.values())])
    topics, positions, channels = msgspec.json.decode(
        saved, type=tuple[list[SavedTopic], list[SavedPosition], list[Channel]]
    )
    copy.topics.restore(topics)
    copy.positions.restore(positions, now=0.0)
    copy.log.restore_copy(channels, revision=registry.revision)
    return copy


class Watcher:
    """Has a copy of the registry from events alone, as they come off the wire, and checks that none is missing."""

    def __init__(self, registry: Registry) -> None:
        self.copy = _copy_of(registry)
        self.channels = self.copy.channels
        self.schema_revisions = _schema_revisions(registry)
        self.topic_revisions = {topic.name: topic.revision for topic, _ in registry.topics.every()}
        self.revision = registry.revision

    def hear(self, event: events.AnyEvent) -> None:
        heard = decode_event(encode(event))
        assert not isinstance(heard, Beacon | events.ServiceChanged)
        assert heard.revision == self.revision + 1, "revisions increase by one"
        self.revision = heard.revision
        held = self.channels.get(getattr(heard, "channel", ""))
        held_revision = held.revision if held else 0
        self.copy.log.follow(heard)
        if isinstance(heard, events.AnySchemaEvent):
            assert heard.previous == self.schema_revisions.get(heard.subject, 0)
            self.schema_revisions[heard.subject] = heard.revision
            return
        if isinstance(heard, events.AnyTopicEvent):
            if not isinstance(heard, events.MessagesRetained):  # which nobody hears
                assert heard.previous == self.topic_revisions.pop(heard.name, 0)
            if isinstance(heard, events.TopicRetained):
                self.topic_revisions[heard.name] = heard.revision
            return
        assert heard.previous == held_revision, "previous names the event before on the topic"
        if isinstance(heard, events.ChannelCreated | events.ChannelDeclared):
            assert not heard.record.producers
            assert not heard.record.consumers
            assert heard.record.revision == heard.revision


def schema_hash(schema: object) -> str:
    """The hash that the registry gives a JSON Schema."""
    return run_check(SchemaCheck(schema_type="JSON", text=text_of(schema))).schema_hash
