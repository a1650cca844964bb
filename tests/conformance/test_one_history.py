"""One history, the same answers: the registry in memory, through a broker, and over the directory with no broker.

Hypothesis makes the history. Each step is asked of all three, and after each everything that can be read of the
channels is compared. Only numbers that each of them counts for itself (revisions, times, ids of requests) may differ.

What the directory cannot say, and is therefore compared between memory and broker only:
- ids and versions of schemas: the directory has no catalogue. It shows a registered schema as `unverified`, without an
  id, and its refusals about schemas have the same code, but not the differences.
- a schema that is not compatible with one that only the catalogue remembers. The directory compares with what is there.
- a reader of another schema that the catalogue calls compatible. The directory compares hashes.
- silence: the directory has no heartbeats. A process that lives is active there, however long it says nothing.
- the priority of a channel that its last producer left and whose table stays: nothing in the directory carries it.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from messagehub import protocol
from messagehub.client.connection import Connection
from messagehub.discovery import Discovery
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_directory import ViaFiles
from messagehub.settings import Settings
from messagehub.shm.channel_directory.cleaning import LINGER_SECONDS, clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.entries import file_id, table_command, table_details
from messagehub.shm.identity import ProcessIdentity
from registry import commands, replies
from registry.channels import leases
from registry.errors import Refusal
from registry.formats import arrow
from registry.registry import Registry
from tests.conformance.files_process import PREFIX, FilesProcess, answer_of, plain
from tests.integration.harness import checked_broker, eventually
from tests.levels import examples

ME = ProcessIdentity.current()
KILLED = "L4"  # a process of its own, which is killed now and then; the others are parts of this one
PROCESSES = ["L1", "L2", "L3", KILLED]
CHANNELS = ["a", "a.b"]  # in each history `a` is another name: the catalogue of schemas outlives them
COUNTED = {"id", "revision", "registered_at", "created_at"}
OF_CATALOGUE = {"schema", "schema_id", "schema_version", "schema_type"}

Member = tuple[str, str, str]  # kind, channel, id

TABLES = [
    pa.table({"n": pa.array([1, 2], pa.int64())}),
    pa.table({"n": pa.array([3], pa.int64()), "note": pa.array(["x"])}),
    pa.table({"n": pa.array(["other"])}),
]
TEXTS = [arrow.from_arrow(table.schema) for table in TABLES]
HASHES = [arrow.parse(text, {}).hash for text in TEXTS]

processes = st.sampled_from(PROCESSES)
channels = st.sampled_from([*CHANNELS, *CHANNELS, "a | pid:12-0"])
producers = st.builds(
    commands.RegisterProducer,
    channel=channels,
    producer_id=st.sampled_from([None, "p1", "p2"]),
    schema_hash=st.sampled_from(["h1", "h1", "h1", "h2", "h2", ""]),
    schema_version=st.sampled_from(["", "1"]),
    access=st.sampled_from(["exclusive", "shared", "shared"]),
    config=st.sampled_from([{}, {}, {"policy": "RingBuffer"}]),
    priority=st.sampled_from(["normal", "normal", "high"]),
    ready=st.sampled_from([True, True, False]),
    metadata=st.sampled_from([{}, {"room": 7}]),
    shm_name=st.sampled_from([None, None, "/elsewhere"]),
)
carried = st.one_of(
    st.none(),
    st.none(),
    st.builds(
        lambda n: {"schema": TEXTS[n], "schema_hash": HASHES[n], "schema_type": "ARROW"}, st.sampled_from([0, 1])
    ),
    st.sampled_from(
        [
            {"schema": TEXTS[2], "schema_hash": HASHES[2], "schema_type": "ARROW"},
            {"schema": TEXTS[0], "schema_hash": HASHES[2], "schema_type": "ARROW"},
            {"schema": {"type": "no such type"}, "schema_hash": "", "schema_type": "JSON"},
        ]
    ),
)
"""The schema that a registration brings with it, if any."""
consumers = st.builds(
    commands.RegisterConsumer,
    channel=channels,
    consumer_id=st.sampled_from(["c1", "b1", "p1"]),
    expected_schema_hash=st.sampled_from([None, None, "h1", "h2", HASHES[2]]),  # a reader of no other schema
    required=st.sampled_from([False, False, True]),
    priority=st.sampled_from(["normal", "high"]),
    metadata=st.sampled_from([{}, {"room": 7}, {"room": 7}, None]),
)


class Access:
    """The three ways to one registry; each process has its own connection and its own open files."""

    def __init__(self, registry: Registry, broker: dict[str, ViaBroker], domain: str) -> None:
        self.registry = registry
        self.broker = broker
        self.domain = domain
        self.carried: set[str] = set()
        """The channels whose schema is in the catalogue."""
        self.files = {process: self.open_files() for process in PROCESSES if process != KILLED}
        self._killed: FilesProcess | None = None

    @property
    def directory(self) -> Directory:
        return self.files[PROCESSES[0]].directory

    def open_files(self) -> ViaFiles:
        return ViaFiles(Directory(self.domain), shm_prefix=PREFIX)

    def owner(self, process: str) -> dict[str, Any]:
        """What its registrations say of the process."""
        if process == KILLED and self._killed is None:
            self._killed = FilesProcess(self.domain)
        identity = self._killed.identity if process == KILLED and self._killed else ME
        return {"lease": process, **identity.to_json()}

    def ask(self, process: str, command: commands.Command) -> Any:
        """Return what all three answer. A schema that only the catalogue can refuse is not shown to the directory."""
        memory = self.ask_catalogues(process, command)
        if memory["type"] != "ERROR" and getattr(command, "schema", None) is not None:
            self.carried.add(memory["channel"])
        if memory.get("code") != "SCHEMA_INCOMPATIBLE":
            files = self._ask_files(process, msgspec.structs.replace(command))
            found, expected = self._comparable(files, of_files=True), self._comparable(memory)
            assert found == expected, f"the directory differs on {command}: {found}, and not {expected}"
        return memory

    def ask_catalogues(self, process: str, command: commands.Command) -> Any:
        """Return what memory and broker answer."""
        said = protocol.encode(command)
        memory = _answer(lambda: self.registry.apply(protocol.decode(said), now=time.time()).reply)
        broker = _answer(lambda: self.broker[process].ask(msgspec.structs.replace(command), timeout=30.0))
        assert broker == memory, f"the broker differs on {command}"
        return memory

    def _ask_files(self, process: str, command: commands.Command) -> Any:
        if process == KILLED:
            self.owner(process)
            assert self._killed is not None
            return _uncounted(self._killed.ask(command))
        return _answer(lambda: self.files[process].ask(command, timeout=30.0))

    def kill(self, members: list[Member]) -> None:
        """Kill the process that has these members: the kernel tells the broker, and frees its locks."""
        assert self._killed is not None
        self.close_killed()
        gone = [leases.Member(kind, channel, member_id) for kind, channel, member_id in members]  # type: ignore[arg-type]
        self.registry.host_events.died(gone, now=time.time())
        for channel in sorted({channel for _, channel, _ in members}):
            eventually(self._describe_alike, channel)

    def _describe_alike(self, channel: str) -> bool:
        command = commands.DescribeChannel(channel=channel)
        memory = _answer(lambda: self.registry.apply(command, now=time.time()).reply)
        return bool(_answer(lambda: self.broker[PROCESSES[0]].ask(command, timeout=30.0)) == memory)

    def close_killed(self) -> None:
        if self._killed is not None:
            self._killed.kill()
            self._killed = None

    def _comparable(self, value: Any, *, of_files: bool = False, is_carried: bool = False) -> Any:
        """Without what the catalogue adds to a channel's answers, which the directory must not claim to know."""
        if isinstance(value, list):
            return [self._comparable(each, of_files=of_files, is_carried=is_carried) for each in value]
        if not isinstance(value, dict):
            return value
        named = [value.get("channel"), value.get("name"), value.get("details", {}).get("channel")]
        is_carried = is_carried or any(isinstance(name, str) and name in self.carried for name in named)
        if value.get("type") == "ERROR":
            compared = {value["details"].get("actual"), value["details"].get("expected")}
            if is_carried or compared & set(HASHES):
                return {"code": value["code"]}  # the differences follow from what the catalogue knows
        if is_carried and of_files:
            assert value.get("schema") in (None, "unverified")
            assert value.get("schema_id") is None
        return {
            key: self._comparable(inner, of_files=of_files, is_carried=is_carried)
            for key, inner in value.items()
            if not (is_carried and key in OF_CATALOGUE)
        }

    def discover(self, process: str, channel: str) -> None:
        """As a user's `discover` does it, with what each remembers from before."""

        def in_memory() -> Discovery | None:
            try:
                reply = self.registry.apply(commands.Discover(channel=channel), now=time.time()).reply
            except Refusal:
                return None
            assert isinstance(reply, replies.Discovered)
            return Discovery.of(reply, "broker")

        memory = _plain(in_memory())
        assert _plain(self.broker[process].discover(channel, timeout=30.0)) == memory, (
            f"the broker differs on {channel}"
        )
        via_files = self.files[process].discover(channel)
        if via_files is not None:
            assert via_files.source == "files"
            via_files = msgspec.structs.replace(via_files, source="broker")
        found = self._comparable(_plain(via_files), of_files=True)
        assert found == self._comparable(memory), f"the directory differs on {channel}"

    def close_files(self) -> None:
        for files in self.files.values():
            files.close()


