"""What the console asks besides the lists: who calls, where a browser is sent, the hub, its history and audit."""

import os
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import Evicted, ServiceNotFound
from messagehub.security.credentials import AccessFile, allow_token
from messagehub.version import __version__
from tests.admin.conftest import Web
from tests.integration.harness import eventually

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def token(web: Web, name: str, *rights: str) -> dict[str, str]:
    """The header with a new token."""
    return {"authorization": f"Bearer {allow_token(AccessFile(web.directory / 'access.json'), name, [*rights])}"}


@pytest.fixture
def hub(web: Web) -> Iterator[MessageHub]:
    domain = web.ask("GET", "/api/v1/hub").json()["domain"]
    with MessageHub(dir=web.directory, domain=domain) as connected:
        yield connected


def test_a_caller_is_told_who_it_is_and_what_it_may_do(web: Web) -> None:
    owner = web.ask("GET", "/api/v1/me").json()
    assert (owner["name"], owner["anonymous"], owner["version"]) == ("owner", False, __version__)
    assert owner["roles_everywhere"] == ["observe", "consume", "produce", "schema-admin", "admin"]
    listed = web.ask("GET", "/api/v1/me", headers=token(web, "me", "produce:me.>", "observe")).json()
    assert (listed["name"], listed["roles"]) == ("token:me", ["observe", "produce"])
    assert listed["rights"] == [{"role": "produce", "pattern": "me.>"}, {"role": "observe", "pattern": ">"}]
    assert listed["roles_everywhere"] == ["observe"]


def test_a_caller_without_a_token_is_anonymous_and_a_wrong_one_is_refused(web: Web) -> None:
    found = httpx.get(f"{web.url}/api/v1/me").json()
    assert (found["name"], found["anonymous"], found["roles"]) == ("anonymous", True, ["observe"])
    assert web.ask("GET", "/api/v1/me", headers={"authorization": "Bearer wrong"}).status_code == 401
    foreign = httpx.get(f"{web.url}/api/v1/me", headers={"origin": "https://elsewhere.example"})
    assert foreign.json()["rights"] == []


def test_a_browser_is_sent_to_the_console_and_a_client_gets_an_empty_object(web: Web) -> None:
    sent = httpx.get(f"{web.url}/", headers=HTML)
    assert (sent.status_code, sent.headers["location"]) == (307, "console/")
    assert httpx.get(f"{web.url}/", headers={"accept": "text/html"}).status_code == 307
    assert httpx.get(f"{web.url}/").json() == httpx.post(f"{web.url}/", headers=HTML).json() == {}


def test_the_hub_says_what_it_is_and_what_it_takes(web: Web, hub: MessageHub) -> None:
    with hub.producer("console.hub", capacity=16):
        eventually(lambda: web.ask("GET", "/api/v1/hub").json()["counts"]["producers"] >= 1)
        found = web.ask("GET", "/api/v1/hub").json()
    assert found["pid"] != found["http_pid"]
    assert found["directory"] == str(web.directory)
    assert found["endpoints"]["control"].startswith("ipc://")
    assert 0 < found["disk"]["used_bytes"] < found["disk"]["total_bytes"]
    assert found["shared_memory"]["free_bytes"] <= found["shared_memory"]["total_bytes"]
    assert set(found["processes"]) == {"broker", "http"}
    seen = httpx.get(f"{web.url}/api/v1/hub").json()
    assert (seen["endpoints"], seen["directory"]) == ({}, None)


