"""The broker's loop: the one writer of the registry.

Rule 1: receiving runs ahead of serving, so that a high-priority request overtakes all that was received before it.
Rule 2: a reply that reveals a change waits until the store has the change, whoever made it; everything else
leaves at once.
Rule 3: when the store fails, what waits is refused as retryable, the registry is reloaded from the store, and
only reads are served until a probe write succeeds. Revisions that were given out are not given out again.
Rule 4: nothing slow runs here: no schema is checked, every drain is bounded. No request and nothing in the directory
can end the loop.
Rule 5: one place records what happened (`_record`): noted as unwritten, published, followed, submitted.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic
from typing import Any

import msgspec
import zmq
from msgspec import UNSET

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.authentication import CONTROL, Authentication
from messagehub.broker.discovery_cache import EncodedDiscoveries
from messagehub.broker.event_publisher import Publisher
from messagehub.broker.host_watcher.cleaner import Cleaner
from messagehub.broker.host_watcher.entry_checks import Adoption
from messagehub.broker.host_watcher.watcher import HostWatcher
from messagehub.broker.instance_lock import InstanceLock
from messagehub.broker.persistence.pending_commits import HeldReply, PendingCommits
from messagehub.broker.persistence.restore import load
from messagehub.broker.request_queue import COUNTERS, MAX_BACKLOG, Request, RequestQueue
from messagehub.broker.schema_worker.checker import START_SECONDS, SchemaChecker
from messagehub.broker.service_changes import apply_changes
from messagehub.broker.stats import Stats
from messagehub.broker.topics.proxy import TopicProxy
from messagehub.broker.topics.retained import READ_COMMANDS, TOPIC_COMMANDS, RetainedTopics
from messagehub.broker.tracing import TraceRing
from messagehub.errors import ConfigurationError, HubError, InternalError, RateLimited, StoreReadOnly
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.metrics import Metrics
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import RELOADABLE, Settings
from messagehub.shm.location import directory_of
from messagehub.store import Store
from messagehub.store.commit import GroupCommit
from messagehub.version import __version__
from registry import commands, replies
from registry.access import LISTS
from registry.events import AnyEvent
from registry.registry import Registry
from registry.schemas.checks import CheckResult
from registry.topics.subscriber_groups import VALID_SECONDS

log = logging.getLogger("messagehub.broker")

RECEIVED_PER_TURN = 1024
SERVED_PER_TURN = 64
STOP_SECONDS = 5.0
DRAIN_SECONDS = 0.1
ADOPT_SECONDS = 5.0
_NOTHING: list[AnyEvent] = []
_COUNTED = commands.ServiceCommand | commands.UnregisterSubscriber

_CHECKED = (
    commands.SchemaText,
    commands.RegisterProducer,
    commands.RegisterConsumer,
    commands.CreateChannel,
    commands.TableSchema,
    commands.Discover,
)


class Broker:
    def __init__(self, settings: Settings, open_store: Callable[[], Store]) -> None:
        """The store is opened only once the place is ours."""
        self.settings = settings
        self.broker_id = os.urandom(8).hex()
        self._wall_offset = time.time() - monotonic()
        self._supervisor = Supervisor()
        self._poller = zmq.Poller()
        self._unwritten = PendingCommits()
        self._stop_reason = "it was asked to"
        self.is_read_only = self._is_suspect = self._is_closed = self._is_watching = False
        self._new_settings: Settings | None = None
        self._problems: dict[str, str] = {}
        with ExitStack() as closing:
            self._closing = closing
            self._make(settings, open_store)
            self._closing = closing.pop_all()

    def _make(self, settings: Settings, open_store: Callable[[], Store]) -> None:
        """Each part is closed by `_closing` from the moment that it is there: last made, first closed."""
        closing = self._closing
        self._place = InstanceLock(settings)
        closing.callback(self._place.leave)
        self._access_control = access_control = AccessControl.of(settings)
        if access_control is not None:
            closing.callback(access_control.close)
        self._authentication = Authentication(
            settings, self._place, access_control.identify if access_control else None, self._supervisor
        )
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        closing.callback(os.close, self._stop_fd)
        self._topics = TopicProxy(self._authentication, self._supervisor)
        closing.callback(self._topics.close)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        closing.callback(self._context.term)
        store = open_store()
        with ExitStack() as unused:
            unused.callback(store.close)
            self._registry, written = self._load(store)
            self._commit = GroupCommit(store, written=written, supervisor=self._supervisor)
            unused.pop_all()
        closing.callback(self._commit.close, timeout=STOP_SECONDS)
        counters = [*COUNTERS, "held", "store_failures", "internal_errors"]
        self._metrics = Metrics(list(protocol.COMMANDS_BY_TYPE), counters)
        self._discoveries = EncodedDiscoveries()
        self._schema_checker: SchemaChecker[Request | Adoption] = SchemaChecker(self._supervisor)
        closing.callback(self._schema_checker.close, timeout=STOP_SECONDS)
        self._trace = TraceRing(settings.trace_size, wall_offset=self._wall_offset)
        self._host_watcher = HostWatcher(directory_of(settings), self._must_wait_for_entry, self._access_control)
        closing.callback(self._host_watcher.close)
        self._context.set(zmq.MAX_SOCKETS, 1024)
        self._authentication.start(self._context)
        self._publisher = Publisher(
            self._context,
            broker_id=self.broker_id,
            beacon_seconds=settings.beacon_seconds,
            access_control=self._access_control,
        )
        closing.callback(self._publisher.close)
        self._publisher.reset(self._registry.revision)
        self._requests = RequestQueue(self._context, self._access_control, self._metrics, self._trace)
        closing.callback(self._requests.socket.close)
        is_fresh = written == 0
        self._registry.subscribers.groups.settle_until = 0.0 if is_fresh else self._now() + VALID_SECONDS
        self._retained = RetainedTopics(self._commit.store, self._topics.retained, self._supervisor, is_fresh=is_fresh)
        closing.callback(self._retained.close, timeout=STOP_SECONDS)
        self._report = Stats(self.broker_id, self._metrics, self._commit)
        self._report.add(lambda: {"published": self._publisher.published} | self._retained.counters)
        self._report.add(lambda: {"threads_restarted": self._supervisor.restarts})
        self._report.add_gauges(lambda: {"subscriptions": self._publisher.subscriptions})
        self._report.add_gauges(self._host_watcher.gauges)
        if self._access_control is not None:
            self._report.add(self._access_control.counters)
            self._report.add_gauges(self._access_control.gauges)
        self._own: dict[type[commands.Command], Callable[[Any], replies.Reply]] = {
            commands.Ping: self._ping,
            commands.Stats: self._stats,
            commands.Trace: self._traced,
        }
        self._bind(settings, settings.local if settings.curve else settings)

    def _bind(self, settings: Settings, local: Settings) -> None:
        authentication = self._authentication
        control, control_here = authentication.bind(self._requests.socket, CONTROL, settings.endpoint, local.endpoint)
        events, events_here = self._publisher.bind(authentication, settings.events_endpoint, local.events_endpoint)
        topics, topics_here = self._topics.start(
            settings.topic_endpoints, local.topic_endpoints, is_first=self._place.is_first
        )
        self.endpoint, self.local_endpoint, self.events_endpoint = control, control_here, events
        self._endpoints = {"control": control, "events": events, **topics}
        self._local_endpoints = {"control": control_here, "events": events_here, **topics_here}

    def stop(self, why: str = "it was asked to") -> None:
        """Ask the loop to finish; safe from any thread and from a signal handler, and harmless when it has."""
        if not self._is_closed:
            self._stop_reason = why
            os.eventfd_write(self._stop_fd, 1)

    def reload(self, settings: Settings) -> None:
        """Take over what can change while the broker runs (settings.RELOADABLE), within a turn; from any thread."""
        self._new_settings = settings

    def note_problem(self, part: str, problem: str | None) -> None:
        """Tell whoever asks for the hub's health what is wrong with a part of it, until that is None."""
        if problem is None:
            self._problems.pop(part, None)
        else:
            self._problems[part] = problem

    def add_counters(self, counters: Callable[[], dict[str, int]]) -> None:
        """Have these figures in the statistics too."""
        self._report.add(counters)

    @property
    def gid(self) -> int:
        """The group that the hub is shared with, or -1."""
        return self._place.gid

    @property
    def server_key(self) -> str:
        """The public key that clients name, or nothing where none is asked for."""
        return self._authentication.server_key

    def warm_up(self) -> None:
        """Be ready when this returns: schemas can be checked, and whoever lives on this host is registered.

        Returns early when `stop` was called meanwhile.
        """
        self._schema_checker.start()
        deadline = monotonic() + START_SECONDS
        while not self._schema_checker.wait_ready(DRAIN_SECONDS) and not self._is_stopping():
            if monotonic() > deadline:
                raise ConfigurationError(
                    "the process that checks schemas does not start: the log says why; is the host short of memory"
                    " or processes?"
                )
        self._watch_host(adopt_seconds=ADOPT_SECONDS)

    def close(self) -> None:
        """End a broker that does not run: one that was made in vain, or that has ended."""
        self._is_closed = True
        self._closing.close()

    def run(self) -> None:
        """Serve until `stop`, then drain what was received, answer it and close."""
        poller, requests = self._poller, self._requests
        poller.register(requests.socket, zmq.POLLIN)
        poller.register(self._publisher.socket, zmq.POLLIN)
        monitor = self._publisher.monitor
        if monitor is not None:
            poller.register(monitor, zmq.POLLIN)
        poller.register(self._commit.wake_fd, zmq.POLLIN)
        poller.register(self._schema_checker.wake_fd, zmq.POLLIN)
        poller.register(self._retained.wake_fd, zmq.POLLIN)
        poller.register(self._stop_fd, zmq.POLLIN)
        poll, stop_fd, store_fd, checker_fd = (
            poller.poll,
            self._stop_fd,
            self._commit.wake_fd,
            self._schema_checker.wake_fd,
        )
        watcher_fd = self._host_watcher.fileno()
        wait_ms = 0
        cleaner = Cleaner(directory_of(self.settings), self._supervisor)
        try:
            self._watch_host(adopt_seconds=ADOPT_SECONDS)
            self._log_start()
            while True:
                for ready, _ in poll(wait_ms):
                    if ready is requests.socket:
                        requests.receive(RECEIVED_PER_TURN, self._registry)
                    elif ready == store_fd:
                        self._after_commit()
                    elif ready == watcher_fd:
                        self._see()
                    elif ready == checker_fd:
                        self._take_check_results()
                    elif ready == self._retained.wake_fd:
                        self._after_reading()
                    elif ready == stop_fd:
                        log.info("stopping, because %s", self._stop_reason)
                        self._drain()
                        return
                    elif ready is monitor:
                        self._publisher.read_connections()
                    else:
                        self._publisher.read_subscriptions(self._registry)
                wait_ms = self._turn()
        finally:
            cleaner.close(timeout=STOP_SECONDS)
            self.close()

    def _log_start(self) -> None:
        held = self._registry
        log.info("messagehub %s serves in %s at %s, pid %d", __version__, self.settings.dir, self.endpoint, os.getpid())
        log.info("%d channels, %d schemas, revision %d", len(held.channels), len(held.schemas), held.revision)

    def _turn(self) -> int:
        """Serve, expire, send beacons; returns how long the loop may sleep."""
        if self._new_settings is not None:
            self._take_over(self._new_settings)
        if self._access_control is not None and self._access_control.refresh():
            self._cut()
        if self._requests.backlog:
            self._serve(SERVED_PER_TURN)
        now = self._now()
        deadline = self._registry.next_deadline()
        if deadline is not None and deadline <= now and not self.is_read_only:
            self._record(self._registry.expire(now=now))
            deadline = self._registry.next_deadline()
        apply_changes(self._registry, self._publisher, self._host_watcher, self._topics, now=now)
        ended = self._registry.leases.take_ended()
        if self._access_control is not None and ended:
            self._access_control.leases_ended([lease for lease in ended if self._registry.leases.get(lease) is None])
        idle_seconds = self._publisher.beacons(self._registry, now=now)
        if not self.is_read_only:
            if deadline is not None:
                idle_seconds = min(idle_seconds, max(deadline - now, 0.0))
            unseen_seconds = self._host_watcher.seconds_to_next_look()
            if unseen_seconds <= 0.0:
                self._see()
            idle_seconds = min(idle_seconds, unseen_seconds)
        self._commit.write_submitted()
        return 0 if self._requests.backlog else int(idle_seconds * 1000) + 1

    def _take_over(self, settings: Settings) -> None:
        self._new_settings = None
        self._registry.topics.limit_bytes = settings.kept_limit_bytes
        kept = {name: getattr(settings, name) for name in RELOADABLE}
        self.settings = msgspec.structs.replace(self.settings, **kept)
        if self._access_control is not None:
            self._access_control.reload(self.settings)

    def _cut(self) -> None:
        """Enforce rights that were reduced: end connections that libzmq serves by itself, so that each is authenticated
        anew, and the registrations of peers that are not listed any more."""
        self._publisher.cut()
        self._topics.cut()
        if self._access_control is not None and not self.is_read_only:
            self._record(self._registry.end_leases(self._access_control.unlisted_leases(), now=self._now()))

    def _watch_host(self, *, adopt_seconds: float = 0.0) -> None:
        """Watch this host from now on, beginning with all that happened while nobody looked.

        At the start, wait for the schemas of what was registered meanwhile: nobody is told that it is not there.
        """
        if self._is_watching:
            return
        self._is_watching = True
        self._poller.register(self._host_watcher.fileno(), zmq.POLLIN)
        self._see(self._host_watcher.begin)
        deadline = monotonic() + adopt_seconds
        while self._host_watcher.checks.is_asking and monotonic() < deadline and not self._is_stopping():
            self._schema_checker.wait(DRAIN_SECONDS)
            self._take_check_results()
            self._see()

    def _is_stopping(self) -> bool:
        return bool(wait_readable([self._stop_fd], 0.0))

    def _see(self, look: Callable[..., list[AnyEvent]] | None = None) -> None:
        defects = self._host_watcher.defects
        self._record((look or self._host_watcher.look)(self._registry, now=self._now()))
        if self._host_watcher.defects > defects:
            self._metrics.count("internal_errors")
            self._reload()

    # -- serving -------------------------------------------------------------------------------------------

    def _serve(self, limit: int) -> None:
        now = self._now()
        requests, unwritten, access_control = self._requests, self._unwritten, self._access_control
        high, normal, low = requests.high, requests.normal, requests.low
        services = self._registry.services
        for _ in range(min(limit, requests.backlog)):
            path, command, received_at, result = (high or normal or low).popleft()
            services_revision = services.revision
            answered = self._answer(path, command, received_at, result, now)
            if answered is None:
                continue  # its schema is being checked, or what it asks for is being read
            reply, emitted = answered
            is_change = bool(emitted)
            if access_control is not None and (command.writes or isinstance(command, _COUNTED)):
                access_control.answered(path, command, reply)
                is_change = is_change or services.revision > services_revision
            if access_control is not None and type(reply) in LISTS:
                access_control.leave_out(path, command, reply)
            if emitted:
                self._record(emitted)
                waits_for = self._registry.revision
            else:
                waits_for = unwritten.read_by(command, revision=self._registry.revision) if unwritten.changed else 0
            if type(reply) is replies.Discovered and reply.compatible is UNSET:
                payload = self._discoveries.payload(reply, command.id)
            else:
                payload = protocol.encode_reply(reply, command.id)
            if waits_for > self._commit.written:
                unwritten.hold(HeldReply(waits_for, path, command, received_at, reply, payload, is_change))
                self._metrics.count("held")
            else:
                requests.reply(path, command, received_at, reply, payload, is_change=is_change)
            if self._is_suspect:
                self._reload()
                break

    def _answer(
        self,
        path: list[bytes],
        command: commands.AnyCommand,
        received_at: float,
        result: CheckResult | None,
        now: float,
    ) -> tuple[replies.Reply, list[AnyEvent]] | None:
        """The reply and what happened; None when a schema has to be checked first, or a kept topic read."""
        kind = type(command)
        try:
            if isinstance(command, commands.Discover) and command.expected_schema_hash is None:
                return self._registry.apply(command, now=now)  # the hot one, without the detour
            own = self._own.get(kind)
            if own is not None:
                return own(command), _NOTHING
            if kind is commands.Hello:
                return self._hello(command, path), _NOTHING
            if self.is_read_only and (command.writes or kind is commands.Heartbeat):
                return self._answer_read_only(command, now), _NOTHING
            if isinstance(command, _CHECKED) and self._must_wait_for_check(
                (path, command, received_at, None), command, result
            ):
                return None
            if isinstance(command, READ_COMMANDS):
                self._retained.ask((path, command, received_at), command, self._registry.topics.get(command.topic))
                return None
            if kind is commands.PublishMessages:
                self._retained.check_room()
                now = self._retained.now()
            outcome = self._registry.apply(command, now=now, result=result)
            if kind in TOPIC_COMMANDS:
                self._retained.answered(command, outcome.reply, outcome.events)
            if isinstance(outcome.reply, replies.HeartbeatAck | replies.SnapshotPage):
                outcome.reply.broker_id = self.broker_id
            if self._access_control is not None and isinstance(outcome.reply, replies.HeartbeatAck):
                outcome.reply.access = self._access_control.access
            return outcome.reply, outcome.events
        except HubError as refused:
            return protocol.error_reply(refused), _NOTHING
        except Exception as defect:  # one request's defect must not end the broker: logged, counted, answered
            log.exception("internal error while serving a %s", kind.__name__)
            self._metrics.count("internal_errors")
            self._is_suspect = True
            error = InternalError(f"{type(defect).__name__} in the broker; its log says more")
            return protocol.error_reply(error), _NOTHING

    def _must_wait_for_entry(self, adoption: Adoption, result: CheckResult | None) -> bool:
        return self._must_wait_for_check(adoption, adoption.command, result)

    def _must_wait_for_check(
        self, ticket: Request | Adoption, command: commands.Command, result: CheckResult | None
    ) -> bool:
        """Submit the check that the command needs, and return whether it must wait for the result."""
        if result is not None and result.is_lost:
            raise RateLimited("the process that checks schemas died, again and again: try again in a moment")
        check = self._registry.needed_check(command)
        if check is None or (result is not None and result.check == check):
            return False
        if not self._schema_checker.submit(ticket, check):
            raise RateLimited("too many schemas wait to be checked: try again in a moment")
        return True

    def _take_check_results(self) -> None:
        for ticket, result in self._schema_checker.results():
            if isinstance(ticket, Adoption):
                self._host_watcher.checks.done(ticket, result)
            else:
                path, command, received_at, _ = ticket
                self._requests.put_back((path, command, received_at, result))

    def _after_reading(self) -> None:
        for (path, command, received_at), reply, payload in self._retained.answers():
            self._requests.reply(path, command, received_at, reply, payload)

    def _answer_read_only(self, command: commands.AnyCommand, now: float) -> replies.Reply:
        """A heartbeat keeps its lease, and a subscriber that is known its place; every write is refused."""
        if isinstance(command, commands.Heartbeat):
            lease = self._registry.leases.get(command.lease)
            if lease is not None:
                lease.renewed_at = now
            return replies.HeartbeatAck(known=lease is not None, notices=[], broker_id=self.broker_id)
        subscribers = self._registry.subscribers
        if isinstance(command, commands.RegisterSubscriber) and subscribers.get(command.member_id) is not None:
            return subscribers.decide(command, now)  # nothing of it is stored: groups go on
        raise StoreReadOnly("the registry cannot be written (disk full or failing): reads go on, try again later")

    def _record(self, happened: list[AnyEvent]) -> None:
        """Everything that follows from events, before anything else is read or answered."""
        if happened:
            self._unwritten.note(happened)
            for event in happened:
                if event.published:
                    self._publisher.enqueue(event)
            self._host_watcher.follow(self._registry, happened)
            self._commit.submit(happened)
            self._unwritten.newest = happened[-1].revision

    # -- the store -----------------------------------------------------------------------------------------

    def _load(self, store: Store, *, at_least: int = 0) -> tuple[Registry, int]:
        return load(store, self.settings, now=self._now(), at_least=at_least)

    def _after_commit(self) -> None:
        self._commit.acknowledge_wake()
        if self._commit.failure is None:
            self._release(self._commit.written)
        elif not self.is_read_only:
            log.error("%s; serving reads only", self._commit.failure.message)
            self._metrics.count("store_failures")
            self._release(self._commit.written)
            self._refuse_held()
            self.is_read_only = True
            self._poller.unregister(self._host_watcher.fileno())
            self._is_watching = False
            self._go_back()
        elif self._commit.is_writable_again:
            self._commit.resume(written=self._registry.revision)
            self.is_read_only = False
            log.warning("the registry can be written again")
            self._watch_host()

    def _release(self, written: int) -> None:
        self._publisher.release(written)
        self._retained.release(written)
        self._unwritten.release(written, self._leave)

    def _leave(self, held: HeldReply) -> None:
        _, path, command, received_at, reply, payload, is_change = held
        self._requests.reply(path, command, received_at, reply, payload, is_change=is_change)

    def _refuse_held(self) -> None:
        error = protocol.error_reply(
            StoreReadOnly("the change could not be stored (disk full or failing) and was undone")
        )
        for held in self._unwritten.undo():
            payload = protocol.encode_reply(error, held.command.id)
            self._leave(held._replace(reply=error, payload=payload, is_change=False))

    def _reload(self) -> None:
        """After a defect the registry may hold half a change: go back to what the store has."""
        self._is_suspect = False
        self._commit.flush(self._unwritten.newest, timeout=STOP_SECONDS)
        self._release(self._commit.written)
        self._go_back()
        self._record(self._host_watcher.begin(self._registry, now=self._now()))

    def _go_back(self) -> None:
        """To what the store has. What was not written never happened, but its revisions were seen in replies."""
        before = self._registry
        self._registry, _ = self._load(self._commit.store, at_least=before.revision)
        self._registry.take_over_unstored(before, now=self._now())
        self._unwritten.newest = self._registry.revision
        self._retained.reset()
        self._publisher.reset(self._registry.revision)

    # -- what the broker itself answers --------------------------------------------------------------------

    def _hello(self, command: Any, path: list[bytes]) -> replies.Reply:
        access_control, settings = self._access_control, self.settings
        version, warning = protocol.negotiate(command.versions)
        reply = replies.HelloAck(
            version=version,
            broker_id=self.broker_id,
            revision=self._registry.revision,
            heartbeat_seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
            beacon_seconds=settings.beacon_seconds,
            endpoints=self._endpoints
            if access_control is None
            else access_control.reachable(path, self._endpoints, self._local_endpoints),
            server=f"messagehub/{__version__}",
        )
        if warning:
            reply.warning = warning
        if access_control is not None:
            reply.access = access_control.access
        return reply

    def _ping(self, command: Any) -> replies.Reply:
        if command.echo is not None:
            self._topics.echo(command.echo.encode())
        pong = replies.Pong(broker_id=self.broker_id, revision=self._registry.revision, read_only=self.is_read_only)
        problems = [*self._problems.values(), *filter(None, [self._schema_checker.problem])]
        if problems:
            pong.problems = problems
        return pong

    def _stats(self, _: Any) -> replies.Reply:
        return self._report.stats(self._registry, is_read_only=self.is_read_only)

    def _traced(self, command: Any) -> replies.Reply:
        return replies.TraceReport(exchanges=self._trace.find(command.correlation_id, limit=command.limit))

    # -- ending --------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Answer all that has arrived, within a bound; what is still in the kernel gets a moment to come in."""
        deadline = monotonic() + STOP_SECONDS
        grace = monotonic() + DRAIN_SECONDS
        requests = self._requests
        while requests.socket.poll(max(int((grace - monotonic()) * 1000), 0)) and requests.backlog < MAX_BACKLOG:
            requests.receive(MAX_BACKLOG, self._registry)
        while (requests.backlog or self._schema_checker.waiting or self._retained.waiting) and monotonic() < deadline:
            if not requests.backlog:
                (self._schema_checker if self._schema_checker.waiting else self._retained).wait(deadline - monotonic())
            self._take_check_results()
            self._after_reading()
            self._serve(SERVED_PER_TURN)
        if not self.is_read_only:
            self._commit.flush(self._unwritten.newest, timeout=max(deadline - monotonic(), 0.0))
        self._after_commit()

    def _now(self) -> float:
        """Seconds since the epoch that never jump: the wall clock at the start plus monotonic time since."""
        return monotonic() + self._wall_offset
