"""Lists of our own API: whole, or a page at a time with `limit` and `after`.

The answer is a plain list either way. When more follows a page, its header `Link` has the reference of the next one,
relative to the path that was asked for, so that it holds behind a proxy too.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from messagehub.admin import parameters
from messagehub.admin.errors import answer

T = TypeVar("T")
QUERY = ("after", "limit")
MAX_LIMIT = 10_000
_MOST_ASKED, _LEAST_ASKED = 1000, 100
"""So many are asked of the broker at once. A page of it may hold fewer, since some are left out."""


async def listed(
    request: Request, ask: Callable[[str, int], Awaitable[tuple[list[T], str | None]]], name_of: Callable[[T], str]
) -> Response:
    """`ask` takes the name to begin after and how many to look at, and returns them and where the next begin."""
    wanted = parameters.bounded(request, "limit", 0, MAX_LIMIT)
    found: list[T] = []
    after: str | None = request.query_params.get("after", "")
    while after is not None and (not wanted or len(found) < wanted):
        limit = max(min(wanted - len(found), _MOST_ASKED), _LEAST_ASKED) if wanted else _MOST_ASKED
        some, after = await ask(after, limit)
        found += some
    if wanted and len(found) > wanted:
        del found[wanted:]
        after = name_of(found[-1])
    if after is None:
        return answer(200, found)
    following = urlencode({**request.query_params, "after": after})
    return answer(200, found, {"link": f'<?{following}>; rel="next"'})
