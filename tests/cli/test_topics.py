"""`messagehub publish` and `messagehub subscribe`, as two programs."""

import json

import numpy as np
import pyarrow as pa

from messagehub import MessageHub
from tests.cli.program import Program, until


def test_what_one_program_publishes_another_prints_as_json_lines(hub: Program) -> None:
    with hub.start("subscribe", "orders.>", "orders.eu", "--json", "--count", "5") as subscribed:
        subscribed.tells("subscribed to orders.>, orders.eu")
        hub.run("publish", "orders.eu", "from an argument", "--header", "trace=7")
        assert hub.call_json("publish", "orders.us", stdin="from\nstdin") == {"topic": "orders.us", "number": 1}
        hub.call("publish", "other", "not wanted")
        hub.call("publish", "orders.eu", "--lines", "--format", "json", stdin='{"n": 1}\n[2]\n')
        with MessageHub(dir=hub.dir) as client:
            client.publish("orders.raw", b"\xff")
        assert subscribed.process.wait(30) == 0, subscribed.err
    heard = [json.loads(line) for line in subscribed.out.splitlines()]
    assert [(one["topic"], one.get("payload", one.get("payload_base64"))) for one in heard] == [
        ("orders.eu", "from an argument"),
        ("orders.us", "from\nstdin"),
        ("orders.eu", {"n": 1}),
        ("orders.eu", [2]),
        ("orders.raw", "/w=="),
    ]
    assert [one["headers"] for one in heard[:2]] == [{"trace": "7"}, {}]
    assert [one["kind"] for one in heard] == ["text", "text", "json", "json", "bytes"]


def test_a_line_tells_text_from_values_and_has_the_headers(hub: Program) -> None:
    with hub.start("subscribe", "t", "--count", "4") as subscribed:
        subscribed.tells("subscribed to t")
        hub.call("publish", "t", '{"n":1}', "--header", "trace=\x1b[31m")
        hub.call("publish", "t", '{"n":1}', "--format", "json")
        with MessageHub(dir=hub.dir) as client:
            client.publish("t", np.array([[1 + 2j, 0]]))
            client.publish("t", pa.table({"n": [1]}))
        assert subscribed.process.wait(30) == 0, subscribed.err
    assert [line.split("  ", 1)[1] for line in subscribed.out.splitlines()] == [
        't  text  {"n":1}  headers={"trace":"\\u001b[31m"}',
        't  json  {"n":1}',
        't  array  [["(1+2j)","0j"]]',
        't  arrow  [{"n":1}]',
    ]


def test_text_is_one_safe_line_a_message_until_the_signal(hub: Program) -> None:
    with hub.start("subscribe", "t") as subscribed:
        subscribed.tells("subscribed to t")
        hub.call("publish", "t", "red \x1b[31m")
        assert subscribed.says("red").rstrip().endswith("t  text  red \\x1b[31m")
        assert subscribed.end() == 0, subscribed.err


def test_a_retained_topic_is_defined_filled_read_and_deleted(hub: Program) -> None:
    assert hub.run("topics").stdout.startswith("no retained topics yet\n")
    said = hub.run("topics", "keep", "kept.a", "--messages", "3", "--bytes", "1M", "--age", "2h").stdout
    assert said == "topic kept.a is retained: 3 messages, 1 MiB, 2 h\n", said
    hub.call("topics", "keep", "kept.a", "--messages", "4", code=1)
    hub.call("publish", "kept.a", "--lines", stdin="one\ntwo\nthree\nfour\n")
    assert hub.call_json("publish", "kept.a", "five") == {"topic": "kept.a", "number": 5}
    (listed,) = hub.json("topics", "list", "kept.>")
    assert (listed["messages"], listed["first_offset"], listed["topic"]["next_offset"]) == (3, 3, 6)
    assert "kept.a" in hub.call("topics").stdout
    assert hub.json("topics", "describe", "kept.a")["size_bytes"] == len("threefourfive")
    for since in ("0", "1h", "2000-01-01T00:00"):
        done = hub.run("subscribe", "kept.*", "--since", since, "--count", "3", "--json")
        heard = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(one["offset"], one["payload"]) for one in heard] == [(3, "three"), (4, "four"), (5, "five")]
    for since, offsets in (("oldest", ["3", "4"]), ("last", ["5"])):
        done = hub.call("subscribe", "kept.a", "--since", since, "--count", str(len(offsets)), "--json")
        assert [str(json.loads(line)["offset"]) for line in done.stdout.splitlines()] == offsets
    assert "An integer is an offset" in hub.call("subscribe", "kept.a", "--since", "1763359000", code=1).stderr
    assert "2 messages were lost" in hub.call("subscribe", "kept.a", "--since", "1", "--count", "1").stderr
    hub.call("topics", "keep", "kept.a", "--messages", "1", "--replace")
    assert hub.call_json("topics", "describe", "kept.a")["messages"] == 1
    hub.run("topics", "delete", "kept.a", "--yes")
    assert "not retained" in hub.call("topics", "describe", "kept.a", code=1).stderr
    assert "not retained" in hub.call("subscribe", "kept.a", "--since", "0", code=1).stderr
    for option, value in (("--age", "soon"), ("--bytes", "0"), ("--messages", "0")):
        hub.call("topics", "keep", "kept.a", option, value, code=2)
    assert "not an offset" in hub.call("subscribe", "kept.a", "--since", "later", code=2).stderr


