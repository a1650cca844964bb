"""Every path, parameter and error code of the registry API."""

import json
from typing import Any

import httpx
import pytest

from messagehub import MessageHub
from messagehub.admin.errors import MEDIA_TYPE, STATUS
from messagehub.errors import BY_CODE, HubError
from tests.admin.conftest import Web
from tests.integration.harness import eventually

OBJECT = {"type": "object"}
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
CLOSED_WIDER = {"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": False}
CLOSED_BROKEN = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def refused(answer: httpx.Response, status: int, error_code: int) -> str:
    body = answer.json()
    assert (answer.status_code, body["error_code"]) == (status, error_code), body
    assert isinstance(body["message"], str)
    assert answer.headers["content-type"] == MEDIA_TYPE
    return str(body["message"])


def test_root_types_contexts_and_metadata(web: Web) -> None:
    assert web.ask("GET", "/").json() == {}
    assert web.ask("POST", "/").json() == {}
    assert web.ask("GET", "/schemas/types").json() == ["JSON", "PROTOBUF", "AVRO", "ARROW"]
    assert web.ask("GET", "/contexts").json() == ["."]
    assert "scope" in web.ask("GET", "/v1/metadata/id").json()
    assert "version" in web.ask("GET", "/v1/metadata/version").json()


def test_registering_answers_the_id_and_the_same_content_has_the_same_id(web: Web) -> None:
    first = web.register("reg-a", OBJECT).json()
    assert web.register("reg-a", OBJECT).json() == first
    assert web.register("reg-b", OBJECT).json()["id"] == first["id"]
    assert web.ask("GET", f"/schemas/ids/{first['id']}/subjects").json()[-2:] == ["reg-a", "reg-b"]
    versions = web.ask("GET", f"/schemas/ids/{first['id']}/versions").json()
    assert {"subject": "reg-a", "version": 1} in versions
    assert web.ask("GET", f"/schemas/guids/{first['guid']}/ids").json() == [{"context": ".", "id": first["id"]}]
    assert json.loads(web.ask("GET", f"/schemas/guids/{first['guid']}").json()["schema"]) == OBJECT


def test_schema_by_id_is_cached_with_an_etag_until_it_is_permanently_deleted(web: Web) -> None:
    schema = {"type": "object", "title": "cached"}
    schema_id = web.register("cache-a", schema).json()["id"]
    for _ in range(3):
        answer = web.ask("GET", f"/schemas/ids/{schema_id}")
        assert answer.json()["schema"] == json.dumps(schema)
        assert answer.headers["etag"] == f'"{answer.json()["guid"]}"'
        assert "max-age" in answer.headers["cache-control"]
    assert web.ask("GET", f"/schemas/ids/{schema_id}?fetchMaxId=true").json()["maxId"] >= schema_id
    assert web.ask("GET", f"/schemas/ids/{schema_id}/schema").json() == schema
    web.ask("DELETE", "/subjects/cache-a")
    assert web.ask("GET", f"/schemas/ids/{schema_id}").status_code == 200
    web.ask("DELETE", "/subjects/cache-a?permanent=true")
    eventually(lambda: web.ask("GET", f"/schemas/ids/{schema_id}").status_code == 404, timeout=20)
    refused(web.ask("GET", f"/schemas/ids/{schema_id}"), 404, 40403)


def test_versions_can_be_read_and_listed_in_pages(web: Web) -> None:
    for schema in (CLOSED, CLOSED_WIDER):
        assert web.register("ver-a", schema).status_code == 200
    assert web.ask("GET", "/subjects/ver-a/versions").json() == [1, 2]
    assert web.ask("GET", "/subjects/ver-a/versions?offset=1&limit=5").json() == [2]
    latest = web.ask("GET", "/subjects/ver-a/versions/latest").json()
    assert (latest["subject"], latest["version"], latest["schemaType"]) == ("ver-a", 2, "JSON")
    for same in ("-1", "LATEST", "%6Catest", "2", "%32", "%202"):
        assert web.ask("GET", f"/subjects/ver-a/versions/{same}").json() == latest
    assert web.ask("GET", "/subjects/ver-a/versions/1/schema").json() == CLOSED
    listed = web.ask("GET", "/schemas?subjectPrefix=ver-&latestOnly=true").json()
    assert [(s["subject"], s["version"]) for s in listed] == [("ver-a", 2)]
    assert "ver-a" in web.ask("GET", "/subjects?subjectPrefix=ver-").json()


