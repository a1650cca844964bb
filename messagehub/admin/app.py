"""The ASGI application: routes, one place for errors, rights, media types and the shortcut for hot reads."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from messagehub.admin import api, confluent
from messagehub.admin.backend import Backend
from messagehub.admin.callers import Callers
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import MEDIA_TYPE, HttpError, error_answer, hub_error_answer
from messagehub.admin.hardening import Hardened
from messagehub.admin.openapi import document
from messagehub.errors import HubError
from messagehub.hub import MessageHub
from messagehub.version import __version__

_ACCEPTED = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/*",
    "*/*",
)
_FREE_ACCEPT = ("/docs", "/openapi.json", "/metrics", "/api/v1/events")


def create_app(hub: MessageHub, callers: Callers, *, is_tls: bool = False) -> ASGIApp:
    backend = Backend(hub, callers)
    owners = ((confluent.ENDPOINTS, confluent.Confluent(backend)), (api.ENDPOINTS, api.Api(backend)))
    app = FastAPI(title="MessageHub", version=__version__, docs_url="/docs", redoc_url=None)
    app.router.redirect_slashes = False
    for endpoints, owner in owners:
        for endpoint in endpoints:
            handler = partial(_guarded, partial(endpoint.handler, owner), endpoint, backend)
            app.router.routes.append(Route(endpoint.path, handler, methods=[endpoint.method]))
    app.openapi = lambda: document([*confluent.ENDPOINTS, *api.ENDPOINTS])  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_defect)
    served: ASGIApp = Shortcut(app, backend)
    if hub.settings.http_cors:
        served = CORSMiddleware(
            served,
            allow_origins=hub.settings.http_cors.split(),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"],
        )
    return Hardened(served, is_tls=is_tls)


async def _guarded(
    handler: Callable[[Request], Awaitable[Response]],
    endpoint: Endpoint,
    backend: Backend,
    request: Request,
) -> Response:
    """One operation: rights and media types before, errors to answers after."""
    try:
        backend.callers.enter(request, endpoint.role)
        if endpoint.writes and backend.is_draining and endpoint.path != api.DRAIN:
            raise HttpError(503, 503, f"draining: no writes are taken until DELETE {api.DRAIN}")
        _check_accept(request)
        return await handler(request)
    except HttpError as error:
        return error_answer(error.status, error.error_code, error.message, error.headers)
    except HubError as error:
        return hub_error_answer(error)


def _check_accept(request: Request) -> None:
    if request.url.path.startswith(_FREE_ACCEPT):
        return
    accepted = request.headers.get("accept")
    if accepted and not any(part.partition(";")[0].strip().lower() in _ACCEPTED for part in accepted.split(",")):
        raise HttpError(406, 406, f"HTTP 406 Not Acceptable: this answers {MEDIA_TYPE}")


async def _on_http_exception(_: Request, error: Any) -> Response:
    message = f"HTTP {error.status_code} {error.detail}"
    return error_answer(error.status_code, error.status_code, message, error.headers)


async def _on_defect(_: Request, error: Exception) -> Response:
    """The server's log has the traceback; the answer has none."""
    return error_answer(500, 500, f"internal error: {type(error).__name__}")


class Shortcut:
    """Before all routing: answers that are kept, and paths matched undecoded."""

    def __init__(self, app: FastAPI, backend: Backend) -> None:
        self._app = app
        self._kept = backend.kept
        self._is_open = backend.callers.anonymous.allows_everything("observe")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
            scope["path"] = path = path.partition("?")[0]
            if self._is_open and scope["method"] == "GET" and not scope["query_string"]:
                kept = self._kept(path)
                if kept is not None and _takes_default(scope):
                    await send({"type": "http.response.start", "status": 200, "headers": kept.headers})
                    await send({"type": "http.response.body", "body": kept.payload})
                    return
        await self._app(scope, receive, send)


def _takes_default(scope: Scope) -> bool:
    """Whether the media type that is always sent is accepted; anything unusual goes the long way."""
    is_accepted = True
    for name, value in scope["headers"]:
        if name == b"accept":
            is_accepted = value == b"*/*" or b"json" in value
        elif name == b"if-none-match":
            return False
    return is_accepted
