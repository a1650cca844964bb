"""One row per HTTP operation: routes, the token and the OpenAPI document are all made from it."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin.errors import MEDIA_TYPE
from registry.access import Role


class Endpoint(NamedTuple):
    """The handler is a method; its first argument is the object that owns it.

    The role is what a caller must have, for some name at least; None is open to all. Every command that the handler
    asks is checked besides, with the name that it is about.
    """

    method: str
    path: str
    handler: Callable[[Any, Request], Awaitable[Response]]
    role: Role | None
    writes: bool = False
    query: tuple[str, ...] = ()
    body: Any = None
    media: str = MEDIA_TYPE
    is_immutable: bool = False
    codes: tuple[int, ...] = ()
    """Each `error_code` of its own, besides those that any operation may answer with."""
    returns: Any = None
