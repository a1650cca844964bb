"""Our own API: channels, schemas, documents, events, health, metrics; and the process that serves it."""

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import threading
from urllib.parse import urljoin

import pytest
from starlette.requests import Request

from messagehub import MessageHub
from messagehub.admin import docs_page
from messagehub.errors import ServiceNotFound
from tests.admin.conftest import Web
from tests.integration.harness import eventually


@pytest.fixture
def hub(web: Web) -> MessageHub:
    connected = MessageHub(dir=web.directory)
    yield connected
    connected.close()


def metrics(web: Web) -> str:
    """The metrics with those of the broker, which has less than a second to tell them."""
    return eventually(lambda: text if "messagehub_broker_up 1\n" in (text := web.ask("GET", "/metrics").text) else "")


def test_channels_can_be_created_described_listed_and_destroyed(web: Web, hub: MessageHub) -> None:
    created = web.ask("POST", "/api/v1/channels/api.made", {"access": "shared", "metadata": {"unit": "V"}})
    assert created.status_code == 200, created.text
    assert web.ask("GET", "/api/v1/channels/api.made").json()["channel"]["metadata"] == {"unit": "V"}
    assert "api.made" in {c["channel"] for c in web.ask("GET", "/api/v1/channels?prefix=api.").json()}
    with hub.register_producer("api.made", schema_hash="abc", access="shared"):
        found = web.ask("GET", "/api/v1/channels/api.made/discovery").json()
        assert (found["status"], found["schema_hash"]) == ("active", "abc")
        with hub.register_consumer("api.made", consumer_id="reader"):
            consumers = web.ask("GET", "/api/v1/channels/api.made/consumers").json()
            assert [c["consumer_id"] for c in consumers] == ["reader"]
        assert len(web.ask("GET", "/api/v1/channels/api.made/producers").json()) == 1
    assert web.ask("DELETE", "/api/v1/channels/api.made").status_code == 200
    assert web.ask("GET", "/api/v1/channels/api.made").json()["code"] == "CHANNEL_NOT_FOUND"


