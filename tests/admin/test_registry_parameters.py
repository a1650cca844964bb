"""Every query parameter of the registry API, the forms of a schema, and the answers of its rarer codes."""

import base64
import json
import os
import signal

import httpx
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from messagehub.admin.errors import hub_error_answer, hub_error_body
from messagehub.errors import BrokerUnavailable, HomeHostUnavailable, StoreError, StoreReadOnly
from tests.admin.conftest import Web
from tests.admin.test_registry_api import CLOSED, CLOSED_WIDER, OBJECT, refused
from tests.integration.harness import eventually

PROTO = 'syntax = "proto2"; package p; message M { optional int32 a = 1; extensions 100 to 200; }'
EXTENDING = PROTO + " extend M { optional string note = 100; }"


def body(schema: object, **fields: object) -> dict[str, object]:
    return {"schema": json.dumps(schema), "schemaType": "JSON", **fields}


def test_subjects_are_filtered_and_paged(web: Web) -> None:
    for name in ("page-a", "page-b", "page-c"):
        web.register(name, OBJECT)
    web.ask("DELETE", "/subjects/page-b")
    path = "/subjects?subjectPrefix=page-"
    assert web.ask("GET", path).json() == ["page-a", "page-c"]
    assert web.ask("GET", f"{path}&deleted=true").json() == ["page-a", "page-b", "page-c"]
    for name in ("deletedOnly", "deleted_only"):
        assert web.ask("GET", f"{path}&{name}=true").json() == ["page-b"]
    assert web.ask("GET", f"{path}&offset=1&limit=1").json() == ["page-c"]
    assert web.ask("GET", f"{path}&offset=-3&limit=-1").json() == ["page-a", "page-c"]
    assert web.ask("GET", f"{path}&limit=0").json() == ["page-a", "page-c"]
    refused(web.ask("GET", "/subjects?limit=many"), 422, 422)


def test_versions_and_schemas_are_filtered_and_paged(web: Web) -> None:
    for schema in (CLOSED, CLOSED_WIDER):
        web.register("filter-a", schema)
    web.ask("DELETE", "/subjects/filter-a/versions/1")
    assert web.ask("GET", "/subjects/filter-a/versions").json() == [2]
    assert web.ask("GET", "/subjects/filter-a/versions?deleted_only=true").json() == [1]
    assert web.ask("GET", "/subjects/filter-a/versions?deleted=true&offset=1").json() == [2]
    path = "/schemas?subjectPrefix=filter-"
    assert [s["version"] for s in web.ask("GET", path).json()] == [2]
    both = web.ask("GET", f"{path}&deleted=true").json()
    assert [(s["version"], s.get("deleted", False)) for s in both] == [(1, True), (2, False)]
    assert [s["version"] for s in web.ask("GET", f"{path}&deleted=true&offset=1&limit=1").json()] == [2]
    assert [s["version"] for s in web.ask("GET", f"{path}&deleted=true&latestOnly=true").json()] == [2]


def test_lookup_normalizes_and_looks_among_deleted_ones_when_asked(web: Web) -> None:
    web.ask("POST", "/subjects/norm-a/versions?normalize=true", body({"required": ["b", "a"], "type": "object"}))
    other = body({"type": "object", "required": ["a", "b"]})
    assert web.ask("POST", "/subjects/norm-a?normalize=true", other).json()["version"] == 1
    assert web.ask("POST", "/compatibility/subjects/norm-a/versions?normalize=true", other).json()["is_compatible"]
    web.ask("DELETE", "/subjects/norm-a")
    refused(web.ask("POST", "/subjects/norm-a?normalize=true", other), 404, 40401)
    assert web.ask("POST", "/subjects/norm-a?normalize=true&deleted=true", other).json()["deleted"] is True


