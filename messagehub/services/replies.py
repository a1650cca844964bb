"""A request whose reply is taken later: its attempts, its deadline and its one end.

Rule 1: a call ends once: with the answer of a handler, with an error, at its deadline, or when it is cancelled.
Rule 2: an attempt belongs to the call until it is settled, by whoever is first: the thread that reads the answer, the
deadline, or `cancel`. Only then can another attempt follow.
Rule 3: nothing that a reading thread calls here waits, and functions of users run on the background threads.
Rule 4: as long as nobody asks for more than `result`, the thread that asks reads the answer itself. A callback, an
`await`, `done` or retries have the reading thread do it from then on, so that the call moves on by itself.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, Protocol

from messagehub.errors import HubError, MailboxClosed, NotInitialised, RequestCancelled, RequestTimeout, SendTimeout
from messagehub.payloads.encoding import decode_payload, from_block
from messagehub.protocol.topic_frames import BYTES, IN_BLOCK
from messagehub.runtime.background import BackgroundJob, BackgroundThreads
from messagehub.runtime.callbacks import check_callback
from messagehub.runtime.event_loop import wake
from messagehub.services.connection import ServiceAnswer, ServiceConnection
from messagehub.services.directory import Resolved, Route
from messagehub.services.frames import ANSWER, EVERYTHING, EXPIRED, FAILED, REFUSED, SEND, more, read_failure
from messagehub.services.outgoing_requests import Outgoing

log = logging.getLogger("messagehub.services")

HAND_OVER_SECONDS = 0.001
"""How long to wait, again and again, for an answer that another thread is handing over at the deadline."""


class Attempt(NamedTuple):
    """A message that is on its way: to which worker, and on which connection."""

    entry: Resolved
    route: Route
    number: int
    connection: ServiceConnection


class Call(Protocol):
    """A call that `Requests` delivers, and tries again."""

    outgoing: Outgoing

    @property
    def has_ended(self) -> bool: ...

    def post(self, connection: ServiceConnection, number: int, frame: bytes, deadline: float) -> ServiceConnection:
        """Send it."""

    def post_at_once(self, connection: ServiceConnection, number: int, frame: bytes) -> bool:
        """Send it without waiting. Return False if that cannot be done now."""

    def posted(self, attempt: Attempt) -> None: ...

    def end(self, error: BaseException | None) -> bool:
        """End the call. Return False if it had ended before."""


class Calls(Protocol):
    """What a call needs of `Requests`."""

    background: BackgroundThreads

    def settled(self, call: Call, attempt: Attempt, error: HubError | None, answer: ServiceAnswer | None) -> None:
        """Take the end of an attempt: the call ends with it, or is tried again."""

    def given_up(self, attempt: Attempt) -> None:
        """Give up the attempt. Nobody waits for it any more, nor for another."""

    def retry_or_end(self, call: Call, error: HubError) -> None: ...

    def tell(self, connection: ServiceConnection, frame: bytes, deadline: float) -> None:
        """Send a message that gets no answer, without waiting."""


class PendingReply:
    """A request on its way: `result()` or `await` gives its reply."""

    def __init__(self, outgoing: Outgoing, calls: Calls) -> None:
        self.outgoing = outgoing
        self._calls = calls
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # held by the one thread that reads in `result`
        self._attempt: Attempt | None = None
        self._awaited = ServiceAnswer()  # replaced only while there is no attempt, so that one has the same to its end
        self._is_posted = False
        self._answer: ServiceAnswer | None = None
        self._error: BaseException | None = None
        self._has_ended = self._is_watched = self._is_decoded = False
        self._payload: Any = None
        self._timer: BackgroundJob | None = None
        self.keeps: object = None  # lives as long as this does
        self._listeners: list[Callable[[], object]] = []

    # -- for users -----------------------------------------------------------------------------------------

    def result(self) -> Any:
        """Wait for the reply and return it; raise what `hub.request` would.

        It can be called again, also after an interrupt.
        """
        if not self._has_ended and not self._is_watched and self._reading.acquire(blocking=False):
            try:
                self._read()
            except BaseException:  # an interrupt: other threads may wait for what this one was reading
                self.watch()
                raise
            finally:
                self._reading.release()
        while not self._has_ended:
            self._wait()
        return self._value()

    def done(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        if not self._has_ended:
            self.watch()
            if self._is_late():
                self._expire()
        return self._has_ended

    def cancel(self) -> bool:
        """Cancel the request. Return False if the reply has come. The worker is told (`context.is_cancelled`)."""
        self.watch()  # so that an answer that has come already counts
        attempt = self._attempt
        if not self.end(RequestCancelled(f"the request to {self.outgoing.address} was cancelled")):
            return False
        if attempt is not None:
            self._leave(attempt)
        return True

    def cancelled(self) -> bool:
        """Whether `cancel` came before the reply."""
        return isinstance(self._error, RequestCancelled)

    def add_done_callback(self, callback: Callable[["PendingReply"], object]) -> None:
        """Have `callback(pending)` called, on a thread of the hub, when `result` would return or raise."""
        check_callback(callback, name="callback", arguments=("pending",), may_await=False)

        def run() -> None:
            try:
                callback(self)
            except BaseException:  # also an exit: it concerns this callback, not the hub's thread
                log.exception("a callback of a request to %s failed", self.outgoing.address)

        self._listen(lambda: self._calls.background.add(run, drop=run))
        self.watch()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait_async().__await__()

    def __repr__(self) -> str:
        state = "ended" if self._has_ended else "on its way"
        return f"<request to {self.outgoing.address}: {state}>"

    # -- attempts ------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def post(self, connection: ServiceConnection, number: int, frame: bytes, deadline: float) -> ServiceConnection:
        self._renew_answer()
        connection.post(number, frame, self._awaited, deadline)
        return connection

    def post_at_once(self, connection: ServiceConnection, number: int, frame: bytes) -> bool:
        self._renew_answer()
        return connection.post_at_once(number, frame, self._awaited)

    def posted(self, attempt: Attempt) -> None:
        with self._lock:
            has_ended = self._has_ended
            self._attempt = attempt
        if has_ended:  # it was cancelled, or its deadline came, while this attempt began
            self._leave(attempt)
        elif self._is_watched or self.outgoing.retries or self.outgoing.idempotent:
            self.watch()

    def end(self, error: BaseException | None) -> bool:
        with self._lock:
            if self._has_ended:
                return False
            self._error, self._has_ended = error, True
            listeners, self._listeners = self._listeners, []
            timer, self._timer = self._timer, None
        if timer is not None:
            self._calls.background.cancel(timer)
        for listener in listeners:
            listener()
        return True

    # -- inside --------------------------------------------------------------------------------------------

    def _renew_answer(self) -> None:
        """Make a new answer before each attempt: an earlier one may still be told that its connection was lost."""
        if self._is_posted:
            self._awaited = ServiceAnswer()
        self._is_posted = True

    def _read(self) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        try:
            attempt.connection.finish(attempt.number, self._awaited, self.outgoing.deadline)
        except HubError as error:
            self._settle(attempt, error)
        else:
            self._settle(attempt, refusal_in(self._awaited))

    def watch(self) -> None:
        """Have the reading thread take the answer, and a background thread end the call at its deadline."""
        with self._lock:
            if self._has_ended:
                return
            is_first, self._is_watched = not self._is_watched, True
            attempt, answer = self._attempt, self._awaited
        if is_first:
            self._start_timer()
        if attempt is None:
            return  # an attempt that follows is watched from its beginning
        answer.on_arrival = partial(self._arrived, attempt, answer)
        answer.reads_itself = False
        if answer.has_arrived():
            self._arrived(attempt, answer)
        else:
            attempt.connection.leave()

    def _start_timer(self) -> None:
        background = self._calls.background
        timer = background.add(
            self._expire, at=self.outgoing.deadline, drop=lambda: self.end(NotInitialised("this hub is closed"))
        )
        with self._lock:
            self._timer = None if self._has_ended else timer
        if self._timer is None:
            background.cancel(timer)  # else it would hold on to the call until the deadline

    def _is_late(self) -> bool:
        return monotonic() >= self.outgoing.deadline

    def _arrived(self, attempt: Attempt, answer: ServiceAnswer) -> None:
        self._settle(attempt, answer.error or refusal_in(answer))

    def _expire(self) -> None:
        """End the call at its deadline. A background thread or one that waits does this, whichever sees it first."""
        attempt = self._attempt
        address = self.outgoing.address
        if attempt is None:
            self._calls.retry_or_end(self, SendTimeout(f"no worker of {address} was reached in time"))
        elif attempt.connection.give_up(attempt.number):
            late = f"{address}{attempt.connection.where} did not answer in time"
            self._settle(attempt, RequestTimeout(late))

    def _settle(self, attempt: Attempt, error: HubError | None) -> None:
        with self._lock:
            if self._attempt is not attempt:
                return
            self._attempt = None
            answer = self._answer = self._awaited
        self._calls.settled(self, attempt, error, answer)

    def _leave(self, attempt: Attempt) -> None:
        """Tell the worker that nobody waits for its answer any more."""
        if not attempt.connection.give_up(attempt.number):
            return  # the answer is here, and settles the attempt
        with self._lock:
            if self._attempt is not attempt:
                return
            self._attempt = None
        self._calls.given_up(attempt)
        self._calls.tell(attempt.connection, more(attempt.number, EVERYTHING), self.outgoing.deadline)

    def _listen(self, listener: Callable[[], object]) -> None:
        """Have it called when the call ends, on the thread that ends it; at once if it has ended."""
        with self._lock:
            if not self._has_ended:
                self._listeners.append(listener)
                return
        listener()

    def _wait(self) -> None:
        """Block until the call ends. At its deadline, end it if nobody else has."""
        ended = threading.Event()
        self._listen(ended.set)
        self.watch()
        if not ended.wait(max(self.outgoing.deadline - monotonic(), 0.0)):
            self._expire()
            ended.wait(1.0)  # if it did not end by that, the answer is being handed over at this very moment

    async def _wait_async(self) -> Any:
        """As `_wait`, to be awaited. The loop has a timer of its own, since all background threads may be busy."""
        loop = asyncio.get_running_loop()
        while not self._has_ended:
            future: asyncio.Future[None] = loop.create_future()
            self._listen(partial(wake, loop, future))
            self.watch()
            seconds = max(self.outgoing.deadline - monotonic(), HAND_OVER_SECONDS)
            timer = loop.call_later(seconds, wake, loop, future)
            try:
                await future
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                timer.cancel()
            if not self._has_ended and self._is_late():
                self._expire()  # if it does not end by that, the answer is being handed over at this very moment
        return self._value()

    def _value(self) -> Any:
        if self._error is not None:
            raise self._error
        answer = self._answer
        if not self._is_decoded and self.outgoing.form != SEND:
            assert answer is not None
            try:
                self._payload = payload_of(answer, self.outgoing.address)
            except HubError as error:
                self._error = error
                raise
            self._is_decoded = True
            self._answer = None  # last: another thread may be about to decode it too
        return self._payload


def refusal_in(answer: ServiceAnswer) -> HubError | None:
    """Return the error that says why no handler has seen the message; None if one has."""
    if answer.form == REFUSED:
        return read_failure(memoryview(answer.frame)[ANSWER.size :])
    if answer.form == EXPIRED:
        return RequestTimeout("the worker did not come to it in time")
    return None


def has_ended(error: HubError) -> bool:
    """Whether the worker that refused the message is none any more."""
    return isinstance(error, MailboxClosed) and bool(error.details.get("has_ended"))


def payload_of(answer: ServiceAnswer, address: str) -> Any:
    """Return what the handler returned; raise what it raised."""
    body = memoryview(answer.frame)[ANSWER.size :]
    if answer.form == FAILED:
        raise read_failure(body)
    if answer.kind == BYTES:
        return bytes(body)
    if answer.block is not None:
        return from_block(answer.block, answer.kind & ~IN_BLOCK)
    return decode_payload(answer.kind, body, address)