def test_the_newest_version_is_seen_at_once_by_whoever_registered_it(web: Web) -> None:
    for number in range(1, 6):
        web.register("fresh-a", {"description": f"version {number}"})
        for _ in range(2):
            assert web.ask("GET", "/subjects/fresh-a/versions/latest").json()["version"] == number
    with MessageHub(dir=web.directory) as hub:
        hub.register_schema("fresh-a", {"description": "by somebody else"})
    eventually(lambda: web.ask("GET", "/subjects/fresh-a/versions/latest").json()["version"] == 6, timeout=20)
    web.ask("DELETE", "/subjects/fresh-a")
    refused(web.ask("GET", "/subjects/fresh-a/versions/latest"), 404, 40401)


def test_looking_up_finds_the_version_that_has_the_content(web: Web) -> None:
    web.register("look-a", CLOSED)
    body = {"schemaType": "JSON", "schema": json.dumps(CLOSED, indent=2)}
    assert web.ask("POST", "/subjects/look-a", body).json()["version"] == 1
    other = {"schemaType": "JSON", "schema": json.dumps(OBJECT)}
    refused(web.ask("POST", "/subjects/look-a", other), 404, 40403)
    refused(web.ask("POST", "/subjects/look-nobody", other), 404, 40401)


def test_an_incompatible_schema_is_refused_with_every_difference_and_a_document_that_breaks(web: Web) -> None:
    web.register("inc-a", CLOSED)
    answer = web.register("inc-a", CLOSED_BROKEN)
    message = refused(answer, 409, 409)
    assert "Schema being registered is incompatible with an earlier schema" in message
    difference = answer.json()["details"]["differences"][0]["differences"][0]
    assert json.loads(difference["counterexample"])["a"] == 0
    body = {"schemaType": "JSON", "schema": json.dumps(CLOSED_BROKEN)}
    for path in ("versions/latest", "versions/1", "versions"):
        checked = web.ask("POST", f"/compatibility/subjects/inc-a/{path}?verbose=true", body).json()
        assert checked["is_compatible"] is False
        assert checked["messages"]
    fine = {"schemaType": "JSON", "schema": json.dumps(CLOSED_WIDER)}
    assert web.ask("POST", "/compatibility/subjects/inc-a/versions/latest", fine).json() == {"is_compatible": True}


def test_config_of_a_subject_and_of_all(web: Web) -> None:
    assert web.ask("GET", "/config").json() == {"compatibilityLevel": "BACKWARD"}
    refused(web.ask("GET", "/config/conf-a"), 404, 40408)
    assert web.ask("GET", "/config/conf-a?defaultToGlobal=true").json() == {"compatibilityLevel": "BACKWARD"}
    assert web.ask("PUT", "/config/conf-a", {"compatibility": "FULL"}).json() == {"compatibility": "FULL"}
    assert web.ask("GET", "/config/conf-a").json() == {"compatibilityLevel": "FULL"}
    assert web.ask("PUT", "/config/conf-a", {"normalize": True}).json() == {"compatibility": "FULL", "normalize": True}
    assert web.ask("DELETE", "/config/conf-a").json()["compatibilityLevel"] == "FULL"
    refused(web.ask("PUT", "/config", {"compatibility": "SOMETIMES"}), 422, 42203)


def test_modes(web: Web) -> None:
    assert web.ask("GET", "/mode").json() == {"mode": "READWRITE"}
    refused(web.ask("GET", "/mode/mode-a"), 404, 40409)
    assert web.ask("PUT", "/mode/mode-a", {"mode": "READONLY"}).json() == {"mode": "READONLY"}
    refused(web.register("mode-a", OBJECT), 422, 42205)
    assert web.ask("DELETE", "/mode/mode-a").json() == {"mode": "READONLY"}
    assert web.register("mode-a", OBJECT).status_code == 200
    refused(web.ask("PUT", "/mode/mode-a", {"mode": "IMPORT"}), 422, 42205)
    refused(web.ask("PUT", "/mode/mode-a", {"mode": "SIDEWAYS"}), 422, 42204)


