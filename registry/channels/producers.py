"""Decisions about producers.

Rule 1: the same owner saying the same again gets the same answer, and no event.
Rule 2: a producer is replaced by another process only when it is stalled; the owner is the lease.
Rule 3: producers of one channel agree on schema, access and policy; a sole producer may change them unless the
channel's declaration binds them.
"""

from registry import commands, events, names, replies
from registry.channels.leases import Member, default_owner
from registry.channels.members import Members
from registry.channels.registration_checks import check_owner, check_producer, says_the_same
from registry.event_log import EventLog
from registry.records import Producer
from registry.schemas.checks import CheckResult
from registry.schemas.embedded import EmbeddedSchemas


class ProducerDecisions:
    def __init__(
        self, log: EventLog, members: Members, schemas: EmbeddedSchemas, *, shm_prefix: str, lease_seconds: float
    ) -> None:
        self._log = log
        self._members = members
        self._schemas = schemas
        self._shm_prefix = shm_prefix
        self._lease_seconds = lease_seconds

    def register(self, command: commands.RegisterProducer, now: float, result: CheckResult | None) -> replies.Reply:
        log = self._log
        name = names.check_channel(command.channel)
        channel = log.channels.get(name)
        producer = self._candidate(command, name)
        self._members.check_evicted(Member("producer", name, producer.producer_id), producer.lease, now)
        version = self._schemas.plan(command, result)
        if version is not None:
            producer.schema, producer.schema_id = "verified", version[0].schema_id
            producer.schema_type, producer.schema_version = version[0].schema_type, str(version[0].version)
        replaced = check_producer(channel, producer, log.leases) if channel else []

        present = channel.producers.get(producer.producer_id) if channel else None
        if present is None or not says_the_same(present, producer):
            self._schemas.emit(version, now)
            log.create_if_missing(name, now, priority=command.priority)
            for member in replaced:
                self._members.unregister(member, "replaced", now)
            producer.registered_at = now
            producer.revision = log.revision + 1
            log.emit(events.ProducerRegistered(channel=name, producer=producer), now)
            present = producer
        self._members.renew(present.lease, Member("producer", name, present.producer_id), now)
        return replies.ProducerRegistered(
            channel=name,
            producer_id=present.producer_id,
            shm_name=present.shm_name,
            schema_id=present.schema_id,
            lease=present.lease,
            lease_seconds=self._lease_seconds,
            revision=present.revision,
        )

    def unregister(self, command: commands.UnregisterProducer, now: float, _: CheckResult | None) -> replies.Reply:
        channel = self._log.channel(command.channel)
        producer_id = command.producer_id or default_owner(channel.name)
        member = Member("producer", channel.name, producer_id)
        check_owner(member, channel.producers.get(producer_id), command.lease or producer_id)
        self._members.remove(member, "released", now)
        return replies.ProducerUnregistered(channel=channel.name, producer_id=producer_id, revision=self._log.revision)

    def _candidate(self, command: commands.RegisterProducer, name: str) -> Producer:
        producer_id = command.producer_id or default_owner(name)
        if producer_id != default_owner(name):
            names.check_role("producer", producer_id)
        default_shm = f"/{self._shm_prefix}{name}"
        if command.access == "shared" and producer_id != default_owner(name):
            default_shm += f"@{producer_id}"
        return Producer(
            producer_id=producer_id,
            lease=command.lease or producer_id,
            shm_name=names.check_shm(command.shm_name or default_shm),
            schema_hash=command.schema_hash,
            schema_version=command.schema_version,
            schema_type=command.schema_type,
            ready=command.ready,
            status="active" if command.ready else "pending",
            access=command.access,
            host=command.host,
            pid=command.pid,
            start_time=command.start_time,
            boot_id=command.boot_id,
            blocks=command.blocks,
            config=command.config,
            metadata=command.metadata,
        )
