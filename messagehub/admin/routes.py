"""Operations as routes: plain ones for the registry API, and typed ones for our own API.

Rule 1: every operation has the same guard. Rights, draining, media types and the names of query parameters are checked
before anything else of a request is read, and every refusal is answered in our own form.
Rule 2: the signature of a typed handler says all that there is to say. FastAPI reads and describes its parameters;
msgspec reads and describes its body and what it returns.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, get_args, get_origin
from urllib.parse import urlencode

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from messagehub.admin import openapi, parameters
from messagehub.admin.broker_client import BrokerClient
from messagehub.admin.endpoints import Endpoint, HandlerResult
from messagehub.admin.errors import MEDIA_TYPE, HttpError, answer, refusal
from messagehub.admin.response_cache import accepts
from messagehub.errors import HubError
from registry.access import Role
from registry.decoding import decodable

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Awaitable[Any]])
DRAIN = "/api/v1/drain"
_PROBES = ("/healthz", "/readyz")
"""What is asked by load balancers, some of which add a parameter of their own."""
_FREE_ACCEPT = ("/metrics", "/api/v1/events", "/api/v1/topic-stream")


class JsonBody:
    """A dependency of a typed handler: the JSON body as a msgspec type, bounded while it arrives."""

    def __init__(self, kind: Any) -> None:
        self.kind = decodable(kind)

    async def __call__(self, request: Request) -> Any:
        return await parameters.body(request, self.kind)


class TypedRoute(APIRoute):
    """An operation of our own API."""

    def __init__(self, declared: Endpoint) -> None:
        super().__init__(
            declared.path,
            _answering(declared.handler),
            methods=[declared.method],
            response_model=None,
            response_class=Response,
            operation_id=openapi.operation_id(declared),
            summary=openapi.summary(declared),
            tags=[declared.handler.__module__.rpartition(".")[2]],
        )
        body = next((each.call.kind for each in self.dependant.dependencies if isinstance(each.call, JsonBody)), None)
        query = tuple(field.alias for field in self.dependant.query_params)
        self.operation = declared._replace(query=query, body=body, returns=_returned(declared.handler))
        self.responses = openapi.responses(self.operation)
        self.openapi_extra = openapi.body_and_security(self.operation)
        if declared.method == "GET":
            self.methods = {"GET", "HEAD"}  # as a plain route does

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            return await _guarded(handle, self.operation, request, is_confluent=False)

        return guarded


class Operations(list[TypedRoute]):
    """The typed routes of one module, in the order in which they are declared."""

    def add(
        self,
        method: str,
        path: str,
        role: Role | None,
        *,
        writes: bool = False,
        codes: tuple[int, ...] = (),
        media: str = MEDIA_TYPE,
    ) -> Callable[[AnyHandler], AnyHandler]:
        def declare(handler: AnyHandler) -> AnyHandler:
            self.append(TypedRoute(Endpoint(method, path, handler, role, writes=writes, codes=codes, media=media)))
            return handler

        return declare


def plain_route(endpoint: Endpoint, owner: object) -> Route:
    """Return the route of an operation of the registry API: its handler reads the request itself, as fast as it can."""
    handle = functools.partial(endpoint.handler, owner)
    guarded = functools.partial(_guarded, handle, endpoint, is_confluent=True)
    return Route(endpoint.path, guarded, methods=[endpoint.method])


async def _guarded(
    handle: Callable[[Request], Awaitable[Response]], endpoint: Endpoint, request: Request, *, is_confluent: bool
) -> Response:
    request.scope["route_template"] = endpoint.path
    backend: BrokerClient = request.app.state.backend
    try:
        is_probe = endpoint.path in _PROBES
        backend.callers.enter(request.scope, endpoint.role, is_probe=is_probe)
        if endpoint.writes and backend.is_draining and endpoint.path != DRAIN:
            raise HttpError(503, 503, f"draining: no writes are taken until DELETE {DRAIN}")
        if endpoint.path not in _FREE_ACCEPT:
            _check_accept(request)
        if request.scope["query_string"] and not is_probe:
            parameters.check_query(request, endpoint.query, is_confluent=is_confluent)
        return await handle(request)
    except (HttpError, HubError, RequestValidationError) as error:
        refused = _misfit(error) if isinstance(error, RequestValidationError) else error
        backend.callers.refused(request.scope, refused, writes=endpoint.writes)
        return refusal(refused)


def _check_accept(request: Request) -> None:
    accepted = request.headers.get("accept")
    if accepted and not accepts(accepted):
        raise HttpError(406, 406, f"HTTP 406 Not Acceptable: this answers {MEDIA_TYPE}")


def _misfit(error: RequestValidationError) -> HttpError:
    """Return our form of the first parameter that FastAPI refuses."""
    first = error.errors()[0]
    given, kind = str(first["input"]), first["type"]
    message = f"{first['loc'][1]} is {first['msg'].removeprefix('Value error, ')}, not {given[:40]!r}"
    return HttpError(422, 422 if kind == parameters.BAD_FLAG else 42202, message)


def _answering(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Response]]:
    """Return a typed handler as FastAPI calls it: its first argument is the broker client, and what it returns is made
    an answer. FastAPI could inject and write both, but takes 20 µs for each dependency of each request."""
    signature = inspect.signature(handler)

    @functools.wraps(handler)
    async def call(request: Request, **arguments: Any) -> Response:
        returned = await handler(request.app.state.backend, **arguments)
        if isinstance(returned, Response):
            return returned
        if not isinstance(returned, HandlerResult):
            return answer(200, returned)
        if returned.following is None:
            return answer(returned.status, returned.value)
        query = urlencode({**request.query_params, returned.following_by: returned.following})
        return answer(returned.status, returned.value, {"link": f'<?{query}>; rel="next"'})

    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    call.__signature__ = signature.replace(parameters=[request, *list(signature.parameters.values())[1:]])  # type: ignore[attr-defined]
    return call


def _returned(handler: Callable[..., Awaitable[Any]]) -> Any:
    """Return the type of the value that a handler answers with; Any where it writes the answer itself."""
    kind = inspect.signature(handler).return_annotation
    if get_origin(kind) is HandlerResult:
        return get_args(kind)[0]
    return Any if inspect.isclass(kind) and issubclass(kind, Response) else kind
