"""The hosts of a channel that a consumer cannot read from now: said once each, and tried again.

Rule: a gateway that is started again is no news. Once the consumer is made, a host is waited for before it is called
missing, as a stream that broke off is.
"""

import logging
import math
import time
from collections.abc import Iterable
from typing import Literal

from messagehub.shm.errors import BlockOnOtherHost

log = logging.getLogger("messagehub")

OnUnreachable = Literal["skip", "raise"]
AGAIN_SECONDS = 2.0
SOON_SECONDS = 0.25
PATIENCE_SECONDS = 10.0
STARTING_SECONDS = 60.0
"""So long a gateway is waited for of which its hub says that it starts."""


def patience(state: str) -> float:
    """Return how long to wait for a gateway of which this is known (see BlockOnOtherHost)."""
    return {"none": 0.0, "starting": STARTING_SECONDS}.get(state, PATIENCE_SECONDS)


class MissingHosts:
    def __init__(self, channel: str, on_unreachable: OnUnreachable) -> None:
        self.why: dict[str, str] = {}
        """Why each host cannot be read, by name."""
        self._channel = channel
        self._raises = on_unreachable == "raise"
        self._again_at: float | None = None
        self._told: set[str] = set()
        self._since: dict[str, float] = {}

    def note(self, missed: Iterable[BlockOnOtherHost], *, is_served: bool, is_made: bool) -> None:
        """Note what all hosts gave that were tried now: those that are not among `missed` can be read. Raise the first
        error where nothing else is there to read (it is not `is_served`), or the consumer asked to be told."""
        errors, now = {error.host: error for error in missed}, time.monotonic()
        self._since = {host: self._since.get(host, now) for host in errors}
        for host in self.why.keys() - errors.keys():
            del self.why[host]
            if host in self._told:
                self._told.discard(host)
                log.warning("channel %r: host %s is not missing any more", self._channel, host)
        self._again_at = None
        for error in errors.values():
            if is_made and error.host not in self.why and now - self._since[error.host] < patience(error.state):
                self._again_at = now + SOON_SECONDS
            elif not self.skips(error, is_served=is_served):
                raise error

    def skips(self, error: BlockOnOtherHost, *, is_served: bool) -> bool:
        """Note that a host cannot be read; return whether the others are read without it."""
        self._again_at = min(time.monotonic() + AGAIN_SECONDS, self._again_at or math.inf)
        self.why[error.host] = error.why
        if self._raises or not is_served:
            return False
        if error.host not in self._told:
            self._told.add(error.host)
            log.warning(
                "channel %r: what is on host %s cannot be read now, the rest is: %s. It is read from where it was left"
                " when the host can be reached; on_unreachable='raise' makes it an error",
                self._channel,
                error.host,
                error.why,
            )
        return True

    def is_due(self) -> bool:
        """Whether to try again now."""
        return self._again_at is not None and time.monotonic() >= self._again_at

    @property
    def again_at(self) -> float | None:
        return self._again_at
