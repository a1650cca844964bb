"""The web console at /console/: the files of the folder `console`, as they are.

Rule 1: the page is for everybody and holds nothing of the hub. All that it shows it asks of /api/v1 and the registry
API, with the token of whoever looks, so rights are checked there and nowhere else.
Rule 2: every reference is relative, so that it holds under the path that a proxy serves the hub under.
"""

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from messagehub.admin.errors import error_answer
from messagehub.admin.forwarding import PREFIX

PATH = "/console/"
_FOLDER = Path(__file__).parent / "console"
_files = StaticFiles(directory=_FOLDER)


def asks_for_page(scope: Scope) -> bool:
    """Return whether a browser opens the hub's address. Clients of the registry API do not ask for HTML."""
    if scope.get("path") != "/" or scope.get("method") not in ("GET", "HEAD"):
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


async def _to_page(request: Request) -> Response:
    request.scope["route_template"] = request.url.path
    prefix = request.scope.get(PREFIX, "")
    return RedirectResponse(f"{prefix}{PATH}" if prefix else PATH[1:], 307)


async def _file(request: Request) -> Response:
    request.scope["route_template"] = f"{PATH}{{file}}"
    name = request.path_params["file"] or "index.html"
    if name not in _names():
        return error_answer(404, 404, "HTTP 404 Not Found")
    found = await _files.get_response(name, request.scope)
    found.headers["cache-control"] = "no-cache"  # a browser asks each time whether the file is still the same
    return found


@cache
def _names() -> frozenset[str]:
    """Return what may be asked for, so that no path leads elsewhere."""
    return frozenset(str(path.relative_to(_FOLDER)) for path in _FOLDER.rglob("*.*") if path.is_file())


ROUTES = [Route("/", _to_page), Route(PATH[:-1], _to_page), Route(f"{PATH}{{file:path}}", _file)]
