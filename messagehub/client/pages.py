"""Lists that the broker gives in pages."""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Protocol, TypeVar


class Page(Protocol):
    @property
    def next(self) -> str | None:
        """What `after` is for the next page; None in the last one."""


P = TypeVar("P", bound=Page)


def pages(ask: Callable[[str, float], P], *, timeout: float) -> Iterator[P]:
    """Call `ask(after, seconds that are left)` for one page after the other. `timeout` bounds all of them together."""
    deadline = monotonic() + timeout
    after: str | None = ""
    while after is not None:
        page = ask(after, max(deadline - monotonic(), 0.001))
        yield page
        after = page.next
