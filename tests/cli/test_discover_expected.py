"""`messagehub discover --expected-schema`."""

from messagehub import MessageHub
from tests.cli.program import Program


def test_discover_says_whether_an_expected_schema_can_read_the_channel(hub: Program) -> None:
    with MessageHub(dir=hub.dir) as client, client.register_producer("expected", schema_hash="abc"):
        assert hub.json("discover", "expected", "--expected-schema", "abc")["compatible"] is True
        told = hub.json("discover", "expected", "--expected-schema", "xyz")
        assert (told["compatible"], told["differences"][0]["version"]) == (False, 0)
        text = hub.run("discover", "expected", "--expected-schema", "xyz").stdout
        assert "not compatible: schema 'xyz' is not registered" in text
        assert "compatible" not in hub.run("discover", "expected").stdout