def test_plain_topics_that_somebody_publishes_to_are_listed_too(hub: Program) -> None:
    nobody = "nobody published to a plain topic that matches 'raw.>' in the last ten minutes\n"
    assert hub.call("topics", "raw.>", "--plain").stdout == nobody
    for topic in ("raw.b", "raw.a"):
        hub.call("publish", topic, "x")
    until(lambda: len(hub.call_json("topics", "raw.>", "--plain")) == 2, "both topics")
    listed = hub.call("topics", "raw.>").stdout.splitlines()
    assert listed[:2] == ["no retained topic matches 'raw.>'", ""]
    assert [line.split()[:2] for line in listed[3:]] == [["raw.a", "1"], ["raw.b", "1"]]
    (found,) = hub.call_json("topics", "raw.b", "--plain")
    assert (found["name"], found["publishers"]) == ("raw.b", 1)
    hub.call("topics", "keep", "raw.a")
    assert [one["name"] for one in hub.call_json("topics", "raw.>", "--plain")] == ["raw.b"]
    assert [one["topic"]["name"] for one in hub.call_json("topics", "raw.>")] == ["raw.a"]


def test_who_subscribes_is_listed_with_what_each_received(hub: Program) -> None:
    assert hub.run("topics", "subscribers", "heard.a").stdout == "nobody subscribes to heard.a\n"
    with MessageHub(dir=hub.dir) as client, client.subscribe("heard.*") as subscription:
        hub.call("publish", "heard.a", "x")
        assert subscription.receive(timeout=30).payload == b"x"
        (found,) = until(
            lambda: [one for one in hub.call_json("topics", "subscribers", "heard.a") if one["received"]],
            "a subscriber",
        )
        assert (found["patterns"], found["lost"]) == (["heard.*"], 0)
        listed = hub.call("topics", "subscribers").stdout.splitlines()
        assert listed[0].split()[:2] == ["PATTERN", "KIND"]
        assert listed[1].split()[:2] == ["heard.*", "all"]


def test_durable_positions_are_used_listed_reset_and_deleted(hub: Program) -> None:
    hub.call("topics", "keep", "jobs")
    assert hub.run("topics", "positions", "jobs").stdout == "topic jobs has no durable positions\n"
    hub.call("publish", "jobs", "--lines", stdin="one\ntwo\nthree\nfour\n")

    def heard(count: int) -> list[str]:
        done = hub.call("subscribe", "jobs", "--durable", "billing", "--count", str(count), "--json")
        return [json.loads(line)["payload"] for line in done.stdout.splitlines()]

    assert heard(2) == ["one", "two"]
    assert sorted(heard(2)) == ["four", "three"]
    (listed,) = hub.json("topics", "positions", "jobs")
    assert (listed["position"]["name"], listed["acknowledged_to"], listed["lag"]) == ("billing", 5, 0)
    assert hub.json("topics", "positions", "jobs", "billing")["members"] == []
    assert "billing" in hub.call("topics", "positions", "jobs").stdout
    said = hub.call("topics", "reset-position", "jobs", "billing", "3").stdout
    assert said == "position billing of topic jobs goes on at offset 3\n"
    assert hub.call_json("topics", "reset-position", "jobs", "billing", "last")["next_offset"] == 4
    assert heard(1) == ["four"]
    for to, offset in (("newest", 5), ("1h", 1), ("2000-01-01T00:00", 1), ("oldest", 1)):
        assert hub.call_json("topics", "reset-position", "jobs", "billing", to)["next_offset"] == offset
    assert "not an offset" in hub.call("topics", "reset-position", "jobs", "billing", "later", code=2).stderr
    hub.run("topics", "delete-position", "jobs", "billing")
    assert "no position" in hub.call("topics", "positions", "jobs", "billing", code=1).stderr
    assert "no position" in hub.call("topics", "delete-position", "jobs", "billing", code=1).stderr


def test_programs_of_one_group_share_what_is_published(hub: Program) -> None:
    arguments = ("subscribe", "t", "--group", "workers", "--count", "2", "--json")
    with hub.start(*arguments) as one, hub.start(*arguments) as two:
        one.tells("subscribed to t")
        two.tells("subscribed to t")
        hub.call("publish", "t", "--lines", stdin="1\n2\n3\n4\n")
        assert (one.process.wait(30), two.process.wait(30)) == (0, 0), one.err + two.err
    heard = [json.loads(line)["payload"] for line in (one.out + two.out).splitlines()]
    assert sorted(heard) == ["1", "2", "3", "4"]


def test_wrong_use_and_no_broker_are_told_apart(hub: Program, alone: Program) -> None:
    assert "NAME=VALUE" in hub.call("publish", "t", "x", "--header", "novalue", code=2).stderr
    assert "not JSON" in hub.call("publish", "t", "{", "--format", "json", code=2).stderr
    assert "breaks the rule" in hub.call("publish", "a.*", "x", code=1).stderr
    alone.call("publish", "t", "x", code=3)
    alone.call("subscribe", "t", code=3)
    alone.call("topics", code=3)
    alone.call("topics", "keep", "t", code=3)


def test_whoever_tails_a_topic_is_told_of_subscribe(hub: Program) -> None:
    with hub.start("tail", "orders.eu") as running:
        running.tells("`messagehub subscribe orders.eu`")
        assert "nobody knows channel 'orders.eu' yet" in running.err
        assert running.end() == 0
