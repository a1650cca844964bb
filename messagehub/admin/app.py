"""The ASGI application: all routes, and what stands around them."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from messagehub.admin import api, docs_page
from messagehub.admin.authentication import HttpAuthentication
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.compression import Compressed
from messagehub.admin.confluent.handlers import Confluent
from messagehub.admin.confluent.paths import ENDPOINTS
from messagehub.admin.errors import error_answer
from messagehub.admin.forwarding import Forwarding
from messagehub.admin.metrics.channels import ChannelItems
from messagehub.admin.response_cache import ResponseCache
from messagehub.admin.routes import plain_route
from messagehub.admin.security_headers import SecurityHeaders
from messagehub.hub import MessageHub
from messagehub.shm.location import directory_of
from messagehub.version import __version__


def create_app(
    hub: MessageHub, callers: HttpAuthentication, *, is_tls: bool = False, is_draining: bool = False
) -> ASGIApp:
    backend = BrokerClient(hub, callers, is_draining=is_draining)
    app = FastAPI(title="MessageHub", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.backend = backend
    app.state.channel_items = ChannelItems(directory_of(hub.settings))
    confluent = Confluent(backend)
    app.router.redirect_slashes = False
    app.router.routes.extend(plain_route(endpoint, confluent) for endpoint in ENDPOINTS)
    app.router.routes.extend(api.ROUTES)
    app.router.routes.extend(docs_page.ROUTES)
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


async def _on_http_exception(_: Request, error: Any) -> Response:
    message = f"HTTP {error.status_code} {error.detail}"
    return error_answer(error.status_code, error.status_code, message, error.headers)


async def _on_defect(_: Request, error: Exception) -> Response:
    """The server's log has the traceback; the answer has none."""
    return error_answer(500, 500, f"internal error: {type(error).__name__}")