def test_places_of_an_id_are_filtered_by_subject_and_deletion(web: Web) -> None:
    schema = {"title": "places"}
    schema_id = web.register("place-a", schema).json()["id"]
    web.register("place-b", schema)
    web.ask("DELETE", "/subjects/place-b")
    path = f"/schemas/ids/{schema_id}"
    assert web.ask("GET", f"{path}/subjects").json() == ["place-a"]
    assert web.ask("GET", f"{path}/subjects?deleted=true").json() == ["place-a", "place-b"]
    assert web.ask("GET", f"{path}/subjects?subject=place-b&deleted=true").json() == ["place-b"]
    assert web.ask("GET", f"{path}/versions?subject=place-a").json() == [{"subject": "place-a", "version": 1}]
    assert web.ask("GET", f"{path}?subject=place-a").json()["schema"] == json.dumps(schema)
    assert web.ask("GET", f"{path}?subject=anybody").status_code == 200
    refused(web.ask("GET", f"{path}?subject=:.other:s"), 404, 40403)
    refused(web.ask("GET", f"{path}/schema?subject=:.other:s"), 404, 40403)
    refused(web.ask("GET", "/schemas/ids/999999999/subjects"), 404, 40403)
    refused(web.ask("GET", "/schemas/guids/nothing"), 404, 40403)
    refused(web.ask("GET", "/schemas/guids/nothing/ids"), 404, 40403)


def test_a_known_etag_is_answered_with_304_before_and_after_caching(web: Web) -> None:
    made = web.register("etag-a", {"title": "etag"}).json()
    path, known = f"/schemas/ids/{made['id']}", {"if-none-match": f'W/"0", "{made["guid"]}"'}
    for _ in range(2):
        answer = web.ask("GET", path, headers=known | {"accept": "*/*"})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", f'"{made["guid"]}"')
        assert web.ask("GET", path, headers={"if-none-match": '"0"'}).status_code == 200
    for other in (f"{path}/schema", f"/schemas/guids/{made['guid']}"):
        assert "max-age" in web.ask("GET", other).headers["cache-control"]
        assert web.ask("GET", other, headers=known).status_code == 304
        assert web.ask("GET", f"{other}?format=default", headers=known).status_code == 200


@pytest.mark.parametrize("path", ["/", "/subjects", "/schemas/types", "/config", "/mode", "/contexts", "/healthz"])
def test_head_is_get_without_a_body(web: Web, path: str) -> None:
    got, head = web.client.get(path), web.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


def test_protobuf_in_its_other_forms(web: Web) -> None:
    made = web.register("form-p", EXTENDING, "PROTOBUF").json()
    paths = (f"/schemas/ids/{made['id']}", f"/schemas/guids/{made['guid']}", "/subjects/form-p/versions/latest")
    for path in paths:
        found = web.ask("GET", f"{path}?format=serialized").json()
        descriptor = FileDescriptorProto.FromString(base64.b64decode(found["schema"]))
        assert (descriptor.package, descriptor.message_type[0].name) == ("p", "M")
        plain = web.ask("GET", f"{path}?format=ignore_extensions").json()["schema"]
        assert "message M" in plain
        assert "extend " not in plain
        assert web.ask("GET", f"{path}?format=default").json()["schema"] == EXTENDING
        refused(web.ask("GET", f"{path}?format=resolved"), 422, 422)
    text = web.ask("GET", f"/schemas/ids/{made['id']}/schema?format=ignore_extensions").text
    assert text == web.ask("GET", "/subjects/form-p/versions/1/schema?format=ignore_extensions").text


