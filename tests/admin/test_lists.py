"""Lists in pages, query parameters that have no effect, and compressed answers."""

import gzip
import http.client
import os
from collections.abc import Iterator
from urllib.parse import urljoin

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.admin import api
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.endpoints import Endpoint
from tests.admin.conftest import Web
from tests.integration.harness import eventually

OURS = [e for e in api.ENDPOINTS if e.path not in ("/healthz", "/readyz")]


@pytest.fixture(scope="module")
def hub(web: Web) -> Iterator[MessageHub]:
    with MessageHub(dir=web.directory, domain=f"pytest-{os.getpid()}-{web.directory.name}") as connected:
        yield connected


def pages(web: Web, path: str) -> list[list[dict[str, object]]]:
    """Every page of a list, by following the links."""
    found = []
    while True:
        answer = web.ask("GET", path)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        if "next" not in answer.links:
            return found
        path = urljoin(path, answer.links["next"]["url"])


def test_channels_come_in_pages_that_hold_each_once(web: Web, hub: MessageHub) -> None:
    names = [f"paged.c{number:03}" for number in range(250)]
    for name in names:
        hub.create_channel(name)
    found = pages(web, "/api/v1/channels?prefix=paged.&limit=120")
    assert [len(page) for page in found] == [120, 120, 10]
    assert [one["channel"] for page in found for one in page] == names
    assert [one["channel"] for one in web.ask("GET", "/api/v1/channels?prefix=paged.").json()] == names
    after = web.ask("GET", "/api/v1/channels?prefix=paged.&after=paged.c247").json()
    assert [one["channel"] for one in after] == names[248:]


def test_topics_services_and_tables_come_in_pages(web: Web, hub: MessageHub) -> None:
    for number in range(3):
        web.ask("POST", f"/api/v1/topics/paged.t{number}", {"keep": {"messages": 1}})
    found = pages(web, "/api/v1/topics?pattern=paged.*&limit=2")
    assert [[one["name"] for one in page] for page in found] == [["paged.t0", "paged.t1"], ["paged.t2"]]
    served = [hub.serve(f"service:paged.s{number}", lambda message, _: message.payload) for number in range(3)]
    found = pages(web, "/api/v1/services?prefix=service:paged.&limit=2")
    names = [[one["address"] for one in page] for page in found]
    assert names == [["service:paged.s0", "service:paged.s1"], ["service:paged.s2"]]
    for one in served:
        one.close()
    for number in range(3):
        hub.create_channel(f"sparse.between{number}")
        hub.publish_table(f"sparse.table{number}", pa.table({"a": [number]}))
    found = pages(web, "/api/v1/tables?prefix=sparse.&limit=2")
    assert [[one["channel"] for one in page] for page in found] == [
        ["sparse.table0", "sparse.table1"],
        ["sparse.table2"],
    ]
    for number in range(3):
        hub.drop_table(f"sparse.table{number}")


def test_places_of_a_schema_come_in_pages_too(web: Web) -> None:
    (schema_id,) = {web.register(f"paged-{name}", {"title": "paged"}).json()["id"] for name in "abc"}
    path = f"/schemas/ids/{schema_id}"
    assert web.ask("GET", f"{path}/subjects?offset=1&limit=1").json() == ["paged-b"]
    assert web.ask("GET", f"{path}/versions?offset=2&limit=-1").json() == [{"subject": "paged-c", "version": 1}]
    assert web.ask("GET", "/contexts?offset=1").json() == []


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "many", "latest", "1e3", ""])
@pytest.mark.parametrize("path", ["channels", "tables", "topics", "services", "traces", "dead-letters"])
def test_a_limit_that_is_none_is_refused(web: Web, path: str, limit: str) -> None:
    answer = web.ask("GET", f"/api/v1/{path}?limit={limit}")
    assert (answer.status_code, "limit is a number from 1 to 10000" in answer.json()["message"]) == (422, True)


@pytest.mark.parametrize("endpoint", OURS, ids=lambda e: f"{e.method} {e.path}")
def test_a_parameter_that_an_operation_does_not_take_is_refused(web: Web, endpoint: Endpoint) -> None:
    path = endpoint.path.replace("{channel}", "x").replace("{subject}", "x").replace("{topic}", "x")
    answer = web.ask(endpoint.method, f"{path}?nonsense=1", {} if endpoint.body is not None else None)
    assert (answer.status_code, answer.json()["error_code"]) == (422, 422)
    assert "takes no query parameter 'nonsense'" in answer.json()["message"]
    for name in endpoint.query:
        answer = web.ask(endpoint.method, f"{path}?{name}x=1", {} if endpoint.body is not None else None)
        assert (answer.status_code, f"is {name!r} meant?" in answer.json()["message"]) == (422, True)
        answer = web.ask(endpoint.method, f"{path}?{name}=1&{name}=1", {} if endpoint.body is not None else None)
        assert (answer.status_code, "is given 2 times" in answer.json()["message"]) == (422, True)


