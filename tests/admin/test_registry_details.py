"""What clients of the Confluent Schema Registry notice: the newest, the deleted, the words of an error, imports."""

import json

import pytest

from messagehub import MessageHub
from tests.admin.conftest import Web
from tests.admin.test_registry_api import CLOSED, CLOSED_BROKEN, CLOSED_WIDER, OBJECT, refused
from tests.admin.test_registry_parameters import body


def test_latest_is_the_newest_that_is_not_deleted(web: Web) -> None:
    for schema in (CLOSED, CLOSED_WIDER, True):
        web.register("newest-a", schema)
    path = "/subjects/newest-a/versions/latest"
    assert web.ask("DELETE", path).json() == 3
    assert web.ask("GET", f"{path}?deleted=true").json()["version"] == 2
    assert "Version 2 was not deleted first" in refused(web.ask("DELETE", f"{path}?permanent=true"), 404, 40407)
    assert [web.ask("DELETE", path).json() for _ in range(2)] == [2, 1]
    refused(web.ask("GET", path), 404, 40401)
    refused(web.ask("GET", f"{path}?deleted=true"), 404, 40402)
    assert web.ask("GET", "/subjects/newest-a/versions/2/referencedby").json() == []


def test_registering_what_was_deleted_is_a_new_version_in_its_place(web: Web) -> None:
    schema_id = web.register("again-a", CLOSED).json()["id"]
    web.register("again-a", CLOSED_WIDER)
    web.ask("DELETE", "/subjects/again-a")
    made = web.register("again-a", CLOSED).json()
    assert (made["id"], made["version"]) == (schema_id, 3)
    assert web.ask("GET", "/subjects/again-a/versions?deleted=true").json() == [2, 3]
    assert "again-a" not in web.ask("GET", "/subjects?deletedOnly=true").json(), "not all of it is deleted"
    assert web.ask("GET", "/subjects/again-a/versions?deletedOnly=true").json() == [2]


def test_settings_outlive_a_soft_delete_and_end_with_a_permanent_one(web: Web) -> None:
    web.register("kept-a", CLOSED)
    web.ask("PUT", "/config/kept-a", {"compatibility": "FULL"})
    web.ask("DELETE", "/subjects/kept-a")
    assert web.ask("GET", "/config/kept-a").json() == {"compatibilityLevel": "FULL"}
    web.ask("DELETE", "/subjects/kept-a?permanent=true")
    refused(web.ask("GET", "/config/kept-a"), 404, 40408)


def test_everything_goes_with_a_subject_that_has_nothing(web: Web) -> None:
    path = "/compatibility/subjects/nothing-here/versions"
    for version in ("", "/latest", "/-1"):
        assert web.ask("POST", path + version, body(CLOSED)).json() == {"is_compatible": True}
    refused(web.ask("POST", f"{path}/1", body(CLOSED)), 404, 40402)
    web.register("free-a", CLOSED)
    web.ask("PUT", "/config/free-a", {"compatibility": "none"})
    avro = {"schema": '"string"'}
    assert web.ask("POST", "/compatibility/subjects/free-a/versions/1", avro).json() == {"is_compatible": True}


def test_errors_say_what_clients_look_for(web: Web) -> None:
    web.register("words-a", CLOSED)
    assert refused(web.ask("GET", "/subjects/words-no/versions"), 404, 40401) == "Subject 'words-no' not found."
    assert refused(web.ask("GET", "/subjects/words-a/versions/9"), 404, 40402) == "Version 9 not found."
    assert "Schema not found" in refused(web.ask("GET", "/schemas/ids/999999999"), 404, 40403)
    assert "Schema not found" in refused(web.ask("POST", "/subjects/words-a", body(True)), 404, 40403)
    web.ask("DELETE", "/subjects/words-a")
    assert "was soft deleted" in refused(web.ask("DELETE", "/subjects/words-a"), 404, 40404)
    assert "subject-level compatibility" in refused(web.ask("GET", "/config/words-a"), 404, 40408)
    assert "subject-level mode" in refused(web.ask("GET", "/mode/words-a"), 404, 40409)
    assert "FULL_TRANSITIVE" in refused(web.ask("PUT", "/config/words-a", {"compatibility": "x"}), 422, 42203)
    assert "READONLY_OVERRIDE" in refused(web.ask("PUT", "/mode/words-a", {"mode": "x"}), 422, 42204)


def test_levels_and_modes_may_be_written_small(web: Web) -> None:
    assert web.ask("PUT", "/config/small-a", {"compatibility": "full_transitive"}).status_code == 200
    assert web.ask("GET", "/config/small-a").json() == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert web.ask("PUT", "/mode/small-a", {"mode": "readonly"}).json() == {"mode": "READONLY"}
    refused(web.ask("PUT", "/config/small-a", {"compatibility": "NONE"}), 422, 42205)
    refused(web.ask("DELETE", "/config/small-a"), 422, 42205)


@pytest.mark.parametrize("subject", ["%0Aa", "a%7F", "%C2%85"])
def test_a_subject_without_control_characters(web: Web, subject: str) -> None:
    refused(web.register(subject, OBJECT), 422, 42208)
    refused(web.ask("PUT", f"/config/{subject}", {"compatibility": "NONE"}), 422, 42208)