def test_flow_shows_rates_and_lag_of_each_channel_and_ring(web: Web, hub: MessageHub) -> None:
    with (
        hub.producer("console.flow", schema=np.dtype("f8"), capacity=16) as producer,
        hub.consumer("console.flow", start="oldest", consumer_id="late"),
    ):

        def shown() -> bool:
            producer.write(np.zeros(10))
            channels = web.ask("GET", "/api/v1/flow?prefix=console.flow").json()["channels"]
            return any(one["items_per_second"] > 0 and one["slowest"] == "late" for one in channels)

        eventually(shown, timeout=30)
        found = web.ask("GET", "/api/v1/flow?prefix=console.flow&detail=true").json()
        (ring,) = found["channels"][0]["ring_list"]
        assert ring["mean_item_bytes"] == 80
        assert ring["readers"][0]["lag_items"] > 0
        assert found["totals"]["channels"] == 1
        one = web.ask("GET", "/api/v1/channels/console.flow/flow").json()
        assert one["ring_list"][0]["readers"][0]["consumer_id"] == "late"
        with hub.producer("console.flow2", capacity=16):
            eventually(lambda: len(web.ask("GET", "/api/v1/flow?prefix=console.flow").json()["channels"]) == 2)
            page = web.ask("GET", "/api/v1/flow?prefix=console.flow&limit=1")
            assert 'rel="next"' in page.headers["link"]
    assert web.ask("GET", "/api/v1/channels/console.none/flow").status_code == 404
    assert web.ask("GET", "/api/v1/flow?detail=true&limit=201").status_code == 422


def test_flow_shows_only_channels_that_the_caller_may_see(web: Web, hub: MessageHub) -> None:
    allowed = token(web, "flow", "observe:console.seen.>")
    with hub.producer("console.seen.a", capacity=16), hub.producer("console.unseen", capacity=16):
        eventually(lambda: web.ask("GET", "/api/v1/flow?prefix=console.seen.").json()["channels"])
        found = web.ask("GET", "/api/v1/flow?prefix=console.seen.", headers=allowed).json()["channels"]
        assert [one["channel"] for one in found] == ["console.seen.a"]
        assert web.ask("GET", "/api/v1/flow", headers=allowed).status_code == 403
        assert web.ask("GET", "/api/v1/channels/console.unseen/flow", headers=allowed).status_code == 403


def test_history_is_collected_while_somebody_asks(web: Web) -> None:

    def newest_with_broker() -> Any:
        points = web.ask("GET", "/api/v1/history").json()["points"]
        return points[-1] if points and points[-1]["broker_up"] else None

    newest = eventually(newest_with_broker, timeout=30)
    assert newest["http_requests_per_second"] > 0
    assert newest["p99_seconds"] >= newest["p50_seconds"] > 0
    later = web.ask("GET", f"/api/v1/history?after={newest['at']}").json()["points"]
    assert all(point["at"] > newest["at"] for point in later)