def test_avro_resolved_holds_what_it_refers_to_once(web: Web) -> None:
    inner = {"type": "record", "name": "n.Inner", "fields": [{"name": "x", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "Outer",
        "namespace": "n",
        "fields": [
            {"name": "a", "type": "Inner"},
            {"name": "b", "type": ["null", {"type": "array", "items": "Inner"}]},
        ],
    }
    web.register("form-inner", inner, "AVRO")
    references = [{"name": "n.Inner", "subject": "form-inner", "version": 1}]
    schema_id = web.register("form-outer", outer, "AVRO", references=references).json()["id"]
    found = json.loads(web.ask("GET", f"/schemas/ids/{schema_id}?format=resolved").json()["schema"])
    assert found["fields"][0]["type"] == inner
    assert found["fields"][1]["type"][1]["items"] == "n.Inner"
    refused(web.ask("GET", f"/schemas/ids/{schema_id}?format=serialized"), 422, 422)


def test_metadata_that_nobody_has(web: Web) -> None:
    web.register("md-a", OBJECT, metadata={"properties": {"owner": "lab", "site": "x"}})
    both = "/subjects/md-a/metadata?key=owner&value=lab&key=site&value=x"
    assert web.ask("GET", both).json()["version"] == 1
    refused(web.ask("GET", "/subjects/md-a/metadata?key=owner&value=me"), 404, 40402)
    web.ask("DELETE", "/subjects/md-a")
    refused(web.ask("GET", both), 404, 40401)
    assert web.ask("GET", f"{both}&deleted=true").json()["deleted"] is True


def test_an_id_or_version_given_beforehand_must_be_right(web: Web) -> None:
    schema_id = web.register("claim-a", {"title": "claim"}).json()["id"]
    assert web.register("claim-a", {"title": "claim"}, id=schema_id).json()["id"] == schema_id
    refused(web.register("claim-a", {"title": "claim"}, id=schema_id + 1000), 422, 42207)
    refused(web.register("claim-a", {"title": "new"}, id=schema_id + 1000), 422, 42205)
    refused(web.register("claim-a", {"title": "new"}, version=7), 422, 42201)
    assert web.register("claim-a", {"title": "new"}, version=2).json()["version"] == 2
    assert web.register("claim-b", {"title": "new"}, version=1, id=-1).status_code == 200


@pytest.mark.parametrize(
    "rules",
    [
        {"domainRules": "x"},
        {"domainRules": [{}]},
        {"other": []},
        {"migrationRules": [{"name": ""}]},
        {"domainRules": [{"name": "r", "type": "CEL", "mode": "UPGRADE"}]},
        {"domainRules": [{"name": "r", "type": "CEL", "kind": "X"}]},
        {"domainRules": [{"name": "r", "type": "X"}]},
        {"domainRules": [{"name": "r", "type": "CEL"}, {"name": "r", "type": "CEL"}]},
    ],
)
def test_a_rule_set_of_the_wrong_shape(web: Web, rules: object) -> None:
    refused(web.register("rules-a", OBJECT, ruleSet=rules), 422, 42210)
    refused(web.ask("PUT", "/config/rules-a", {"overrideRuleSet": rules}), 422, 42210)
    refused(web.ask("PUT", "/config", {"defaultRuleSet": rules}), 422, 42210)


@pytest.mark.parametrize(
    "config", [{"alias": "other"}, {"compatibilityGroup": "major"}, {"compatibilityLevel": "NONE"}]
)
def test_config_that_would_have_no_effect_is_refused(web: Web, config: object) -> None:
    refused(web.ask("PUT", "/config/conf-none", config), 422, 422)
    refused(web.ask("GET", "/config/conf-none"), 404, 40408)


@pytest.mark.parametrize(
    "tags", [{"schemaTagsToAdd": [{"tags": ["PII"]}]}, {"schemaTagsToRemove": [{}]}, {"propagateSchemaTags": True}]
)
def test_tags_that_would_not_be_set_are_refused(web: Web, tags: dict[str, object]) -> None:
    refused(web.register("tags-a", {"title": "tags"}, **tags), 422, 422)
    assert web.register("tags-b", {"title": "tags"}, **dict.fromkeys(tags)).status_code == 200


def test_every_field_of_the_config_is_kept(web: Web) -> None:
    config = {
        "compatibility": "FORWARD_TRANSITIVE",
        "normalize": True,
        "defaultMetadata": {"properties": {"a": "1"}},
        "overrideMetadata": {"properties": {"b": "2"}},
        "defaultRuleSet": {"domainRules": []},
        "overrideRuleSet": {"migrationRules": []},
    }
    assert web.ask("PUT", "/config/conf-all", config).json() == config
    found = web.ask("GET", "/config/conf-all").json()
    assert found.pop("compatibilityLevel") == config.pop("compatibility")
    assert found == config
    refused(web.ask("PUT", "/config/conf-all", {"compatibility": "FORWARDS"}), 422, 42203)
    changed = web.ask("PUT", "/config/conf-all", {"alias": None, "defaultMetadata": None, "normalize": False}).json()
    assert "alias" not in changed
    assert "defaultMetadata" not in changed
    assert changed["normalize"] is False
    assert web.ask("DELETE", "/config/conf-all").status_code == 200
    refused(web.ask("DELETE", "/config/conf-all"), 404, 40401)


def test_the_global_config_and_mode_can_be_set_and_removed(web: Web) -> None:
    try:
        assert web.ask("PUT", "/config", {"compatibility": "NONE"}).json() == {"compatibility": "NONE"}
        assert web.ask("GET", "/config/glob-a?defaultToGlobal=true").json() == {"compatibilityLevel": "NONE"}
        assert web.ask("PUT", "/mode/glob-a", {"mode": "READWRITE"}).status_code == 200
        assert web.ask("PUT", "/mode", {"mode": "READONLY_OVERRIDE"}).status_code == 200
        refused(web.register("glob-a", OBJECT), 422, 42205)
        assert web.ask("GET", "/mode/glob-b?defaultToGlobal=true").json() == {"mode": "READONLY_OVERRIDE"}
    finally:
        assert web.ask("DELETE", "/mode").json() == {"mode": "READONLY_OVERRIDE"}
        assert web.ask("DELETE", "/config").json() == {"compatibilityLevel": "NONE"}
    assert web.ask("GET", "/config").json() == {"compatibilityLevel": "BACKWARD"}
    assert web.ask("GET", "/mode").json() == {"mode": "READWRITE"}


def test_import_mode_takes_force_where_schemas_are_and_then_takes_history_as_it_was(web: Web) -> None:
    web.register("import-a", CLOSED)
    refused(web.ask("PUT", "/mode/import-a", {"mode": "IMPORT"}), 422, 42205)
    refused(web.register("import-a", {"type": "string"}), 409, 409)
    assert web.ask("PUT", "/mode/import-a?force=true", {"mode": "IMPORT"}).json() == {"mode": "IMPORT"}
    assert web.register("import-a", {"type": "string"}, id=80_001).json()["version"] == 2
    web.ask("DELETE", "/mode/import-a")
    refused(web.ask("DELETE", "/mode/import-a"), 404, 40401)


def test_a_store_that_fails_has_its_code() -> None:
    for kind, codes in ((StoreError, (500, 50001)), (StoreReadOnly, (503, 50001))):
        status, said = hub_error_body(kind("disk full"))
        assert (status, said["error_code"]) == codes


def test_what_may_be_tried_again_says_when() -> None:
    for error in (StoreReadOnly("disk full"), HomeHostUnavailable("gone"), BrokerUnavailable("gone")):
        answer = hub_error_answer(error)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_broker_that_does_not_answer_has_its_code(open_web: Web) -> None:
    os.kill(open_web.process.pid, signal.SIGSTOP)
    try:
        answer = open_web.client.get("/subjects")
    finally:
        os.kill(open_web.process.pid, signal.SIGCONT)
    assert (answer.status_code, answer.json()["error_code"]) in ((500, 50002), (503, 503))

    def is_back() -> bool:
        found: httpx.Response = open_web.client.get("/subjects")
        return found.status_code == 200

    eventually(is_back, timeout=60)
