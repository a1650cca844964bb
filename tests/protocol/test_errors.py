"""Every error class that registry and protocol can raise is raised here for real, and arrives as itself."""

import json
from typing import Any

import pytest

from messagehub import protocol
from messagehub.errors import BY_CODE, HubError
from registry.registry import Registry
from registry.schemas.checks import SchemaCheck, run_check, text_of

OBJECT = {"type": "object"}
DEEP: Any = json.loads("[" * 200 + "]" * 200)
PRODUCER = {"type": "PRODUCER_REGISTER", "channel": "c", "schema_hash": "h"}
TABLE = {"type": "TABLE_REGISTER", "channel": "c", "generation": 1, "shm_name": "/t/g1.json"}
SCHEMA = {"type": "SCHEMA_REGISTER", "subject": "s", "schema": OBJECT}
DELETE = {"type": "SCHEMA_DELETE", "subject": "s"}
OBJECT_HASH = run_check(SchemaCheck(schema_type="JSON", text=text_of(OBJECT))).schema_hash
CONSUMER = {"type": "CONSUMER_REGISTER", "channel": "c", "consumer_id": "r"}
WORKER = {
    "type": "SERVICE_REGISTER",
    "address": "pool:p",
    "worker_id": "w",
    "endpoint": "unix:@e",
    "key": "k",
    "lease": "l",
}

