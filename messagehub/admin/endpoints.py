"""One row per HTTP operation: routes, the token and the OpenAPI document are all made from it."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response


class Endpoint(NamedTuple):
    """The handler is a method; its first argument is the object that owns it."""

    method: str
    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    writes: bool = False
    query: tuple[str, ...] = ()
    body: type[msgspec.Struct] | None = None
