"""Methods of a facade that are written once: in the part that does the work.

Rule 1: signature, docstring and types are those of the part's method, for `help()`, editors and type checkers alike.
Rule 2: the part is looked up at each call, since a facade that begins anew has others.
"""

import functools
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")
_Part = TypeVar("_Part")


def delegate(part: str, method: Callable[Concatenate[_Part, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls `method` of the part which its object holds under that name."""
    part_of = attrgetter(part)

    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, /, *given: Any, **named: Any) -> Any:
            return await method(part_of(self), *given, **named)

        call_async.part_of = part_of  # type: ignore[attr-defined]
        return cast("Callable[Concatenate[Any, P], T]", call_async)

    @functools.wraps(method)
    def call(self: Any, /, *given: P.args, **named: P.kwargs) -> T:
        return method(part_of(self), *given, **named)

    call.part_of = part_of  # type: ignore[attr-defined]  # for `checked`, which calls the part itself
    return call
