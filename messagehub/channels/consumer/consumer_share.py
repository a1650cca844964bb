"""A consumer's share of its channel within a group: dealt by the broker, asked for again when it may have changed.

Rule 1: until the broker answers, everything stays as it is; a share that another member may have by now is not read.
Rule 2: an item is done when the next one is asked for, or when it is acknowledged.
"""

import logging
import time
from collections.abc import Callable

from messagehub.channels.consumer.attachments import Attachments
from messagehub.channels.items import AnyRing
from messagehub.client.registration import Registration
from messagehub.errors import HubError
from messagehub.shm.errors import AssignmentChanged
from registry import replies

log = logging.getLogger("messagehub")

REASSIGN_SECONDS = 0.05
Renew = Callable[[Registration, Callable[[HubError | None], None]], None]
"""Have the broker asked once more for what holds now; it calls back on another thread."""


class ConsumerShare:
    def __init__(self, channel: str, attached: Attachments, *, renew: Renew, wake: Callable[[], None]) -> None:
        """`wake` is called, on another thread, when the broker has answered."""
        self.is_stale = False  # the broker is to be asked what is ours
        self.is_superseded = False  # somebody else may have it by now
        self.has_answer = False
        self.unacknowledged: tuple[AnyRing, int] | None = None
        self._channel = channel
        self._attached = attached
        self._renew = renew
        self._wake = wake
        self._registration: Registration | None = None
        self._is_asking = False
        self._asked_at = 0.0
        self._epoch = -1

    def begin(self, registration: Registration) -> None:
        """The broker has registered the member, and dealt it its share."""
        self._registration = registration
        self.has_answer = True

    def supersede(self) -> None:
        """A ring says that it is shared out anew."""
        self.is_stale = self.is_superseded = True

    def is_wanted(self) -> bool:
        """Return whether to ask the broker for our share. A consumer that is not registered has none."""
        return self.is_stale and not self._is_asking and self._registration is not None

    def is_open(self) -> bool:
        """Whether it is asked for, or dealt and not yet taken."""
        return self.is_stale or self._is_asking or self.has_answer

    def ask_at(self) -> float:
        """Return when the share may be asked for again."""
        return self._asked_at + REASSIGN_SECONDS

    def update(self) -> None:
        """Take what was dealt, and have what is stale asked for."""
        if self.has_answer:
            self._take()
        if self.is_stale:
            self._ask()

    def done_with_last(self) -> None:
        if self.unacknowledged is not None:
            reader, sequence = self.unacknowledged
            self.unacknowledged = None
            try:
                reader.acknowledge(sequence)
            except AssignmentChanged:
                self.supersede()

    def _take(self) -> None:
        self.has_answer = False
        ack = self._registration.ack if self._registration is not None else None
        dealt = ack.assignment if isinstance(ack, replies.ConsumerRegistered) else None
        if dealt is None:
            return
        self.is_superseded = False
        if dealt.epoch != self._epoch:
            self.unacknowledged = None
            self._epoch = dealt.epoch
            self._attached.deal(dealt)

    def _ask(self) -> None:
        if self._is_asking or self._registration is None or time.monotonic() < self.ask_at():
            return
        self._asked_at = time.monotonic()
        self._is_asking, self.is_stale = True, False
        self._renew(self._registration, self._on_answer)

    def _on_answer(self, error: HubError | None) -> None:
        """Take note that the broker answered, or did not. The I/O thread calls this."""
        if error is None:
            self.has_answer = True
        else:
            log.debug("the share of %r stays as it is: %s", self._channel, error)
            self.is_stale |= self.is_superseded  # else the next connection wakes us
        self._is_asking = False
        self._wake()
