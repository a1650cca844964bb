"""`channels`, `discover` and `trace` against a real broker."""

from messagehub import MessageHub
from tests.cli.program import Program, until

ESCAPE = "\x1b[31mred"


def test_channels_are_created_listed_described_and_destroyed(hub: Program) -> None:
    assert "channel life.one is declared" in hub.run("channels", "create", "life.one", "--access", "shared").stdout
    made = hub.call_json("channels", "create", "life.two", "--schema-hash", "abc", "--version", "1.0.0")
    assert made["channel"] == "life.two"

    listed = hub.json("channels", "life.")
    assert [one["channel"] for one in listed] == ["life.one", "life.two"]
    text = hub.run("channels", "life.t").stdout
    assert text.splitlines()[0].split()[:2] == ["CHANNEL", "STATUS"]
    assert text.splitlines()[1].split()[:3] == ["life.two", "pending", "0"]
    assert "life.one" not in text

    assert hub.json("channels", "describe", "life.two")["schema_hash"] == "abc"

    assert "is destroyed" in hub.run("channels", "destroy", "life.one", "--yes").stdout
    assert hub.call_json("channels", "destroy", "life.two", "-y")["channel"] == "life.two"
    assert hub.call("channels", "life.").stdout == "no channel starts with 'life.'\n"


def test_destroying_asks_first(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client:
        client.create_channel("asked")
    done = hub.call("channels", "destroy", "asked", code=1, stdin="n\n")
    assert "Destroy channel asked (0 producers, 0 consumers)?" in done.stderr
    assert "Aborted" in done.stderr
    assert "is destroyed" in hub.call("channels", "destroy", "asked", stdin="y\n").stdout


def test_a_member_is_evicted_after_a_question(hub: Program) -> None:
    with (
        MessageHub(dir=hub.dir) as client,
        client.register_producer("evicting", schema_hash="h", required=True),
        client.register_consumer("evicting", consumer_id="slow", required=True),
        client.register_consumer("evicting", consumer_id="slower", required=True),
    ):
        done = hub.call("channels", "evict", "evicting", "slow", code=1, stdin="n\n")
        assert "Evict slow from channel evicting?" in done.stderr
        assert "consumer slow (pid " in hub.run("channels", "evict", "evicting", "slow", "--yes").stdout
        gone = hub.call_json("channels", "evict", "evicting", "slower", "-y", "--role", "consumer")
        assert (gone["member_id"], gone["role"]) == ("slower", "consumer")
        assert '"NOT_REGISTERED"' in hub.call("channels", "evict", "evicting", "slow", "-y", "--json", code=1).stdout


def test_an_unknown_channel_is_refused_with_1_and_a_next_step(hub: Program) -> None:
    for arguments in (["channels", "describe", "nobody"], ["discover", "nobody"]):
        done = hub.call(*arguments, "--json", code=1)
        assert '"code": "CHANNEL_NOT_FOUND"' in done.stdout
        assert "`messagehub channels` lists" in done.stderr


def test_a_bad_name_is_refused_with_the_rule(hub: Program) -> None:
    assert hub.call_json("channels", "create", "no spaces", code=1)["error"]["code"] == "INVALID_NAME"
    assert "not UTF-8" in hub.call("discover", "\udcff", code=2).stderr
    assert "[A-Za-z]" in hub.call("watch", "no spaces", code=1).stderr


def test_discover_shows_where_the_data_is(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client:
        client.register_producer("found", schema_hash="abc", schema_version="2.0.0", config={"capacity": 10})
        found = hub.json("discover", "found")
        assert (found["shm_name"], found["status"], found["source"]) == ("/pylabhub_found", "active", "broker")
        text = hub.call("discover", "found").stdout
        assert "/pylabhub_found" in text
        assert "2.0.0" in text
        assert "capacity=10" in text
        described = hub.call("channels", "describe", "found").stdout
        assert "found/default" in described


def test_discover_tells_a_known_channel_that_is_not_ready(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client:
        client.create_channel("declared")
    assert hub.call_json("discover", "declared")["status"] == "pending"
    error = hub.call_json("discover", "declared", "--wait", "--timeout", "5", code=1)["error"]
    assert error["code"] == "CHANNEL_NOT_READY"


def test_discover_waits_for_the_producer(hub: Program) -> None:
    with (
        hub.start("discover", "awaited", "--wait", "--timeout", "15", "--json") as waiting,
        MessageHub(dir=hub.dir) as client,
    ):
        until(lambda: any(one["request"] == "DISCOVERY_REQUEST" for one in client.trace()), "the question")
        client.register_producer("awaited", schema_hash="abc", required=True)
        assert waiting.process.wait(15) == 0
        assert '"status": "active"' in waiting.out


def test_what_a_peer_chose_cannot_control_the_terminal(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client:
        client.register_producer("hostile", schema_hash=ESCAPE, schema_version="[bold]v[/bold]")
        for command in (["channels", "hostile"], ["discover", "hostile"]):
            text = hub.call(*command).stdout
            assert "\x1b" not in text
            assert r"\x1b[31mred" in text
            assert "[bold]v[/bold]" in text
        assert hub.call_json("discover", "hostile")["schema_hash"] == ESCAPE


def test_trace_shows_both_sides_of_an_exchange(hub: Program) -> None:
    exchanges = hub.json("trace")
    by_side = {
        side: {one["correlation_id"] for one in exchanges if one["side"] == side} for side in ("client", "broker")
    }
    assert by_side["client"] & by_side["broker"]
    one = next(one for one in exchanges if one["side"] == "broker" and one["correlation_id"])
    again = hub.call_json("trace", one["correlation_id"])
    assert {found["correlation_id"] for found in again} == {one["correlation_id"]}
    text = hub.call("trace", "--limit", "3").stdout
    assert text.splitlines()[0].split() == ["AT", "REQUEST", "ABOUT", "ANSWER", "TOOK", "ID", "SIDE", "PEER"]


def test_trace_of_an_unknown_id_is_refused_with_1(hub: Program) -> None:
    assert hub.call_json("trace", "no-such-id", code=1)["error"]["code"] == "EXCHANGE_NOT_FOUND"


def test_one_message_is_followed_to_its_subscribers(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client, client.subscribe("cli.>", buffer=1) as reader:
        client.publish("cli.a", 1)
        client.publish("cli.a", 2)
        until(lambda: reader.lost == 1, "the loss")
        message = reader.receive(timeout=30)
        named = ("--topic", "cli.a", "--publisher", message.publisher.hex())
        last = hub.call_json("trace", *named, "--number", "2")
        assert [one["outcome"] for one in last["subscriptions"]] == ["delivered"]
        text = hub.call("trace", *named, "--number", "1").stdout
        assert "cli.a number 1 of publisher" in text
        assert "drop_oldest" in text
        client.topic("cli.kept", keep=10).publish("x")
        client.subscribe("cli.kept", durable="later").close()
        text = hub.call("trace", "--topic", "cli.kept", "--offset", "1").stdout
        assert "cli.kept at offset 1" in text
        assert "durable later" in text
        stored_by = hub.call_json("trace", "--topic", "cli.kept", "--offset", "1")["correlation_id"]
        assert "cli.kept at 1" in hub.call("trace", stored_by).stdout
    for wrong in (["--offset", "1"], ["--topic", "a"], ["--topic", "a", "--number", "1"], ["id", "--topic", "a"]):
        hub.call("trace", *wrong, code=2)
