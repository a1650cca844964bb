"""Endpoints: what is known of every HTTP operation. Its route, its rights and its OpenAPI document come from it."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from messagehub.admin.errors import MEDIA_TYPE
from registry.access import Role

T = TypeVar("T")


class Endpoint(NamedTuple):
    """An operation. One of the registry API is written down whole, with a method as its handler whose first argument
    is the object that owns it; one of our own API is read from its handler's signature (`routes.TypedRoute`).

    The role is what a caller must have, for some name at least; None is open to all. Every command that the handler
    asks is checked besides, with the name that it is about.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    role: Role | None
    writes: bool = False
    query: tuple[str, ...] = ()
    body: Any = None
    media: str = MEDIA_TYPE
    is_immutable: bool = False
    codes: tuple[int, ...] = ()
    """Each `error_code` of its own, besides those that any operation may answer with."""
    returns: Any = None


class HandlerResult(NamedTuple, Generic[T]):
    """What a handler of our own API returns where a plain value does not say it all."""

    value: T
    status: int = 200
    following: str | None = None
    """Where the next page begins: the name before it or, as `following_by` says, an offset."""
    following_by: str = "after"
    """The parameter of the query that takes it."""