def test_durable_positions_are_listed_reset_and_deleted(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/topics/jobs.web/positions"
    assert web.ask("GET", path).json()["code"] == "TOPIC_NOT_FOUND"
    hub.topic("jobs.web", keep=100).publish_all([b"a", b"b", b"c"])
    assert web.ask("GET", path).json() == []
    with hub.subscribe("jobs.web", durable="billing", ack="manual", ack_wait=60) as subscription:
        subscription.receive(30.0).ack()
        (listed,) = web.ask("GET", path).json()
        assert (listed["position"]["name"], listed["acknowledged_to"]) == ("billing", 2)
        described = web.ask("GET", f"{path}/billing").json()
        assert [member["pid"] for member in described["members"]] == [os.getpid()]
    for body, offset in (({"offset": 3}, 3), ({"place": "newest"}, 4), ({"since": 1.5}, 1), ({"place": "oldest"}, 1)):
        assert web.ask("POST", f"{path}/billing", body).json()["position"]["next_offset"] == offset
    for wrong in ({}, {"offset": 1, "since": 1.0}, {"offset": -1}, {"offset": 99}, {"place": "here"}, {"ofset": 1}):
        assert web.ask("POST", f"{path}/billing", wrong).status_code == 422, wrong
    assert web.ask("POST", f"{path}/other", {"offset": 1}).json()["code"] == "POSITION_NOT_FOUND"
    assert web.ask("DELETE", f"{path}/billing").status_code == 200
    assert web.ask("DELETE", f"{path}/billing").status_code == 404


def test_topics_can_be_kept_read_and_deleted(web: Web, hub: MessageHub) -> None:
    made = web.ask("POST", "/api/v1/topics/web.orders", {"keep": {"messages": 2}})
    assert made.status_code == 200, made.text
    assert web.ask("POST", "/api/v1/topics/web.orders", {"keep": {"messages": 3}}).status_code == 409
    assert web.ask("POST", "/api/v1/topics/web.orders", {"keep": {"messages": 0}}).status_code == 422
    hub.topic("web.orders").publish_all([b"a", b"b", b"c"])
    assert [one["name"] for one in web.ask("GET", "/api/v1/topics?pattern=web.*").json()] == ["web.orders"]
    assert web.ask("GET", "/api/v1/topics?pattern=a..b").json()["code"] == "INVALID_NAME"
    assert web.ask("GET", "/api/v1/topics/web.orders").json()["messages"] == 2
    page = web.ask("GET", "/api/v1/topics/web.orders/messages?offset=3&limit=5").json()
    assert [(one["offset"], one["payload"]) for one in page["messages"]] == [(3, "Yw==")]
    assert web.ask("GET", "/api/v1/topics/web.orders/messages?since=1.5").json()["first_offset"] == 2
    for wrong in ("offset=x", "since=soon", "limit=-1"):
        assert web.ask("GET", f"/api/v1/topics/web.orders/messages?{wrong}").status_code == 422
    assert web.ask("DELETE", "/api/v1/topics/web.orders").status_code == 200
    assert web.ask("GET", "/api/v1/topics/web.orders").json()["code"] == "TOPIC_NOT_FOUND"
    assert web.ask("DELETE", "/api/v1/topics/web.orders").status_code == 404


def test_plain_topics_that_somebody_publishes_to_are_listed(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/plain-topics?pattern="
    assert web.ask("GET", f"{path}passing.>").json() == []
    hub.publish("passing.by", 1)
    (found,) = eventually(lambda: web.ask("GET", f"{path}passing.>").json())
    assert (found["name"], found["publishers"]) == ("passing.by", 1)
    assert web.ask("GET", f"{path}a..b").json()["code"] == "INVALID_NAME"


def test_messages_of_a_topic_are_read_page_by_page(web: Web, hub: MessageHub) -> None:
    topic = hub.topic("web.pages", keep=100)
    topic.publish_all(list(range(7)))
    path = "/api/v1/topics/web.pages/messages"
    found, following, offset = [], "?limit=3", 0
    for has_more in (True, True, False):
        answer = web.ask("GET", path + following)
        page = answer.json()
        assert page == web.ask("GET", f"{path}?limit=3&offset={offset}").json()
        found += [message["offset"] for message in page["messages"]]
        offset = page["next_offset"]
        assert (offset, page["end_offset"]) == (found[-1] + 1, 8)
        assert ("link" in answer.headers) == has_more
        following = answer.headers.get("link", "")[1:].partition(">")[0]
    assert found == list(range(1, 8))
    assert web.ask("GET", f"{path}?offset={offset}").json()["messages"] == []
    topic.delete()


def test_the_metrics_say_how_far_durable_names_are_behind(web: Web, hub: MessageHub) -> None:
    def gauge(name: str) -> int:
        (line,) = [line for line in metrics(web).splitlines() if line.startswith(f"{name} ")]
        return int(line.split()[1])

    names = ("messages_behind", "most_messages_behind", "dead_letters", "workers")
    before = [gauge(f"messagehub_{name}") for name in names]  # of other tests' topics, too
    assert before[1] < 7
    topic = hub.topic("web.lag", keep=100)
    for durable in ("one", "two"):
        hub.subscribe("web.lag", durable=durable).close()
    topic.publish_all(list(range(7)))
    with pytest.raises(ServiceNotFound):
        hub.send("service:web.nobody", 1)
    eventually(lambda: hub.dead_letters("service:web.nobody").letters)
    with hub.serve("service:web.one", lambda message, _: None):
        assert [gauge(f"messagehub_{name}") for name in names] == [before[0] + 14, 7, before[2] + 1, before[3] + 1]
    topic.delete()
    assert gauge("messagehub_messages_behind") == before[0]


def test_services_are_listed_with_their_workers_but_not_their_keys(web: Web, hub: MessageHub) -> None:
    with hub.serve("service:web.echo", lambda message, context: message.payload):
        (found,) = web.ask("GET", "/api/v1/services?prefix=service:web.").json()
        assert (found["address"], found["workers"][0]["pid"]) == ("service:web.echo", os.getpid())
        assert "key" not in found["workers"][0]
    assert web.ask("GET", "/api/v1/services?prefix=service:web.").json() == []
    letters = web.ask("GET", "/api/v1/dead-letters?limit=5").json()["letters"]
    assert [letter for letter in letters if letter["address"] == "service:web.echo"] == []
    assert web.ask("GET", "/api/v1/dead-letters?limit=0").status_code == 422
    assert web.ask("GET", "/api/v1/dead-letters", headers={"authorization": ""}).status_code == 401


def test_dead_letters_are_sent_again_over_http(web: Web, hub: MessageHub) -> None:
    path = "/api/v1/dead-letters/resend"
    for number in range(105):
        with pytest.raises(ServiceNotFound):
            hub.send("service:web.away", number)
    eventually(lambda: len(hub.dead_letters("service:web.away", limit=200).letters) == 105)
    seen: list[object] = []
    with hub.serve("service:web.away", lambda message, _: seen.append(message.payload), mailbox=200):
        answer = web.ask("POST", path, {"address": "service:web.away", "limit": 2}).json()
        assert answer == {"sent": 2, "without_payload": 0, "left": 103, "failed": []}
        answer = web.ask("POST", path, {"address": "service:web.away"}).json()
        assert answer == {"sent": 103, "without_payload": 0, "left": 0, "failed": []}
        eventually(lambda: seen == list(range(105)))
    assert hub.dead_letters("service:web.away").letters == []
    for wrong in ({"limit": 0}, {"adress": "service:web.away"}, [1]):
        assert web.ask("POST", path, wrong).status_code == 422
    assert web.ask("POST", path, {}, headers={"authorization": ""}).status_code == 401


def test_a_check_says_who_is_attached_now_and_a_used_schema_is_not_deleted(web: Web, hub: MessageHub) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    registered = hub.register_schema("live.data", schema)
    with hub.register_producer("live.data", schema_hash=registered.schema_hash, schema=schema):
        body = {"schemaType": "JSON", "schema": json.dumps(schema | {"required": ["a"]})}
        checked = web.ask("POST", "/api/v1/schemas/live.data/check", body).json()
        assert checked["is_compatible"] is False
        found = [(t["role"], t["pid"], t["would_break"]) for t in checked["touched"]]
        assert found == [("producer", os.getpid(), True)], "what it writes need not have an `a`"
        refused = web.ask("DELETE", "/subjects/live.data/versions/1")
        assert refused.json()["code"] == "SCHEMA_IN_USE"
        assert web.ask("DELETE", "/subjects/live.data/versions/1?force=true").json() == 1


def test_diff_between_versions_in_both_directions(web: Web, hub: MessageHub) -> None:
    hub.register_schema("diff.a", {"type": "integer"})
    hub.register_schema("diff.a", {"type": "number"})
    found = web.ask("GET", "/api/v1/schemas/diff.a/diff?from=1&to=2").json()
    assert found["backward"] == []
    assert found["forward"][0]["kind"]


def test_documents_are_validated(web: Web, hub: MessageHub) -> None:
    hub.register_schema("doc.a", {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert web.ask("POST", "/api/v1/validate/doc.a", {"a": 1}).json()["valid"] is True
    answer = web.ask("POST", "/api/v1/validate/doc.a", {"a": "x"}).json()
    assert (answer["valid"], answer["problems"][0]["path"]) == (False, "/a")


def test_documents_are_validated_with_what_their_schema_refers_to(web: Web, hub: MessageHub) -> None:
    web.register("doc-base", {"$id": "doc-base.json", "type": "integer"})
    references = [{"name": "doc-base.json", "subject": "doc-base", "version": 1}]
    web.register("doc-user", {"properties": {"a": {"$ref": "doc-base.json"}}}, references=references)
    assert web.ask("POST", "/api/v1/validate/doc-user?version=1", {"a": 1}).json()["valid"] is True
    assert web.ask("POST", "/api/v1/validate/doc-user", {"a": "x"}).json()["problems"][0]["path"] == "/a"
    web.register("doc-avro", '"int"', "AVRO")
    assert web.ask("POST", "/api/v1/validate/doc-avro", {}).json()["error_code"] == 42201
    assert web.ask("POST", "/api/v1/validate/doc-user?version=x", {}).json()["error_code"] == 42202
    assert web.ask("POST", "/api/v1/validate/doc-nobody", {}).json()["error_code"] == 40401


def test_groups_of_a_channel_say_who_reads_what_and_blocks_where_it_lies(web: Web, hub: MessageHub) -> None:
    assert web.ask("GET", "/api/v1/channels/group.none/groups").status_code == 404
    assert web.ask("GET", "/api/v1/channels/group.none/blocks").status_code == 404
    with hub.register_producer("group.a", schema_hash="x", shm_name="/group_a_block"):
        with (
            hub.register_consumer("group.a", consumer_id="one", group="team"),
            hub.register_consumer("group.a", consumer_id="two", group="team"),
        ):
            (found,) = web.ask("GET", "/api/v1/channels/group.a/groups").json()
            assert (found["group"], list(found["members"])) == ("team", ["one", "two"])
            shares = [member["shares"][0] for member in found["members"].values()]
            assert [(share["index"], share["count"]) for share in shares] == [(0, 2), (1, 2)]
            assert found["blocks"] == [shares[0]["shm_name"]]
        blocks = web.ask("GET", "/api/v1/channels/group.a/blocks").json()
        assert [block["shm_name"] for block in blocks] == found["blocks"]


def test_a_batch_of_schemas_has_a_result_for_each(web: Web) -> None:
    batch = [
        {"subject": "batch-base", "schema": '{"$id": "bb.json", "type": "integer"}', "schemaType": "JSON"},
        {
            "subject": "batch-user",
            "schema": '{"$ref": "bb.json"}',
            "schemaType": "JSON",
            "references": [{"name": "bb.json", "subject": "batch-base", "version": 1}],
        },
        {"subject": "batch-base", "schema": '{"type": "string"}', "schemaType": "JSON"},
        {"subject": "batch-bad", "schema": "{", "schemaType": "JSON"},
        {"subject": "", "schema": "{}", "schemaType": "JSON"},
        {"subject": "batch-none"},
    ]
    found = web.ask("POST", "/api/v1/schemas", batch).json()
    assert [(one["status"], one.get("error_code")) for one in found] == [
        (200, None),
        (200, None),
        (409, 409),
        (422, 42201),
        (422, 42208),
        (422, 42201),
    ]
    assert found[1]["version"] == 1
    again = web.ask("POST", "/api/v1/schemas", batch[:2]).json()
    assert [one["id"] for one in again] == [one["id"] for one in found[:2]]
    assert web.ask("POST", "/api/v1/schemas", [batch[0]] * 1001).json()["error_code"] == 42209
    assert web.ask("POST", "/api/v1/schemas", {}).json()["error_code"] == 422


def test_while_draining_nothing_is_written_over_http_and_all_else_goes_on(web: Web, hub: MessageHub) -> None:
    assert web.ask("POST", "/api/v1/drain").json() == {"draining": True}
    try:
        assert (web.ask("GET", "/readyz").status_code, web.register("drain-a", {}).status_code) == (503, 503)
        eventually(lambda: web.ask("GET", "/readyz").json()["status"] == "draining")
        assert web.ask("GET", "/subjects").status_code == 200
        hub.register_schema("drain-a", {"type": "object"})
    finally:
        assert web.ask("DELETE", "/api/v1/drain").json() == {"draining": False}
    eventually(lambda: web.ask("GET", "/readyz").status_code == 200)
    assert web.register("drain-a", {"type": "object"}).json()["version"] == 1


def test_events_are_streamed_from_the_first_after_the_connection(web: Web, hub: MessageHub) -> None:
    for number in range(20):
        with web.client.stream("GET", f"/api/v1/events?prefix=channel/sse.n{number}/") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": connected"
            with hub.register_producer(f"sse.n{number}", schema_hash="x", required=True):
                line = next(line for line in lines if line.startswith("data"))
            assert line.startswith("data: {"), line
            assert json.loads(line[6:])["type"] == "CHANNEL_CREATED"


def test_a_stream_says_that_it_is_connected_when_the_broker_knows_of_it(web: Web, hub: MessageHub) -> None:
    hub.connect(required=True)
    os.kill(web.process.pid, signal.SIGSTOP)
    going_on = threading.Timer(0.5, os.kill, (web.process.pid, signal.SIGCONT))
    going_on.start()
    try:
        with web.client.stream("GET", "/api/v1/events?prefix=channel/sse.paused/") as stream:
            lines = stream.iter_lines()
            assert next(lines) == ": connected"
            with hub.register_producer("sse.paused", schema_hash="x", required=True, timeout=30):
                line = next(line for line in lines if line.startswith("data"))
            assert line.startswith("data: {"), line
    finally:
        going_on.join()


def test_health_readiness_metrics_stats_traces_and_docs(web: Web) -> None:
    assert web.ask("GET", "/healthz").json() == {"status": "healthy"}
    eventually(lambda: web.ask("GET", "/readyz").json()["status"] == "ready")
    assert 'messagehub_request_seconds_bucket{type="PING"' in metrics(web)
    assert web.ask("GET", "/api/v1/stats").json()["pid"] == web.process.pid
    found = web.ask("GET", "/api/v1/traces?limit=50").json()
    by_id = [{each["side"] for each in found if each["correlation_id"] == one["correlation_id"]} for one in found]
    assert {"broker", "client"} in by_id, "one request as both sides saw it"
    assert [one["at"] for one in found] == sorted((one["at"] for one in found), reverse=True)
    assert "/subjects/{subject}/versions" in web.ask("GET", "/openapi.json").json()["paths"]


def test_the_docs_need_nothing_from_elsewhere(web: Web) -> None:
    page = web.client.get("/docs", headers={"accept": "text/html"})
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "http" not in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script[^>]*>([^<]*)", page.text) == ["", ""], "no script stands in the page itself"
    referred = [urljoin("/docs", one) for one in re.findall(r"(?:src|href)=\"?([^\" >]+)", page.text)]
    assert all(one.startswith("/docs/") for one in referred)
    files = {one.rpartition("/")[2]: web.client.get(one) for one in referred}
    assert {one.status_code for one in files.values()} == {200}
    assert files["swagger-ui.css"].headers["content-type"].startswith("text/css")
    for name in ("swagger-ui-bundle.js", "start.js"):
        assert files[name].headers["content-type"].startswith("text/javascript")
    assert 'url: "openapi.json"' in files["start.js"].text
    etag = {"if-none-match": files["swagger-ui-bundle.js"].headers["etag"]}
    assert web.client.get("/docs/swagger-ui-bundle.js", headers=etag).status_code == 304
    for other in ("redoc.standalone.js", "..%2Fcore.py", "core.py", "nothing"):
        assert web.client.get(f"/docs/{other}").json()["error_code"] == 404


def test_without_the_package_the_docs_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_page, "PACKAGE", "a_package_that_nobody_has")
    docs_page.package_files.cache_clear()
    try:
        answer = asyncio.run(docs_page.docs(Request({"type": "http"})))
    finally:
        docs_page.package_files.cache_clear()
    assert answer.status_code == 404
    assert "pip install 'messagehub[admin]'" in json.loads(answer.body)["message"]


def test_metrics_are_prometheus_text(web: Web) -> None:
    web.ask("GET", "/readyz")  # a ping
    answer = web.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families: dict[str, str] = {}
    samples: dict[str, list[tuple[str, float]]] = {}
    for line in metrics(web).splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("#"):
            _, _, name, kind = line.split(" ")
            assert name not in families, "each family once, its samples together"
            families[name] = kind
            continue
        found = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:\w+="[^"\\]*",?)*\})? (\S+)', line)
        assert found, line
        family = list(families)[-1]
        suffixes = ("_bucket", "_sum", "_count") if families[family] == "histogram" else ("",)
        assert found[1] in [family + suffix for suffix in suffixes]
        samples.setdefault(found[1], []).append((found[2] or "", float(found[3])))
    buckets = [(labels, count) for labels, count in samples["messagehub_request_seconds_bucket"] if '"PING"' in labels]
    counts = [count for _, count in buckets]
    bounds = [float(re.findall(r'le="([^"]+)"', labels)[0]) for labels, _ in buckets]
    assert counts == sorted(counts)
    assert bounds == sorted(bounds)
    assert bounds[-1] == float("inf")
    assert ('{type="PING"}', counts[-1]) in samples["messagehub_request_seconds_count"]


def test_the_token_is_private_and_the_status_names_no_secret(web: Web) -> None:
    token = web.directory / "http.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert web.token not in (web.directory / "broker.json").read_text()


def test_a_killed_http_process_comes_back_on_the_same_address(web: Web) -> None:
    pids = subprocess.run(
        ["pgrep", "-P", str(web.process.pid), "-f", "messagehub.admin"], capture_output=True, text=True, check=True
    )
    os.kill(int(pids.stdout.split()[0]), signal.SIGKILL)
    eventually(web.answers, timeout=60)
    eventually(lambda: web.ask("GET", "/readyz").status_code == 200)
