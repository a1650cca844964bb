"""The rings of other hosts whose streams broke off while a consumer read them, until they are opened again.

Rule: such a ring stays wanted when the registry names it no longer, since the members of a lost host end with its
lease. It is forgotten when its host says that it is gone, when its host is no member of the site any more, or when
somebody else produces under its name.
"""

import time
from collections.abc import Set
from typing import TYPE_CHECKING, NamedTuple

from messagehub.channels.hosts import RingElsewhere
from messagehub.shm.errors import BlockOnOtherHost

if TYPE_CHECKING:
    from messagehub.flight.remote_ring import RemoteRing


class _Broken(NamedTuple):
    at: RingElsewhere
    since: float


class BrokenRings:
    """One thread changes it at a time."""

    def __init__(self) -> None:
        self._rings: dict[str, _Broken] = {}

    def __bool__(self) -> bool:
        return bool(self._rings)

    def add(self, ring: "RemoteRing") -> None:
        """Take a ring that is given up, if it could not be reached; what its host refuses is not asked for again."""
        if isinstance(ring.failure, BlockOnOtherHost):
            at = RingElsewhere(ring.host, ring.path.removeprefix(f"{ring.host}:"), 0.0)
            self._rings[ring.path] = _Broken(at, ring.broken_since or time.monotonic())

    def wanted(self, told: Set[str], names: Set[str | None]) -> dict[str, RingElsewhere]:
        """Return what is to be opened again, by path. `told` are the rings that the registry knows on other hosts,
        `names` the blocks that it knows anywhere."""
        self._rings = {path: one for path, one in self._rings.items() if path in told or one.at.shm_name not in names}
        return {path: one.at for path, one in self._rings.items()}

    def since(self, path: str) -> float | None:
        """Return when a ring broke off (`time.monotonic()`); None if it did not."""
        found = self._rings.get(path)
        return None if found is None else found.since

    def forget(self, path: str) -> None:
        self._rings.pop(path, None)