def test_soft_and_permanent_deletes(web: Web) -> None:
    refused(web.ask("DELETE", "/subjects/del-nobody"), 404, 40401)
    web.register("del-a", CLOSED)
    web.register("del-a", CLOSED_WIDER)
    refused(web.ask("DELETE", "/subjects/del-a?permanent=true"), 404, 40405)
    refused(web.ask("DELETE", "/subjects/del-a/versions/1?permanent=true"), 404, 40407)
    assert web.ask("DELETE", "/subjects/del-a/versions/1").json() == 1
    refused(web.ask("DELETE", "/subjects/del-a/versions/1"), 404, 40406)
    refused(web.ask("GET", "/subjects/del-a/versions/1"), 404, 40402)
    assert web.ask("GET", "/subjects/del-a/versions/1?deleted=true").json()["version"] == 1
    assert web.ask("GET", "/subjects/del-a/versions?deleted=true").json() == [1, 2]
    assert web.ask("GET", "/subjects/del-a/versions?deletedOnly=true").json() == [1]
    assert web.ask("DELETE", "/subjects/del-a").json() == [2]
    refused(web.ask("DELETE", "/subjects/del-a"), 404, 40404)
    assert "del-a" in web.ask("GET", "/subjects?deletedOnly=true").json()
    assert web.ask("DELETE", "/subjects/del-a?permanent=true").json() == [1, 2]
    assert "del-a" not in web.ask("GET", "/subjects?deleted=true").json()


def test_a_referenced_schema_is_not_deleted_and_knows_who_refers_to_it(web: Web) -> None:
    web.register("ref-base", {"$id": "base.json", "type": "integer"})
    references = [{"name": "base.json", "subject": "ref-base", "version": 1}]
    answer = web.register("ref-user", {"properties": {"a": {"$ref": "base.json"}}}, references=references)
    assert answer.status_code == 200, answer.text
    assert web.ask("GET", "/subjects/ref-base/versions/1/referencedby").json() == [answer.json()["id"]]
    refused(web.ask("DELETE", "/subjects/ref-base/versions/1"), 422, 42206)
    missing = [{"name": "x", "subject": "ref-nobody", "version": 1}]
    refused(web.register("ref-other", OBJECT, references=missing), 422, 42201)


def test_what_a_softly_deleted_schema_refers_to_stays(web: Web) -> None:
    web.register("kept-base", {"$id": "kept.json", "type": "integer"})
    references = [{"name": "kept.json", "subject": "kept-base", "version": 1}]
    schema_id = web.register("kept-user", {"$ref": "kept.json"}, references=references).json()["id"]
    assert web.ask("DELETE", "/subjects/kept-user").json() == [1]
    assert web.ask("DELETE", "/subjects/kept-base").json() == [1]
    said = refused(web.ask("DELETE", "/subjects/kept-base?permanent=true"), 422, 42206)
    assert said.startswith("One or more references exist to the schema {subject=kept-base,version=1}")
    referrers = "/subjects/kept-base/versions/1/referencedby"
    assert web.ask("GET", referrers).json() == []
    assert web.ask("GET", f"{referrers}?deleted=true").json() == [schema_id]
    assert web.register("kept-base", {"$id": "kept.json", "type": "integer"}).json()["version"] == 2
    assert web.ask("GET", f"{referrers}?deleted=true").json() == [schema_id]
    assert web.ask("GET", "/subjects/kept-base/versions?deleted=true").json() == [1, 2]
    assert web.ask("DELETE", "/subjects/kept-user?permanent=true").json() == [1]
    assert web.ask("DELETE", "/subjects/kept-base/versions/1?permanent=true").json() == 1


def test_metadata_and_rules_are_kept_and_take_part_in_identity(web: Web) -> None:
    plain = web.register("meta-a", OBJECT).json()["id"]
    owned = web.register("meta-a", OBJECT, metadata={"properties": {"owner": "lab"}}, ruleSet={"domainRules": []})
    assert owned.json()["id"] != plain
    found = web.ask("GET", "/subjects/meta-a/metadata?key=owner&value=lab").json()
    assert (found["version"], found["metadata"]["properties"]["owner"]) == (2, "lab")
    assert found["ruleSet"] == {"domainRules": []}


