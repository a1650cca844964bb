"""`GET /api/v1/topics/{topic}/trace`: where one message went."""

from typing import Any

from messagehub import MessageHub
from messagehub.security.credentials import AccessFile, allow_token
from tests.admin.conftest import Web
from tests.integration.harness import eventually


def traced(web: Web, topic: str, query: str) -> dict[str, Any]:
    """Ask until every subscription has answered."""
    found: dict[str, Any] = {}

    def is_complete() -> bool:
        found.update(web.ask("GET", f"/api/v1/topics/{topic}/trace?{query}").json())
        return bool(found["is_complete"])

    eventually(is_complete)
    return found


def test_a_message_that_was_published_over_http_is_followed(web: Web) -> None:
    with MessageHub(dir=web.directory) as hub, hub.subscribe("traced.>") as reader:
        sent = web.ask("POST", "/api/v1/topics/traced.plain/messages", {"json": 1}).json()
        assert sent["offset"] is None
        assert reader.receive(timeout=30).publisher.hex() == sent["publisher"]
        plain = traced(web, "traced.plain", f"publisher={sent['publisher']}&number={sent['number']}")
        (mine,) = plain["subscriptions"]
        assert (mine["patterns"], mine["outcome"], plain["offset"]) == (["traced.>"], "delivered", None)
        hub.topic("traced.kept", keep=10)
        stored = web.ask("POST", "/api/v1/topics/traced.kept/messages", {"json": 2}).json()
        assert (stored["offset"], stored["publisher"]) == (1, None)
        with hub.subscribe("traced.kept", since=1, durable="later"):
            found = web.ask("GET", "/api/v1/topics/traced.kept/trace?offset=1").json()
        assert [one["position"] for one in found["positions"]] == ["later"]
        assert found["published_by"]["program"] == "messagehub.admin"
        assert found["correlation_id"]
        exchanges = web.ask("GET", f"/api/v1/traces?id={found['correlation_id']}").json()
        assert {one.get("offset") for one in exchanges if one["side"] == "broker"} == {1}


def test_a_message_that_is_not_named_well_is_refused(web: Web) -> None:
    path = "/api/v1/topics/traced.plain/trace"
    for query in ("", "?offset=1&number=1", "?publisher=0123456789abcdef", "?publisher=x&number=1", "?number=1"):
        assert web.ask("GET", f"{path}{query}").status_code == 422, query
    assert web.ask("GET", f"{path}?offset=-1").status_code == 422
    assert web.ask("GET", "/api/v1/topics/not.retained/trace?offset=1").status_code == 404
    assert web.ask("GET", "/api/v1/topics/a..b/trace?publisher=0123456789abcdef&number=1").json()["error_code"] == 42208


def test_a_trace_takes_the_right_to_observe_the_topic(web: Web) -> None:
    token = allow_token(AccessFile(web.directory / "access.json"), "some-topics", ["observe:traced.plain"])
    query = "trace?publisher=0123456789abcdef&number=1"

    def status(topic: str) -> int:
        return web.ask(
            "GET", f"/api/v1/topics/{topic}/{query}", headers={"authorization": f"Bearer {token}"}
        ).status_code

    eventually(lambda: status("traced.plain") == 200)
    assert status("traced.kept") == 403
