"""Tables of one peer are limited: they have no lease that would end them."""

from pathlib import Path
from typing import Any

from tests.access.shared import SharedHub
from tests.integration.harness import eventually


def table(channel: str) -> dict[str, Any]:
    return {"type": "TABLE_REGISTER", "channel": channel, "generation": 1, "shm_name": "/t/g1.json", "host": "far"}


def test_tables_of_one_peer_are_limited_and_a_dropped_one_gives_its_place_back(tmp_path: Path) -> None:
    with SharedHub(tmp_path / "hub").running(registrations_per_peer=2) as shared, shared.peer("writer") as peer:
        codes = [peer.ask(table(name)).get("code") for name in ("a", "b", "b", "c")]
        assert codes == [None, None, None, "TOO_MANY_REGISTRATIONS"]
        assert peer.ask({"type": "TABLE_CHECK", "channel": "c"})["code"] == "TOO_MANY_REGISTRATIONS"
        with shared.peer("boss") as other:
            assert other.ask(table("d"))["type"] == "TABLE_REGISTER_ACK"
        assert peer.ask({"type": "TABLE_DROP", "channel": "a"})["type"] == "TABLE_DROP_ACK"
        eventually(lambda: peer.ask(table("c"))["type"] == "TABLE_REGISTER_ACK")
