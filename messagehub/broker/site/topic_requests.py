"""Requests that a hub sends to the home hosts of retained topics, until they are answered.

Rule 1: each ends once: by its answer, or by its deadline. What was sent is not sent again, since it may have been
carried out; what was sent back, because the home does not have the topic yet, waits for another try.
Rule 2: the bytes that wait are bounded.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic

from msgspec import Struct

from messagehub.errors import RateLimited

HOME_SECONDS = 1.8
"""Less than clients wait for an answer of a subscription, so that they hear which host it is that does not answer."""
AGAIN_SECONDS = 0.02
MAX_WAITING_BYTES = 64 * 2**20

OnEnd = Callable[[bytes | None], None]
"""Called once, with the reply or, at the deadline, None."""


class TopicRequest(Struct, eq=False):
    number: int
    body: bytes
    user: str
    deadline: float
    on_end: OnEnd
    send: Callable[["TopicRequest"], None]
    """Sends it, again if it was sent back; raises if that makes no sense any more."""
    host: str = ""
    sent_at: float = 0.0


class TopicRequests:
    def __init__(self) -> None:
        self.count = 0
        """How many were ever made."""
        self._waiting: dict[int, TopicRequest] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._again: list[TopicRequest] = []
        self._again_at = 0.0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, body: bytes, *, user: str, seconds: float, on_end: OnEnd, send: Callable[[TopicRequest], None]
    ) -> TopicRequest:
        if self._bytes > MAX_WAITING_BYTES:
            raise RateLimited("too much waits for the home hosts of retained topics: try again in a moment")
        self.count += 1
        self._bytes += len(body)
        added = TopicRequest(self.count, body, user, monotonic() + seconds, on_end, send)
        self._waiting[added.number] = added
        heappush(self._deadlines, (added.deadline, added.number))
        return added

    def put_off(self, request: TopicRequest) -> None:
        """Have it sent again in a moment."""
        if not self._again:
            self._again_at = monotonic() + AGAIN_SECONDS
        self._again.append(request)

    def sent_back(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None:
            self.put_off(waiting)

    def end(self, request: TopicRequest) -> None:
        """Forget a request that is answered by whoever ends it."""
        if self._waiting.pop(request.number, None) is not None:
            self._bytes -= len(request.body)

    def answered(self, number: int, payload: bytes) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None:  # or else it was refused meanwhile
            self.end(waiting)
            waiting.on_end(payload)

    def due(self) -> list[TopicRequest]:
        """Take what is to be sent again now."""
        if not self._again or monotonic() < self._again_at:
            return []
        taken, self._again = self._again, []
        return [each for each in taken if each.number in self._waiting]

    def overdue(self) -> list[TopicRequest]:
        """Take the requests whose time is up."""
        taken: list[TopicRequest] = []
        now = monotonic()
        while self._deadlines and self._deadlines[0][0] <= now:
            waiting = self._waiting.get(heappop(self._deadlines)[1])
            if waiting is not None:
                self.end(waiting)
                taken.append(waiting)
        return taken

    def take_all(self) -> list[TopicRequest]:
        taken = list(self._waiting.values())
        for each in taken:
            self.end(each)
        return taken

    def seconds_to_next(self) -> float:
        """Return the seconds until there is something to do; many if there is nothing."""
        times = [self._again_at] if self._again else []
        if self._waiting and self._deadlines:
            times.append(self._deadlines[0][0])
        return max(min(times) - monotonic(), 0.0) if times else 60.0
