"""`channels` answers from the directory of this host while no broker does, and says so."""

from messagehub import MessageHub
from tests.cli.program import Program


def client(program: Program) -> MessageHub:
    return MessageHub(dir=program.dir, domain=program.environment["MESSAGEHUB_DOMAIN"])


def test_channels_of_this_host_are_listed_and_described(alone: Program) -> None:
    with client(alone) as hub:
        hub.register_producer("here.one", schema_hash="abc", schema_version="2.0.0")
        hub.register_producer("other", schema_hash="h")
        done = alone.run("channels", "--json")
        assert '"here.one"' in done.stdout
        assert "no broker answers; this is what the directory of this host knows" in done.stderr
        assert [each["channel"] for each in alone.call_json("channels", "here.")] == ["here.one"]
        described = alone.call_json("channels", "describe", "here.one")
        assert (described["status"], described["schema_version"]) == ("active", "2.0.0")


def test_where_the_directory_knows_nothing_no_broker_is_an_answer(alone: Program) -> None:
    assert alone.call_json("channels", code=3)["error"]["code"] == "BROKER_UNAVAILABLE"
    with client(alone) as hub:
        hub.register_producer("here", schema_hash="h")
        for arguments in (["channels", "elsewhere"], ["channels", "describe", "elsewhere"]):
            done = alone.call(*arguments, code=3)
            assert "messagehub serve" in done.stderr
            assert "what the directory" not in done.stderr


def test_discovering_what_nobody_knows_says_so_and_that_no_broker_was_asked(alone: Program) -> None:
    with client(alone) as hub:
        hub.register_producer("camera", schema_hash="h")
        told = alone.call("discover", "camra", code=3).stderr
        assert (
            "the directory of this host does not know channel 'camra' (did you mean 'camera'?), and no broker runs in"
            in told
        )
