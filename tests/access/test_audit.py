"""What a shared hub writes down: every refusal and every change, and neither what is data nor what did not happen."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from messagehub.errors import ConfigurationError, StoreError
from messagehub.security.audit import ROTATED_FILES, AuditLog
from messagehub.security.credentials import AccessFile, KeyPair, allow_key, allow_token, revoke
from messagehub.security.private_files import private_directory
from messagehub.store.memory import MemoryStore
from tests.access.shared import SharedHub
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Peer, producer

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_the_audit_log_has_who_what_and_the_correlation_id(shared: SharedHub) -> None:
    with shared.peer("limited") as peer, shared.local() as local:
        peer.ask(producer("sensors.a", id="made", producer_id="p"))
        peer.ask(producer("other", id="not-made"))
        peer.ask({"type": "DISCOVERY_REQUEST", "channel": "sensors.a", "id": "looked"})
        local.ask({"type": "CHANNEL_CREATE", "channel": "mine", "id": "by-the-owner"})
        local.ask({"type": "TOPIC_KEEP", "topic": "orders", "id": "kept"})
    entries = {entry["correlation_id"]: entry for entry in shared.audit()}
    assert entries.keys() == {"made", "not-made", "by-the-owner", "kept"}
    assert entries["kept"]["name"] == "orders"
    made = {
        "event": "changed",
        "who": "key:limited",
        "request": "PRODUCER_REGISTER",
        "name": "sensors.a",
        "member": "p",
    }
    assert made.items() <= entries["made"].items()
    refused = {"event": "refused", "who": "key:limited", "code": "FORBIDDEN", "name": "other"}
    assert refused.items() <= entries["not-made"].items()
    assert entries["by-the-owner"]["who"].startswith("user:")
    assert stat.S_IMODE((shared.dir / "audit.log").stat().st_mode) == 0o600


def test_the_audit_log_is_rotated_by_size_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1000)
    for number in range(200):
        log.write("changed", "key:a", number=number, absent=None)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == ROTATED_FILES + 1
    assert all(file.stat().st_size <= 1000 and stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    kept = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert max(entry["number"] for entry in kept) == 199
    assert all("absent" not in entry for entry in kept)


def test_the_audit_log_goes_on_when_somebody_removed_its_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=100)
    log.write("changed", "key:a", padding="x" * 50)
    path.unlink()
    log.write("changed", "key:b", padding="x" * 50)  # there is nothing to rotate
    log.write("changed", "key:c", padding="x" * 50)
    log.close()
    assert log.lost == 1
    assert json.loads(path.read_text())["who"] == "key:c"


def test_a_private_hub_keeps_an_audit_log_when_it_is_asked_to(tmp_path: Path) -> None:
    shared = SharedHub(tmp_path / "hub")
    with shared.running(curve=False, endpoint=f"ipc://{shared.dir}/broker.sock", audit=True), shared.local() as local:
        local.ask({"type": "CHANNEL_CREATE", "channel": "c"})
        assert [entry["event"] for entry in shared.audit()] == ["changed"]


def noted(shared: SharedHub, correlation_id: str) -> dict[str, Any]:
    (entry,) = [entry for entry in shared.audit() if entry.get("correlation_id") == correlation_id]
    return entry


def test_refusals_of_the_registry_are_written_down_and_questions_that_find_nothing_are_not(shared: SharedHub) -> None:
    with shared.peer("writer") as peer:
        peer.ask({"type": "PRODUCER_UNREGISTER", "channel": "nowhere", "id": "refused"})
        peer.ask({"type": "SERVICE_UNREGISTER", "worker_id": "nobody", "lease": "l", "id": "no-worker"})
        peer.ask({"type": "DISCOVERY_REQUEST", "channel": "nowhere", "id": "asked"})
    assert [entry["correlation_id"] for entry in shared.audit()] == ["refused", "no-worker"]
    assert (noted(shared, "refused")["code"], noted(shared, "refused")["name"]) == ("CHANNEL_NOT_FOUND", "nowhere")
    assert noted(shared, "no-worker")["code"] == "NOT_REGISTERED"


def test_what_is_no_request_is_written_down_once_in_a_while(shared: SharedHub) -> None:
    with shared.peer("writer") as peer:
        for _ in range(50):
            peer.ask(b"{")
        peer.ask({"type": "NO_SUCH", "id": "7"})
    codes = [entry["code"] for entry in shared.audit()]
    assert 1 <= codes.count("INVALID_REQUEST") < 50
    assert (noted(shared, "7")["code"], noted(shared, "7")["who"]) == ("UNKNOWN_TYPE", "key:writer")


def test_changes_of_services_are_written_down_once(shared: SharedHub) -> None:
    worker = {"address": "pool:p", "worker_id": "w", "endpoint": "unix:@x", "key": "not-written-down", "lease": "l"}
    with shared.peer("writer") as peer, shared.local() as local:
        for name in ("made", "again"):
            peer.ask({"type": "SERVICE_REGISTER", "id": name, **worker})
        peer.ask({"type": "SERVICE_UNREGISTER", "worker_id": "w", "lease": "l", "id": "ended"})
        local.ask({"type": "POOL_REMOVE", "address": "pool:p", "id": "removed"})
    assert [entry["correlation_id"] for entry in shared.audit()] == ["made", "ended", "removed"]
    assert (noted(shared, "made")["event"], noted(shared, "made")["name"]) == ("changed", "pool:p")
    assert noted(shared, "ended")["member"] == "w"
    assert "not-written-down" not in (shared.dir / "audit.log").read_text()


def test_messages_are_data_unless_they_are_refused(shared: SharedHub) -> None:
    with shared.hub("boss") as boss, shared.hub("limited") as limited:
        boss.topic("sensors.a", keep=10)
        for _ in range(3):
            limited.publish("sensors.a", b"x")
    with shared.peer("limited") as peer:
        message = {"type": "TOPIC_PUBLISH", "topic": "other", "messages": [{"payload": ""}], "id": "refused"}
        assert peer.ask(message)["code"] == "FORBIDDEN"
    assert [entry["request"] for entry in shared.audit()] == ["TOPIC_KEEP", "TOPIC_PUBLISH"]
    assert noted(shared, "refused")["event"] == "refused"


class BrokenStore(MemoryStore):
    def write(self, rows: Any, *, revision: int, durable: bool) -> None:
        raise StoreError("the disk is full")

    def probe(self) -> None:
        raise StoreError("the disk is full")


def test_what_could_not_be_stored_is_written_down_as_refused(tmp_path: Path, embedded: Callable[..., Embedded]) -> None:
    broker = embedded(dir=tmp_path / "hub", store=BrokenStore(), audit=True, **QUICK)
    with Peer(broker.endpoint) as peer:
        assert peer.ask({"type": "CHANNEL_CREATE", "channel": "c", "id": "undone"})["code"] == "STORE_READ_ONLY"
    entries = [json.loads(line) for line in (tmp_path / "hub" / "audit.log").read_text().splitlines()]
    assert [(entry["event"], entry["code"]) for entry in entries] == [("refused", "STORE_READ_ONLY")]


def test_changes_of_keys_and_tokens_are_written_down(tmp_path: Path) -> None:
    private_directory(tmp_path / "hub")
    access = AccessFile(tmp_path / "hub" / "access.json")
    pair = KeyPair.new()
    allow_key(access, "camera", pair.public, ["produce:cameras.*"])
    token = allow_token(access, "ci", ["observe"])
    revoke(access, "key", "camera")
    with pytest.raises(ConfigurationError):
        revoke(access, "key", "camera")
    path = tmp_path / "hub" / "audit-access.log"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["request"], entry["name"], entry.get("rights")) for entry in entries] == [
        ("KEY_ALLOW", "camera", ["produce:cameras.*"]),
        ("TOKEN_NEW", "ci", ["observe"]),
        ("KEY_REVOKE", "camera", None),
    ]
    assert {entry["who"] for entry in entries} == {f"user:{os.getuid()}"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text()
    assert pair.secret not in path.read_text()


def test_one_peer_cannot_push_the_others_out_of_the_log(shared: SharedHub) -> None:
    with shared.peer("watcher", zmq.DEALER) as peer, shared.local() as local:
        for number in range(1000):
            peer.send(producer(f"c{number}"))
        assert {peer.receive()["code"] for _ in range(1000)} == {"FORBIDDEN"}
        written = [entry for entry in shared.audit() if entry["who"] == "key:watcher"]
        assert len(written) >= 100
        assert len(written) + local.counter("audit_skipped") == local.counter("refused_forbidden") == 1000
