"""The ASGI application: routes, one place for errors, rights and media types."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from messagehub.admin import api, docs_page, health, parameters
from messagehub.admin.authentication import HttpAuthentication
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.compression import Compressed
from messagehub.admin.confluent import handlers as confluent
from messagehub.admin.confluent import paths as confluent_paths
from messagehub.admin.endpoints import Endpoint
from messagehub.admin.errors import MEDIA_TYPE, HttpError, error_answer, refusal
from messagehub.admin.forwarding import PREFIX, Forwarding
from messagehub.admin.openapi import document
from messagehub.admin.response_cache import ResponseCache, accepts
from messagehub.admin.security_headers import SecurityHeaders
from messagehub.errors import HubError
from messagehub.hub import MessageHub
from messagehub.version import __version__

_PROBES = ("/healthz", "/readyz")
"""What is asked by load balancers, some of which add a parameter of their own."""
_FREE_ACCEPT = ("/docs", "/openapi.json", "/metrics", "/api/v1/events")


def create_app(
    hub: MessageHub, callers: HttpAuthentication, *, is_tls: bool = False, is_draining: bool = False
) -> ASGIApp:
    backend = BrokerClient(hub, callers, is_draining=is_draining)
    owners = ((confluent_paths.ENDPOINTS, confluent.Confluent(backend)), (api.ENDPOINTS, api.Api(backend)))
    app = FastAPI(title="MessageHub", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.router.redirect_slashes = False
    for endpoints, owner in owners:
        check_query = partial(parameters.check_query, is_confluent=endpoints is confluent_paths.ENDPOINTS)
        for endpoint in endpoints:
            handler = partial(_guarded, partial(endpoint.handler, owner), endpoint, check_query, backend)
            app.router.routes.append(Route(endpoint.path, handler, methods=[endpoint.method]))
    described = document([*confluent_paths.ENDPOINTS, *api.ENDPOINTS])
    app.router.routes.append(Route("/openapi.json", partial(_openapi, described)))
    app.router.routes.append(Route("/docs", partial(_docs, docs_page.page(described))))
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_defect)
    served: ASGIApp = ResponseCache(Compressed(app), backend)
    if hub.settings.http_cors:
        served = CORSMiddleware(
            served,
            allow_origins=hub.settings.http_cors.split(),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "x-request-id"],
        )
    settings = hub.settings
    served = SecurityHeaders(served, is_tls=is_tls, has_access_log=settings.http_access_log)
    return Forwarding(served, trusted=settings.http_trusted_proxies, prefix=settings.http_prefix)


async def _guarded(
    handler: Callable[[Request], Awaitable[Response]],
    endpoint: Endpoint,
    check_query: Callable[[Request, tuple[str, ...]], None],
    backend: BrokerClient,
    request: Request,
) -> Response:
    """One operation: rights and media types before, errors to answers after."""
    request.scope["route_template"] = endpoint.path
    try:
        is_probe = endpoint.path in _PROBES
        backend.callers.enter(request.scope, endpoint.role, is_probe=is_probe)
        if endpoint.writes and backend.is_draining and endpoint.path != health.DRAIN:
            raise HttpError(503, 503, f"draining: no writes are taken until DELETE {health.DRAIN}")
        _check_accept(request)
        if request.scope["query_string"] and not is_probe:
            check_query(request, endpoint.query)
        return await handler(request)
    except (HttpError, HubError) as error:
        backend.callers.refused(request.scope, error, writes=endpoint.writes)
        return refusal(error)


def _check_accept(request: Request) -> None:
    if request.url.path.startswith(_FREE_ACCEPT):
        return
    accepted = request.headers.get("accept")
    if accepted and not accepts(accepted):
        raise HttpError(406, 406, f"HTTP 406 Not Acceptable: this answers {MEDIA_TYPE}")


async def _openapi(described: dict[str, Any], request: Request) -> Response:
    """With the path that a proxy serves the hub under, for who came that way."""
    request.scope["route_template"] = "/openapi.json"
    prefix = request.scope.get(PREFIX, "")
    servers = {"servers": [{"url": prefix}]} if prefix else {}
    return Response(msgspec.json.encode(described | servers), media_type="application/json")


async def _docs(page: str, request: Request) -> Response:
    request.scope["route_template"] = "/docs"
    return HTMLResponse(page)


async def _on_http_exception(_: Request, error: Any) -> Response:
    message = f"HTTP {error.status_code} {error.detail}"
    return error_answer(error.status_code, error.status_code, message, error.headers)


async def _on_defect(_: Request, error: Exception) -> Response:
    """The server's log has the traceback; the answer has none."""
    return error_answer(500, 500, f"internal error: {type(error).__name__}")
