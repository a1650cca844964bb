"""One history, the same answers: the registry in memory, through a broker, and over the directory with no broker.

Hypothesis makes the history. Each step is asked of all three, and after each everything that can be read of the
channels is compared. Only numbers that each of them counts for itself (revisions, times, ids of requests) may differ.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
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

from messagehub import embedded_broker, protocol
from messagehub.client.connection import Connection
from messagehub.datablock.directory import Directory
from messagehub.datablock.identity import ProcessIdentity
from messagehub.discovery import Discovery
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_files import ViaFiles
from messagehub.entries import file_id
from messagehub.errors import HubError
from messagehub.settings import Settings
from registry import commands, replies
from registry.errors import Refusal
from registry.registry import Registry

ME = ProcessIdentity.current()
OWNER: dict[str, Any] = {"host": ME.host, "pid": ME.pid, "start_time": ME.start_time, "boot_id": ME.boot_id}
PROCESSES = ["L1", "L2", "L3"]
CHANNELS = ["a", "a.b"]
COUNTED = {"id", "revision", "registered_at", "created_at"}

Member = tuple[str, str, str]  # kind, channel, id

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
consumers = st.builds(
    commands.RegisterConsumer,
    channel=channels,
    consumer_id=st.sampled_from(["c1", "b1", "p1"]),
    expected_schema_hash=st.sampled_from([None, None, "h1", "h2"]),
    required=st.sampled_from([False, False, True]),
    priority=st.sampled_from(["normal", "high"]),
    metadata=st.sampled_from([{}, {"room": 7}, {"room": 7}, None]),
)


class Access:
    """The three ways to one registry; each process has its own connection and its own open files."""

    def __init__(self, broker: dict[str, ViaBroker], domain: str) -> None:
        self.registry = Registry()
        self.broker = broker
        self.domain = domain
        self.files = {process: self.open_files() for process in PROCESSES}

    def open_files(self) -> ViaFiles:
        return ViaFiles(Directory(self.domain), shm_prefix="pylabhub_")

    def ask(self, process: str, command: commands.Command) -> Any:
        """Return what all three answer."""
        return agreed(
            [
                _answer(lambda: self.registry.apply(protocol.decode(protocol.encode(command)), now=time.time()).reply),
                _answer(lambda: self.broker[process].ask(msgspec.structs.replace(command), timeout=30.0)),
                _answer(lambda: self.files[process].ask(msgspec.structs.replace(command), timeout=30.0)),
            ],
            command,
        )

    def discover(self, process: str, channel: str) -> None:
        """As a user's `discover` does it, with what each remembers from before."""

        def in_memory() -> Discovery | None:
            try:
                reply = self.registry.apply(commands.Discover(channel=channel), now=time.time()).reply
            except Refusal:
                return None
            assert isinstance(reply, replies.Discovered)
            return Discovery.of(reply, "broker")

        via_broker = self.broker[process].discover(channel, timeout=30.0)
        via_files = self.files[process].discover(channel)
        if via_files is not None:
            assert via_files.source == "files"
            via_files = msgspec.structs.replace(via_files, source="broker")
        agreed([_plain(in_memory()), _plain(via_broker), _plain(via_files)], channel)

    def close_files(self) -> None:
        for files in self.files.values():
            files.close()


def agreed(answers: list[Any], asked: object) -> Any:
    memory, broker, files = answers
    assert broker == memory, f"the broker differs on {asked}"
    assert files == memory, f"the directory differs on {asked}"
    return memory


def _answer(ask: Any) -> Any:
    try:
        return _plain(ask())
    except HubError as refused:
        return {"type": "ERROR", "code": refused.code, "message": refused.message, "details": _plain(refused.details)}


def _plain(value: Any) -> Any:
    """As JSON, without what each counts for itself."""
    return _uncounted(msgspec.to_builtins(value))


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