RAISED: dict[str, list[dict[str, Any]]] = {
    "INVALID_REQUEST": [{"type": "SCHEMA_REQUEST"}],
    "UNKNOWN_TYPE": [{"type": "NOPE"}],
    "MESSAGE_TOO_LARGE": [PRODUCER | {"metadata": {"a": "x" * 2**20}}],
    "UNSUPPORTED_PROTOCOL": [{"type": "PING", "protocol": "2.0"}],
    "INVALID_NAME": [PRODUCER | {"channel": "hub"}],
    "CHANNEL_NOT_FOUND": [{"type": "DISCOVERY_REQUEST", "channel": "c"}],
    "CHANNEL_NOT_READY": [PRODUCER | {"ready": False}, CONSUMER | {"required": True}],
    "CHANNEL_ALREADY_EXISTS": [
        {"type": "CHANNEL_CREATE", "channel": "c"},
        {"type": "CHANNEL_CREATE", "channel": "c", "access": "shared"},
    ],
    "CHANNEL_HAS_TABLE": [TABLE, {"type": "CHANNEL_DESTROY", "channel": "c"}],
    "TABLE_NOT_FOUND": [PRODUCER, {"type": "TABLE_DROP", "channel": "c"}],
    "TABLE_ON_OTHER_HOST": [TABLE | {"host": "a"}, {"type": "TABLE_DROP", "channel": "c", "host": "b"}],
    "NOT_OWNER": [PRODUCER, {"type": "PRODUCER_UNREGISTER", "channel": "c", "lease": "other"}],
    "NOT_REGISTERED": [PRODUCER, {"type": "CONSUMER_UNREGISTER", "channel": "c", "consumer_id": "r"}],
    "EVICTED": [PRODUCER, CONSUMER, {"type": "MEMBER_EVICT", "channel": "c", "member_id": "r"}, CONSUMER],
    "PRODUCER_ALREADY_REGISTERED": [PRODUCER, PRODUCER | {"producer_id": "p"}],
    "CONSUMER_ALREADY_REGISTERED": [PRODUCER, CONSUMER, CONSUMER | {"lease": "other"}],
    "POLICY_MISMATCH": [PRODUCER, PRODUCER | {"producer_id": "p", "access": "shared"}],
    "SCHEMA_MISMATCH": [PRODUCER, CONSUMER | {"expected_schema_hash": "x"}],
    "SCHEMA_HASH_MISMATCH": [PRODUCER | {"schema": OBJECT}],
    "ID_MISMATCH": [
        {"type": "SCHEMA_MODE_SET", "mode": "IMPORT"},
        SCHEMA | {"schema_id": 1},
        SCHEMA | {"schema_id": 2},
    ],
    "SCHEMA_NOT_FOUND": [{"type": "SCHEMA_REQUEST", "schema_id": 1}],
    "SCHEMA_INCOMPATIBLE": [SCHEMA, SCHEMA | {"schema": {"type": "string"}}],
    "NESTED_TOO_DEEPLY": [PRODUCER | {"metadata": {"a": DEEP}}],
    "SCHEMA_TOO_LARGE": [SCHEMA | {"schema": {"pattern": "a" * 100_001}}],
    "SCHEMA_TOO_COMPLEX": [SCHEMA | {"schema": "[" * 5000 + "]" * 5000}],
    "SCHEMA_IN_USE": [
        PRODUCER | {"schema": OBJECT, "schema_hash": OBJECT_HASH},
        {"type": "SCHEMA_DELETE", "subject": "c"},
    ],
    "SUBJECT_NOT_FOUND": [{"type": "SCHEMA_REQUEST", "subject": "s"}],
    "VERSION_NOT_FOUND": [SCHEMA, {"type": "SCHEMA_REQUEST", "subject": "s", "version": 2}],
    "SUBJECT_SOFT_DELETED": [SCHEMA, DELETE, DELETE],
    "SUBJECT_NOT_SOFT_DELETED": [SCHEMA, DELETE | {"permanent": True}],
    "VERSION_SOFT_DELETED": [SCHEMA, DELETE | {"version": 1}, DELETE | {"version": 1}],
    "VERSION_NOT_SOFT_DELETED": [SCHEMA, DELETE | {"version": 1, "permanent": True}],
    "COMPATIBILITY_NOT_SET": [{"type": "SCHEMA_CONFIG_REQUEST", "subject": "s"}],
    "MODE_NOT_SET": [{"type": "SCHEMA_MODE_REQUEST", "subject": "s"}],
    "OPERATION_NOT_PERMITTED": [{"type": "SCHEMA_MODE_SET", "subject": "s", "mode": "READONLY"}, SCHEMA],
    "REFERENCE_EXISTS": [
        SCHEMA,
        {
            "type": "SCHEMA_REGISTER",
            "subject": "whole",
            "schema": {"$ref": "part"},
            "references": [{"name": "part", "subject": "s", "version": 1}],
        },
        DELETE,
    ],
    "INVALID_RULE_SET": [SCHEMA | {"rule_set": {"domainRules": [{"name": "r", "type": "CEL", "mode": "UPGRADE"}]}}],
    "POSITION_NOT_FOUND": [
        {"type": "TOPIC_KEEP", "topic": "t"},
        {"type": "POSITION_DELETE", "topic": "t", "position": "p"},
    ],
    "TOPIC_NOT_FOUND": [{"type": "TOPIC_DELETE", "topic": "t"}],
    "TOPIC_ALREADY_EXISTS": [
        {"type": "TOPIC_KEEP", "topic": "t"},
        {"type": "TOPIC_KEEP", "topic": "t", "keep": {"messages": 5}},
    ],
    "TOPIC_LIMIT_EXCEEDED": [{"type": "TOPIC_KEEP", "topic": "t", "keep": {"size_bytes": 2**53}}],
    "ID_NOT_FOUND": [{"type": "SERVICE_RESOLVE_REQUEST", "address": "id:w"}],
    "NAME_NOT_FOUND": [{"type": "SERVICE_RESOLVE_REQUEST", "address": "name:w"}],
    "SERVICE_NOT_FOUND": [{"type": "SERVICE_RESOLVE_REQUEST", "address": "service:w"}],
    "POOL_NOT_FOUND": [{"type": "SERVICE_RESOLVE_REQUEST", "address": "pool:w"}],
    "POOL_EMPTY": [
        WORKER,
        {"type": "SERVICE_UNREGISTER", "worker_id": "w", "lease": "l"},
        {"type": "SERVICE_RESOLVE_REQUEST", "address": "pool:p"},
    ],
    "POOL_NOT_EMPTY": [WORKER, {"type": "POOL_REMOVE", "address": "pool:p"}],
    "DUPLICATE_REGISTRATION": [WORKER, WORKER | {"lease": "other"}],
    "INVALID_SCHEMA": [{"type": "SCHEMA_REGISTER", "subject": "s", "schema": "{"}],
}
ELSEWHERE = {
    "BROKER_ALREADY_RUNNING": "the broker's place",
    "BROKER_REQUIRED": "discovery without a broker",
    "BROKER_UNAVAILABLE": "the client",
    "CHANNEL_CLOSED": "DataBlocks",
    "CONFIGURATION_ERROR": "settings",
    "DATA_LOST": "consumers",
    "FORBIDDEN": "rights, in tests/access",
    "GATEWAY_UNAVAILABLE": "the hubs of a site, in tests/site/test_gateway.py",
    "HANDLER_FAILED": "services",
    "HOME_HOST_UNAVAILABLE": "the hubs of a site, in tests/site/test_retained_topics.py",
    "INTERNAL_ERROR": "decoding of replies, and defects",
    "MAILBOX_CLOSED": "services",
    "MAILBOX_FULL": "services",
    "NOT_INITIALISED": "services",
    "NO_RESPONSE": "services",
    "RATE_LIMITED": "limits per peer, in tests/access, and when too much waits to be stored or checked",
    "RECEIVE_TIMEOUT": "topics",
    "REGISTRY_ERROR": "tests/registry/test_services.py: it takes many registrations",
    "REQUEST_CANCELLED": "services",
    "REQUEST_TIMEOUT": "the client",
    "ROUTE_ERROR": "services",
    "SEND_TIMEOUT": "topics",
    "STORE_ERROR": "stores",
    "STORE_READ_ONLY": "the broker after a failed write",
    "SUBSCRIBER_TOO_SLOW": "topics",
    "SUBSCRIPTION_CLOSED": "topics",
    "TOO_MANY_REGISTRATIONS": "limits per peer, in tests/access",
    "TOO_MANY_SUBSCRIPTIONS": "limits per peer, in tests/access",
    "UNAUTHORIZED": "keys, in tests/access",
}


def serve(registry: Registry, request: dict[str, Any]) -> bytes:
    try:
        command = protocol.decode(json.dumps(request).encode())
        return protocol.encode_reply(registry.apply(command, now=0.0).reply, command.id)
    except HubError as error:
        return protocol.encode_reply(protocol.error_reply(error), request.get("id"))


@pytest.mark.parametrize("code", RAISED)
def test_refusal_travels_as_its_code_and_is_raised_as_its_class(code: str) -> None:
    registry = Registry()
    *before, last = RAISED[code]
    for request in before:
        protocol.unwrap(protocol.decode_reply(serve(registry, request)))
    with pytest.raises(HubError) as caught:
        protocol.unwrap(protocol.decode_reply(serve(registry, last | {"id": "7"})))
    assert type(caught.value) is BY_CODE[code]
    assert caught.value.code == code
    assert caught.value.message


def test_unreadable_answer_is_an_internal_error() -> None:
    with pytest.raises(BY_CODE["INTERNAL_ERROR"]):
        protocol.decode_reply(b"{}")


def test_every_code_is_raised_here_or_by_a_part_that_is_named() -> None:
    assert RAISED.keys() | ELSEWHERE.keys() == BY_CODE.keys()
    assert not RAISED.keys() & ELSEWHERE.keys()
