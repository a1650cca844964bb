"""Lists of our own API: whole, or a page at a time with `limit` and `after`.

The answer is a plain list either way. When more follows a page, its header `Link` has the reference of the next one,
relative to the path that was asked for, so that it holds behind a proxy too.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from messagehub.admin.endpoints import HandlerResult

T = TypeVar("T")
_MOST_ASKED, _LEAST_ASKED = 1000, 100
"""How many are asked of the broker at once. A page of it may hold fewer, since some are left out."""


async def listed(
    ask: Callable[[str, int], Awaitable[tuple[list[T], str | None]]],
    name_of: Callable[[T], str],
    after: str,
    wanted: int | None,
) -> HandlerResult[list[T]]:
    """Return a list, or a page of it.

    `ask` takes the name to begin after and a number, and returns a page and the next name.
    """
    found: list[T] = []
    following: str | None = after
    while following is not None and (not wanted or len(found) < wanted):
        limit = max(min(wanted - len(found), _MOST_ASKED), _LEAST_ASKED) if wanted else _MOST_ASKED
        some, following = await ask(following, limit)
        found += some
    if wanted and len(found) > wanted:
        del found[wanted:]
        following = name_of(found[-1])
    return HandlerResult(found, following=following)
