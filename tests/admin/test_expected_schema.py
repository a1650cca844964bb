"""Discovery over HTTP with an expected schema."""

from messagehub import MessageHub
from tests.admin.conftest import Web


def test_discovery_says_whether_an_expected_schema_can_read_the_channel(web: Web) -> None:
    path = "/api/v1/channels/api.expected/discovery"
    with MessageHub(dir=web.directory) as hub, hub.register_producer("api.expected", schema_hash="abc"):
        assert web.ask("GET", f"{path}?expected_schema_hash=abc").json()["compatible"] is True
        told = web.ask("GET", f"{path}?expected_schema_hash=xyz").json()
        assert told["compatible"] is False
        assert told["differences"][0]["differences"][0]["kind"] == "SCHEMA_NOT_REGISTERED"
        assert "compatible" not in web.ask("GET", path).json()
