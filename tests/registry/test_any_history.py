"""Any history of commands, silences and restarts keeps the registry's promises.

A simple model says who is registered, under which lease, and how long each lease has been silent. Hypothesis drives
both, and after every step compares them, a copy that has only events, two stores that have only rows, and the
keys of a site in etcd.
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagehub.store import Store
from messagehub.store.memory import MemoryStore
from messagehub.store.sqlite import SQLiteStore
from registry import commands, events, replies
from registry.channels.leases import Member, Terms
from registry.errors import Refusal
from registry.records import Channel, Keep, RetainedMessage, SchemaConfig, SchemaVersion
from registry.registry import Registry
from registry.topics.retained import SavedTopic
from tests.levels import examples
from tests.registry.observing import (
    Watcher,
    encoded_channels,
    followed_state,
    members_of_leases,
    schema_hash,
    whole_state,
)
from tests.site.etcd_keys import EtcdKeys

TERMS = Terms(heartbeat_seconds=1.0, stall_seconds=4.0, lease_seconds=20.0)

CHANNELS = ["a", "a.b"]
channel_names = st.sampled_from(CHANNELS)
producer_ids = st.sampled_from([None, "p1", "p2"])
consumer_ids = st.sampled_from(["default", "p1", "c2"])
leases = st.sampled_from([None, "L1", "L2"])
pids = st.sampled_from([None, None, 1, 2])
schemas = st.sampled_from([None, None, {"type": "object"}, {"type": "string"}, True])
hashes = st.sampled_from(["h1", "h1", "h2"])
configs = st.sampled_from([{}, {}, {"policy": "RingBuffer"}, {"policy": "Single"}])
priorities = st.sampled_from(["normal", "normal", "high", "low"])
accesses = st.sampled_from(["exclusive", "shared"])
subjects = st.sampled_from(["a", "s"])
levels = st.sampled_from(["NONE", "FULL"])
schema_commands = st.one_of(
    st.builds(
        commands.RegisterSchema,
        subject=subjects,
        schema=schemas.filter(lambda schema: schema is not None),
        schema_id=st.sampled_from([None, None, 1, 2, 7]),
        version=st.sampled_from([None, None, 1, 2, 7]),
        metadata=st.sampled_from([None, None, {"properties": {"owner": "me"}}]),
    ),
    st.builds(
        commands.DeleteSchema,
        subject=subjects,
        version=st.sampled_from([None, -1, 1, 2]),
        permanent=st.booleans(),
        force=st.booleans(),
    ),
    st.builds(
        commands.ConfigureSchemas,
        subject=subjects | st.none(),
        config=st.none() | st.builds(SchemaConfig, compatibility=levels),
    ),
    st.builds(
        commands.SetSchemaMode,
        subject=subjects | st.none(),
        mode=st.sampled_from([None, None, "READONLY", "READWRITE", "IMPORT"]),
    ),
)
topics = st.sampled_from(["t", "t.u"])
topic_commands = st.one_of(
    st.builds(
        commands.KeepTopic,
        topic=topics,
        keep=st.builds(Keep, messages=st.sampled_from([None, 3])),
        replace=st.booleans(),
    ),
    st.builds(commands.DeleteTopic, topic=topics),
    st.builds(
        commands.PublishMessages,
        topic=topics,
        messages=st.lists(st.builds(RetainedMessage, payload=st.binary(max_size=3)), min_size=1, max_size=3),
        publisher=st.sampled_from([None, "p1", "p2"]),
        number=st.integers(0, 12),
    ),
)
seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, 4.0, 7.0, 20.0])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.registry = Registry(terms=TERMS)
        self.stores: list[Store] = [MemoryStore(), SQLiteStore(Path(self.directory.name) / "registry.db", sync="off")]
        self.watcher = Watcher(self.registry)
        self.keys: EtcdKeys | None = EtcdKeys()
        self.unsent: list[events.AnyEvent] = []
        self.now = 100.0
        self.members: dict[Member, tuple[str, bool]] = {}  # lease, ready
        self.renewed_at: dict[str, float] = {}
        self.stalled: set[str] = set()
        self.priorities: dict[str, str] = {}
        self.declared: set[str] = set()
        self.tables: dict[str, int] = {}
        self.hashes: dict[int, str] = {}
        self.newest: dict[str, int] = {}

    def teardown(self) -> None:
        try:
            self.flush()
            self.agree()
        finally:
            for store in self.stores:
                store.close()
            self.directory.cleanup()

    # -- what is done --------------------------------------------------------------------------------------

    def apply(self, command: commands.Command) -> replies.Reply | None:
        """The reply, or None when it was refused and, as it must, nothing changed."""
        before = whole_state(self.registry)
        try:
            outcome = self.registry.apply(command, now=self.now)
        except Refusal:
            assert whole_state(self.registry) == before, "a refused command changes nothing"
            return None
        assert all(event.at == self.now for event in outcome.events)
        self.unsent += outcome.events
        return outcome.reply

    @rule(
        channel=channel_names,
        producer_id=producer_ids,
        lease=leases,
        pid=pids,
        schema=schemas,
        claimed=hashes,
        access=accesses,
        config=configs,
        priority=priorities,
        ready=st.booleans(),
    )
    def register_producer(self, schema: Any, claimed: str, **fields: Any) -> None:
        claim = claimed if schema is None else schema_hash(schema)
        command = commands.RegisterProducer(schema=schema, schema_hash=claim, **fields)
        is_first = not self.exists(command.channel)
        ack = self.apply(command)
        if not isinstance(ack, replies.ProducerRegistered):
            return
        member = Member("producer", command.channel, ack.producer_id)
        for other in [m for m in self.members if m[:2] == member[:2]]:
            if other not in self.present():
                assert self.members.pop(other)[0] in self.stalled, "nobody living is replaced"
        if is_first:
            self.priorities[command.channel] = command.priority
        self.registered(member, ack.lease, command.ready)
        assert self.apply(command) == ack, "saying it again gives the same answer"

    @rule(
        channel=channel_names,
        consumer_id=consumer_ids,
        lease=leases,
        pid=pids,
        expected_schema_hash=st.sampled_from([None, "h1", "h2"]),
        required=st.booleans(),
    )
    def register_consumer(self, **fields: Any) -> None:
        command = commands.RegisterConsumer(**fields)
        member = Member("consumer", command.channel, command.consumer_id)
        ack = self.apply(command)
        if not isinstance(ack, replies.ConsumerRegistered):
            return
        if member in self.members and self.members[member][0] != ack.lease:
            assert self.members[member][0] in self.stalled, "nobody living is replaced"
        self.registered(member, ack.lease, True)
        assert self.apply(command) == ack, "saying it again gives the same answer"

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.members)))
        owner = self.members[member][0]
        lease = data.draw(st.sampled_from([owner, owner, "nobody"]))
        if member.kind == "producer":
            asked: commands.Command = commands.UnregisterProducer(
                channel=member.channel, producer_id=member.member_id, lease=lease
            )
        else:
            asked = commands.UnregisterConsumer(channel=member.channel, consumer_id=member.member_id, lease=lease)
        ack = self.apply(asked)
        assert (ack is None) == (lease == "nobody"), "only the owner may"
        if ack is not None:
            del self.members[member]

    @precondition(lambda self: self.renewed_at)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([*sorted(self.renewed_at), "nobody"]))
        ack = self.apply(commands.Heartbeat(lease=lease))
        assert isinstance(ack, replies.HeartbeatAck)
        assert ack.known == any(held == lease for held, _ in self.members.values())
        if lease in self.renewed_at:
            self.renew(lease)

    @rule(
        channel=channel_names,
        schema=schemas,
        claimed=st.sampled_from([None, "h1", "h2"]),
        access=st.sampled_from([None, "exclusive", "shared"]),
        config=configs,
        priority=priorities,
    )
    def create_channel(self, schema: Any, claimed: str | None, **fields: Any) -> None:
        command = commands.CreateChannel(schema=schema, schema_hash=None if schema else claimed, **fields)
        if self.apply(command) is not None:
            self.declared.add(command.channel)
            self.priorities[command.channel] = command.priority

    @rule(channel=channel_names)
    def destroy_channel(self, channel: str) -> None:
        existed = self.exists(channel)
        if channel in self.tables:
            assert self.apply(commands.DestroyChannel(channel=channel)) is None
        assert (self.apply(commands.DestroyChannel(channel=channel, data=True)) is not None) == existed
        self.declared.discard(channel)
        self.tables.pop(channel, None)
        self.members = {member: held for member, held in self.members.items() if member.channel != channel}

    @rule(
        channel=channel_names,
        schema=schemas,
        claimed=hashes,
        generation=st.integers(1, 5),
        host=st.sampled_from(["here", "there"]),
    )
    def register_table(self, schema: Any, claimed: str, **fields: Any) -> None:
        claim = claimed if schema is None else schema_hash(schema)
        command = commands.RegisterTable(schema=schema, schema_hash=claim, shm_name="/t", **fields)
        is_first = not self.exists(command.channel)
        ack = self.apply(command)
        if not isinstance(ack, replies.TableRegistered):
            return
        if is_first:
            self.priorities[command.channel] = "normal"
        self.tables[command.channel] = ack.table.generation
        assert ack.table.generation >= command.generation
        assert self.apply(command) == ack, "saying it again gives the same answer"

    @rule(channel=channel_names, is_gone=st.booleans())
    def drop_table(self, channel: str, is_gone: bool) -> None:
        if is_gone:
            self.unsent += self.registry.host_events.table_gone(channel, now=self.now)
        else:
            assert (self.apply(commands.DropTable(channel=channel)) is not None) == (channel in self.tables)
        self.tables.pop(channel, None)

    @rule(command=schema_commands)
    def change_schemas(self, command: commands.Command) -> None:
        ack = self.apply(command)
        if isinstance(ack, replies.SchemaRegistered):
            if isinstance(command, commands.RegisterSchema) and command.schema_id is not None:
                self.hashes[ack.schema_id] = ack.schema_hash  # an import may bring back the id of what was deleted
            assert self.hashes.setdefault(ack.schema_id, ack.schema_hash) == ack.schema_hash, (
                "ids are never given again"
            )

    @rule(command=topic_commands)
    def change_topics(self, command: commands.Command) -> None:
        ack = self.apply(command)
        if isinstance(ack, replies.MessagesRetained) and isinstance(command, commands.PublishMessages):
            if command.publisher is not None:
                again = self.apply(command)
                assert isinstance(again, replies.MessagesRetained)
                assert (again.offset, again.duplicate) == (ack.offset, True), "saying it again gives the same answer"
            newest = self.newest.get(command.topic, 0)
            assert ack.duplicate or ack.offset == newest + 1, "offsets have no holes"
            self.newest[command.topic] = max(newest, ack.offset + ack.count - 1)
        elif isinstance(ack, replies.TopicDeleted):
            self.newest.pop(ack.topic, None)

    @rule(passing=seconds)
    def wait(self, passing: float) -> None:
        self.now += passing
        self.unsent += self.registry.expire(now=self.now)
        for lease, renewed_at in list(self.renewed_at.items()):
            if renewed_at + TERMS.lease_seconds <= self.now:
                del self.renewed_at[lease]
                self.stalled.discard(lease)
                self.members = {member: held for member, held in self.members.items() if held[0] != lease}
            elif renewed_at + TERMS.stall_seconds <= self.now:
                self.stalled.add(lease)

    @rule()
    def flush(self) -> None:
        """The broker turns events into rows and messages after a turn, not after each command."""
        for event in self.unsent:
            self.watcher.hear(event)
        for store in self.stores:
            rows = [row for event in self.unsent for row in store.rows(event)]
            store.write(rows, revision=self.registry.revision, durable=True)
        if self.keys is not None:
            self.keys.write(self.unsent)
        self.unsent = []

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.flush()
        saved = self.stores[which].load()
        self.registry = Registry(terms=TERMS)
        self.registry.schemas.restore(
            saved.schemas,
            last_id=saved.last_schema_id,
            configs=saved.configs,
            modes=saved.modes,
            revision=saved.revision,
        )
        self.registry.topics.restore(saved.topics)
        self.registry.positions.restore(saved.positions, now=self.now)
        self.registry.restore(saved.channels, revision=saved.revision, now=self.now)
        self.watcher = Watcher(self.registry)
        self.keys = None  # whoever follows hears of no stall that a restart ends
        held = {lease for lease, _ in self.members.values()}
        self.renewed_at = dict.fromkeys(held, self.now)
        self.stalled = set()

    @rule()
    def change_leader(self) -> None:
        """Another hub, which has followed until now, decides from now on."""
        self.flush()
        self.registry = self.watcher.copy
        self.watcher = Watcher(self.registry)
        self.unsent += self.registry.lead(epoch_floor=0, now=self.now)
        self.renewed_at = dict.fromkeys({lease for lease, _ in self.members.values()}, self.now)
        self.stalled = set()

    # -- what must hold ------------------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        self.channels_are_the_models()
        self.leases_are_the_models()
        assert self.registry.priorities == {
            name: priority for name, priority in self.priorities.items() if priority != "normal" and self.exists(name)
        }
        for name in CHANNELS:
            if not self.exists(name):
                self.priorities.pop(name, None)
        if not self.unsent:
            assert followed_state(self.watcher.copy) == followed_state(self.registry)
            for store in self.stores:
                self.kept_by(store)
            if self.keys is not None:
                self.kept_by_keys(self.keys)

    def channels_are_the_models(self) -> None:
        assert self.registry.channels.keys() == {name for name in CHANNELS if self.exists(name)}
        assert {n: c.generation for n, c in self.registry.channels.items() if c.table} == self.tables
        assert self.present().keys() == self.members.keys()
        for member, record in self.present().items():
            lease, ready = self.members[member]
            assert record.lease == lease
            assert record.status == ("stalled" if lease in self.stalled else "active" if ready else "pending")
        for channel in self.registry.channels.values():
            producers = list(channel.producers.values())
            assert channel.declared == (channel.name in self.declared)
            assert len({(p.schema_hash, p.access, p.config.get("policy")) for p in producers}) <= 1
            assert len(producers) <= 1 or producers[0].access == "shared"
            assert [p.revision for p in producers] == sorted(p.revision for p in producers)
            said = (
                [producers[-1].schema_hash] if producers else [channel.table.schema_hash] if channel.table else [None]
            )
            bound = channel.schema_hash if channel.binds_schema else said[0]
            assert channel.schema_hash == bound, "the producers', else the table's, unless the declaration binds it"
            if channel.table and channel.binds_schema:
                assert channel.table.schema_hash == channel.schema_hash, "a declaration binds tables too"

    def leases_are_the_models(self) -> None:
        held = {lease for lease, _ in self.members.values()}
        self.renewed_at = {lease: at for lease, at in self.renewed_at.items() if lease in held}
        self.stalled &= held
        expected: dict[str, set[tuple[str, str, str]]] = {lease: set() for lease in self.renewed_at}
        for member, (lease, _) in self.members.items():
            expected[lease].add((member.kind, member.channel, member.member_id))
        assert members_of_leases(self.registry) == expected
        deadline = self.registry.next_deadline()
        for lease, renewed_at in self.renewed_at.items():
            term = TERMS.lease_seconds if lease in self.stalled else TERMS.stall_seconds
            assert deadline is not None
            assert deadline <= renewed_at + term, "the broker is woken in time"

    def kept_by(self, store: Store) -> None:
        saved = store.load()
        assert saved.revision == self.registry.revision
        catalog = self.registry.schemas
        assert (saved.last_schema_id, saved.configs, saved.modes) == (catalog.last_id, catalog.configs, catalog.modes)
        assert sorted(saved.schemas, key=_place) == sorted(catalog.every(), key=_place)
        assert sorted(saved.topics, key=_topic_name) == sorted(self.registry.topics.every(), key=_topic_name)
        kept_channels = {channel.name: _as_after_restart(channel) for channel in saved.channels}
        assert kept_channels == {n: _as_after_restart(c) for n, c in self.registry.channels.items()}

    def kept_by_keys(self, keys: EtcdKeys) -> None:
        """What a hub loads that begins to follow is what the leader has, stalls, conflicts and shares included."""
        saved, catalog = keys.load(self.registry.revision), self.registry.schemas
        assert encoded_channels({channel.name: channel for channel in saved.channels}) == encoded_channels(
            self.registry.channels
        )
        assert (saved.last_schema_id, saved.configs, saved.modes) == (catalog.last_id, catalog.configs, catalog.modes)
        assert sorted(saved.schemas, key=_place) == sorted(catalog.every(), key=_place)
        if not (saved.channels or saved.schemas or saved.configs or saved.modes):
            assert not len(keys), "nothing is left behind"

    # -- the model -----------------------------------------------------------------------------------------

    def exists(self, channel: str) -> bool:
        is_kept = channel in self.declared or channel in self.tables
        return is_kept or any(member.channel == channel for member in self.members)

    def registered(self, member: Member, lease: str, ready: bool) -> None:
        self.members[member] = (lease, ready)
        self.renew(lease)

    def renew(self, lease: str) -> None:
        self.renewed_at[lease] = self.now
        self.stalled.discard(lease)

    def present(self) -> dict[Member, Any]:
        found: dict[Member, Any] = {}
        for name, channel in self.registry.channels.items():
            found |= {Member("producer", name, producer_id): p for producer_id, p in channel.producers.items()}
            found |= {Member("consumer", name, consumer_id): c for consumer_id, c in channel.consumers.items()}
        return found


def _place(version: SchemaVersion) -> tuple[str, int]:
    return version.subject, version.version


def _topic_name(saved: SavedTopic) -> str:
    return saved.topic.name


def _as_after_restart(channel: Channel) -> dict[str, Any]:
    """Without what a restart resets: statuses, and the revision of events that left no row."""
    plain: dict[str, Any] = msgspec.to_builtins(channel)
    del plain["revision"]
    for member in (*plain["producers"].values(), *plain["consumers"].values()):
        del member["status"]
    return plain | {"order": [list(plain["producers"]), list(plain["consumers"])]}


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(30), stateful_step_count=40)
