"""The hubs of a process, and what a fork and the end of the process do to them."""

import logging
import os
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.runtime.process_end import ProcessEnd

log = logging.getLogger("messagehub")


Hub = TypeVar("Hub", bound=ClosedWhenForgotten)


class ProcessHubs(Generic[Hub]):
    """It refers to hubs weakly: one that nobody holds any more is closed as every other handle is."""

    def __init__(self, begin_in_child: Callable[[Hub], None]) -> None:
        """`begin_in_child` is called with each hub in a forked child."""
        self._hubs: weakref.WeakSet[Hub] = weakref.WeakSet()
        self._begin = begin_in_child
        os.register_at_fork(after_in_child=self._begin_in_child)
        self._end = ProcessEnd(self._close_all)

    def add(self, hub: Hub) -> None:
        self._hubs.add(hub)
        self._end.expect_end()

    def _begin_in_child(self) -> None:
        for hub in list(self._hubs):
            self._begin(hub)

    def _close_all(self) -> None:
        """Unregister at the end of the process. Without that, other hosts would believe in it until its lease ends."""
        for hub in list(self._hubs):
            try:
                hub.close()
            except Exception:  # the others are to be closed too
                log.exception("a hub could not be closed at the end of the process")
