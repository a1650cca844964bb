"""Write `schemas/`: one JSON Schema (2020-12) per wire message and samples, from the Structs that decode them.

Rule 1: the output depends on the Structs alone, so that any difference from what is checked in is drift.
Rule 2: a file stands alone: what a message refers to is in its own `$defs`.
Rule 3: samples come from the registry itself, run over the sample requests; only what a broker answers by itself
is written down here.

    python -m tools.schema_files            write what differs, remove what is no message any more
    python -m tools.schema_files --check    change nothing; exit 1 on drift
"""

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from messagehub import protocol
from registry import commands, replies
from registry.events import AnyEvent, ServiceChanged
from registry.records import Keep, PublisherProcess, RetainedTopic, SiteHost
from registry.registry import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DEFAULT_DIR = Path(__file__).resolve().parents[1] / "schemas"

MESSAGES: dict[str, dict[str, type[msgspec.Struct]]] = {
    kind: {str(message.__struct_config__.tag): message for message in members}
    for kind, members in {
        "request": get_args(commands.AnyCommand),
        "reply": get_args(replies.AnyReply),
        "event": (*get_args(AnyEvent), ServiceChanged, protocol.Beacon),
    }.items()
}

DRAFTS: tuple[dict[str, Any], ...] = (
    {
        "type": "PRODUCER_REGISTER",
        "channel": "sensor_data",
        "schema_hash": "abc123...",
        "schema_version": "1.0.0",
        "config": {"policy": "RingBuffer", "capacity": 10, "page_size": 4096},
    },
    {
        "type": "CONSUMER_REGISTER",
        "channel": "sensor_data",
        "consumer_id": "consumer_001",
        "expected_schema_hash": "abc123...",
    },
    {"type": "DISCOVERY_REQUEST", "channel": "sensor_data"},
    {
        "type": "DISCOVERY_RESPONSE",
        "channel": "sensor_data",
        "shm_name": "/pylabhub_sensor_data",
        "schema_hash": "abc123...",
        "schema_version": "1.0.0",
        "status": "active",
    },
)

