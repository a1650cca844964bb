"""The OpenAPI document at /openapi.json, and at /docs Swagger UI to browse it.

Rule 1: Swagger UI's files come from the installed package `fastapi-offline`, of which no code runs, and are served from
our own origin. Scripts are files: the page has none inline, so that its policy allows none.
Rule 2: every reference is relative, so that it holds under the path that a proxy serves the hub under.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from messagehub.admin import api
from messagehub.admin.confluent.paths import ENDPOINTS
from messagehub.admin.errors import error_answer
from messagehub.admin.forwarding import PREFIX
from messagehub.admin.openapi import document

PACKAGE = "fastapi_offline"
_FILES = ("swagger-ui.css", "swagger-ui-bundle.js")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>MessageHub</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  docExpansion: "list",
  deepLinking: true,
  filter: true,
  validatorUrl: null,
});
"""


@cache
def described() -> dict[str, Any]:
    """Return the OpenAPI document. It takes a moment to make."""
    return document(ENDPOINTS, api.ROUTES)


async def _openapi(request: Request) -> Response:
    """Answer with the document. It names the path that a proxy serves the hub under, if the caller came that way."""
    request.scope["route_template"] = "/openapi.json"
    prefix = request.scope.get(PREFIX, "")
    servers = {"servers": [{"url": prefix}]} if prefix else {}
    found = await run_in_threadpool(described)
    return Response(msgspec.json.encode(found | servers), media_type="application/json")


async def docs(request: Request) -> Response:
    request.scope["route_template"] = "/docs"
    if package_files() is None:
        said = (
            f"/docs shows the files of the package {PACKAGE}, which is not installed: pip install 'messagehub[admin]'"
        )
        return error_answer(404, 404, f"{said}. The document that it would show is /openapi.json")
    return HTMLResponse(_PAGE)


async def _file(request: Request) -> Response:
    request.scope["route_template"] = "/docs/{file}"
    name, files = request.path_params["file"], package_files()
    if name == "start.js":
        return Response(_START, media_type="text/javascript")
    if files is None or name not in _FILES:
        return error_answer(404, 404, "HTTP 404 Not Found")
    found = await files.get_response(name, request.scope)
    found.headers["cache-control"] = "no-cache"  # a browser asks each time whether the file is still the same
    return found


@cache
def package_files() -> StaticFiles | None:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    return StaticFiles(directory=Path(found.origin).parent / "static")


ROUTES = [Route("/openapi.json", _openapi), Route("/docs", docs), Route("/docs/{file}", _file)]
