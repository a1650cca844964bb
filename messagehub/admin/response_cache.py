"""The middleware that answers from the cache before any route is looked for. Paths are matched as they were sent.

Rule: a cached response goes only to a caller who would get the same from the handler. The same functions check the
caller, the rate and the body, once. A caller who may not see everything is passed on to the handler, where each name is
checked; so is an unusual request.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messagehub.admin import parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.cached_responses import CachedResponse
from messagehub.admin.compression import LEAST_BYTES, compressed, takes_gzip
from messagehub.admin.errors import HttpError, refusal
from messagehub.errors import HubError

ACCEPTED = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/*",
    "*/*",
)

BY_ID, BY_VERSION = "/schemas/ids/{id}", "/subjects/{subject}/versions/{version}"
LOOK_UP = "/subjects/{subject}"


class ResponseCache:
    def __init__(self, app: ASGIApp, backend: BrokerClient) -> None:
        self._app = app
        self._backend = backend

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
            scope["path"] = path = path.partition("?")[0]
            method = scope["method"]
            if method == "GET" and not scope["query_string"]:
                cached = self._backend.cached(path)
                if cached is not None and _is_usual(scope):
                    scope["route_template"] = BY_ID if path.startswith("/schemas/") else BY_VERSION
                    return await self._send_cached(cached, scope, receive, send)
            elif method == "POST" and path.startswith("/subjects/") and path.count("/") == 2 and _is_usual(scope):
                scope["route_template"] = LOOK_UP
                return await self._look_up(path, scope, receive, send)
        return await self._app(scope, receive, send)

    async def _send_cached(self, cached: CachedResponse, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._backend.callers.enter(scope, "observe")
        except (HttpError, HubError) as error:
            self._backend.callers.refused(scope, error, writes=False)
            await refusal(error)(scope, receive, send)
            return
        if caller.rights.allows_everything("observe"):
            await _send(cached, scope, send)
        else:
            await self._app(scope, receive, send)

    async def _look_up(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = self._backend.callers.enter(scope, "observe")
            body = await parameters.raw_body(scope, receive)
        except (HttpError, HubError) as error:
            self._backend.callers.refused(scope, error, writes=False)
            await refusal(error)(scope, receive, send)
            return
        cached = self._backend.cached_look_up((path, scope["query_string"], body))
        if cached is not None and caller.rights.allows_everything("observe"):
            await _send(cached, scope, send)
        else:
            await self._app(scope, _again(body, receive), send)


async def _send(cached: CachedResponse, scope: Scope, send: Send) -> None:
    head: Message = {"type": "http.response.start", "status": 200, "headers": cached.headers}
    body: Message = {"type": "http.response.body", "body": cached.payload}
    if len(cached.payload) >= LEAST_BYTES and takes_gzip(scope):
        head, body = await compressed(head, body)
    await send(head)
    await send(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body once more, to the handler."""
    is_given = False

    async def given() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given


def accepts(text: str) -> bool:
    """Return whether an Accept header takes the media type that is always sent."""
    return any(part.partition(";")[0].strip().lower() in ACCEPTED for part in text.split(","))


def _is_usual(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"if-none-match" or (name == b"accept" and not accepts(value.decode("latin-1"))):
            return False
    return True