@pytest.mark.parametrize("version", ["0", "-2", "abc", "99999999999999999999", "1.5", "%00"])
def test_an_impossible_version_is_refused(web: Web, version: str) -> None:
    web.register("imp-a", OBJECT)
    refused(web.ask("GET", f"/subjects/imp-a/versions/{version}"), 422, 42202)


def test_a_version_that_is_not_there(web: Web) -> None:
    web.register("imp-a", OBJECT)
    refused(web.ask("GET", "/subjects/imp-a/versions/7"), 404, 40402)


@pytest.mark.parametrize("subject", ["a%2Fb", "%C3%A9t%C3%A9", "with%20space", "a%3Fb", "%3A.%3Aplain"])
def test_subjects_may_hold_slashes_spaces_and_any_letters(web: Web, subject: str) -> None:
    assert web.register(subject, OBJECT).status_code == 200
    assert web.ask("GET", f"/subjects/{subject}/versions").json() == [1]


@pytest.mark.parametrize("subject", ["%FF", "%00", "x" * 300, "%3A.other%3Asubject"])
def test_subjects_that_cannot_be_are_refused(web: Web, subject: str) -> None:
    refused(web.register(subject, OBJECT), 422, 42208)


@pytest.mark.parametrize(
    ("schema_type", "text"),
    [
        ("JSON", "{"),
        ("JSON", '{"type": 7}'),
        ("JSON", '{"$ref": "http://127.0.0.1:9/x"}'),
        ("JSON", '{"$ref": "file:///etc/hostname"}'),
        ("AVRO", '{"type": "nothing"}'),
        ("PROTOBUF", "message {"),
        ("ARROW", "{}"),
        ("XML", "<a/>"),
    ],
)
def test_what_is_no_schema_is_refused(web: Web, schema_type: str, text: str) -> None:
    assert "Invalid schema" in refused(web.register("bad-a", text, schema_type), 422, 42201)


def test_a_deep_schema_is_refused_and_the_hub_goes_on(web: Web) -> None:
    deep = '{"items":' * 3000 + "{}" + "}" * 3000
    answer = web.register("bad-deep", deep)
    assert answer.status_code == 422
    eventually(lambda: web.ask("GET", "/readyz").status_code == 200)


def test_bodies_that_are_wrong(web: Web) -> None:
    path = "/subjects/body-a/versions"
    headers = {"authorization": f"Bearer {web.token}", "content-type": "application/json"}

    def send(content: bytes, **extra: str) -> httpx.Response:
        return web.client.post(path, content=content, headers=headers | extra)

    refused(send(b"{"), 400, 400)
    refused(send(b"\xff"), 400, 400)
    refused(send(b"[]"), 422, 422)
    refused(send(b"{}"), 422, 42201)
    refused(send(b"{}", **{"content-type": "text/xml"}), 415, 415)
    refused(send(b'{"schema": "' + b"x" * (1 << 20) + b'"}'), 422, 42209)
    refused(web.client.get("/subjects", headers={"accept": "text/html"}), 406, 406)
    assert send(b'{"schema": "{}", "schemaType": "JSON"}', **{"content-type": "application/octet-stream"}).is_success


def test_unknown_paths_and_methods_have_the_usual_shape(web: Web) -> None:
    refused(web.ask("GET", "/nothing/here"), 404, 404)
    refused(web.ask("PATCH", "/subjects"), 405, 405)
    refused(web.ask("GET", "/schemas/ids/abc"), 404, 404)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/subjects/auth-a/versions", {"schema": "{}", "schemaType": "JSON"}),
        ("DELETE", "/subjects/auth-a", None),
        ("PUT", "/config", {"compatibility": "NONE"}),
        ("PUT", "/mode", {"mode": "READONLY"}),
        ("DELETE", "/api/v1/channels/auth", None),
    ],
)
@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "Basic !!", "Basic dXNlcjp3cm9uZw=="])
def test_writes_need_the_token(web: Web, method: str, path: str, body: Any, authorization: str) -> None:
    refused(web.ask(method, path, body, headers={"authorization": authorization}), 401, 40101)


def test_every_error_has_its_status() -> None:
    missing = [code for code, kind in BY_CODE.items() if kind not in STATUS and kind is not HubError]
    assert missing == []
