"""Every answer that a test gets is held to the OpenAPI document."""

import re
from functools import cache
from typing import Any

import httpx
import jsonschema_rs

from messagehub.admin.docs_page import described

PATHS: dict[str, Any] = described()["paths"]
PATTERNS = sorted(
    ((re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path) for path in PATHS), key=lambda found: "{" in found[1]
)


def check(answer: httpx.Response) -> None:
    """Its status, and its body where there is one; unknown paths and methods have no entry."""
    method, raw = answer.request.method.lower(), answer.request.url.raw_path.decode().partition("?")[0]
    path = next((path for pattern, path in PATTERNS if pattern.fullmatch(raw)), None)
    operation = PATHS.get(path or "", {}).get(method)
    if operation is None:
        return
    said = operation["responses"].get(str(answer.status_code))
    assert said is not None, (method, path, answer.status_code, answer.text)
    (media, content), *_ = [*said.get("content", {}).items(), (None, {})]
    if media is None:
        assert answer.content == b""
        return
    assert answer.headers["content-type"].startswith(media)
    if "schema" in content:
        problems = list(_validator(str(path), method, answer.status_code).iter_errors(answer.json()))
        assert not problems, (method, path, answer.text, [problem.message for problem in problems])


@cache
def _validator(path: str, method: str, status: int) -> Any:
    (content,) = PATHS[path][method]["responses"][str(status)]["content"].values()
    return jsonschema_rs.validator_for(content["schema"])
