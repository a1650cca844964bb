"""Every message type to a live broker, from a key of every role: refused as the table says, and nothing changes."""

from collections.abc import Iterator

import pytest

from messagehub.protocol import COMMANDS_BY_TYPE
from registry.access import RULES
from tests.access.shared import ROLES, SharedHub
from tests.integration.harness import Peer
from tests.protocol.messages import SAMPLES


@pytest.fixture(scope="module")
def peers(shared_by_all: SharedHub) -> Iterator[dict[str, Peer]]:
    connected = {name: shared_by_all.peer(name) for name in ROLES}
    yield connected
    for peer in connected.values():
        peer.close()


def is_allowed(wire_type: str, name: str) -> bool:
    """The samples are about `sensor_data` and everything, which is not among `sensors.*`."""
    needed = RULES[COMMANDS_BY_TYPE[wire_type]].role
    if needed is None:
        return True
    return name != "limited" and (ROLES[name][0] in (needed, "admin") or needed == "observe")


ASKED = [(name, wire_type) for name in ROLES for wire_type in sorted(COMMANDS_BY_TYPE)]


@pytest.mark.parametrize(("name", "wire_type"), [asked for asked in ASKED if not is_allowed(asked[1], asked[0])])
def test_a_wrong_role_is_refused_and_changes_nothing(peers: dict[str, Peer], name: str, wire_type: str) -> None:
    before = peers["boss"].stats()["revision"], peers["boss"].snapshot()
    refused = peers[name].ask(SAMPLES[wire_type] | {"id": "7"})
    assert (refused["type"], refused["code"], refused["id"]) == ("ERROR", "FORBIDDEN", "7")
    assert not refused["retryable"]
    assert (peers["boss"].stats()["revision"], peers["boss"].snapshot()) == before


@pytest.mark.parametrize(("name", "wire_type"), [asked for asked in ASKED if is_allowed(asked[1], asked[0])])
def test_the_right_role_is_served(peers: dict[str, Peer], name: str, wire_type: str) -> None:
    sample = SAMPLES[wire_type]
    own = {"lease": f"of-{name}"} if "lease" in sample else {}  # another peer's is refused whatever the role
    assert peers[name].ask(sample | own).get("code") not in ("FORBIDDEN", "UNAUTHORIZED")


def test_a_pattern_lets_a_peer_work_on_its_own_names(peers: dict[str, Peer]) -> None:
    limited = peers["limited"]
    register = SAMPLES["PRODUCER_REGISTER"] | {"channel": "sensors.a", "shm_name": "/sensors.a"}
    assert limited.ask(register)["type"] == "PRODUCER_REGISTER_ACK"
    assert limited.ask({"type": "DISCOVERY_REQUEST", "channel": "sensors.a"})["status"] == "active"
    made = limited.ask({"type": "SCHEMA_REGISTER", "subject": "sensors.a", "schema": {"title": "only here"}})
    assert limited.ask({"type": "SCHEMA_REQUEST", "schema_id": made["schema_id"]})["type"] == "SCHEMA_RESPONSE"
    other = peers["boss"].ask({"type": "SCHEMA_REGISTER", "subject": "other", "schema": {"title": "not there"}})
    for by_content in (
        {"schema_id": other["schema_id"]},
        {"schema_hash": other["schema_hash"]},
        {"guid": other["guid"]},
    ):
        assert limited.ask({"type": "SCHEMA_REQUEST", "subject": "sensors.a", **by_content})["code"] == "FORBIDDEN"


def test_a_pattern_lets_a_peer_list_below_its_own_prefix_and_shows_nothing_else(peers: dict[str, Peer]) -> None:
    for name in ("sensors.listed", "sensors.listed.deeper", "other.listed"):
        peers["boss"].ask({"type": "CHANNEL_CREATE", "channel": name})
        peers["boss"].ask({"type": "SCHEMA_REGISTER", "subject": name, "schema": {"title": name}})
    limited = peers["limited"]
    shown = limited.ask({"type": "CHANNEL_LIST_REQUEST", "prefix": "sensors.l"})
    assert [one["channel"] for one in shown["channels"]] == ["sensors.listed"]
    assert limited.ask({"type": "SCHEMA_LIST_REQUEST", "prefix": "sensors.l"})["subjects"] == ["sensors.listed"]
    exported = limited.ask({"type": "SCHEMA_EXPORT_REQUEST", "prefix": "sensors.l"})
    assert {one["subject"] for one in exported["schemas"]} == {"sensors.listed"}
    for prefix in ("", "sensors", "other."):
        refused = limited.ask({"type": "CHANNEL_LIST_REQUEST", "prefix": prefix})
        assert refused["code"] == "FORBIDDEN"
        assert "list one of these prefixes: sensors." in refused["message"]
