"""Checks of a registration or declaration against what is there: they raise a Refusal or return, and change nothing.

Rule 1: the owner of a member is its lease; where both sides name their process, it is the same process too.
Rule 2: somebody living is never pushed out; somebody stalled is, by whoever has a claim to the same place.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from registry.channels.leases import Leases, Member
from registry.errors import (
    ChannelAlreadyExists,
    ConsumerAlreadyRegistered,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    ProducerAlreadyRegistered,
    SchemaMismatch,
)
from registry.records import Channel, Consumer, Producer
from registry.replies import VersionDifferences

_PROCESS = ("host", "pid", "start_time", "boot_id")
_BY_REGISTRY = ("status", "registered_at", "revision")


def check_producer(channel: Channel, producer: Producer, leases: Leases) -> list[Member]:
    """Return whom this producer replaces. Refuse it if somebody living or a binding declaration is in the way."""
    replaced = []
    others = []
    for present in channel.producers.values():
        is_same = present.producer_id == producer.producer_id
        if is_same and _is_one_owner(present, producer):
            continue
        excludes = is_same or "exclusive" in (present.access, producer.access)
        if not leases.is_alive(present.lease) and excludes:
            replaced.append(Member("producer", channel.name, present.producer_id))
        elif excludes and (is_same or present.access == producer.access):
            are_shared = "exclusive" not in (present.access, producer.access)
            advice = "use another producer_id" if are_shared else "give both access='shared'"
            raise ProducerAlreadyRegistered(
                f"channel {channel.name!r} has a living producer {present.producer_id!r}{_place(present)}: stop that"
                f" one, or {advice}",
                channel=channel.name,
                producer_id=present.producer_id,
                pid=present.pid,
                host=present.host,
            )
        else:
            others.append(present)
    for other in others:
        check_policy(channel, "access", other.access, producer.access)
        check_policy(channel, "policy", other.config.get("policy"), producer.config.get("policy"))
    if channel.binds_access:
        check_policy(channel, "access", channel.access, producer.access)
    _check_bound_policy(channel, channel.config, producer)
    if others or channel.binds_schema:
        check_schema(channel, producer.schema_hash, "the producer brings", is_expected=False)
    return replaced


def _place(member: Producer | Consumer) -> str:
    return "" if member.pid is None else f" (pid {member.pid} on host {member.host!r})"


def check_consumer(channel: Channel, consumer: Consumer, leases: Leases) -> list[Member]:
    """Return whom this consumer replaces. Refuse it while that one lives."""
    present = channel.consumers.get(consumer.consumer_id)
    if present is None or _is_one_owner(present, consumer):
        return []
    if leases.is_alive(present.lease):
        raise ConsumerAlreadyRegistered(
            f"channel {channel.name!r} has a living consumer {consumer.consumer_id!r}{_place(present)}",
            channel=channel.name,
            consumer_id=consumer.consumer_id,
            pid=present.pid,
            host=present.host,
        )
    return [Member("consumer", channel.name, consumer.consumer_id)]


def check_declaration(present: Channel, record: Channel) -> None:
    """Check a declaration: a channel is declared once, and what it binds must fit the producers that are there."""
    if present.declared:
        if not _declares_the_same(present, record):
            raise ChannelAlreadyExists(
                f"channel {present.name!r} is declared already, and differently", channel=present.name
            )
        return
    for producer in present.producers.values():
        if record.binds_schema and producer.schema_hash != record.schema_hash:
            check_schema(present, record.schema_hash or "", "the declaration says")
        if record.binds_access:
            check_policy(present, "access", producer.access, record.access)
        _check_bound_policy(present, record.config, producer)
    if record.binds_schema and present.table is not None and present.table.schema_hash != record.schema_hash:
        raise SchemaMismatch(
            f"channel {present.name!r} has a table with schema {present.table.schema_hash!r}, the declaration says"
            f" {record.schema_hash!r}",
            channel=present.name,
            expected=record.schema_hash,
            actual=present.table.schema_hash,
        )


def check_owner(member: Member, present: Producer | Consumer | None, lease: str) -> None:
    if present is None:
        raise NotRegistered(
            f"{member.kind} {member.member_id!r} is not registered on channel {member.channel!r}",
            channel=member.channel,
            member_id=member.member_id,
        )
    if present.lease != lease:
        raise NotOwner(
            f"{member.kind} {member.member_id!r} of channel {member.channel!r} belongs to another process",
            channel=member.channel,
            member_id=member.member_id,
        )


def check_schema(
    channel: Channel,
    schema_hash: str,
    claim: str,
    differences: Sequence[VersionDifferences] = (),
    *,
    is_expected: bool = True,
) -> None:
    """Compare the schema that somebody expects of the channel, or brings to it, with the channel's own."""
    if schema_hash != channel.schema_hash:
        why = "".join(f": {each.message}" for version in differences[:1] for each in version.differences[:1])
        raise SchemaMismatch(
            f"channel {channel.name!r} has schema {channel.schema_hash!r}, {claim} {schema_hash!r}{why}",
            channel=channel.name,
            expected=schema_hash if is_expected else channel.schema_hash,
            actual=channel.schema_hash if is_expected else schema_hash,
            schema_version=channel.schema_version,
            differences=list(differences),
        )


def check_policy(channel: Channel, what: str, expected: object, actual: object) -> None:
    if expected != actual:
        raise PolicyMismatch(
            f"channel {channel.name!r} has {what} {expected!r}, asked for was {actual!r}",
            channel=channel.name,
            what=what,
            expected=expected,
            actual=actual,
        )


def _check_bound_policy(channel: Channel, declared: dict[str, Any], producer: Producer) -> None:
    """Check a producer's policy against the declared one. Undeclared channels have no config of their own."""
    if "policy" in declared and "policy" in producer.config:
        check_policy(channel, "policy", declared["policy"], producer.config["policy"])


def _is_one_owner(present: Producer | Consumer, candidate: Producer | Consumer) -> bool:
    """Return whether both sides say the same of their process, as far as both say something."""
    if present.lease != candidate.lease:
        return False
    said = ((getattr(present, name), getattr(candidate, name)) for name in _PROCESS)
    return all(there is None or here is None or there == here for there, here in said)


def says_the_same(present: Producer | Consumer, candidate: Producer | Consumer) -> bool:
    """Return whether both are equal, but for what the registry itself fills in."""
    kept = {name: getattr(present, name) for name in _BY_REGISTRY}
    return msgspec.structs.replace(candidate, **kept) == present


def _declares_the_same(present: Channel, record: Channel) -> bool:
    def declaration(channel: Channel) -> tuple[object, ...]:
        bound_schema = (channel.schema_hash, channel.schema_version) if channel.binds_schema else None
        bound_access = channel.access if channel.binds_access else None
        return bound_schema, bound_access, channel.priority, channel.config, channel.metadata

    return declaration(present) == declaration(record)
