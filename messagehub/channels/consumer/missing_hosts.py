"""The hosts of a channel that a consumer cannot read from now: logged once each, and tried again.

Rule: a gateway that is started again is no news. Once the consumer is made, a host is waited for before it is called
missing, as a stream that broke off is. One that was missing when the consumer was made is waited for as long.
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
        self.errors: dict[str, BlockOnOtherHost] = {}
        """What keeps each host from being read, by name, also while it is waited for before it is called missing."""
        self._channel = channel
        self._raises = on_unreachable == "raise"
        self._again_at: float | None = None
        self._told: set[str] = set()
        self._since: dict[str, float] = {}
        self._given_up: set[str] = set()
        """The hosts that were waited for in vain, which is told at each further read."""

    def note(
        self, missed: Iterable[BlockOnOtherHost], *, is_served: bool, is_made: bool, is_complete: bool = True
    ) -> None:
        """Note what all hosts gave that were tried now: those that are not among `missed` can be read. Raise the first
        error where nothing else is there to read (it is not `is_served`), or the consumer asked to be told.

        Where the list of hosts is not `is_complete`, it is asked for again."""
        errors, now = {error.host: error for error in missed}, time.monotonic()
        self.errors = errors
        self._since = {host: self._since.get(host, now) for host in errors}
        self._given_up &= errors.keys()
        for host in self.why.keys() - errors.keys():
            del self.why[host]
            if host in self._told:
                self._told.discard(host)
                log.warning("channel %r: host %s is not missing any more", self._channel, host)
        self._again_at = None if is_complete else now + AGAIN_SECONDS
        for error in list(errors.values()):
            is_awaited = is_made and error.host not in self._given_up
            if is_awaited and now - self._since[error.host] < patience(error.state):
                self._again_at = now + SOON_SECONDS
            elif not self.skips(error, is_served=is_served, is_made=is_made):
                raise error

    def skips(self, error: BlockOnOtherHost, *, is_served: bool, is_made: bool = True) -> bool:
        """Note that a host cannot be read, and that it was waited for if the consumer is made; return whether the
        others are read without it."""
        if is_made:
            self._given_up.add(error.host)
        self._again_at = min(time.monotonic() + AGAIN_SECONDS, self._again_at or math.inf)
        self.why[error.host] = error.why
        self.errors[error.host] = error
        is_skipped = is_served and not self._raises
        if (is_skipped or is_made) and error.host not in self._told:  # else there is no consumer, and the error says it
            self._told.add(error.host)
            rest = "the rest is" if is_skipped else "and reading raises BlockOnOtherHost"
            advice = "; on_unreachable='raise' makes it an error" if is_skipped else ""
            log.warning(
                "channel %r: what is on host %s cannot be read now, %s: %s. It is read from where it was left when the"
                " host can be reached%s",
                self._channel,
                error.host,
                rest,
                error.why,
                advice,
            )
        return is_skipped

    def is_due(self) -> bool:
        """Whether to try again now."""
        return self._again_at is not None and time.monotonic() >= self._again_at

    @property
    def again_at(self) -> float | None:
        return self._again_at
