"""Lists of our own API: whole, or a page at a time with `limit` and `after`.

The answer is a plain list either way. When more follows a page, its header `Link` has the reference of the next one,
relative to the path that was asked for, so that it holds behind a proxy too.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import Depends
from starlette.requests import Request

from messagehub.admin.api.parameters import Limit, NotGiven
from messagehub.admin.endpoints import Outcome

T = TypeVar("T")
_MOST_ASKED, _LEAST_ASKED = 1000, 100
"""So many are asked of the broker at once. A page of it may hold fewer, since some are left out."""


class Listing:
    """The part of a list that a request asks for."""

    def __init__(self, request: Request, after: str, limit: int) -> None:
        self._query = dict(request.query_params)
        self._after = after
        self._limit = limit

    async def read(
        self, ask: Callable[[str, int], Awaitable[tuple[list[T], str | None]]], name_of: Callable[[T], str]
    ) -> Outcome[list[T]]:
        """`ask` takes the name to begin after and how many to look at, and returns them and where the next begin."""
        wanted = self._limit
        found: list[T] = []
        after: str | None = self._after
        while after is not None and (not wanted or len(found) < wanted):
            limit = max(min(wanted - len(found), _MOST_ASKED), _LEAST_ASKED) if wanted else _MOST_ASKED
            some, after = await ask(after, limit)
            found += some
        if wanted and len(found) > wanted:
            del found[wanted:]
            after = name_of(found[-1])
        if after is None:
            return Outcome(found)
        following = urlencode({**self._query, "after": after})
        return Outcome(found, headers={"link": f'<?{following}>; rel="next"'})


async def _listing(request: Request, after: str = "", limit: Limit | NotGiven = None) -> Listing:
    return Listing(request, after, limit or 0)


Listed = Annotated[Listing, Depends(_listing)]
