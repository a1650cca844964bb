"""Requests of a hub: finding who serves an address, getting the message there, and trying again.

Rule 1: `timeout` bounds a call with all its retries. A request ends once, and what comes later is counted as late.
Rule 2: only what was certainly not handled is tried again: nobody there, not reached, refused by a mailbox. What may
have been handled is not, unless the caller says that it may be done twice (`idempotent`).
Rule 3: a message that is given up is a dead letter: reported to the broker, which keeps the newest.
Rule 4: every way to ask (wait, begin, stream, await) is the same attempts, pauses and end. They differ in who makes
them: the thread that waits, or a background thread.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, TypeVar

from messagehub.arguments import seconds
from messagehub.client.connection import Connection
from messagehub.errors import (
    AddressNotFound,
    BrokerRequired,
    ConfigurationError,
    HubError,
    NoResponse,
    NotInitialised,
    PoolEmpty,
    RequestTimeout,
    RouteError,
    SendTimeout,
)
from messagehub.runtime.background import BackgroundThreads
from messagehub.runtime.event_loop import running_loop
from messagehub.services.between_hosts.relay import HostRelay
from messagehub.services.connection import NotSent, ServiceAnswer, ServiceConnection
from messagehub.services.connection_pool import ConnectionPool
from messagehub.services.directory import Resolved, Route, ServiceDirectory, WorkerKey, is_elsewhere, key_of
from messagehub.services.frames import REQUEST, SEND, STREAM
from messagehub.services.metrics import ServiceMetrics
from messagehub.services.outgoing_requests import CERTAINLY_NOT_HANDLED, UNDELIVERABLE, Outgoing
from messagehub.services.payloads import PayloadEncoder
from messagehub.services.replies import Attempt, Call, PendingReply, has_ended, payload_of, refusal_in
from messagehub.services.streams import StreamCall, StreamedReply
from registry.records import DeadLetter

BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 0.02, 1.0
FLUSH_SECONDS = 1.0
MOST_SECONDS = 1_000_000.0  # beyond this, the kernel cannot be told how long to wait
MOST_DOUBLINGS = 30  # of the pause between attempts: it has long been the longest by then
T = TypeVar("T")
Chosen = tuple[Resolved, Route]
"""A worker of an address, as its strategy chose it. That counts as its turn, so the message goes there first."""


class Requests:
    def __init__(
        self,
        connection: Connection,
        metrics: ServiceMetrics,
        *,
        sender: str,
        default_timeout: float,
        background: BackgroundThreads,
        encoder: PayloadEncoder,
        host: str,
        relay: HostRelay,
    ) -> None:
        """`sender` names this hub in messages, and `host` is the name of this host."""
        self.background = background
        self.connections = ConnectionPool(sender, metrics, connection.count_defect, host=host, relay=relay)
        self._host = host
        self.directory = ServiceDirectory(connection, has_connection=self.connections.is_alive, on_change=self._tidy)
        self._metrics = metrics
        self._sender = sender
        self._default_timeout = default_timeout
        self._encoder = encoder
        self._numbers = itertools.count(1)
        self._loads = threading.Lock()
        self._is_closed = False

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """Ask, and wait for the reply. The options are those of `hub.request`."""
        answer = self._deliver(self._outgoing(REQUEST, address, payload, timeout, options), self._ask)
        return payload_of(answer, address)

    def begin(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> PendingReply:
        """Send a request and return at once.

        It is on its way when this returns; in an event loop, as soon as possible.
        """
        pending = PendingReply(self._outgoing(REQUEST, address, payload, timeout, options), self)
        if running_loop() is not None:
            pending.watch()
            self._start_soon(pending)
        else:
            self._deliver(pending.outgoing, lambda _: self._post(pending))
        return pending

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None:
        """Send a message, and return when the worker's mailbox has it."""
        self._deliver(self._outgoing(SEND, address, payload, timeout, options), self._ask)

    def stream(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> StreamedReply:
        """Send a request whose partial results are read as they come. It begins as `begin` does."""
        call = StreamCall(self._outgoing(STREAM, address, payload, timeout, options), self)
        if running_loop() is not None:
            self._start_soon(call)
        else:
            self._deliver(call.outgoing, lambda _: self._post(call))
        return StreamedReply(call, self.connections.reader.run_soon, self._metrics)

    async def ask_async(
        self, form: int, address: str, payload: Any, *, timeout: float | None = None, **options: Any
    ) -> Any:
        """As `request` or `send`, to be awaited."""
        pending = PendingReply(self._outgoing(form, address, payload, timeout, options), self)
        pending.watch()
        self._start_soon(pending)
        return await pending

    def _outgoing(
        self, form: int, address: str, payload: Any, timeout: float | None, options: dict[str, Any]
    ) -> Outgoing:
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        limit = self._default_timeout if timeout is None else seconds(timeout)
        if not limit >= 0:
            raise ConfigurationError(f"a timeout is a number of seconds, not {timeout}")
        deadline = monotonic() + min(limit, MOST_SECONDS)
        return Outgoing(form, address, payload, deadline=deadline, encoder=self._encoder, **options)

    def _deliver(self, outgoing: Outgoing, attempt: Callable[[Outgoing], T]) -> T:
        """Make one attempt after the other, with growing pauses, as long as that is safe, allowed and in time."""
        while True:
            outgoing.attempts += 1
            try:
                return attempt(outgoing)
            except HubError as error:
                pause = self._pause_after(outgoing, error)
                if pause is None:
                    self._report_undelivered(outgoing, error)
                    raise
                if isinstance(error, AddressNotFound | PoolEmpty):
                    self.directory.wait(outgoing.address, pause)
                else:
                    time.sleep(pause)

    def _pause_after(self, outgoing: Outgoing, error: HubError) -> float | None:
        """Return how long to wait before the next attempt; None if there is to be none."""
        pause: float = min(BACKOFF_FIRST_SECONDS * 2 ** min(outgoing.attempts - 1, MOST_DOUBLINGS), BACKOFF_MAX_SECONDS)
        pause *= random.uniform(0.5, 1.0)
        if has_ended(error) and not outgoing.has_met_the_end and monotonic() < outgoing.deadline:
            # The worker was known from before; who serves the address now is asked once, whatever `retries` says.
            outgoing.has_met_the_end = True
            outgoing.retries += 1
            self._metrics.count("retried")
            return 0.0
        is_safe = isinstance(error, CERTAINLY_NOT_HANDLED) or (outgoing.idempotent and isinstance(error, NoResponse))
        if not is_safe or outgoing.attempts > outgoing.retries or monotonic() + pause >= outgoing.deadline:
            return None
        self._metrics.count("retried")
        return pause

    def _report_undelivered(self, outgoing: Outgoing, error: HubError) -> None:
        if outgoing.is_reported and isinstance(error, UNDELIVERABLE):
            self.report(outgoing.letter(self._sender, error))

    def _ask(self, outgoing: Outgoing) -> ServiceAnswer:
        attempt, answer = self._reach(outgoing, ServiceConnection.ask)
        self._count(attempt.route, -1, answer)
        refused = refusal_in(answer)
        if refused is not None:
            if has_ended(refused):
                self.directory.lost(attempt.entry, attempt.route)
            raise refused
        return answer

    def _reach(
        self, outgoing: Outgoing, use: Callable[[ServiceConnection, int, bytes, float], T], chosen: Chosen | None = None
    ) -> tuple[Attempt, T]:
        """Return the connection to the first worker that can be reached.

        Whoever gets it counts the worker's load down again.
        """
        number, deadline = next(self._numbers), outgoing.deadline
        why = ""
        for entry, route in self._routes(outgoing, chosen):
            frame = outgoing.frame(number, route.target)
            self._count(route, 1)
            is_only = len(entry.routes) == 1
            try:
                connection = self.connections.to(route.worker, deadline, is_only=is_only)
                try:
                    got = use(connection, number, frame, deadline)
                except NotSent:  # that connection had ended; a new one shows whether the worker has too
                    connection = self.connections.to(route.worker, deadline, is_only=is_only)
                    got = use(connection, number, frame, deadline)
                return Attempt(entry, route, number, connection), got
            except (NotSent, RouteError) as unreached:
                self._count(route, -1)
                why = self._unreached(outgoing, entry, route, unreached) or why
            except HubError as error:
                self._count(route, -1)
                raise self._final_error(outgoing, entry, route, error) from None
            except BaseException:
                self._count(route, -1)
                raise
        raise RouteError(f"no worker of {outgoing.address} can be reached{why}", address=outgoing.address)

    def _final_error(self, outgoing: Outgoing, entry: Resolved, route: Route, error: HubError) -> HubError:
        """Return the error of a request that ended without an answer.

        Of a message, the deadline says that nobody took it.
        """
        if isinstance(error, NoResponse) or has_ended(error):
            self.directory.lost(entry, route)
        elif isinstance(error, RequestTimeout):
            self._metrics.count("timeouts")
            if outgoing.form == SEND:
                why = f": {error.message}" if is_elsewhere(route.worker, self._host) else ""
                return SendTimeout(f"no worker of {outgoing.address} took the message in time{why}")
        return error

    # -- calls that go on by themselves --------------------------------------------------------------------

    def settled(self, call: Call, attempt: Attempt, error: HubError | None, answer: ServiceAnswer | None) -> None:
        if answer is not None:
            self._count(attempt.route, -1, answer)
        if error is None:
            call.end(None)
        else:
            self.retry_or_end(call, self._final_error(call.outgoing, attempt.entry, attempt.route, error))

    def given_up(self, attempt: Attempt) -> None:
        self._count(attempt.route, -1)

    def retry_or_end(self, call: Call, error: HubError) -> None:
        pause = None if call.has_ended else self._pause_after(call.outgoing, error)
        if pause is not None:
            self._attempt_at(call, monotonic() + pause)
        elif call.end(error):
            self._report_undelivered(call.outgoing, error)

    def tell(self, connection: ServiceConnection, frame: bytes, deadline: float) -> None:
        if not connection.tell(frame, monotonic()):
            self.background.add(lambda: connection.tell(frame, deadline), drop=lambda: None)

    def _start_soon(self, call: Call) -> None:
        """Make the first attempt without waiting for anything: here if that is possible, else in the background."""
        entry = self.directory.find(call.outgoing.address) if call.outgoing.large is None else None
        route = entry.choose(set()) if entry is not None else None
        if entry is None or route is None:
            self._attempt_at(call, 0.0)
            return
        connection = self.connections.find(route.worker)
        number = next(self._numbers)
        self._count(route, 1)
        if connection is None or not call.post_at_once(connection, number, call.outgoing.frame(number, route.target)):
            self._count(route, -1)
            self._attempt_at(call, 0.0, (entry, route))
            return
        call.outgoing.attempts += 1
        if connection.is_unsent:
            self.background.add(lambda: connection.complete(call.outgoing.deadline), drop=lambda: None)
        self._posted(call, Attempt(entry, route, number, connection))

    def _attempt_at(self, call: Call, at: float, chosen: Chosen | None = None) -> None:
        self.background.add(
            lambda: self._attempt(call, chosen), drop=lambda: call.end(NotInitialised("this hub is closed")), at=at
        )

    def _attempt(self, call: Call, chosen: Chosen | None) -> None:
        """Make an attempt on a background thread."""
        if call.has_ended:
            return
        call.outgoing.attempts += 1
        try:
            self._post(call, chosen)
        except HubError as error:
            self.retry_or_end(call, error)
        except BaseException as error:
            call.end(error)
            raise

    def _post(self, call: Call, chosen: Chosen | None = None) -> None:
        attempt, _ = self._reach(call.outgoing, call.post, chosen)
        self._posted(call, attempt)

    def _posted(self, call: Call, attempt: Attempt) -> None:
        if call.outgoing.form == STREAM:
            self._count(attempt.route, -1)  # streams are not weighed: they may take any time
        call.posted(attempt)

    # -- who is reached ------------------------------------------------------------------------------------

    def _routes(self, outgoing: Outgoing, chosen: Chosen | None) -> Iterator[Chosen]:
        """Yield the workers to try, each once: the one that was chosen before, then by the address's strategy.

        First of those that are known, then of those that the broker knows.
        """
        tried: set[WorkerKey] = set()
        if chosen is not None:
            tried.add(key_of(chosen[1].worker))
            yield chosen
        entry = self.directory.find(outgoing.address)
        is_asked = entry is None
        if entry is None:
            entry = self._resolve(outgoing)
        while True:
            route = entry.choose(tried)
            if route is None:
                if is_asked:
                    return
                is_asked, entry = True, self._resolve(outgoing)
                continue
            tried.add(key_of(route.worker))
            yield entry, route

    def _resolve(self, outgoing: Outgoing) -> Resolved:
        try:
            return self.directory.resolve(outgoing.address, max(outgoing.deadline - monotonic(), 0.001))
        except BrokerRequired:
            if self._is_closed:  # by another thread
                raise NotInitialised("this hub is closed") from None
            raise

    def _unreached(self, outgoing: Outgoing, entry: Resolved, route: Route, error: Exception) -> str:
        """Take note that a worker was not reached; the next one is tried if there is time.

        Return what is to be said of one on another host, if none of them is reached.
        """
        self.directory.lost(entry, route)
        why = ""
        if isinstance(error, RouteError) and route.worker.host not in (None, self._host):
            entry.avoid(route)
            why = f": {error.message}"
        if monotonic() >= outgoing.deadline:
            raise SendTimeout(f"no worker of {outgoing.address} was reached in time{why}") from error
        return why

    def _count(self, route: Route, change: int, answer: ServiceAnswer | None = None) -> None:
        with self._loads:
            route.asked += change
            if answer is not None and answer.form >= 0:
                route.others = max(answer.load - route.asked, 0)

    def _tidy(self) -> None:
        self.connections.drop_lost(self.directory.is_known)

    def report(self, letter: DeadLetter) -> None:
        self._metrics.count("dead_letters")
        self.directory.report(letter)

    # -- ending --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the requests under way."""
        self._is_closed = True
        self.connections.close()
        self.directory.flush(FLUSH_SECONDS)

    def abandon(self) -> None:
        """End in a forked child, where the sockets are the parent's."""
        self._is_closed = True
        self.connections.abandon()
