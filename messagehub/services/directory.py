"""The directory of services: which workers serve an address. The broker is asked once, then its events keep it current.

Rule 1: an address that leads somewhere is answered from memory, also while no broker answers: who serves it is told
by the connection to it. One that leads nowhere is asked for each time.
Rule 2: an event carries the whole record; a beacon with another revision, or another broker, means to ask again.
Rule 3: a new broker that does not know a worker yet does not end it: it registers again in a moment.
"""

import itertools
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic

from messagehub.client.connection import Connection
from messagehub.errors import BrokerRequired, BrokerTimeout, BrokerUnavailable, HubError
from messagehub.protocol import Beacon, decode_event
from registry import commands, replies
from registry.events import ServiceChanged, service_topic
from registry.records import DeadLetter, Service, Strategy, Worker

log = logging.getLogger("messagehub.services")

MOST_FOLLOWED = 4096
MOST_UNREPORTED = 1000
AVOID_SECONDS = 10.0
_UNSENDABLE = (HubError, TypeError, ValueError, OverflowError, RecursionError)  # strangers' headers are in a letter


WorkerKey = tuple[str, str, str]
"""What tells one worker from another: its endpoint, its id there, and the key that it asks for."""


def key_of(worker: Worker) -> WorkerKey:
    return worker.endpoint, worker.worker_id, worker.key


def is_elsewhere(worker: Worker, host: str) -> bool:
    """Whether a worker is on another host than this one, and says where it is reached from there."""
    return worker.tcp_endpoint is not None and worker.host not in (None, host)