def test_members_are_evicted_by_administrators_only(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/channels/console.evict"
    with hub.producer("console.evict") as producer, hub.consumer("console.evict", consumer_id="slow") as consumer:
        refused = web.ask("DELETE", f"{path}/consumers/slow", headers=token(web, "evict", "produce", "consume"))
        assert refused.status_code == 403
        gone = web.ask("DELETE", f"{path}/consumers/slow").json()
        assert (gone["member_id"], gone["role"], gone["pid"]) == ("slow", "consumer", os.getpid())
        with pytest.raises(Evicted):
            next(consumer)
        assert web.ask("DELETE", f"{path}/consumers/slow").json()["code"] == "NOT_REGISTERED"
        assert web.ask("DELETE", f"{path}/producers/console.evict%2Fdefault").json()["role"] == "producer"
        eventually(lambda: producer.is_closed)
    lines = (web.directory / "audit-http.log").read_text().splitlines()
    assert any('"MEMBER_EVICT"' in line and '"console.evict"' in line for line in lines)


def test_the_newest_items_are_shown_as_rows(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/channels/console.tail/tail"
    batch = pa.record_batch({"n": [1, 2, 3], "name": ["a", None, "c"], "x": [0.5, float("nan"), 1.5]})
    with hub.producer("console.tail", schema=batch.schema, capacity=8) as producer:
        for _ in range(3):
            producer.write(batch)
        eventually(lambda: len(web.ask("GET", path).json()["items"]) == 3)
        found = web.ask("GET", f"{path}?items=2&rows=2").json()["items"]
        assert [item["sequence"] for item in found] == [2, 3]
        assert found[0]["rows"] == [[1, "a", 0.5], [2, None, None]]
        assert [(c["name"], c["numeric"]) for c in found[0]["columns"]] == [("n", True), ("name", False), ("x", True)]
        assert (found[0]["row_count"], found[0]["kind"], found[0]["producer_id"]) == (
            3,
            "arrow",
            "console.tail/default",
        )
        assert producer.registration  # nobody registered beside it
        assert web.ask("GET", "/api/v1/channels/console.tail/consumers").json() == []
        assert web.ask("GET", path, headers=token(web, "tail", "observe")).status_code == 403
    with hub.producer("console.raw") as raw, hub.producer("console.array", schema=np.dtype("f4")) as array:
        raw.write(b"hello \xff")
        array.write(np.ones((2, 3), "f4"))
        array.write(np.arange(3, dtype="f4"))
        (shown,) = eventually(lambda: web.ask("GET", "/api/v1/channels/console.raw/tail").json()["items"])
        assert shown["rows"] == [["hello \\xff"]]
        first, second = web.ask("GET", "/api/v1/channels/console.array/tail").json()["items"]
        assert (first["rows"], first["columns"][0]["numeric"]) == ([[[1, 1, 1]], [[1, 1, 1]]], False)
        assert (second["rows"], second["columns"][0]["numeric"]) == ([[0], [1], [2]], True)
    assert web.ask("GET", f"{path}?items=101").status_code == 422
    assert web.ask("GET", "/api/v1/channels/console.nothing/tail").status_code == 404


def test_tokens_are_made_listed_and_revoked(web: Web) -> None:
    made = web.ask("POST", "/api/v1/tokens", {"name": "made", "rights": ["observe", "produce:x.>"]}).json()
    assert made["rights"] == ["observe", "produce:x.>"]
    mine = {"authorization": f"Bearer {made['token']}"}
    assert web.ask("GET", "/api/v1/me", headers=mine).json()["name"] == "token:made"
    assert web.ask("GET", "/api/v1/tokens", headers=mine).status_code == 403
    listed = {one["name"]: one for one in web.ask("GET", "/api/v1/tokens").json()}
    assert listed["made"] == {"name": "made", "rights": ["observe", "produce:x.>"], "created_at": made["created_at"]}
    assert web.ask("POST", "/api/v1/tokens", {"name": "made", "rights": ["observe"]}).status_code == 409
    for wrong in ({"name": "1", "rights": ["observe"]}, {"name": "a", "rights": ["fly"]}, {"name": "a", "rights": []}):
        assert web.ask("POST", "/api/v1/tokens", wrong).status_code == 422, wrong
    assert web.ask("DELETE", "/api/v1/tokens/made").json() == {"name": "made"}
    assert web.ask("GET", "/api/v1/me", headers=mine).status_code == 401
    assert web.ask("DELETE", "/api/v1/tokens/made").status_code == 404
    kept = (
        "".join(path.read_text() for path in web.directory.glob("*.log")) + (web.directory / "access.json").read_text()
    )
    assert made["token"] not in kept


def test_keys_are_made_listed_and_revoked(web: Web) -> None:
    made = web.ask("POST", "/api/v1/keys", {"name": "peer", "rights": ["consume"]}).json()
    assert len(made["secret"]) == len(made["public"]) == len(made["server_key"]) == 40
    found = web.ask("GET", "/api/v1/keys").json()
    assert found["server_key"] == made["server_key"]
    assert [(key["name"], key["public"], key["rights"]) for key in found["keys"]] == [
        ("peer", made["public"], ["consume"])
    ]
    again = {"name": "other", "rights": ["consume"], "public": made["public"]}
    assert web.ask("POST", "/api/v1/keys", again).status_code == 409
    assert web.ask("POST", "/api/v1/keys", again | {"public": "x"}).status_code == 422
    assert web.ask("DELETE", "/api/v1/keys/peer").json() == {"name": "peer"}
    given = web.ask("POST", "/api/v1/keys", again).json()
    assert (given["secret"], given["public"]) == (None, made["public"])
    assert web.ask("DELETE", "/api/v1/keys/other").status_code == 200
    assert made["secret"] not in "".join(path.read_text() for path in web.directory.glob("*.log"))


def test_the_audit_is_searched_newest_first(web: Web) -> None:
    for number in range(3):
        web.ask("POST", f"/api/v1/channels/console.audit{number}", {})
    web.ask("POST", "/api/v1/channels/console.audit", {}, headers={"authorization": ""})
    found = web.ask("GET", "/api/v1/audit?name=console.audit&limit=10").json()
    times = [entry["at"] for entry in found]
    assert times == sorted(times, reverse=True)
    by_http = [entry["name"] for entry in found if entry["log"] == "http"]
    assert by_http == ["console.audit2", "console.audit1", "console.audit0"]
    refused = web.ask("GET", "/api/v1/audit?event=refused&code=UNAUTHORIZED&limit=1").json()
    assert refused[0]["who"] == "anonymous"
    later = web.ask("GET", f"/api/v1/audit?name=console.audit&since={times[0]}").json()
    assert all(entry["at"] >= times[0] for entry in later)
    assert later
    assert web.ask("GET", "/api/v1/audit", headers=token(web, "auditor", "observe")).status_code == 403


def test_the_graph_of_schemas_shows_what_refers_to_what(web: Web) -> None:
    web.register("graph.base", {"type": "object"})
    reference = {"name": "base.json", "subject": "graph.base", "version": 1}
    made = web.register("graph.user", {"$ref": "base.json"}, references=[reference])
    assert made.status_code == 200, made.text
    found = web.ask("GET", "/api/v1/schema-graph?prefix=graph.").json()
    assert [one["subject"] for one in found["subjects"]] == ["graph.base", "graph.user"]
    assert found["subjects"][1]["versions"][0]["references"] == [reference]
    web.register("graph.user", {"$ref": "base.json", "title": "t"}, references=[reference])
    again = web.ask("GET", "/api/v1/schema-graph?prefix=graph.").json()
    assert len(again["subjects"][1]["versions"]) == 2


def test_who_gets_a_topic_is_listed_and_told_with_a_publication(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/topics/got.by/subscribers"
    assert web.ask("GET", path).json() == {"topic": "got.by", "total": 0, "subscriptions": []}
    assert web.ask("GET", "/api/v1/topics/got..by/subscribers").json()["code"] == "INVALID_NAME"
    with hub.subscribe("got.>") as subscription:
        eventually(lambda: web.ask("GET", path).json()["total"])
        published = web.ask("POST", "/api/v1/topics/got.by/messages", {"json": 1}).json()
        assert (published["subscribers"], subscription.receive(timeout=30).payload) == (1, 1)
        (found,) = eventually(
            lambda: [one for one in web.ask("GET", path).json()["subscriptions"] if one["received"] == 1]
        )
        assert (found["patterns"], found["kind"], found["pid"]) == (["got.>"], "all", os.getpid())
        assert found in web.ask("GET", "/api/v1/subscriptions").json()["subscriptions"]
        elsewhere = token(web, "elsewhere", "observe:other.>")
        assert web.ask("GET", path, headers=elsewhere).status_code == 403
        assert web.ask("GET", "/api/v1/subscriptions", headers=elsewhere).status_code == 403


def test_the_id_of_a_request_over_http_leads_to_the_brokers_and_back(web: Web) -> None:
    answer = web.ask("POST", "/api/v1/channels/two.ids", {})
    by_request = web.ask("GET", f"/api/v1/traces?id={answer.headers['x-request-id']}").json()
    assert [(one["side"], one["request"], one["name"]) for one in by_request if one["side"] != "client"] == [
        ("broker", "CHANNEL_CREATE", "two.ids"),
        ("http", "CHANNEL_CREATE", "two.ids"),
    ]
    (change,) = [one for one in by_request if one["side"] == "http"]
    (decided,) = [one for one in by_request if one["side"] == "broker"]
    assert min(change["seconds"], decided["seconds"]) > 0
    assert change["peer"] == "owner"
    by_broker = web.ask("GET", f"/api/v1/traces?id={change['led_to']}").json()
    assert [one["side"] for one in by_broker] == [one["side"] for one in by_request]
    (line,) = web.ask("GET", "/api/v1/audit?name=two.ids&who=owner").json()
    assert (line["request_id"], line["correlation_id"]) == (change["correlation_id"], change["led_to"])
    shown = httpx.get(f"{web.url}/api/v1/traces?id={change['led_to']}").json()
    assert [one["peer"] for one in shown if one["side"] == "http"] == [None]


def test_the_trace_of_a_message_published_over_http_names_its_topic(web: Web) -> None:
    answer = web.ask("POST", "/api/v1/topics/traced.plain/messages", {"json": 1})
    (one,) = web.ask("GET", f"/api/v1/traces?id={answer.headers['x-request-id']}").json()
    assert (one["side"], one["request"], one["name"]) == ("http", "TOPIC_PUBLISH", "traced.plain")


def test_who_was_evicted_is_in_the_audit_log(web: Web, hub: MessageHub) -> None:
    with hub.producer("noted.evictions"), hub.consumer("noted.evictions", consumer_id="in-the-way"):
        assert web.ask("DELETE", "/api/v1/channels/noted.evictions/consumers/in-the-way").status_code == 200
    (line,) = web.ask("GET", "/api/v1/audit?name=noted.evictions&request=MEMBER_EVICT&who=owner").json()
    assert line["member"] == "in-the-way"


def test_what_everybody_may_do_is_told_to_administrators(web: Web) -> None:
    found = web.ask("GET", "/api/v1/access").json()
    is_shared = web.ask("GET", "/api/v1/keys").json()["server_key"] is not None
    assert found == {"anonymous": ["observe"], "owner_token": True, "shared": is_shared}
    assert web.ask("GET", "/api/v1/access", headers=token(web, "curious", "observe")).status_code == 403


def test_the_counts_of_a_hub_are_those_of_its_lists(web: Web, hub: MessageHub) -> None:
    for subject in ("counted.a", "counted.b"):
        web.register(subject, {"type": "object"})
    web.ask("DELETE", "/subjects/counted.b")
    with hub.serve("service:counted", lambda message, _: message.payload):
        eventually(
            lambda: (
                web.ask("GET", "/api/v1/hub").json()["counts"]["services"]
                == len(web.ask("GET", "/api/v1/services").json())
                > 0
            )
        )
        counts = web.ask("GET", "/api/v1/hub").json()["counts"]
    assert counts["subjects"] == len(web.ask("GET", "/subjects").json())
    assert counts["schemas"] == len({one["id"] for one in web.ask("GET", "/schemas?deleted=true").json()})


def test_one_dead_letter_is_sent_again_by_its_number(web: Web, hub: MessageHub) -> None:
    for payload in (b"first", b"second"):
        with pytest.raises(ServiceNotFound):
            hub.send("service:numbered", payload)
    path = "/api/v1/dead-letters?address=service:numbered"
    letters = eventually(lambda: len(found := web.ask("GET", path).json()["letters"]) == 2 and found)
    seen: list[bytes] = []
    with hub.serve("service:numbered", lambda message, _: seen.append(message.payload)):
        sent = web.ask("POST", "/api/v1/dead-letters/resend", {"numbers": [letters[1]["number"]]}).json()
        assert (sent["sent"], sent["left"]) == (1, 0)
        eventually(lambda: seen == [b"second"])
    assert [one["number"] for one in web.ask("GET", path).json()["letters"]] == [letters[0]["number"]]
    assert web.ask("POST", "/api/v1/dead-letters/resend", {"numbers": []}).status_code == 422
    (line,) = web.ask("GET", "/api/v1/audit?request=DEAD_LETTER_RESEND").json()
    assert line["who"] == "owner"
