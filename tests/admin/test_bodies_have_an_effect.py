"""A field or parameter that nobody reads is refused, instead of a request that does less than it says."""

import pytest

from tests.admin.conftest import Web
from tests.admin.test_registry_api import OBJECT, refused


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/channels/misspelt", {"acces": "shared"}),
        ("POST", "/api/v1/topics/misspelt", {"keeps": {"messages": 5}}),
        ("POST", "/api/v1/topics/misspelt", {"keep": {"message": 5}}),
        ("PUT", "/config/misspelt", {"compatibilityLevel": "NONE"}),
        ("PUT", "/mode/misspelt", {"mode": "READONLY", "forced": True}),
    ],
)
def test_field_that_is_spelled_wrong_is_refused(web: Web, method: str, path: str, body: object) -> None:
    assert "unknown field" in refused(web.ask(method, path, body), 422, 422)


def test_key_without_a_value_is_refused(web: Web) -> None:
    web.register("pairs", OBJECT, metadata={"properties": {"owner": "lab"}})
    refused(web.ask("GET", "/subjects/pairs/metadata?key=owner"), 422, 422)
    assert web.ask("GET", "/subjects/pairs/metadata?key=owner&value=lab").status_code == 200