_BILLING = {"topic": "orders.eu", "position": "billing", "incarnation": 18}
_CONSUMER_LEASE = "sensor_data/consumer/consumer_001"
_SCENARIO: tuple[dict[str, Any] | float, ...] = (
    *DRAFTS[:3],
    {"type": "SCHEMA_REGISTER", "id": "1", "subject": "sensor_data", "schema": {"type": "object"}},
    {"type": "SCHEMA_REQUEST", "id": "2", "subject": "sensor_data", "version": 1},
    {"type": "SCHEMA_LIST_REQUEST", "id": "3", "subject": "sensor_data"},
    {"type": "SCHEMA_LOOKUP_REQUEST", "id": "19", "subject": "sensor_data", "schema": {"type": "object"}},
    {"type": "SCHEMA_CHECK", "id": "20", "subject": "sensor_data", "schema": {"type": "string"}},
    {"type": "SCHEMA_EXPORT_REQUEST", "id": "21", "prefix": "sensor"},
    {"type": "SCHEMA_CONFIG_SET", "id": "22", "subject": "sensor_data", "config": {"compatibility": "FULL"}},
    {"type": "SCHEMA_CONFIG_REQUEST", "id": "23", "subject": "sensor_data"},
    {"type": "SCHEMA_MODE_SET", "id": "24", "subject": "archive", "mode": "READONLY"},
    {"type": "SCHEMA_MODE_REQUEST", "id": "25", "subject": "archive"},
    {"type": "SCHEMA_DELETE", "id": "26", "subject": "sensor_data", "version": 1},
    {"type": "CHANNEL_LIST_REQUEST", "id": "4", "prefix": "sensor", "limit": 100},
    {"type": "CHANNEL_DESCRIBE_REQUEST", "id": "5", "channel": "sensor_data"},
    {"type": "CONSUMER_LIST_REQUEST", "id": "6", "channel": "sensor_data"},
    {"type": "SNAPSHOT_REQUEST", "id": "7", "after": "", "limit": 500},
    20.0,  # seconds of silence: both members stall, and recover by their heartbeats
    {"type": "HEARTBEAT", "id": "8", "lease": _CONSUMER_LEASE},
    {"type": "HEARTBEAT", "id": "9", "lease": "sensor_data/default"},
    {"type": "CONSUMER_UNREGISTER", "id": "10", "channel": "sensor_data", "consumer_id": "consumer_001"},
    {"type": "PRODUCER_UNREGISTER", "id": "11", "channel": "sensor_data"},
    {
        "type": "CHANNEL_CREATE",
        "id": "12",
        "priority": "high",
        "channel": "camera.front",
        "schema": {"type": "object", "required": ["frame"]},
        "schema_type": "JSON",
        "access": "shared",
        "config": {"policy": "RingBuffer", "capacity": 4},
        "metadata": {"owner": "optics"},
    },
    {"type": "CHANNEL_DESTROY", "id": "13", "channel": "camera.front"},
    {"type": "TOPIC_KEEP", "id": "27", "topic": "orders.eu", "keep": {"messages": 1000, "seconds": 86400.0}},
    {
        "type": "TOPIC_PUBLISH",
        "id": "28",
        "topic": "orders.eu",
        "publisher": "shop-1",
        "number": 1,
        "messages": [{"payload": "eyJpZCI6N30=", "kind": "json", "headers": {"trace": "abc"}}],
    },
    {"type": "TOPIC_LIST_REQUEST", "id": "29", "pattern": "orders.>"},
    {"type": "TOPIC_READ_REQUEST", "id": "30", "topic": "orders.eu", "offset": 1, "limit": 100},
    {"type": "TOPIC_DESCRIBE_REQUEST", "id": "31", "topic": "orders.eu"},
    {
        "type": "SUBSCRIBER_REGISTER",
        "id": "320",
        "kind": "position",
        "name": "billing",
        "patterns": ["orders.eu"],
        "member_id": "billing-1",
        "lease": "host:4242",
        "host": "host",
        "pid": 4242,
    },
    {"type": "POSITION_OPEN", "id": "321", "topic": "orders.eu", "position": "billing", "max_deliveries": 5},
    {
        "type": "POSITION_FETCH",
        "id": "322",
        **_BILLING,
        "member_id": "billing-1",
        "lease": "host:4242",
        "limit": 10,
        "renew": [],
    },
    {"type": "POSITION_DESCRIBE_REQUEST", "id": "323", "topic": "orders.eu", "position": "billing"},
    {
        "type": "POSITION_RETURN",
        "id": "324",
        **_BILLING,
        "member_id": "billing-1",
        "lease": "host:4242",
        "offsets": [1],
    },
    {"type": "POSITION_ACKNOWLEDGE", "id": "325", **_BILLING, "offsets": [1]},
    {"type": "POSITION_LIST_REQUEST", "id": "326", "topic": "orders.eu"},
    {"type": "POSITION_RESET", "id": "327", "topic": "orders.eu", "position": "billing", "offset": 1},
    {"type": "POSITION_DELETE", "id": "328", "topic": "orders.eu", "position": "billing"},
    {"type": "SUBSCRIBER_UNREGISTER", "id": "329", "member_id": "billing-1", "lease": "host:4242"},
    {"type": "TOPIC_DELETE", "id": "32", "topic": "orders.eu"},
    {
        "type": "SERVICE_REGISTER",
        "id": "27",
        "address": "pool:resizers",
        "worker_id": "resizer-1",
        "endpoint": "unix:@messagehub-0123456789abcdef",
        "key": "00112233445566778899aabbccddeeff",
        "lease": "host:4242",
        "strategy": "least_busy",
        "concurrency": 4,
        "host": "host",
        "pid": 4242,
    },
    {"type": "SERVICE_RESOLVE_REQUEST", "id": "28", "address": "pool:resizers"},
    {"type": "SERVICE_LIST_REQUEST", "id": "29", "prefix": "pool:"},
    {"type": "SERVICE_UNREGISTER", "id": "30", "worker_id": "resizer-1", "lease": "host:4242"},
    {"type": "POOL_REMOVE", "id": "31", "address": "pool:resizers"},
    {
        "type": "DEAD_LETTER_REPORT",
        "id": "32",
        "letter": {
            "address": "service:resize",
            "code": "SERVICE_NOT_FOUND",
            "reason": "nobody serves service:resize",
            "form": "send",
            "sender": "hub-1",
            "attempts": 3,
            "headers": {"trace": "abc"},
            "payload_kind": "json",
            "payload_base64": "eyJ3aWR0aCI6NjR9",
            "payload_bytes": 12,
            "at": 1.0,
        },
    },
    {"type": "DEAD_LETTER_LIST_REQUEST", "id": "33", "limit": 10},
    {"type": "DEAD_LETTER_REMOVE", "id": "331", "numbers": [1, 2]},
    {
        "type": "TABLE_CHECK",
        "id": "34",
        "channel": "prices",
        "schema": '{"fields":[{"name":"id","type":"int64"}]}',
        "schema_type": "ARROW",
    },
    {
        "type": "TABLE_REGISTER",
        "id": "35",
        "channel": "prices",
        "schema": '{"fields":[{"name":"id","type":"int64"}]}',
        "schema_type": "ARROW",
        "generation": 1,
        "shm_name": "/messagehub-1000/default/channels/prices/tables/g000000000001.json",
        "rows": 3,
        "size_bytes": 640,
        "parts": 2,
        "hosts": {"host": 2},
        "host": "host",
        "user": "ada",
        "application": "local-1700000000000",
        "pid": 4242,
        "committed_at": 20.0,
    },
    {"type": "TABLE_LIST_REQUEST", "id": "36", "prefix": "pr"},
    {"type": "TABLE_DROP", "id": "37", "channel": "prices", "host": "host"},
    {"type": "HELLO", "id": "14", "versions": ["1.0"], "client": "example/1.0", "features": []},
    {
        "type": "SUBSCRIPTION_REPORT",
        "id": "93",
        "lease": "host:0f3a:4242:1",
        "program": "billing.py",
        "host": "host",
        "pid": 4242,
        "subscriptions": [
            {"patterns": ["orders.>"], "received": 7, "buffered": 1, "lost": 0, "began_at": 20.0, "received_at": 25.0}
        ],
    },
    {"type": "SUBSCRIPTION_LIST_REQUEST", "id": "94", "topic": "orders.eu"},
    {"type": "MESSAGE_TRACE_REQUEST", "id": "95", "topic": "orders.eu", "offset": 1},
    {"type": "HOST_LIST_REQUEST", "id": "54"},
    {"type": "GATEWAY_REQUEST", "id": "55", "channel": "sensor_data", "host": "acquisition1"},
    {"type": "PING", "id": "15"},
    {"type": "STATS_REQUEST", "id": "16"},
    {"type": "TRACE_REQUEST", "id": "17", "correlation_id": "15", "limit": 10},
    {"type": "PRODUCER_REGISTER", "id": "90", "channel": "camera.rear", "schema_hash": "abc123..."},
    {"type": "CONSUMER_REGISTER", "id": "91", "channel": "camera.rear", "consumer_id": "slow_reader"},
    {"type": "MEMBER_EVICT", "id": "92", "channel": "camera.rear", "member_id": "slow_reader"},
)