class OneHistory(RuleBasedStateMachine):
    def __init__(self, broker: dict[str, ViaBroker], domain: str) -> None:
        super().__init__()
        self.access = Access(broker, domain)
        self.members: dict[Member, str] = {}  # and whose they are

    def teardown(self) -> None:
        try:
            for process in PROCESSES:
                self.end(process)
            self.agree()
        finally:
            self.access.close_files()

    def register(self, process: str, command: commands.RegisterProducer | commands.RegisterConsumer) -> None:
        said = msgspec.structs.replace(command, lease=process, **OWNER)
        for _ in range(2):  # saying it again changes nothing
            reply = self.access.ask(process, said)
        if reply["type"] == "ERROR":
            return
        kind = "producer" if isinstance(command, commands.RegisterProducer) else "consumer"
        self.members[kind, reply["channel"], reply[f"{kind}_id"]] = process

    @rule(process=processes, command=producers)
    def produce(self, process: str, command: commands.RegisterProducer) -> None:
        self.register(process, command)

    @rule(process=processes, command=consumers)
    def consume(self, process: str, command: commands.RegisterConsumer) -> None:
        self.register(process, command)

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

    @rule(process=processes, channel=channels)
    def unregister_nobody(self, process: str, channel: str) -> None:
        self.access.ask(process, commands.UnregisterProducer(channel=channel, producer_id="nobody", lease=process))
        self.access.ask(process, commands.UnregisterConsumer(channel=channel, consumer_id="nobody", lease=process))

    @rule(process=processes)
    def end(self, process: str) -> None:
        """The process ends: its files' locks are free, and of the others it takes leave."""
        for member in [member for member, owner in self.members.items() if owner == process]:
            command = _unregistration(member, process)
            self.access.registry.apply(command, now=time.time())
            self.access.broker[process].ask(msgspec.structs.replace(command), timeout=30.0)
            del self.members[member]
        self.access.files[process].close()
        self.access.files[process] = self.access.open_files()

    @precondition(lambda self: any(kind == "producer" for kind, _, _ in self.members))
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """A producer's lock is free and its entry stays: that counts as gone."""
        member = data.draw(st.sampled_from(sorted(m for m in self.members if m[0] == "producer")))
        process = self.members.pop(member)
        command = _unregistration(member, process)
        self.access.registry.apply(command, now=time.time())
        self.access.broker[process].ask(msgspec.structs.replace(command), timeout=30.0)
        _, channel, producer_id = member
        own_id = None if producer_id.endswith("/default") else producer_id
        files = self.access.files[process]
        files.release(channel, own_id)
        Path(files.directory.channel_path(channel), f"{file_id(own_id)}.lock").unlink()  # of the whole process

    @rule()
    def grow_old(self) -> None:
        """What changed long enough ago is remembered by `discover`, until it changes again."""
        for place, _, _ in os.walk(self.access.files[PROCESSES[0]].directory.path):
            os.utime(place, (time.time(), time.time() - 1.0))
        for _ in range(2):
            self.agree()

    @rule(process=processes, prefix=st.sampled_from(["", "a", "a.", "c"]), after=st.sampled_from(["", "a", "z"]))
    def list_channels(self, process: str, prefix: str, after: str) -> None:
        for limit in (1, 2, 1000):
            self.access.ask(process, commands.ListChannels(prefix=prefix, after=after, limit=limit))

    @invariant()
    def agree(self) -> None:
        listed = self.access.ask(PROCESSES[0], commands.ListChannels())
        assert [each["channel"] for each in listed["channels"]] == sorted({channel for _, channel, _ in self.members})
        for process, channel in zip(PROCESSES, CHANNELS, strict=False):
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
        endpoint = stack.enter_context(embedded_broker(domain=domain))
        found = {}
        for process in PROCESSES:
            place = Settings.load(endpoint=endpoint, dir=tmp_path / process, domain=domain)
            connection = Connection(place, name=process)
            stack.callback(connection.close)
            found[process] = ViaBroker(connection)
        yield found


def test_one_history_gets_the_same_answers(broker: dict[str, ViaBroker]) -> None:
    domain = os.environ["MESSAGEHUB_DOMAIN"]
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        lambda: OneHistory(broker, domain), settings=settings(stateful_step_count=20, deadline=None)
    )
