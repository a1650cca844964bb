"""`messagehub register`: it stays registered, through restarts too, and leaves cleanly."""

import json
import signal

from messagehub import MessageHub
from tests.cli.program import Program, until

ABC = ("--schema-hash", "abc")


def test_a_registration_lasts_until_the_signal(hub: Program) -> None:
    with hub.start(
        "register", "kept", *ABC, "--version", "1.0.0", "--policy", "RingBuffer", "--capacity", "10"
    ) as kept:
        assert "kept/default" in kept.says("kept: registered")
        found = hub.call_json("discover", "kept")
        assert found["producers"][0]["config"] == {"policy": "RingBuffer", "capacity": 10}
        assert found["schema_version"] == "1.0.0"
        assert kept.end(signal.SIGTERM) == 0, kept.err
        assert "unregistering kept" in kept.err
    hub.call("discover", "kept", code=1)


def test_a_second_exclusive_producer_is_refused_with_1(hub: Program) -> None:
    with hub.start("register", "mine", *ABC) as first:
        first.says("registered")
        done = hub.run("register", "mine", *ABC, "--json", code=1)
        assert '"code": "PRODUCER_ALREADY_REGISTERED"' in done.stdout
        assert "--access shared" in done.stderr
        assert first.end() == 0


def test_once_leaves_the_registration_to_its_lease(hub: Program) -> None:
    done = hub.call("register", "brief", *ABC, "--once", "--json")
    ack = json.loads(done.stdout)
    assert (ack["channel"], ack["shm_name"]) == ("brief", "/pylabhub_brief")
    assert "ends in 20 s" in done.stderr
    assert hub.call_json("discover", "brief")["status"] == "active"


def test_a_schema_alone_is_hashed_by_the_hub(hub: Program) -> None:
    hub.call("register", "hashed", "--schema", "-", "--once", stdin='{"type": "object"}')
    found = hub.call_json("discover", "hashed")
    assert found["schema"] == "verified"
    assert hub.call_json("schemas", "get", "hashed")["schema_hash"] == found["schema_hash"]


def test_a_claimed_hash_that_is_not_the_schemas_is_refused(hub: Program) -> None:
    error = hub.call_json("register", "claimed", *ABC, "--schema", "-", code=1, stdin='{"type": "object"}')["error"]
    assert error["code"] == "SCHEMA_HASH_MISMATCH"


def test_notices_are_told_and_a_destroyed_channel_ends_the_command(hub: Program) -> None:
    with hub.start("register", "noticed", *ABC, "--json") as producer:
        producer.says('"producer_id"')
        with MessageHub(dir=hub.dir) as client:
            client.register_consumer("noticed", consumer_id="reader")
            producer.says("CONSUMER_REGISTERED")
            client.destroy_channel("noticed")
        assert producer.process.wait(15) == 1
        lines = [json.loads(line) for line in producer.out.splitlines() if line.startswith('{"event"')]
        assert {line["event"] for line in lines} >= {"CONSUMER_REGISTERED", "CHANNEL_DESTROYED"}
        assert "was destroyed" in producer.err


def test_a_restarted_broker_is_told_again(alone: Program) -> None:
    alone.configure()
    with alone.serve() as broker, alone.start("register", "again", *ABC) as producer:
        producer.says("registered")
        broker.end(signal.SIGTERM)
        producer.tells("the broker is gone")
        with alone.serve() as second:
            producer.tells("registered again")
            assert until(lambda: alone.call_json("discover", "again")["status"] == "active", "active again")
            assert producer.end() == 0, producer.err
            alone.call("discover", "again", code=1)
            assert second.end() == 0