_ORDERS = RetainedTopic(
    name="orders.eu",
    keep=Keep(messages=1000, seconds=86400.0),
    incarnation=15,
    created_at=20.0,
    next_offset=2,
    total_bytes=23,
    revision=16,
)
_BY_THE_BROKER: tuple[replies.Reply | protocol.Beacon, ...] = (
    replies.Error(
        id="18",
        code="CHANNEL_NOT_FOUND",
        message="nobody has registered channel 'sensor_dat'",
        details={"channel": "sensor_dat"},
        retryable=True,
    ),
    replies.HelloAck(
        id="14",
        version=protocol.VERSION,
        broker_id="0123456789abcdef",
        revision=15,
        heartbeat_seconds=5.0,
        lease_seconds=30.0,
        beacon_seconds=1.0,
        endpoints={"control": "tcp://127.0.0.1:5570", "events": "tcp://127.0.0.1:5571"},
        server="messagehub/0.1.0",
    ),
    replies.Pong(id="15", broker_id="0123456789abcdef", revision=15, read_only=False),
    replies.StatsReport(
        id="16",
        broker_id="0123456789abcdef",
        version="0.1.0",
        pid=4242,
        uptime_seconds=12.5,
        revision=15,
        read_only=False,
        channels=0,
        producers=0,
        consumers=0,
        leases=2,
        schemas=2,
        requests={},
        counters={"malformed": 0},
        gauges={"watched_processes": 1},
        store={"written_revision": 15, "transactions": 9},
    ),
    replies.HostList(
        id="54",
        site="lab",
        host="acquisition1",
        role="follower",
        hosts=[
            SiteHost(
                host="acquisition1",
                health="healthy",
                revision=15,
                endpoint="tcp://10.0.0.1:5575",
                gateway="grpc://10.0.0.1:5576",
                version="0.1.0",
            ),
            SiteHost(
                host="acquisition2",
                health="healthy",
                is_leader=True,
                revision=15,
                endpoint="tcp://10.0.0.2:5575",
                version="0.1.0",
            ),
        ],
        age_seconds=0.4,
        revision=15,
    ),
    replies.GatewayFound(
        id="55",
        host="acquisition1",
        location="grpc://10.0.0.1:5576",
        token="site.eyJ9.c2lnbmVk",
        valid_seconds=3600.0,
    ),
    replies.TraceReport(
        id="17",
        exchanges=[{"side": "broker", "at": 1.0, "correlation_id": "15", "request": "PING", "answer": "PONG"}],
    ),
    replies.SubscriptionsNoted(id="93", subscriptions=1),
    replies.SubscriptionList(
        id="94",
        subscriptions=[
            replies.ReportedSubscription(
                patterns=["orders.>"],
                received=7,
                buffered=1,
                began_at=20.0,
                received_at=25.0,
                program="billing.py",
                host="host",
                pid=4242,
                reported_at=26.0,
            )
        ],
        total=1,
    ),
    replies.MessageTrace(
        id="95",
        topic="orders.eu",
        publisher="0f00000000000000",
        number=1,
        offset=1,
        published_by=PublisherProcess(program="shop.py", host="host", pid=4243),
        published_at=20.0,
        correlation_id="29",
        subscriptions=[
            replies.TracedSubscription(
                patterns=["orders.>"],
                received=7,
                began_at=10.0,
                received_at=25.0,
                program="billing.py",
                host="host",
                pid=4242,
                reported_at=26.0,
                outcome="delivered",
                reason="its program has taken it",
            )
        ],
        positions=[
            replies.TracedPosition(
                position="invoices",
                outcome="handed_out",
                deliveries=1,
                member_id="subscriber-1",
                host="host",
                pid=4244,
                again_in_seconds=12.5,
            )
        ],
        ended=[],
        is_complete=True,
    ),
    replies.TopicPage(
        id="30",
        topic="orders.eu",
        incarnation=15,
        first_offset=1,
        next_offset=2,
        messages=[
            replies.StoredMessage(offset=1, at=20.0, kind="json", payload=b'{"id":7}', headers={"trace": "abc"}),
        ],
    ),
    replies.TopicDescription(id="31", topic=_ORDERS, first_offset=1, messages=1, size_bytes=23, oldest_at=20.0),
    protocol.Beacon(revision=15, broker_id="0123456789abcdef"),
)