def test_ids_that_cannot_be(web: Web) -> None:
    refused(web.ask("GET", "/schemas/ids/-1"), 404, 40403)
    refused(web.ask("GET", "/schemas/ids/0"), 404, 40403)
    refused(web.ask("GET", "/schemas/ids/99999999999"), 404, 404)


def test_an_id_with_a_subject_says_where_it_is(web: Web) -> None:
    schema_id = web.register("where-a", {"title": "where"}).json()["id"]
    web.register("where-b", {"title": "where"})
    found = web.ask("GET", f"/schemas/ids/{schema_id}?subject=where-b").json()
    assert (found["subject"], found["version"]) == ("where-b", 1)
    assert "subject" not in web.ask("GET", f"/schemas/ids/{schema_id}").json()


def test_metadata_of_the_config_and_of_the_version_before_is_taken_over(web: Web) -> None:
    web.ask("PUT", "/config/data-a", {"defaultMetadata": {"properties": {"owner": "lab", "site": "x"}}})
    web.register("data-a", CLOSED, metadata={"properties": {"site": "y"}})
    found = web.ask("GET", "/subjects/data-a/versions/latest").json()
    assert found["metadata"] == {"properties": {"owner": "lab", "site": "y"}}
    assert web.register("data-a", CLOSED_WIDER).json()["version"] == 2
    assert web.ask("GET", "/subjects/data-a/metadata?key=site&value=y").json()["version"] == 2
    refused(web.ask("GET", "/subjects/data-nobody/metadata?key=site&value=y"), 404, 40401)


def test_without_a_text_only_metadata_change(web: Web) -> None:
    refused(web.ask("POST", "/subjects/rules-b/versions", {"schema": ""}), 422, 42201)
    web.register("rules-b", CLOSED)
    changed = web.ask("POST", "/subjects/rules-b/versions", {"metadata": {"properties": {"owner": "me"}}}).json()
    assert changed["version"] == 2
    found = web.ask("GET", "/subjects/rules-b/versions/2").json()
    assert (json.loads(found["schema"]), found["schemaType"]) == (CLOSED, "JSON")


def test_a_lookup_with_metadata_finds_that_very_version(web: Web) -> None:
    metadata = [{"properties": {"owner": owner}} for owner in ("me", "you")]
    ids = [web.register("look-b", CLOSED, metadata=one).json()["id"] for one in metadata]
    found = [web.ask("POST", "/subjects/look-b", body(CLOSED, metadata=one)).json()["id"] for one in metadata]
    assert found == ids
    refused(web.ask("POST", "/subjects/look-b", body(CLOSED, metadata={"properties": {}})), 404, 40403)


def test_mode_import_takes_ids_and_versions(web: Web) -> None:
    assert web.ask("PUT", "/mode/move-a", {"mode": "IMPORT"}).json() == {"mode": "IMPORT"}
    refused(web.register("move-a", CLOSED), 422, 42205)
    assert web.register("move-a", CLOSED_BROKEN, id=90_002, version=20).json()["version"] == 20
    assert web.register("move-a", CLOSED, id=90_001, version=10).json()["id"] == 90_001
    assert web.register("move-a", CLOSED, id=90_001, version=10).json()["version"] == 10
    refused(web.register("move-a", CLOSED, id=90_009), 422, 42207)
    refused(web.register("move-a", True, id=90_001), 422, 42205)
    refused(web.register("move-a", True, id=90_003, version=10), 422, 42205)
    refused(web.register("move-a", True, id=2**31), 422, 422)
    assert web.ask("GET", "/subjects/move-a/versions").json() == [10, 20]
    assert web.ask("GET", "/subjects/move-a/versions/latest").json()["id"] == 90_002
    web.ask("DELETE", "/mode/move-a")
    refused(web.register("move-a", True, id=90_003), 422, 42205)
    assert web.register("move-b", {"title": "after an import"}).json()["id"] > 90_002


def test_an_import_may_bring_back_an_id_with_other_content_and_caches_notice(web: Web) -> None:
    schema_id = web.register("back-a", {"title": "one"}).json()["id"]
    path = f"/schemas/ids/{schema_id}"
    etag = web.ask("GET", path).headers["etag"]
    web.ask("DELETE", "/subjects/back-a")
    assert web.ask("PUT", "/mode/back-a", {"mode": "IMPORT"}).status_code == 200
    refused(web.ask("GET", path), 404, 40403)
    web.register("back-a", {"title": "two"}, id=schema_id)
    answer = web.ask("GET", path, headers={"if-none-match": etag})
    assert (answer.status_code, json.loads(answer.json()["schema"])) == (200, {"title": "two"})
    assert answer.headers["etag"] != etag
    web.ask("DELETE", "/mode/back-a")


def test_a_changed_level_and_a_forced_delete_say_who_is_attached(web: Web) -> None:
    web.register("live.channel", CLOSED)
    with MessageHub(dir=web.directory) as hub:
        digest = hub.schema("live.channel").schema.schema_hash
        hub.register_producer("live.channel", schema_hash=digest, schema=CLOSED, producer_id="p1")
        hub.register_consumer("live.channel", consumer_id="c1", expected_schema_hash=digest)
        changed = web.ask("PUT", "/config/live.channel", {"compatibility": "FULL"})
        assert changed.headers["x-messagehub-touched"] == "producer p1, consumer c1"
        refused(web.ask("DELETE", "/subjects/live.channel"), 409, 409)
        assert web.ask("DELETE", "/subjects/live.channel?force=true").headers["x-messagehub-touched"]
