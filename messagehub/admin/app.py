"""The ASGI application: all routes, and the middleware around them.

The registry API is a plain Starlette application, because FastAPI takes time for every request that passes it.
"""

from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from messagehub.admin import api, console_page, docs_page
from messagehub.admin.authentication import HttpAuthentication
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.compression import Compressed
from messagehub.admin.confluent.handlers import Confluent
from messagehub.admin.confluent.paths import ENDPOINTS
from messagehub.admin.errors import error_answer
from messagehub.admin.forwarding import Forwarding
from messagehub.admin.response_cache import ResponseCache
from messagehub.admin.routes import plain_route
from messagehub.admin.security_headers import SecurityHeaders
from messagehub.hub import MessageHub

OWN = ("/api/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/console")
"""What the paths begin with that are not of the registry API."""


def create_app(
    hub: MessageHub, callers: HttpAuthentication, *, is_tls: bool = False, is_draining: bool = False
) -> ASGIApp:
    backend = BrokerClient(hub, callers, is_draining=is_draining)
    confluent = Confluent(backend)
    registry = Starlette(routes=[plain_route(endpoint, confluent) for endpoint in ENDPOINTS])
    pages = [*docs_page.ROUTES, *console_page.ROUTES]
    own = FastAPI(routes=[*api.ROUTES, *pages], docs_url=None, redoc_url=None, openapi_url=None)
    for app in (registry, own):
        app.state.backend = backend
        app.router.redirect_slashes = False
        app.add_exception_handler(HTTPException, _on_http_exception)
        app.add_exception_handler(Exception, _on_defect)

    async def by_path(scope: Scope, receive: Receive, send: Send) -> None:
        is_own = scope.get("path", "").startswith(OWN) or console_page.asks_for_page(scope)
        await (own if is_own else registry)(scope, receive, send)

    served: ASGIApp = ResponseCache(Compressed(by_path), backend)
    if hub.settings.http_cors:
        served = CORSMiddleware(
            served,
            allow_origins=hub.settings.http_cors.split(),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["authorization", "content-type", "last-event-id", "x-request-id"],
        )
    settings = hub.settings
    served = SecurityHeaders(served, is_tls=is_tls, has_access_log=settings.http_access_log)
    return Forwarding(served, trusted=settings.http_trusted_proxies, prefix=settings.http_prefix)


async def _on_http_exception(_: Request, error: Any) -> Response:
    message = f"HTTP {error.status_code} {error.detail}"
    return error_answer(error.status_code, error.status_code, message, error.headers)


async def _on_defect(_: Request, error: Exception) -> Response:
    """Answer a defect with 500. The traceback is in the server's log, and not in the answer."""
    return error_answer(500, 500, f"internal error: {type(error).__name__}")