ANSWERED_BY_THE_BROKER = (
    commands.Hello,
    commands.ListHosts,
    commands.RequestGateway,
    commands.Ping,
    commands.Stats,
    commands.Trace,
    commands.ReportSubscriptions,
    commands.ListSubscriptions,
    commands.TraceMessage,
    commands.ReadTopic,
    commands.DescribeTopic,
)


def file_name(wire_type: str) -> str:
    return f"{wire_type.lower()}.json"


def schema(kind: str, wire_type: str) -> dict[str, Any]:
    """The JSON Schema of one message, which needs no other file."""
    message = MESSAGES[kind][wire_type]
    (reference,), definitions = msgspec.json.schema_components([message], ref_template="#/$defs/{name}")
    for definition in definitions.values():  # Python before 3.13 leaves the indentation of the source in docstrings
        if "description" in definition:
            definition["description"] = inspect.cleandoc(definition["description"])
    root = definitions.pop(reference["$ref"].removeprefix("#/$defs/"))
    described = root.pop("description", "")
    about = {"title": wire_type, "description": f"{kind.capitalize()}. {described}".strip()}
    document: dict[str, Any] = {"$schema": DIALECT} | about | root | about
    if definitions:
        document["$defs"] = dict(sorted(definitions.items()))
    return document


