"""Services: a message to one participant, and its answer; caller and worker are connected directly.

Rule 1: the broker tells who serves an address and who is alive, and is not on the way of a message.
Rule 2: `timeout` bounds a call with all its retries. A request ends once, and what comes later is counted as late.
Rule 3: only what was certainly not handled is tried again: nobody there, not reached, refused by a mailbox. What may
have been handled is not, unless the caller says that it may be done twice (`idempotent`).
Rule 4: a message that is given up is a dead letter: reported to the broker, which keeps the newest.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from messagehub.client.connection import Connection
from messagehub.client.heartbeats import Heartbeats
from messagehub.errors import (
    AddressNotFound,
    BrokerRequired,
    BrokerUnavailable,
    ConfigurationError,
    HubError,
    MailboxClosed,
    MailboxFull,
    NoResponse,
    NotInitialised,
    PoolEmpty,
    RequestTimeout,
    RouteError,
    SendTimeout,
)
from messagehub.messaging.service_directory import Place, Resolved, Route, ServiceDirectory, place_of
from messagehub.messaging.service_frames import REQUEST, SEND, STREAM
from messagehub.messaging.service_letters import Outgoing, letter_of
from messagehub.messaging.service_link import Answer, Link, NotSent
from messagehub.messaging.service_links import Links
from messagehub.messaging.service_mailbox import Job, Overflow
from messagehub.messaging.service_metrics import ServiceMetrics
from messagehub.messaging.service_replies import PendingReply, checked, payload_of
from messagehub.messaging.service_server import ServiceServer
from messagehub.messaging.service_streams import StreamedReply, Streams
from messagehub.messaging.service_workers import DRAIN_SECONDS, Handler, Served
from registry import commands, replies
from registry.records import DeadLetter, Priority, Strategy
from registry.services import check_address

BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS = 0.02, 1.0
FLUSH_SECONDS = 1.0
MOST_SECONDS = 1_000_000.0  # beyond this, the kernel cannot be told how long to wait
_SAFE = (AddressNotFound, PoolEmpty, RouteError, MailboxFull, MailboxClosed)
_UNDELIVERABLE = (*_SAFE, SendTimeout, BrokerRequired)
T = TypeVar("T")


class Reached(NamedTuple, Generic[T]):
    """What came of a message, and of whom."""

    entry: Resolved
    route: Route
    number: int
    got: T


class Services:
    def __init__(
        self,
        connection: Connection,
        heartbeats: Heartbeats,
        *,
        sender: str,
        owner: dict[str, Any],
        default_timeout: float,
    ) -> None:
        """`owner` names this process in registrations, and `sender` it in messages."""
        self.metrics = ServiceMetrics()
        self._connection = connection
        self._heartbeats = heartbeats
        self._sender = sender
        self._owner = owner
        self._default_timeout = default_timeout
        self._numbers = itertools.count(1)
        self._links = Links(sender, self.metrics)
        self.directory = ServiceDirectory(connection, is_linked=self._links.is_alive, on_change=self._tidy)
        self._streams = Streams(self.metrics)
        self._loads = threading.Lock()
        self._serving = threading.Lock()
        self._server: ServiceServer | None = None
        self._served: list[Served] = []
        self._is_closed = False
        self._access: str | None = None
        self._changing_keys: set[Served] = set()
        heartbeats.on_access = self._hear_access

    # -- asking --------------------------------------------------------------------------------------------

    def request(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """The options are those of `hub.request`."""
        answer = self._deliver(self._outgoing(REQUEST, address, payload, timeout, options), self._ask)
        return payload_of(answer, address)

    def begin(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> PendingReply:
        """The request is on its way when this returns; the retries are for getting it there."""
        return self._deliver(self._outgoing(REQUEST, address, payload, timeout, options), self._begin)

    def send(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> None:
        """Returns when the worker's mailbox has it."""
        self._deliver(self._outgoing(SEND, address, payload, timeout, options), self._ask)

    def stream(self, address: str, payload: Any, *, timeout: float | None = None, **options: Any) -> StreamedReply:
        """Partial results as they come; the retries are for getting the request to a worker."""
        return self._deliver(self._outgoing(STREAM, address, payload, timeout, options), self._open_stream)

    def _outgoing(
        self, form: int, address: str, payload: Any, timeout: float | None, options: dict[str, Any]
    ) -> Outgoing:
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        limit = self._default_timeout if timeout is None else timeout
        if not limit >= 0:
            raise ConfigurationError(f"a timeout is a number of seconds, not {timeout}")
        return Outgoing(form, address, payload, deadline=monotonic() + min(limit, MOST_SECONDS), **options)

    def _deliver(self, outgoing: Outgoing, attempt: Callable[[Outgoing], T]) -> T:
        """One attempt after the other, with growing pauses, as long as it is safe, allowed and in time."""
        attempts = 0
        while True:
            attempts += 1
            try:
                return attempt(outgoing)
            except HubError as error:
                wait = min(BACKOFF_FIRST_SECONDS * 2 ** (attempts - 1), BACKOFF_MAX_SECONDS)
                wait *= random.uniform(0.5, 1.0)
                is_safe = isinstance(error, _SAFE) or (outgoing.idempotent and isinstance(error, NoResponse))
                if not is_safe or attempts > outgoing.retries or monotonic() + wait >= outgoing.deadline:
                    if isinstance(error, _UNDELIVERABLE):
                        self._report(outgoing.letter(self._sender, error, attempts))
                    raise
                self.metrics.count("retried")
                if isinstance(error, AddressNotFound | PoolEmpty):
                    self.directory.wait(outgoing.address, wait)
                else:
                    time.sleep(wait)

    def _ask(self, outgoing: Outgoing) -> Answer:
        reached = self._reach(outgoing, Link.ask)
        self._count(reached.route, -1, reached.got)
        return checked(reached.got)

    def _begin(self, outgoing: Outgoing) -> PendingReply:
        reached = self._reach(outgoing, Link.begin)
        return PendingReply(lambda: self._end(outgoing, reached))

    def _end(self, outgoing: Outgoing, reached: Reached[tuple[Link, Answer]]) -> Any:
        """The reply to what was begun."""
        link, answer = reached.got
        try:
            link.finish(reached.number, answer, outgoing.deadline)
        except HubError as error:
            self._count(reached.route, -1, answer)
            self._failed(outgoing, reached.entry, reached.route, error)
            raise
        self._count(reached.route, -1, answer)
        return payload_of(checked(answer), outgoing.address)

    def _open_stream(self, outgoing: Outgoing) -> StreamedReply:
        reached = self._reach(outgoing, self._streams.open)
        reached.got.address = outgoing.address
        self._count(reached.route, -1)  # streams are not weighed: they may take any time
        return reached.got

    def _reach(self, outgoing: Outgoing, use: Callable[[Link, int, bytes, float], T]) -> Reached[T]:
        """Use the link to the first worker that can be reached. Whoever gets it counts the worker's load down again."""
        number, deadline = next(self._numbers), outgoing.deadline
        for entry, route in self._routes(outgoing):
            frame = outgoing.frame(number, route.target)
            self._count(route, 1)
            try:
                try:
                    got = use(self._links.to(route.worker, deadline), number, frame, deadline)
                except NotSent:  # that link had ended; a new one shows whether the worker has too
                    got = use(self._links.to(route.worker, deadline), number, frame, deadline)
                return Reached(entry, route, number, got)
            except (NotSent, RouteError) as unreached:
                self._count(route, -1)
                self._unreached(outgoing, entry, route, unreached)
            except BaseException as error:
                self._count(route, -1)
                if isinstance(error, HubError):
                    self._failed(outgoing, entry, route, error)
                raise
        raise RouteError(f"no worker of {outgoing.address} can be reached", address=outgoing.address)

    def _failed(self, outgoing: Outgoing, entry: Resolved, route: Route, error: HubError) -> None:
        """A request ended without an answer; of what was only sent, the deadline says that nobody took it."""
        if isinstance(error, NoResponse):
            self.directory.lost(entry, route)
        elif isinstance(error, RequestTimeout):
            self.metrics.count("timeouts")
            if outgoing.form == SEND:
                raise SendTimeout(f"no worker of {outgoing.address} took the message in time") from None

    def _routes(self, outgoing: Outgoing) -> Iterator[tuple[Resolved, Route]]:
        """Workers to try, each once, by the address's strategy; what is known first, then what the broker says."""
        tried: set[Place] = set()
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
            tried.add(place_of(route.worker))
            yield entry, route

    def _resolve(self, outgoing: Outgoing) -> Resolved:
        try:
            return self.directory.resolve(outgoing.address, max(outgoing.deadline - monotonic(), 0.001))
        except BrokerRequired:
            if self._is_closed:  # by another thread
                raise NotInitialised("this hub is closed") from None
            raise

    def _unreached(self, outgoing: Outgoing, entry: Resolved, route: Route, error: Exception) -> None:
        """The next worker is tried, in time."""
        self.directory.lost(entry, route)
        if monotonic() >= outgoing.deadline:
            raise SendTimeout(f"no worker of {outgoing.address} was reached in time") from error

    def _count(self, route: Route, change: int, answer: Answer | None = None) -> None:
        with self._loads:
            route.asked += change
            if answer is not None and answer.form >= 0:
                route.others = max(answer.load - route.asked, 0)

    def _tidy(self) -> None:
        self._links.drop_lost(self.directory.is_known)

    def _report(self, letter: DeadLetter) -> None:
        self.metrics.count("dead_letters")
        self.directory.report(letter)

    def _dropped(self, served: Served, job: Job, error: HubError) -> None:
        """Of a worker: a message whose sender believes that it was delivered."""
        self._report(letter_of(served.address, job, error))

    # -- serving -------------------------------------------------------------------------------------------

    def serve(
        self,
        address: str,
        handler: Handler,
        *,
        worker_id: str,
        concurrency: int,
        mailbox: int,
        overflow: Overflow | Mapping[Priority, Overflow] | None,
        strategy: Strategy | None,
        timeout: float,
    ) -> Served:
        kind, name = check_address(address)
        worker_id = name if kind == "id" else worker_id
        server = self._serving_now()
        served = Served(
            address,
            worker_id,
            handler,
            concurrency=concurrency,
            mailbox=mailbox,
            overflow=overflow,
            metrics=self.metrics,
            server=server,
            asks=self,
            on_dropped=self._dropped,
        )
        command = commands.RegisterWorker(
            address=address,
            worker_id=worker_id,
            endpoint=server.endpoint,
            key=served.keys.current,
            strategy=strategy,
            concurrency=concurrency,
            **self._owner,
        )
        server.add(served)  # before anybody can be told of it
        try:
            served.registration = self._heartbeats.register(command, timeout=timeout, required=True)
        except BrokerUnavailable as missing:
            server.remove(served)
            raise BrokerRequired(f"services need a broker: {missing.message}", **missing.details) from missing
        except BaseException:
            server.remove(served)
            raise
        with self._serving:
            self._served.append(served)
        return served

    def _hear_access(self, access: str, is_settled: bool) -> None:
        """On the I/O thread: change the keys of all workers when the rights of any peer have changed.

        A worker that is being registered again would bring its old key back: then the next heartbeat says the same.
        """
        if self._access is None:
            self._access = access
        if access == self._access or self._changing_keys or not is_settled:
            return
        with self._serving:
            served = [each for each in self._served if each.is_registered]
        if not served:
            self._access = access
            return
        failed: list[Served] = []
        self._changing_keys = set(served)
        for each in served:
            self._change_key(each, access, failed)

    def _change_key(self, served: Served, access: str, failed: list[Served]) -> None:
        registration = served.registration
        assert registration is not None
        assert isinstance(registration.command, commands.RegisterWorker)
        command = replace(registration.command, key=served.keys.propose())

        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:  # noqa: ARG001
            if isinstance(reply, replies.WorkerRegistered):
                registration.command = command
                served.keys.adopt(command.key)
            else:
                failed.append(served)  # the next heartbeat has it tried again
            self._changing_keys.discard(served)
            if not self._changing_keys and not failed:
                self._access = access

        try:
            self._connection.submit(command, done, timeout=self._default_timeout)
        except HubError as error:  # must not end the thread that all of the hub needs
            done(None, error)

    def _serving_now(self) -> ServiceServer:
        with self._serving:
            if self._is_closed:
                raise NotInitialised("this hub is closed")
            if self._server is None:
                self._server = ServiceServer(self.metrics, self._dropped)
            return self._server

    # -- ending --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End what is served, after what was taken has been handled; requests under way end. Idempotent."""
        with self._serving:
            self._is_closed = True
            served, self._served = self._served, []
            server, self._server = self._server, None
        deadline = monotonic() + DRAIN_SECONDS  # for all of them
        for each in served:
            each.close(timeout=max(deadline - monotonic(), 0.0))
        if server is not None:
            server.close()
        self._links.close()
        self.directory.flush(FLUSH_SECONDS)

    def abandon(self) -> None:
        """In a forked child: the sockets are the parent's, and so is what it serves."""
        self._is_closed = True
        for served in self._served:
            served.mailbox.is_closed = True
        if self._server is not None:
            self._server.abandon()
        self._links.abandon()
