"""Commands that a follower has sent to the leader, until their replies may be handed on.

Rule 1: a reply is handed on when the own copy has reached its revision: who writes, then reads, sees it.
Rule 2: every command is answered within FORWARD_SECONDS. While nobody leads it waits for a leader; what a leader took
and did not answer is refused as retryable, and never sent twice, since it may have been carried out.
"""

import logging
from collections.abc import Callable, Iterator
from time import monotonic

import msgspec
from msgspec import Struct, field

from messagehub.broker.request_queue import Request
from messagehub.broker.site.link import Answered, Kind
from registry import replies

log = logging.getLogger("messagehub.site")

FORWARD_SECONDS = 4.0
MOST_WAITING = 16_384

OnReply = Callable[[replies.Reply | None], None]


class Forwarded(Struct):
    """A request of a client, or of this hub itself: then `on_reply` is called."""

    number: int
    kind: Kind
    body: bytes
    user: str
    deadline: float
    request: Request | None = None
    on_reply: OnReply | None = None
    sent_to: int | None = None
    """The leadership that it was sent to."""
    answer: Answered | None = None
    lease: str = ""
    """Of a heartbeat."""
    gathered: list["Forwarded"] = field(default_factory=list)
    """The heartbeats that were sent in one request under the number of this one, itself included."""


_payloads_decoder = msgspec.msgpack.Decoder(list[bytes])


class ForwardedRequests:
    def __init__(self) -> None:
        self._waiting: dict[int, Forwarded] = {}
        """By number, the oldest first."""
        self._answered: dict[int, Forwarded] = {}
        """Those whose replies wait for the copy."""
        self._number = 0
        self.count = 0
        """How many were ever forwarded."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self,
        kind: Kind,
        body: bytes,
        *,
        user: str,
        request: Request | None = None,
        on_reply: OnReply | None = None,
        lease: str = "",
    ) -> Forwarded:
        self._number += 1
        self.count += 1
        deadline = monotonic() + FORWARD_SECONDS
        added = Forwarded(self._number, kind, body, user, deadline, request=request, on_reply=on_reply, lease=lease)
        self._waiting[self._number] = added
        return added

    def unsent(self) -> list[Forwarded]:
        return [each for each in self._waiting.values() if each.sent_to is None]

    def answered(self, answer: Answered) -> Forwarded | None:
        """Keep the leader's answer. Return the request if the hub that was asked does not lead, so nothing was done."""
        waiting = self._waiting.get(answer.number)
        if waiting is None:
            return None  # it was refused meanwhile
        if waiting.gathered:
            return self._answered_together(waiting, answer)
        if answer.status == "not_leader":
            waiting.sent_to = None
            return waiting
        waiting.answer = answer
        self._answered[answer.number] = waiting
        return None

    def _answered_together(self, first: Forwarded, answer: Answered) -> Forwarded | None:
        together, first.gathered = first.gathered, []
        if answer.status == "not_leader":
            for each in together:
                each.sent_to = None
            return first
        try:
            payloads = _payloads_decoder.decode(answer.payload)
        except msgspec.DecodeError as error:
            log.warning("the hub that leads answers heartbeats with what cannot be read: %s", error)
            return None  # they are refused at their deadline
        for each, payload in zip(together, payloads, strict=False):
            self.answered(answer._replace(number=each.number, payload=payload))
        return None

    def reached(self, revision: int) -> Iterator[tuple[Forwarded, Answered]]:
        """Take the requests whose replies show nothing beyond a revision."""
        for number, waiting in list(self._answered.items()):
            if waiting.answer is not None and waiting.answer.revision <= revision:
                del self._answered[number], self._waiting[number]
                yield waiting, waiting.answer

    def overdue(self) -> list[Forwarded]:
        """Take the requests whose time is up."""
        now = monotonic()
        taken: list[Forwarded] = []
        for waiting in self._waiting.values():
            if waiting.deadline > now:
                break
            taken.append(waiting)
        return self._take(taken)

    def of_others(self, leadership: int | None) -> list[Forwarded]:
        """Take the requests that were sent to another leadership and have no answer."""
        taken = [
            each
            for each in self._waiting.values()
            if each.sent_to is not None and each.sent_to != leadership and each.answer is None
        ]
        return self._take(taken)

    def take_unsent(self) -> list[Forwarded]:
        return self._take(self.unsent())

    def take_all(self) -> list[Forwarded]:
        return self._take(list(self._waiting.values()))

    def seconds_to_deadline(self) -> float:
        """Return the seconds until the oldest is overdue; many if there is none."""
        oldest = next(iter(self._waiting.values()), None)
        return max(oldest.deadline - monotonic(), 0.0) if oldest is not None else FORWARD_SECONDS

    def _take(self, taken: list[Forwarded]) -> list[Forwarded]:
        for each in taken:
            del self._waiting[each.number]
            self._answered.pop(each.number, None)
        return taken