def test_a_refused_parameter_changes_nothing(web: Web, hub: MessageHub) -> None:
    hub.create_channel("stays")
    assert web.ask("DELETE", "/api/v1/channels/stays?dry-run=true").status_code == 422
    assert web.ask("GET", "/api/v1/channels/stays").status_code == 200
    web.register("stays", {"title": "stays"})
    answer = web.ask("DELETE", "/subjects/stays?permanant=true")
    assert (answer.status_code, "is 'permanent' meant?" in answer.json()["message"]) == (422, True)
    assert web.ask("GET", "/subjects/stays/versions").json() == [1]


@pytest.mark.parametrize("endpoint", confluent_paths.ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_parameters_of_other_servers_are_ignored_on_confluent_paths(web: Web, endpoint: Endpoint) -> None:
    """As the API's clients send them: `reference_format`, `deletedAsNegative`, `ruleType`, …"""
    if endpoint.method == "GET":
        path = endpoint.path.replace("{subject}", "nobody").replace("{version}", "1")
        path = path.replace("{id}", "999999").replace("{guid}", "none")
        plain, more = (web.ask("GET", path + end) for end in ("", "?reference_format=x&deletedAsNegative=1&ruleType=y"))
        assert (more.status_code, more.text) == (plain.status_code, plain.text)


@pytest.mark.parametrize("value", ["yes", "True ", "2", "tru"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(web: Web, value: str) -> None:
    for path in (f"/subjects?deleted={value}", f"/config/nobody?defaultToGlobal={value}"):
        answer = web.ask("GET", path)
        assert (answer.status_code, "is true or false" in answer.json()["message"]) == (422, True)
    assert web.ask("DELETE", f"/api/v1/channels/nobody?data={value}").status_code == 422


def test_probes_may_add_a_parameter(web: Web) -> None:
    assert web.ask("GET", "/healthz?at=1").status_code == 200
    eventually(lambda: web.ask("GET", "/readyz?at=1").status_code == 200)


def test_diff_from_the_newest_version_is_not_from_the_first(web: Web, hub: MessageHub) -> None:
    hub.register_schema("diff.latest", {"type": "integer"})
    hub.register_schema("diff.latest", {"type": "number"})
    assert web.ask("GET", "/api/v1/schemas/diff.latest/diff?from=latest&to=1").json()["from"] == 2


def raw(web: Web, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body as they came over the wire."""
    link = http.client.HTTPConnection(web.url.removeprefix("http://"), timeout=60)
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    link.request("GET", path, headers={"authorization": f"Bearer {web.token}", **given})
    answer = link.getresponse()
    found = answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    link.close()
    return found


def test_large_answers_are_compressed_for_who_takes_that(web: Web) -> None:
    _, plain_headers, plain = raw(web, "/openapi.json", accept_encoding="identity")
    _, headers, packed = raw(web, "/openapi.json", accept_encoding="br, gzip;q=0.5")
    assert "content-encoding" not in plain_headers
    assert headers["content-encoding"] == "gzip"
    assert int(headers["content-length"]) == len(packed) < len(plain) / 3
    assert gzip.decompress(packed) == plain
    for encoding, path in (("gzip;q=0", "/openapi.json"), ("gzip", "/subjects/none/versions")):
        assert "content-encoding" not in raw(web, path, accept_encoding=encoding)[1]


def test_a_schema_from_memory_is_compressed_too_and_its_etag_still_known(web: Web) -> None:
    made = web.register("packed", {"description": "long " * 2000}).json()
    path = f"/schemas/ids/{made['id']}"
    _, plain_headers, plain = raw(web, path, accept_encoding="identity")
    for _ in range(2):
        _, headers, packed = raw(web, path, accept_encoding="gzip")
        assert gzip.decompress(packed) == plain
        assert headers["etag"] == f"W/{plain_headers['etag']}"
        assert headers["vary"] == plain_headers["vary"] == "accept-encoding"
        assert raw(web, path, accept_encoding="gzip", if_none_match=headers["etag"])[0] == 304


def test_events_are_not_held_back_for_compression(web: Web) -> None:
    path = "/api/v1/events?prefix=channel/packed"
    with web.client.stream("GET", path, headers={"accept-encoding": "gzip"}) as stream:
        assert "content-encoding" not in stream.headers
        assert next(stream.iter_lines()) == ": connected"