def _answer(ask: Callable[[], Any]) -> Any:
    return _uncounted(answer_of(ask))


def _plain(value: Any) -> Any:
    """As JSON, without what each counts for itself."""
    return _uncounted(plain(value))


def _uncounted(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: list(map(_uncounted, inner.items()))
            if key in ("producers", "consumers") and isinstance(inner, dict)
            else _uncounted(inner)
            for key, inner in value.items()
            if key not in COUNTED
        }
    return [_uncounted(item) for item in value] if isinstance(value, list | tuple) else value


_histories = itertools.count()


class OneHistory(RuleBasedStateMachine):
    def __init__(self, access: Access) -> None:
        super().__init__()
        self.access = access
        self.base = f"h{next(_histories):06}"
        self.members: dict[Member, str] = {}  # and whose they are
        self.tables: set[str] = set()
        self.kills = 0

    def teardown(self) -> None:
        for process in PROCESSES:
            self.end(process)
        for channel in sorted(self.tables):
            self.drop(channel)
        self.agree()

    def name(self, channel: str) -> str:
        """The channel's name in this history."""
        return self.base + channel.removeprefix("a")

    def register(self, process: str, command: commands.RegisterProducer | commands.RegisterConsumer) -> None:
        said = msgspec.structs.replace(command, **self.access.owner(process))
        for _ in range(2):  # saying it again changes nothing
            reply = self.access.ask(process, said)
        if reply["type"] == "ERROR":
            return
        kind = "producer" if isinstance(command, commands.RegisterProducer) else "consumer"
        self.members[kind, reply["channel"], reply[f"{kind}_id"]] = process

    @rule(process=processes, command=producers, schema=carried)
    def produce(self, process: str, command: commands.RegisterProducer, schema: dict[str, Any] | None) -> None:
        channel = self.name(command.channel)
        self.register(process, msgspec.structs.replace(command, channel=channel, **(schema or {})))

    @rule(process=processes, command=consumers)
    def consume(self, process: str, command: commands.RegisterConsumer) -> None:
        self.register(process, msgspec.structs.replace(command, channel=self.name(command.channel)))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), process=processes, command=consumers)
    def consume_what_is_there(self, data: st.DataObject, process: str, command: commands.RegisterConsumer) -> None:
        channel = data.draw(st.sampled_from(sorted({channel for _, channel, _ in self.members})))
        self.register(process, msgspec.structs.replace(command, channel=channel))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), other=processes)
    def unregister(self, data: st.DataObject, other: str) -> None:
        """By its owner, or by another process, or a second time."""
        member = data.draw(st.sampled_from(sorted(self.members)))
        process = data.draw(st.sampled_from([self.members[member], other]))
        for _ in range(2):
            reply = self.access.ask(process, _unregistration(member, process))
            if reply["type"] != "ERROR":
                del self.members[member]

    @rule(process=processes, channel=st.sampled_from(CHANNELS), number=st.sampled_from([0, 0, 1, 1, 2]))
    def publish_table(self, process: str, channel: str, number: int) -> None:
        """As `hub.publish_table` does: check, commit, register; the commit is all that the directory needs."""
        channel = self.name(channel)
        known = self.access.registry.channels.get(channel)
        if known is not None and known.priority != "normal":
            return
        said = {"schema": TEXTS[number], "schema_hash": HASHES[number], "schema_type": "ARROW"}
        checked = self.access.ask(process, commands.CheckTable(channel=channel, **said))  # type: ignore[arg-type]
        if checked["type"] == "ERROR":
            return
        directory = self.access.directory
        directory.make_tables(channel)
        manifest = (
            self.access.files[PROCESSES[0]]
            .tables(channel)
            .publish(
                TABLES[number].to_reader(),
                TABLES[number].schema,
                now=time.time(),
                schema_hash=HASHES[number],
                details=table_details(TEXTS[number]),
            )
        )
        command = table_command(directory, channel, manifest)
        for _ in range(2):
            assert self.access.ask_catalogues(process, command)["type"] == "TABLE_REGISTER_ACK"
        self.tables.add(channel)

    @rule(process=processes, channel=st.sampled_from(CHANNELS))
    def drop_table(self, process: str, channel: str) -> None:
        """Of a channel that has one, or has none, or is not known."""
        self.drop(self.name(channel), process)

    def drop(self, channel: str, process: str = PROCESSES[0]) -> None:
        dropped = self.access.ask(process, commands.DropTable(channel=channel, host=ME.host))
        assert (dropped["type"] != "ERROR") == (channel in self.tables)
        self.tables.discard(channel)

    @rule(process=processes, channel=channels)
    def unregister_nobody(self, process: str, channel: str) -> None:
        channel = self.name(channel)
        self.access.ask(process, commands.UnregisterProducer(channel=channel, producer_id="nobody", lease=process))
        self.access.ask(process, commands.UnregisterConsumer(channel=channel, consumer_id="nobody", lease=process))

    @rule(process=processes)
    def end(self, process: str) -> None:
        """The process ends: its files' locks are free, and of the others it takes leave."""
        for member in [member for member, owner in self.members.items() if owner == process]:
            command = _unregistration(member, process)
            if process == KILLED:
                self.access.ask(process, command)
            else:
                self.access.ask_catalogues(process, command)
            del self.members[member]
        if process != KILLED:
            self.access.files[process].close()
            self.access.files[process] = self.access.open_files()

    @precondition(lambda self: KILLED in self.members.values() and not self.kills)
    @rule()
    def kill(self) -> None:
        """A process dies with all that it registered, and nobody says so."""
        self.kills += 1
        members = [member for member, process in self.members.items() if process == KILLED]
        self.access.kill(members)
        for member in members:
            del self.members[member]

    @rule()
    def clean(self) -> None:
        """Long afterwards, what the dead left behind is removed; nobody who lives is concerned."""
        clean(self.access.directory, now=time.time() + 2 * LINGER_SECONDS, linger_seconds=LINGER_SECONDS)

    @precondition(lambda self: any(self.can_die(member) for member in self.members))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A producer's lock is free and its entry stays: that counts as gone."""
        member = data.draw(st.sampled_from(sorted(filter(self.can_die, self.members))))
        process = self.members.pop(member)
        self.access.ask_catalogues(process, _unregistration(member, process))
        _, channel, producer_id = member
        own_id = None if producer_id.endswith("/default") else producer_id
        files = self.access.files[process]
        files.release(channel, own_id)
        Path(files.directory.channel_path(channel), f"{file_id(own_id)}.lock").unlink()  # of the whole process

    def can_die(self, member: Member) -> bool:
        return member[0] == "producer" and self.members[member] != KILLED

    @rule()
    def grow_old(self) -> None:
        """What changed long enough ago is remembered by `discover`, until it changes again."""
        for place, _, _ in os.walk(self.access.directory.path):
            os.utime(place, (time.time(), time.time() - 1.0))
        for _ in range(2):
            self.agree()

    @rule(process=processes, prefix=st.sampled_from(["a", "a.", "ac"]), after=st.sampled_from(["", "a", "z"]))
    def list_channels(self, process: str, prefix: str, after: str) -> None:
        prefix, after = (self.name(each) if each.startswith("a") else each for each in (prefix, after))
        for limit in (1, 2, 1000):
            self.access.ask(process, commands.ListChannels(prefix=prefix, after=after, limit=limit))

    @invariant()
    def agree(self) -> None:
        listed = self.access.ask(PROCESSES[0], commands.ListChannels(prefix=self.base))
        known = {channel for _, channel, _ in self.members} | self.tables
        assert [each["channel"] for each in listed["channels"]] == sorted(known)
        tables = self.access.ask(PROCESSES[0], commands.ListTables(prefix=self.base))
        assert [each["channel"] for each in tables["tables"]] == sorted(self.tables)
        for process, channel in zip(PROCESSES, map(self.name, CHANNELS), strict=False):
            self.access.ask(process, commands.Discover(channel=channel))
            self.access.ask(process, commands.DescribeChannel(channel=channel))
            self.access.ask(process, commands.ListConsumers(channel=channel))
            self.access.discover(process, channel)


def _unregistration(member: Member, process: str) -> commands.Command:
    kind, channel, member_id = member
    if kind == "producer":
        return commands.UnregisterProducer(channel=channel, producer_id=member_id, lease=process)
    return commands.UnregisterConsumer(channel=channel, consumer_id=member_id, lease=process)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[dict[str, ViaBroker]]:
    domain = f"{os.environ['MESSAGEHUB_DOMAIN']}-broker"
    with ExitStack() as stack:
        endpoint = stack.enter_context(checked_broker(domain=domain))
        found = {}
        for process in PROCESSES:
            place = Settings.load(endpoint=endpoint, dir=tmp_path / process, domain=domain)
            connection = Connection(place, name=process)
            stack.callback(connection.close)
            found[process] = ViaBroker(connection)
        yield found


@pytest.mark.timeout(600)
def test_one_history_gets_the_same_answers(broker: dict[str, ViaBroker]) -> None:
    access = Access(Registry(), broker, os.environ["MESSAGEHUB_DOMAIN"])
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            lambda: OneHistory(access),
            settings=settings(max_examples=examples(30), stateful_step_count=20, deadline=None),
        )
    finally:
        access.close_killed()
        access.close_files()
