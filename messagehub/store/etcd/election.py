"""Tries to lead a site, and keeps the leadership, on a thread of its own.

Rule 1: `on_won` and `on_lost` are called in turns, on this thread. What they start is fenced by the leader key, so that
a hub that hears of its loss late does no harm.
Rule 2: a hub that stands aside never leads again; it goes on to see who does.
Rule 3: a leader that cannot renew its lease steps down when the lease may have run out, whether or not etcd answers.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic

from messagehub.errors import StoreError
from messagehub.runtime.supervision import Supervisor
from messagehub.store.etcd.errors import NotLeader
from messagehub.store.etcd.leadership import LeaderKey

log = logging.getLogger("messagehub.site")

TRY_SECONDS = 0.25


class Election:
    def __init__(
        self,
        key: LeaderKey,
        value: bytes,
        *,
        on_won: Callable[[], None],
        on_lost: Callable[[str], None],
        on_seen: Callable[[tuple[int, bytes] | None], None] = lambda _: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`value` tells others who leads; `on_lost` is told why, `on_seen` which leadership there is whenever that is
        another one."""
        self._key = key
        self._value = value
        self._on_won, self._on_lost, self._on_seen = on_won, on_lost, on_seen
        self._is_leading = False
        self.problem = ""
        """Why nobody can be elected now; empty if nothing is wrong."""
        self._seen: tuple[int, bytes] | None = None
        self._resigning = ""
        self._aside = ""
        self._stopping = threading.Event()
        self._thread = (supervisor or Supervisor()).start("messagehub-election", self._run)

    def close(self, *, timeout: float) -> None:
        """End the leadership, so that another hub can lead at once."""
        self._stopping.set()
        self._thread.join(timeout)

    def resign(self, why: str) -> None:
        """End the leadership at the next turn, and try to lead again afterwards. From any thread."""
        self._resigning = why

    def stand_aside(self, why: str) -> None:
        """Never lead again, nor stand in the way of a hub that can. From any thread."""
        self._aside = why
        self._resigning = self._resigning or why

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
                self.problem = self._aside
            except StoreError as error:
                log.debug("no leader is elected: %s", error.message)  # tried again
                self.problem = self._aside or error.message
            if self._key.seen != self._seen:
                self._seen = self._key.seen
                self._on_seen(self._seen)
            self._stopping.wait(TRY_SECONDS)
        try:
            self._key.give_up()
        except StoreError as error:
            log.warning("the leadership ends when its lease runs out, not at once: %s", error.message)
        if self._is_leading:
            self._lose("it is stopping")

    def _turn(self) -> None:
        if self._resigning:
            why, self._resigning = self._resigning, ""
            if self._is_leading:
                self._lose(why)
            self._key.give_up()
        if self._aside and not self._is_leading:
            self._key.is_taken()
            return
        if not self._is_leading:
            if self._key.take(self._value):
                self._is_leading = True
                log.info("this hub leads the site")
                self._on_won()
            return
        try:
            self._key.renew()
        except NotLeader as error:
            self._lose(error.message)
        except StoreError as error:
            if monotonic() >= self._key.lasts_until:
                self._key.lapse()
                self._lose(error.message)

    def _lose(self, why: str) -> None:
        self._is_leading = False
        self._key.seen = None
        log.warning("this hub does not lead the site any more: %s", why)
        self._on_lost(why)
