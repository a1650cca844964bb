"""`messagehub watch`: events as lines, through restarts."""

import json
import signal

from messagehub import MessageHub
from tests.cli.program import Program


def test_events_come_as_lines_until_the_signal(hub: Program) -> None:
    with hub.start("watch") as watching, MessageHub(dir=hub.dir) as client:
        watching.tells("watching all channels")
        registration = client.register_producer("seen", schema_hash="abc", schema_version="1.0.0")
        consumer = client.register_consumer("seen", consumer_id="reader", group="team")
        consumer.close()
        registration.close()
        lines = watching.says("channel ended").splitlines()
        assert watching.end(signal.SIGTERM) == 0, watching.err
    told = [line.split("  ", 3)[2:] for line in lines]
    told = [entry for entry in told if entry[1] != "group assigned"]
    assert told[0] == ["seen", "channel created"]
    assert told[1][1].startswith("producer registered  seen/default shm=/pylabhub_seen schema=abc 1.0.0 by pid")
    assert told[2][1].startswith("consumer registered  reader group=team by pid")
    assert told[3] == ["seen", "consumer unregistered  reader (released)"]
    assert told[4] == ["seen", "producer unregistered  seen/default (released)"]


def test_one_channel_as_json_lines(hub: Program) -> None:
    with hub.start("watch", "wanted", "--json") as watching, MessageHub(dir=hub.dir) as client:
        watching.tells("watching wanted")
        client.create_channel("unwanted")
        client.create_channel("wanted")
        client.destroy_channel("wanted")
        watching.says("CHANNEL_DESTROYED")
        assert watching.end() == 0, watching.err
    events = [json.loads(line) for line in watching.out.splitlines()]
    assert [(event["type"], event["channel"]) for event in events] == [
        ("CHANNEL_DECLARED", "wanted"),
        ("CHANNEL_DESTROYED", "wanted"),
    ]
    assert events[1]["previous"] == events[0]["revision"]


def test_a_restart_of_the_broker_is_survived_and_told(alone: Program) -> None:
    alone.configure()
    with alone.serve() as first, alone.start("watch") as watching:
        watching.tells("watching all channels")
        alone.call("channels", "create", "before")
        watching.says("before")
        first.end(signal.SIGKILL)
        watching.tells("the broker is gone")
        with alone.serve() as second:
            watching.tells("connected again")
            alone.call("channels", "create", "after")
            watching.says("after")
            assert watching.out.count("before") == 1
            assert watching.end() == 0, watching.err
            assert second.end() == 0
