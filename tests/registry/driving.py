"""Drive a registry by wire messages and a clock, checking after each step what must always hold."""

from typing import Any

import msgspec
import pytest

from registry import commands, events, replies
from registry.channels.leases import Terms
from registry.errors import Refusal
from registry.records import SchemaType
from registry.registry import Registry
from registry.schemas.checks import SchemaCheck, run_check, text_of
from tests.registry.observing import Watcher, encoded_channels, members_of_leases, whole_state

TERMS = Terms(heartbeat_seconds=5.0, stall_seconds=15.0, lease_seconds=60.0)


class Driver:
    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or Registry(terms=TERMS)
        self.now = 1000.0
        self.happened: list[events.AnyEvent] = []
        self.watcher = Watcher(self.registry)

    def ask(self, wire_type: str, **fields: Any) -> Any:
        """The reply; `happened` holds the events. A refusal is raised, having changed nothing."""
        command: commands.AnyCommand = msgspec.convert({"type": wire_type, **fields}, commands.AnyCommand)
        before = whole_state(self.registry)
        try:
            outcome = self.registry.apply(command, now=self.now)
        except Refusal:
            assert whole_state(self.registry) == before, "a refused command changes nothing"
            raise
        self._heard(outcome.events)
        return outcome.reply

    def refused(self, refusal: type[Refusal], wire_type: str, **fields: Any) -> Refusal:
        with pytest.raises(refusal) as caught:
            self.ask(wire_type, **fields)
        assert type(caught.value) is refusal
        return caught.value

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._heard(self.registry.expire(now=self.now))

    def _heard(self, happened: list[events.AnyEvent]) -> None:
        self.happened = happened
        for event in happened:
            self.watcher.hear(event)
        self.check()

    def check(self) -> None:
        """The watcher has the registry's channels; members and leases name each other."""
        channels = self.registry.channels
        assert encoded_channels(self.watcher.channels) == encoded_channels(channels)
        listed = {(lease, *member) for lease, members in members_of_leases(self.registry).items() for member in members}
        producers = {
            (p.lease, "producer", c.name, p.producer_id) for c in channels.values() for p in c.producers.values()
        }
        consumers = {
            (m.lease, "consumer", c.name, m.consumer_id) for c in channels.values() for m in c.consumers.values()
        }
        services = self.registry.services.addresses()
        workers = {(w.lease, "worker", w.address, w.worker_id) for s in services for w in s.workers}
        assert listed == producers | consumers | workers

    # -- the usual ---------------------------------------------------------------------------------------

    def produce(self, channel: str = "c", schema_hash: str = "h", **fields: Any) -> replies.ProducerRegistered:
        reply = self.ask("PRODUCER_REGISTER", channel=channel, schema_hash=schema_hash, **fields)
        assert isinstance(reply, replies.ProducerRegistered)
        return reply

    def consume(self, channel: str = "c", consumer_id: str = "reader", **fields: Any) -> replies.ConsumerRegistered:
        reply = self.ask("CONSUMER_REGISTER", channel=channel, consumer_id=consumer_id, **fields)
        assert isinstance(reply, replies.ConsumerRegistered)
        return reply

    def discover(self, channel: str = "c") -> replies.Discovered:
        reply = self.ask("DISCOVERY_REQUEST", channel=channel)
        assert isinstance(reply, replies.Discovered)
        return reply

    def beat(self, lease: str) -> replies.HeartbeatAck:
        reply = self.ask("HEARTBEAT", lease=lease)
        assert isinstance(reply, replies.HeartbeatAck)
        return reply

    def types(self) -> list[str]:
        """The wire types of what just happened."""
        return [str(type(event).__struct_config__.tag) for event in self.happened]


def digest_of(schema: Any, schema_type: SchemaType = "JSON") -> str:
    """What a schema hashes to."""
    return run_check(SchemaCheck(schema_type=schema_type, text=text_of(schema))).schema_hash
