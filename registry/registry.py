"""The registry: commands in, replies and events out; no sockets, files, clocks or randomness.

Rule 1: a refused command changes nothing: every check comes before the first event.
Rule 2: state changes by events only (event_log.py), so what the store and the watchers get is all there is.

Each part decides the commands of one kind and is handed what it needs; `Registry` sends a command to the part that
decides it.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from registry import commands, events, names, replies
from registry.channels.consumers import ConsumerDecisions
from registry.channels.declarations import ChannelDecisions
from registry.channels.host_events import HostEvents
from registry.channels.leases import Member, Terms
from registry.channels.members import Members
from registry.channels.producers import ProducerDecisions
from registry.channels.tables import TableDecisions
from registry.event_log import EventLog
from registry.records import Channel, Service
from registry.schemas.checks import CheckResult, SchemaCheck
from registry.schemas.embedded import EmbeddedSchemas
from registry.schemas.queries import SchemaQueries
from registry.schemas.removal import SchemaRemoval
from registry.schemas.rules import SchemaRules
from registry.schemas.settings import SchemaSettings
from registry.schemas.usage import Decision
from registry.services.dead_letters import MOST_LETTERS
from registry.services.workers import SERVICE_COMMANDS, ServiceDecisions
from registry.topics.positions import POSITION_COMMANDS
from registry.topics.retained import TOPIC_COMMANDS
from registry.topics.subscribers import SUBSCRIBER_COMMANDS, Subscribers


class Outcome(NamedTuple):
    reply: replies.Reply
    events: list[events.AnyEvent]


class Registry:
    def __init__(
        self, *, terms: Terms | None = None, shm_prefix: str = "pylabhub_", logs_services: bool = False
    ) -> None:
        """`logs_services` is for a registry that others follow: changes of services are events with revisions too."""
        self.terms = terms or Terms()
        seconds = self.terms.lease_seconds
        self.log = log = EventLog(self.terms)
        self.channels, self.schemas, self.leases = log.channels, log.schemas, log.leases
        self.topics, self.positions, self.priorities = log.topics, log.positions, log.priorities
        self.members = members = Members(log, lease_seconds=seconds, logs_services=logs_services)
        self.host_events = HostEvents(log, members)
        self._schema_rules = rules = SchemaRules(log.schemas, log.channels)
        self._embedded = embedded = EmbeddedSchemas(log, rules)
        self._consumers = consumers = ConsumerDecisions(log, members, rules, lease_seconds=seconds)
        producers = ProducerDecisions(log, members, embedded, shm_prefix=shm_prefix, lease_seconds=seconds)
        channels = ChannelDecisions(log, consumers, embedded)
        tables = TableDecisions(log, embedded)
        self._about_schemas: dict[type[commands.Command], Callable[[Any, CheckResult | None], Decision]] = (
            rules.decisions
            | SchemaQueries(log.schemas).decisions
            | SchemaSettings(log.schemas, log.channels).decisions
            | SchemaRemoval(log.schemas, log.channels).decisions
        )
        self._decide: dict[type[commands.Command], Callable[[Any, float, CheckResult | None], replies.Reply]] = {
            commands.RegisterProducer: producers.register,
            commands.UnregisterProducer: producers.unregister,
            commands.RegisterConsumer: consumers.register,
            commands.UnregisterConsumer: consumers.unregister,
            commands.ListConsumers: consumers.list_consumers,
            commands.EvictMember: members.evict,
            commands.Heartbeat: self._heartbeat,
            commands.Discover: channels.discover,
            commands.CreateChannel: channels.create,
            commands.DestroyChannel: channels.destroy,
            commands.ListChannels: channels.list_channels,
            commands.DescribeChannel: channels.describe,
            commands.RequestSnapshot: channels.snapshot,
            commands.CheckTable: tables.check,
            commands.RegisterTable: tables.register,
            commands.DropTable: tables.drop,
            commands.ListTables: tables.list_tables,
            **dict.fromkeys(self._about_schemas, self._decide_schema),
            **dict.fromkeys(TOPIC_COMMANDS, self._decide_topic),
            **dict.fromkeys(POSITION_COMMANDS, self._decide_position),
            **dict.fromkeys(SERVICE_COMMANDS, self._decide_service),
            **dict.fromkeys(SUBSCRIBER_COMMANDS, self._decide_subscriber),
        }

    @property
    def revision(self) -> int:
        return self.log.revision

    @property
    def services(self) -> ServiceDecisions:
        return self.members.services

    @property
    def subscribers(self) -> Subscribers:
        return self.members.subscribers

    def needed_check(self, command: commands.Command) -> SchemaCheck | None:
        """Return the schema check whose result this command needs; None for most commands."""
        if isinstance(command, commands.SchemaText):
            return self._schema_rules.needed_check(command)
        if isinstance(command, commands.RegisterProducer | commands.CreateChannel | commands.TableSchema):
            return self._embedded.needed_check(command)
        if isinstance(command, _EXPECTING) and command.expected_schema_hash is not None:
            channel = self.channels.get(names.logical(command.channel))
            if channel is not None and channel.schema_hash != command.expected_schema_hash:
                return self._schema_rules.needed_for_reader(command.expected_schema_hash, channel)
        return None

    def apply(self, command: commands.Command, *, now: float, result: CheckResult | None = None) -> Outcome:
        """Decide one command. Raise a Refusal, having changed nothing, or return the reply and what happened.

        Without the result of the check that the command needs now (`needed_check`), the check runs here.
        """
        reply = self._decide[type(command)](command, now, result)
        return Outcome(reply, self.log.take() if self.log.pending else [])

    def restore(self, channels: Iterable[Channel], *, revision: int, epoch_floor: int = 0, now: float) -> None:
        """Take over what was stored. Epochs of groups are above `epoch_floor` from now on."""
        self.log.epoch_floor = self.subscribers.groups.newest_epoch = epoch_floor
        self.log.restore(channels, revision=revision, now=now)

    def lead(self, *, epoch_floor: int, now: float) -> list[events.AnyEvent]:
        """Decide from now on, instead of the registry that this one is a copy of. Return what that changes."""
        self.subscribers.groups.newest_epoch = epoch_floor
        self.log.lead(epoch_floor=epoch_floor, now=now)
        self.services.lead(now=now)
        return self.log.take()

    def restore_copy(self, channels: Iterable[Channel], services: Iterable[Service], *, revision: int) -> None:
        """Take over the records of another registry as they are, to follow it from there. No lease begins."""
        self.log.restore_copy(channels, revision=revision)
        self.services.restore_copy(services)

    def follow(self, event: events.AnyEvent) -> None:
        """Take over an event of another registry, of which this one is a copy."""
        if isinstance(event, events.ServiceChanged):
            self.log.revision = event.revision
            self.services.follow(event)
        else:
            self.log.follow(event)

    def take_over_unstored(self, before: "Registry", *, now: float) -> None:
        """Take over what the store knows nothing of: the subscribers, and the workers of a hub on its own."""
        self.members.take_over_unstored(before.members, now=now)

    def adopt_consumer(self, command: commands.RegisterConsumer, *, now: float) -> None:
        """Take over a consumer that was registered at `now`, when it was checked: what it expected may have changed."""
        self._consumers.adopt(command, now)
        self.log.take()

    def expire(self, *, now: float) -> list[events.AnyEvent]:
        """Stall and end what has been silent for too long."""
        self.members.expire(now)
        return self.log.take()

    def end_leases(self, lease_ids: Iterable[str], *, now: float) -> list[events.AnyEvent]:
        """End what is registered under these leases as if they had run out: their peer has lost its rights."""
        self.members.end_leases(lease_ids, now)
        return self.log.take()

    def next_deadline(self) -> float | None:
        return self.leases.next_deadline()

    def trace_positions(self, topic: str, offset: int, *, now: float) -> list[replies.TracedPosition]:
        """Return what became of a message of a retained topic under each of its durable names."""
        letters = {
            letter.sender: letter.number
            for letter in self.services.letters.newest(f"topic:{topic}", MOST_LETTERS)
            if letter.offset == offset
        }
        found = []
        for traced in self.positions.trace(topic, offset, now=now):
            member = self.subscribers.get(traced.member_id) if traced.member_id is not None else None
            letter = letters.get(traced.position)
            is_dead = letter is not None and traced.outcome == "acknowledged"
            found.append(
                replace(
                    traced,
                    outcome="dead_letter" if is_dead else traced.outcome,
                    dead_letter=letter,
                    host=member.host if member is not None else None,
                    pid=member.pid if member is not None else None,
                )
            )
        return found

    def _heartbeat(self, command: commands.Heartbeat, now: float, _: CheckResult | None) -> replies.Reply:
        if command.mailboxes:
            self.services.note_mailboxes(command.lease, command.mailboxes)
        lease = self.leases.get(command.lease)
        if lease is None:
            return replies.HeartbeatAck(known=False, notices=self.leases.take_unheard(command.lease))
        self.members.revive(lease, now)
        return replies.HeartbeatAck(known=True, notices=lease.take_notices())

    def _decide_schema(self, command: commands.Command, now: float, result: CheckResult | None) -> replies.Reply:
        reply, happened = self._about_schemas[type(command)](command, result)
        for event in happened:
            self.log.emit_schema(event, now)
        if isinstance(reply, _REVISED) and (happened or not reply.revision):
            reply.revision = self.revision
        return reply

    def _decide_topic(self, command: commands.Command, now: float, _: CheckResult | None) -> replies.Reply:
        reply, happened = self.topics.decide(command, revision=self.revision, now=now)
        if happened is not None:
            self.log.emit_topic(happened, now)
        return reply

    def _decide_position(self, command: commands.Command, now: float, _: CheckResult | None) -> replies.Reply:
        if isinstance(command, commands.FetchMessages | commands.ReturnMessages):
            self.subscribers.check(command.member_id, command.lease)
        reply, happened = self.positions.decide(command, revision=self.revision, now=now)
        if happened is not None:
            self.log.emit_topic(happened, now)
        if isinstance(reply, replies.PositionDescription):
            position = reply.summary.position
            unacked = self.positions.unacked_by(position.topic, position.name)
            reply.members = self.subscribers.summaries(position.name, position.topic, unacked)
        return reply

    def _decide_service(self, command: commands.Command, now: float, _: CheckResult | None) -> replies.Reply:
        reply = self.services.decide(command, now)
        if isinstance(command, commands.RegisterWorker):
            self.members.renew(command.lease, Member("worker", command.address, command.worker_id), now)
            if isinstance(reply, replies.WorkerRegistered):  # which its recovery may have moved on
                reply.revision = self.services.revision_of(command.address)
        return reply

    def _decide_subscriber(self, command: commands.Command, now: float, _: CheckResult | None) -> replies.Reply:
        reply = self.subscribers.decide(command, now)
        if isinstance(command, commands.RegisterSubscriber):
            self.members.renew(command.lease, Member("subscriber", "", command.member_id), now)
        return reply


_EXPECTING = (commands.RegisterConsumer, commands.Discover)
# Their revision is that of the subject, or of the registry where that changed or the answer is about all subjects.
_REVISED = (
    replies.SchemaRegistered
    | replies.SchemaDeleted
    | replies.SchemaConfigFound
    | replies.SchemaModeFound
    | replies.SchemaList
    | replies.SchemaExport
)
