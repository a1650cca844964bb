"""docs/reference/http.md says what the routes and the error table say."""

import re
from pathlib import Path

import pytest

from messagehub.admin import api, errors
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import STATUS
from messagehub.admin.openapi import codes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text()
ENDPOINTS = [*confluent_paths.ENDPOINTS, *api.ENDPOINTS]
ROWS = {
    (method, path): (re.findall(r"`(\w+)`", query), role, [int(code) for code in re.findall(r"\d+", listed)])
    for method, path, query, role, listed in re.findall(
        r"^\| ([A-Z]+) \| `([^`]+)` \| (.*?) \| (-|observe|consume|produce|schema-admin|admin) \| (.*?) \| ",
        PAGE,
        re.MULTILINE,
    )
}
MEANINGS = {(int(s), int(c)) for s, c in re.findall(r"^\| (\d+) \| (\d+) \| ", PAGE, re.MULTILINE)}


def test_no_path_is_documented_that_does_not_exist() -> None:
    assert set(ROWS) == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_path_is_documented_with_its_parameters_role_and_codes(endpoint: Endpoint) -> None:
    query, role, listed = ROWS[endpoint.method, endpoint.path]
    assert query == list(endpoint.query)
    assert role == (endpoint.role or "-")
    assert listed == list(endpoint.codes)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_every_code_of_an_operation_has_its_meaning(endpoint: Endpoint) -> None:
    assert {(status, code) for status, listed in codes(endpoint).items() for code in listed} <= MEANINGS


def test_every_error_of_the_hub_and_of_the_code_has_its_meaning() -> None:
    assert set(STATUS.values()) <= MEANINGS
    source = "".join(path.read_text() for path in Path(errors.__file__).parent.rglob("*.py"))
    raised = {(int(s), int(c)) for s, c in re.findall(r"HttpError\(\s*(\d{3}),\s*(\d+)", source)}
    assert raised <= MEANINGS
    assert {401, 503} <= {status for status, _ in raised}