class Route:
    """A worker as one caller sees it: how many requests of its own are open, and of others, as the worker said last."""

    __slots__ = ("asked", "others", "target", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.target = worker.worker_id.encode()
        self.asked = 0
        self.others = 0

    @property
    def load(self) -> int:
        return self.asked + self.others


class Resolved:
    """An address, with the workers that serve it or did."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.strategy: Strategy = "round_robin"
        self.routes: list[Route] = []
        self.revision = -1
        self.heard = 0
        self.broker_id = ""
        self.is_asked = False
        self.is_suspect = False
        self._turns = itertools.count()
        self._avoided: dict[str, float] = {}
        """Workers that were not reached from this host, and until when others are tried before them."""

    def avoid(self, route: Route) -> None:
        self._avoided[route.worker.worker_id] = monotonic() + AVOID_SECONDS

    def _preferred(self, routes: list[Route]) -> list[Route]:
        """Return the routes to workers that are not avoided; all of them if there is no other."""
        now = monotonic()
        self._avoided = {worker_id: until for worker_id, until in self._avoided.items() if until > now}
        return [route for route in routes if route.worker.worker_id not in self._avoided] or routes

    def update(self, service: Service, broker_id: str, turn: int | None = None) -> None:
        if broker_id == self.broker_id and service.revision < self.revision:
            return  # an answer that an event has overtaken
        known = {route.worker.worker_id: route for route in self.routes}
        active = [worker for worker in service.workers if worker.status == "active"]
        routes = []
        for worker in active or service.workers:
            route = known.get(worker.worker_id)
            if route is None or route.worker.endpoint != worker.endpoint:
                route = Route(worker)
            route.worker = worker
            routes.append(route)
        if turn is not None and self.revision < 0:
            self._turns = itertools.count(turn)
        self.strategy, self.routes, self.is_suspect = service.strategy, routes, False
        self.revision, self.broker_id = service.revision, broker_id

    def choose(self, tried: set[WorkerKey]) -> Route | None:
        """Choose a worker that was not tried yet, by the strategy of the address."""
        routes = self.routes
        if tried:
            routes = [route for route in routes if key_of(route.worker) not in tried]
        if not routes:
            return None
        if len(routes) == 1:
            return routes[0]
        if self._avoided:
            routes = self._preferred(routes)
        if self.strategy == "random":
            return random.choice(routes)
        turn = next(self._turns) % len(routes)
        if self.strategy == "least_busy":
            return min(routes[turn:] + routes[:turn], key=lambda route: route.load)
        return routes[turn]


class ServiceDirectory:
    """A listener of the control connection: which workers serve an address.

    `has_connection` says whether there is a connection to a worker. `on_change` is called after every change.
    """

    def __init__(
        self, connection: Connection, *, has_connection: Callable[[Worker], bool], on_change: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._has_connection = has_connection
        self._on_change = on_change
        self._entries: dict[str, Resolved] = {}
        self._topics: dict[bytes, Resolved] = {}
        self._unreported: deque[DeadLetter] = deque(maxlen=MOST_UNREPORTED)
        self._is_reporting = False
        self._changed = threading.Condition()
        self._broker_id = ""
        self._is_connected = False

    def find(self, address: str) -> Resolved | None:
        """Return what is known of an address without asking the broker; None if it has no workers."""
        entry = self._entries.get(address)
        return entry if entry is not None and entry.routes else None

    def resolve(self, address: str, timeout: float) -> Resolved:
        """Ask the broker who serves an address. A refusal is raised."""
        try:
            command = commands.ResolveService(address=address)
            reply = self._connection.ask(command, replies.ServiceResolved, timeout=timeout, is_patient=True)
        except BrokerTimeout:
            raise
        except BrokerUnavailable as missing:
            raise BrokerRequired(f"services need a broker: {missing.message}", **missing.details) from missing
        hello = self._connection.hello
        with self._changed:
            entry = self._entries.get(address) or self._follow(address)
            entry.update(reply.service, hello.broker_id if hello else "", reply.turn)
        self._connection.wake()
        return entry

    def lost(self, entry: Resolved, route: Route) -> None:
        """Take note that the connection to a worker ended.

        It is not tried again until somebody says that it is there.
        """
        with self._changed:
            entry.routes = [other for other in entry.routes if other is not route]
            entry.is_suspect = True  # the broker is asked with the next beacon: it may live after all

    def wait(self, address: str, seconds: float) -> None:
        """Wait until the address has a worker, or the seconds have passed."""
        with self._changed:
            self._changed.wait_for(lambda: self.find(address) is not None, seconds)

    def report(self, letter: DeadLetter) -> None:
        """Report a dead letter to the broker, now or when one answers again."""
        self._unreported.append(letter)
        self._connection.wake()

    def flush(self, seconds: float) -> None:
        """Report the dead letters that are left before closing, within a bound, if a broker answers."""
        deadline = monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reporting, seconds)
        while self._unreported and monotonic() < deadline:
            try:
                command = commands.ReportDeadLetter(letter=self._unreported.popleft())
                self._connection.request(command, timeout=max(deadline - monotonic(), 0.001))
            except BrokerUnavailable as error:
                log.warning("%d dead letters are lost: %s", len(self._unreported) + 1, error.message)
                return
            except _UNSENDABLE as error:
                log.warning("a dead letter is lost: %s", error)
        if self._unreported:
            log.warning("%d dead letters are lost: the hub is closed", len(self._unreported))

    def is_known(self, key: WorkerKey) -> bool:
        """Return whether any address that is followed leads to this worker."""
        return any(key_of(route.worker) == key for e in list(self._entries.values()) for route in e.routes)

    def _follow(self, address: str) -> Resolved:
        if len(self._entries) >= MOST_FOLLOWED:  # the one that was followed first is asked for anew when it is needed
            oldest = next(iter(self._entries))
            del self._entries[oldest]
            self._topics = {topic: e for topic, e in self._topics.items() if e.address != oldest}
        entry = self._entries[address] = Resolved(address)
        self._topics = {**self._topics, service_topic(address).encode(): entry}
        return entry

    # -- on the I/O thread ---------------------------------------------------------------------------------

    def is_active(self) -> bool:
        return bool(self._entries or self._unreported)

    def topics(self) -> set[bytes]:
        return set(self._topics)

    def on_connected(self, hello: replies.HelloAck) -> None:
        self._broker_id, self._is_connected = hello.broker_id, True
        for entry in list(self._entries.values()):
            entry.is_asked = False
            if entry.broker_id != hello.broker_id:  # of the same one, a beacon tells whether anything was missed
                self._ask(entry)

    def on_disconnected(self) -> None:
        self._is_connected = False

    def on_event(self, topic: bytes, payload: bytes) -> None:
        entry = self._topics.get(topic)
        if entry is None:
            return
        event = decode_event(payload)
        if isinstance(event, Beacon):
            entry.heard = event.revision
            if entry.is_suspect or (event.broker_id, event.revision) != (entry.broker_id, entry.revision):
                self._ask(entry)
        elif isinstance(event, ServiceChanged) and (
            entry.broker_id != self._broker_id or event.revision > entry.revision
        ):
            self._take(entry, event.service, event.revision)

    def tick(self, now: float) -> float:
        if self._is_connected and self._unreported and not self._is_reporting:
            self._send_letter(self._unreported.popleft())
        return now + 60.0

    def _send_letter(self, letter: DeadLetter) -> None:
        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:  # noqa: ARG001
            with self._changed:
                self._is_reporting = False
                if reply is None:  # also a refused one is done with
                    self._unreported.appendleft(letter)
                self._changed.notify_all()
            if reply is not None and self._unreported:
                self._connection.wake()

        self._is_reporting = True
        timeout = self._connection.settings.request_timeout_seconds
        try:
            self._connection.submit(commands.ReportDeadLetter(letter=letter), done, timeout=timeout)
        except _UNSENDABLE as error:  # must not end the thread that all of the hub needs
            self._is_reporting = False
            log.warning("a dead letter is lost: %s", error)

    def _ask(self, entry: Resolved) -> None:
        if entry.is_asked:
            return

        def done(reply: replies.AnyReply | None, error: HubError | None) -> None:  # noqa: ARG001
            entry.is_asked = False
            if isinstance(reply, replies.ServiceResolved):
                self._take(entry, reply.service, reply.service.revision)
            elif isinstance(reply, replies.Error) and entry.broker_id == self._broker_id:
                self._take(entry, None, entry.heard)

        entry.is_asked = True
        timeout = self._connection.settings.request_timeout_seconds
        self._connection.submit(commands.ResolveService(address=entry.address), done, timeout=timeout)

    def _take(self, entry: Resolved, service: Service | None, revision: int) -> None:
        with self._changed:
            if service is not None and service.workers:
                entry.update(service, self._broker_id)
            elif entry.broker_id == self._broker_id:
                entry.routes, entry.revision, entry.is_suspect = [], revision, False
            else:
                entry.routes = [route for route in entry.routes if self._has_connection(route.worker)]
            self._changed.notify_all()
        self._on_change()
