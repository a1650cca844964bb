"""Answers that HTTP keeps: never stale, for nobody who may not have them, and bounded."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from messagehub.admin.cached_responses import OVERHEAD_BYTES, CachedResponse, CachedResponses
from messagehub.admin.parameters import MAX_BODY_BYTES
from messagehub.hub import MessageHub
from messagehub.security.credentials import AccessFile, allow_token
from registry import commands
from tests.admin.conftest import Web
from tests.admin.test_registry_api import refused
from tests.integration.harness import eventually

FIRST = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}}
OTHER = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}, "title": "other"}


def text(schema: Any) -> dict[str, Any]:
    return {"schema": json.dumps(schema), "schemaType": "JSON"}


def look_up(web: Web, subject: str, schema: Any, query: str = "") -> httpx.Response:
    """Asked twice: the second may be a cached response, and must be the same."""
    path, body = f"/subjects/{subject}{query}", text(schema)
    answers = [web.ask("POST", path, body) for _ in range(2)]
    assert answers[0].status_code == answers[1].status_code
    assert answers[0].json() == answers[1].json()
    return answers[1]


def test_a_lookup_follows_every_write(web: Web) -> None:
    refused(look_up(web, "cached-a", FIRST), 404, 40401)
    web.register("cached-a", FIRST)
    assert look_up(web, "cached-a", FIRST).json()["version"] == 1
    refused(look_up(web, "cached-a", OTHER), 404, 40403)
    web.register("cached-a", OTHER)
    assert look_up(web, "cached-a", OTHER).json()["version"] == 2
    web.ask("DELETE", "/subjects/cached-a/versions/1")
    refused(look_up(web, "cached-a", FIRST), 404, 40403)
    assert look_up(web, "cached-a", FIRST, "?deleted=true").json()["deleted"] is True
    web.register("cached-a", FIRST)
    assert look_up(web, "cached-a", FIRST).json()["version"] == 3
    assert look_up(web, "cached-a", FIRST, "?deleted=false").json()["version"] == 3
    web.ask("DELETE", "/subjects/cached-a")
    refused(look_up(web, "cached-a", FIRST), 404, 40401)
    assert look_up(web, "cached-a", OTHER, "?deleted=true").json()["version"] == 2
    web.ask("DELETE", "/subjects/cached-a?permanent=true")
    refused(look_up(web, "cached-a", OTHER, "?deleted=true"), 404, 40401)


def test_a_lookup_follows_what_others_write(web: Web) -> None:
    with MessageHub(dir=web.directory) as hub:
        hub.register_schema("cached-b", FIRST)
        eventually(lambda: look_up(web, "cached-b", FIRST).status_code == 200, timeout=20)
        hub.ask(commands.DeleteSchema(subject="cached-b"))

        def is_gone() -> bool:
            return web.ask("POST", "/subjects/cached-b", text(FIRST)).status_code == 404

        eventually(is_gone, timeout=20)


def test_normalising_by_parameter_and_by_config_is_another_question(web: Web) -> None:
    web.ask("POST", "/subjects/cached-c/versions?normalize=true", text({"required": ["b", "a"], "type": "object"}))
    same = {"type": "object", "required": ["b", "a"]}
    refused(look_up(web, "cached-c", same), 404, 40403)
    assert look_up(web, "cached-c", same, "?normalize=true").json()["version"] == 1
    refused(look_up(web, "cached-c", same, "?normalize=false"), 404, 40403)
    web.ask("PUT", "/config/cached-c", {"normalize": True})
    assert look_up(web, "cached-c", same).json()["version"] == 1
    web.ask("PUT", "/config/cached-c", {"normalize": False})
    refused(look_up(web, "cached-c", same), 404, 40403)


def test_a_cached_lookup_is_still_held_to_media_types_and_size(web: Web) -> None:
    web.register("cached-d", FIRST)
    look_up(web, "cached-d", FIRST)
    body = json.dumps(text(FIRST)).encode()
    for headers, status in (
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json", "accept": "text/html"}, 406),
        ({"content-type": "application/json", "accept": "application/not-json"}, 406),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "APPLICATION/JSON", "accept": "text/html, application/json;q=0.5"}, 200),
    ):
        answer = web.client.post("/subjects/cached-d", content=body, headers=headers)
        assert answer.status_code == status, (headers, answer.text)
    refused(web.ask("POST", "/subjects/cached-d", {"schema": "x" * MAX_BODY_BYTES}), 422, 42209)
    assert web.client.post("/subjects/cached-d", content=b"{").status_code == 400


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Web, dict[str, str]]]:
    """Nobody looks without a token, and nobody faster than 25 requests a second."""
    directory: Path = tmp_path_factory.mktemp("cached") / "hub"
    directory.mkdir(mode=0o700)
    (directory / "messagehub.toml").write_text('http_anonymous = ""\nrequests_per_second = 25.0\n')
    access = AccessFile(directory / "access.json")
    rights = {"all": ["observe"], "mine": ["observe:mine.*"], "other": ["observe:other.*"], "fast": ["observe"]}
    tokens = {name: allow_token(access, name, given) for name, given in rights.items()}
    running = Web(directory)
    yield running, tokens
    running.close()


def test_a_cached_response_is_given_only_to_who_may_have_it(guarded: tuple[Web, dict[str, str]]) -> None:
    web, tokens = guarded
    made = web.register("mine.a", FIRST).json()
    for method, path, body in (
        ("POST", "/subjects/mine.a", text(FIRST)),
        ("GET", "/subjects/mine.a/versions/latest", None),
        ("GET", f"/schemas/ids/{made['id']}", None),
    ):

        def status(token: str | None, ask: tuple[str, str, Any] = (method, path, body)) -> int:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return web.client.request(ask[0], ask[1], json=ask[2], headers=headers).status_code

        for _ in range(3):
            assert status(tokens["all"]) == 200
            assert status(tokens["mine"]) == 200
            assert status(tokens["other"]) == 403
            assert status("unlisted") == 401
            assert status(None) == 401


def test_an_unlisted_token_is_refused_where_everybody_may_look(web: Web) -> None:
    made = web.register("cached-e", FIRST).json()
    unlisted = {"authorization": "Bearer unlisted"}
    look_up(web, "cached-e", FIRST)
    refused(web.ask("POST", "/subjects/cached-e", text(FIRST), headers=unlisted), 401, 40101)
    for path in (f"/schemas/ids/{made['id']}", "/subjects/cached-e/versions/latest"):
        for _ in range(2):
            assert web.client.get(path).status_code == 200
            refused(web.ask("GET", path, headers=unlisted), 401, 40101)


def test_cached_responses_count_against_the_rate_once_each(guarded: tuple[Web, dict[str, str]]) -> None:
    web, tokens = guarded
    web.register("mine.b", FIRST)
    headers = {"authorization": f"Bearer {tokens['fast']}"}
    codes = [
        web.client.post("/subjects/mine.b", json=text(FIRST), headers=headers).status_code for _ in range(25)
    ]  # a second's worth
    assert codes == [200] * 25

    def is_limited() -> bool:
        answers = [web.client.post("/subjects/mine.b", json=text(FIRST), headers=headers) for _ in range(50)]
        return any(answer.status_code == 429 for answer in answers)

    eventually(is_limited, timeout=30)


def cached(size: int, seconds: float = 100.0) -> CachedResponse:
    return CachedResponse.of(Response(b"x" * size), seconds, 0)


def test_what_is_cached_is_bounded_in_entries_and_bytes() -> None:
    answers = CachedResponses(max_entries=10, max_bytes=20 * OVERHEAD_BYTES)
    for number in range(1000):
        answers.put(number, cached(100))
        assert len(answers) <= 10
    for number in range(1000):
        answers.put(number, cached(5 * OVERHEAD_BYTES))
        assert answers.bytes <= 20 * OVERHEAD_BYTES
        assert answers.get(number) is not None
    answers.put("huge", cached(21 * OVERHEAD_BYTES))
    assert answers.get("huge") is None
    for _ in range(100):
        answers.put("same", cached(100))
    assert answers.get("same") is not None
    answers.clear()
    assert (len(answers), answers.bytes) == (0, 0)


def test_one_caller_renews_an_answer_before_its_end_and_nobody_gets_it_after() -> None:
    answers = CachedResponses(max_entries=10, max_bytes=1 << 20)
    made = cached(1)
    answers.put("a", made)
    assert answers.get("a") is made
    made.renew_at = 0.0
    assert answers.get("a") is None
    assert answers.get("a") is made
    made.until = made.renew_at = 0.0
    assert answers.get("a") is None
    assert answers.get("a") is None


def test_a_caller_does_not_choose_the_address_that_is_counted(guarded: tuple[Web, dict[str, str]]) -> None:
    web, _ = guarded

    def is_limited() -> bool:
        asked = [{"x-forwarded-for": f"10.0.0.{number}"} for number in range(50)]
        return any(web.client.get("/subjects", headers=headers).status_code == 429 for headers in asked)

    eventually(is_limited, timeout=30)
