"""schemathesis over our own OpenAPI: whatever is sent, no failure of the server and no undocumented answer."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from messagehub.admin import api
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.docs_page import described
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.routes import DRAIN
from tests.admin.conftest import Web
from tests.levels import examples

ENDPOINTS = [*confluent_paths.ENDPOINTS, *api.ENDPOINTS]
UNENDING = {("GET", "/api/v1/events"), ("GET", "/api/v1/topic-stream")}
STOPS_WRITES = {("POST", DRAIN)}
TRIED = [e for e in ENDPOINTS if (e.method, e.path) not in UNENDING | STOPS_WRITES]
SCHEMA = schemathesis.openapi.from_dict(described())
NAMES = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
PROMISES = CHECKS.get_by_names(NAMES)
EXAMPLES = settings(
    max_examples=examples(5),
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A hub that may end in any state."""
    running = Web(tmp_path_factory.mktemp("openapi") / "hub")
    yield running
    running.close()


def name(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def can_be_wrong(endpoint: Endpoint) -> bool:
    """Whether a parameter or a body has a type that something else does not have: any text is a text."""
    operation = described()["paths"][endpoint.path][endpoint.method.lower()]
    is_text = [one["schema"].get("type") == "string" for one in operation.get("parameters", [])]
    return endpoint.body not in (None, Any) or not all(is_text)


def send(web: Web, endpoint: Endpoint, mode: GenerationMode, headers: dict[str, str]) -> list[int]:
    statuses: list[int] = []

    @EXAMPLES
    @given(SCHEMA[endpoint.path][endpoint.method].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(base_url=web.url, headers=headers)
        case.validate_response(answer, checks=PROMISES)
        statuses.append(answer.status_code)

    ask()
    return statuses


@pytest.mark.parametrize("endpoint", TRIED, ids=name)
def test_every_answer_to_what_is_right_is_documented(fuzzed: Web, endpoint: Endpoint) -> None:
    send(fuzzed, endpoint, GenerationMode.POSITIVE, {"authorization": f"Bearer {fuzzed.token}"})


@pytest.mark.parametrize("endpoint", [e for e in TRIED if can_be_wrong(e)], ids=name)
def test_every_answer_to_what_is_wrong_is_documented(fuzzed: Web, endpoint: Endpoint) -> None:
    send(fuzzed, endpoint, GenerationMode.NEGATIVE, {"authorization": f"Bearer {fuzzed.token}"})


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}], ids=["none", "wrong"])
@pytest.mark.parametrize("endpoint", [e for e in TRIED if e.writes], ids=name)
def test_without_the_token_no_write_gets_through(fuzzed: Web, endpoint: Endpoint, headers: dict[str, str]) -> None:
    assert set(send(fuzzed, endpoint, GenerationMode.POSITIVE, headers)) == {401}


@pytest.mark.parametrize("endpoint", [e for e in TRIED if not e.writes], ids=name)
def test_without_a_token_every_answer_is_documented_too(fuzzed: Web, endpoint: Endpoint) -> None:
    send(fuzzed, endpoint, GenerationMode.POSITIVE, {})
