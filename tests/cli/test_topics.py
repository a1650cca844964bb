"""`messagehub publish` and `messagehub subscribe`, as two programs."""

import json

from messagehub import MessageHub
from tests.cli.program import Program


def test_what_one_program_publishes_another_prints_as_json_lines(hub: Program) -> None:
    with hub.start("subscribe", "orders.>", "--json", "--count", "5") as subscribed:
        subscribed.tells("subscribed to orders.>")
        hub.run("publish", "orders.eu", "from an argument", "--header", "trace=7")
        assert hub.json("publish", "orders.us", stdin="from\nstdin") == {"topic": "orders.us", "number": 1}
        hub.run("publish", "other", "not wanted")
        hub.run("publish", "orders.eu", "--lines", "--format", "json", stdin='{"n": 1}\n[2]\n')
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


def test_text_is_one_safe_line_a_message_until_the_signal(hub: Program) -> None:
    with hub.start("subscribe", "t") as subscribed:
        subscribed.tells("subscribed to t")
        hub.call("publish", "t", "red \x1b[31m")
        assert subscribed.says("red").rstrip().endswith("t  red \\x1b[31m")
        assert subscribed.end() == 0, subscribed.err


def test_wrong_use_and_no_broker_are_told_apart(hub: Program, alone: Program) -> None:
    assert "NAME=VALUE" in hub.call("publish", "t", "x", "--header", "novalue", code=2).stderr
    assert "not JSON" in hub.call("publish", "t", "{", "--format", "json", code=2).stderr
    assert "breaks the rule" in hub.call("publish", "a.*", "x", code=1).stderr
    alone.call("publish", "t", "x", code=3)
    alone.call("subscribe", "t", code=3)
