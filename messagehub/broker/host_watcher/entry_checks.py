"""Schema checks for producers' entries and tables in the directory of this host.

Rule 1: a registration is checked once. Its result counts for that very registration, and is asked for again only when
what it was computed from has changed (`Ask` decides).
Rule 2: while the check of a registration runs, it is not asked for a second time.
Rule 3: a check that could not be done (too many wait, the schema worker died) says nothing about the schema: the
channel is looked at again later.
"""

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from registry import commands
from registry.errors import HubError, Refusal
from registry.registry import Registry
from registry.schemas.checks import CheckResult

log = logging.getLogger("messagehub.broker")

RETRY_SECONDS = 1.0


class Adoption(NamedTuple):
    """A registration from the directory, whose schema has to be checked first."""

    channel: str
    producer_id: str | None  # None: the channel's table
    command: commands.RegisterProducer | commands.RegisterTable


Ask = Callable[[Adoption, CheckResult | None, Registry], bool]
"""Returns whether the schema has to be checked first, given an earlier result; if so, it calls `EntryChecks.done`
later."""
LookAgain = Callable[[str, float], None]
"""Look at a channel again after so many seconds."""


class EntryChecks:
    def __init__(self, ask: Ask, look_again: LookAgain) -> None:
        self._ask = ask
        self._look_again = look_again
        self._asked: dict[str, set[str | None]] = {}
        self._results: dict[str, dict[str | None, tuple[Adoption, CheckResult]]] = {}

    @property
    def is_asking(self) -> bool:
        """Whether any schema is being checked."""
        return bool(self._asked)

    def is_asking_about(self, channel: str) -> bool:
        return channel in self._asked

    def result(self, adoption: Adoption) -> CheckResult | None:
        """Return the result for this very registration, so that a refused one is not checked again at every look."""
        known = self._results.get(adoption.channel, {}).get(adoption.producer_id)
        return known[1] if known is not None and known[0] == adoption else None

    def must_wait(self, adoption: Adoption, result: CheckResult | None, registry: Registry) -> bool:
        """Return whether the registration waits for a check. A Refusal that needs no check is raised."""
        channel, member, _ = adoption
        if member in self._asked.get(channel, ()):
            return True
        try:
            is_asked = self._ask(adoption, result, registry)
        except Refusal:
            raise
        except HubError as busy:
            log.debug("the schema of channel %r is checked later: %s", channel, busy.message)
            self._look_again(channel, RETRY_SECONDS)
            return True
        if is_asked:
            self._asked.setdefault(channel, set()).add(member)
        return is_asked

    def done(self, adoption: Adoption, result: CheckResult) -> None:
        """Keep the result, and have the channel looked at again at once."""
        channel, member, _ = adoption
        asked = self._asked.get(channel, set())
        asked.discard(member)
        if not asked:
            self._asked.pop(channel, None)
        if not result.is_lost:
            self._results.setdefault(channel, {})[member] = adoption, result
        self._look_again(channel, RETRY_SECONDS if result.is_lost else 0.0)

    def forget(self, channel: str, member: str | None) -> None:
        """Forget the result: the registration was made, or its producer or table is gone."""
        known = self._results.get(channel, {})
        known.pop(member, None)
        if not known:
            self._results.pop(channel, None)

    def forget_producers_but(self, channel: str, living: Collection[str]) -> None:
        for member in [each for each in self._results.get(channel, ()) if each is not None and each not in living]:
            self.forget(channel, member)
