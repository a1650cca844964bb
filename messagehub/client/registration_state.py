"""What becomes of one registration: a state machine whose inputs are answers and time; no sockets, no clocks.

    wanted ───ask───► asked ──acknowledged──► acknowledged
    listed ◄─────────┘  │ │                        │
       no answer, unable│ └──refused──► gone       │ forgotten: another broker, or its lease ended
                        └──────────────────────────┴──► wanted, or listed

    close: closing ──unregistered──► gone; gone at once where no broker can know of it

Rule 1: `listed` is a wanted registration that the directory of this host shows meanwhile.
Rule 2: a request that was sent and not answered may yet be served. Such a registration is uncertain until an answer
comes, and closing it takes an unregistration.
Rule 3: the answer to its unregistration ends a closing registration, but an uncertain one only after it was given
again and again: the registration may be on its way still, on a lost connection or behind a schema that is checked.
Rule 4: answers carry the number of the question. A late or doubled one never undoes what a newer one said.
Rule 5: whatever fails is tried again after a pause that grows.
"""

from typing import Literal

State = Literal["wanted", "asked", "acknowledged", "listed", "closing", "gone"]
Step = Literal["register", "unregister"]

PAUSE_FIRST_SECONDS = 0.05
DOUBTS = 5
"""So often an uncertain registration is unregistered; with the pauses between, that takes some ten seconds."""
DOUBT_SECONDS = 0.7


class RegistrationState:
    __slots__ = (
        "_doubts",
        "_failures",
        "_is_under_way",
        "_may_be_known",
        "_number",
        "_phase",
        "is_listed",
        "is_uncertain",
        "retry_at",
    )

    def __init__(self) -> None:
        self._phase: State = "wanted"
        self.is_listed = False
        self.is_uncertain = False
        self.retry_at = 0.0
        self._may_be_known = False
        self._is_under_way = False
        self._number = 0
        self._failures = 0
        self._doubts = 0

    @property
    def name(self) -> State:
        return "listed" if self._phase == "wanted" and self.is_listed else self._phase

    @property
    def is_closed(self) -> bool:
        return self._phase in ("closing", "gone")

    @property
    def is_told(self) -> bool:
        """Whether a closed one was unregistered, or there was nothing to unregister."""
        return self._phase == "gone" or (self._phase == "closing" and self._doubts > 0)

    def next_step(self, now: float) -> Step | None:
        """What to ask of the broker now."""
        if self._is_under_way or now < self.retry_at:
            return None
        if self._phase == "wanted":
            return "register"
        return "unregister" if self._phase == "closing" else None

    def ask(self) -> int:
        """The step is being asked for; returns the question's number."""
        if self._phase == "wanted":
            self._phase = "asked"
        self._is_under_way = True
        self._number += 1
        return self._number

    # -- answers to a registration -------------------------------------------------------------------------

    def acknowledged(self, number: int) -> None:
        if number == self._number or not self._is_under_way:
            self.is_uncertain = False
        if self._phase in ("wanted", "asked"):
            self._phase = "acknowledged"
            self._is_under_way, self._failures = False, 0
        elif self._phase == "closing":  # it is known from now on, whatever was said before
            self._doubts, self.retry_at = 0, 0.0

    def refused(self, number: int) -> None:
        """For good."""
        if number == self._number and self._phase == "asked":
            self.end()

    def failed(self, number: int, *, now: float, most_seconds: float, was_heard: bool) -> None:
        """The broker did not answer, or said that it is unable now; `was_heard` when it may yet do it."""
        self.is_uncertain |= was_heard
        if number == self._number and self._phase == "asked":
            self._phase, self._is_under_way = "wanted", False
            self._pause(now, most_seconds)

    # -- answers to an unregistration ----------------------------------------------------------------------

    def unregistered(self, number: int, *, now: float) -> None:
        """It is, or was unknown to the broker, or is another's by now."""
        if self._phase != "closing" or number != self._number:
            return
        self._is_under_way = False
        self._doubts += 1
        if not self.is_uncertain or self._doubts >= DOUBTS:
            self.end()
        else:
            self.retry_at = now + DOUBT_SECONDS * 2 ** (self._doubts - 1)

    def not_unregistered(self, number: int, *, now: float, most_seconds: float) -> None:
        """The broker did not answer, or is unable now."""
        if self._phase == "closing" and number == self._number:
            self._is_under_way = False
            self._pause(now, most_seconds)

    # -- what else happens ---------------------------------------------------------------------------------

    def forgotten(self) -> None:
        """The broker may not know it any more: it is another one, which knows only what its store kept."""
        if self._phase == "acknowledged":
            self._phase, self.retry_at, self._may_be_known = "wanted", 0.0, True

    def hurry(self) -> None:
        """There is a connection: nothing is to be waited for."""
        self.retry_at = 0.0

    def close(self) -> None:
        may_be_known = self.is_uncertain or self._may_be_known
        if self._phase in ("asked", "acknowledged") or (self._phase == "wanted" and may_be_known):
            self.is_uncertain |= self._phase == "asked"
            self._phase, self._is_under_way = "closing", False
            self.retry_at, self._failures = 0.0, 0
        elif self._phase == "wanted":
            self.end()

    def end(self) -> None:
        self._phase, self._is_under_way = "gone", False

    def _pause(self, now: float, most_seconds: float) -> None:
        self.retry_at = now + min(PAUSE_FIRST_SECONDS * 2**self._failures, most_seconds)
        self._failures = min(self._failures + 1, 30)