def samples() -> dict[str, Any]:
    """At least one valid sample per message, by file name."""
    found: dict[str, Any] = {}
    for sample in (*DRAFTS, *_played(), *map(msgspec.to_builtins, _BY_THE_BROKER)):
        found.setdefault(file_name(sample["type"]), sample)
        if sample["type"] == "DISCOVERY_RESPONSE":
            found["discovery_response_full.json"] = sample
    return found


def files() -> dict[str, bytes]:
    """Everything that belongs into `schemas/`, by path relative to it."""
    schemas = {file_name(name): schema(kind, name) for kind, members in MESSAGES.items() for name in members}
    documents = schemas | {f"samples/{name}": sample for name, sample in samples().items()}
    return {path: _pretty(document) for path, document in sorted(documents.items())}


def drift(directory: Path) -> list[str]:
    """Which files are missing, differ, or are no message any more."""
    wanted = files()
    present = {str(path.relative_to(directory)): path.read_bytes() for path in _present(directory)}
    return sorted(path for path in wanted.keys() | present.keys() if wanted.get(path) != present.get(path))


def write(directory: Path) -> list[str]:
    """Make `schemas/` what it should be; returns what changed."""
    wanted = files()
    changed = drift(directory)
    for path in changed:
        target = directory / path
        if path in wanted:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(wanted[path])
        else:
            target.unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.schema_files", description="Write schemas/ anew.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is not up to date")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help="where the schemas are (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.check:
        changed = drift(options.dir)
        verdict = "is not up to date: run `make generate`"
    else:
        changed = write(options.dir)
        verdict = "written"
    for path in changed:
        sys.stdout.write(f"{path}: {verdict}\n")
    return 1 if options.check and changed else 0


def _played() -> Iterator[dict[str, Any]]:
    """The scenario's requests with the registry's own replies and events."""
    registry = Registry()
    now = 0.0
    for step in _SCENARIO:
        if isinstance(step, float):
            now += step
            yield from map(msgspec.to_builtins, registry.expire(now=now))
            continue
        yield step
        command = protocol.decode(protocol.encode(step))
        if isinstance(command, ANSWERED_BY_THE_BROKER):
            continue
        reply, happened = registry.apply(command, now=now)
        yield msgspec.json.decode(protocol.encode_reply(reply, command.id))
        yield from map(msgspec.to_builtins, [*happened, *registry.services.take_happened()])
    yield from map(msgspec.to_builtins, _seen())


def _seen() -> Iterator[AnyEvent]:
    """What no request brings about alone: a group's shares, and what a broker sees of its host."""
    registry = Registry()
    registry.apply(commands.RegisterProducer(channel="sensor_data", schema_hash="abc123..."), now=0.0)
    member = commands.RegisterConsumer(channel="sensor_data", consumer_id="consumer_001", group="crew")
    yield from registry.apply(member, now=0.0).events
    yield from registry.host_events.show_conflict("sensor_data", "two producers claim it", now=2.0)


def _present(directory: Path) -> Iterable[Path]:
    return (*directory.glob("*.json"), *directory.glob("samples/*.json"))


def _pretty(document: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


if __name__ == "__main__":
    sys.exit(main())
