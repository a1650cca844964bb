"""The broker's loop: the one writer of the registry.

Rule 1: receiving runs ahead of serving, so that a high-priority request overtakes all that was received before it.
Rule 2: a reply that reveals a change waits until the store has the change (`StoredRegistry`); everything else leaves at
once.
Rule 3: when the store fails, only reads are served until a probe write succeeds.
Rule 4: nothing slow runs here: no schema is checked, every drain is bounded. No request and nothing in the directory
can end the loop.
"""

import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from messagehub import protocol
from messagehub.broker.discovery_cache import EncodedDiscoveries
from messagehub.broker.host_watcher.cleaner import Cleaner
from messagehub.broker.host_watcher.entry_checks import Adoption
from messagehub.broker.parts import STOP_SECONDS, Parts
from messagehub.broker.persistence.pending_commits import HeldReply
from messagehub.broker.persistence.stored_registry import StoredRegistry
from messagehub.broker.request_queue import MAX_BACKLOG
from messagehub.broker.schema_worker.checker import START_SECONDS
from messagehub.broker.service_changes import apply_changes
from messagehub.errors import ConfigurationError, StoreReadOnly
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import RELOADABLE, Settings
from messagehub.shm.channel_directory.location import directory_of
from messagehub.store import Store
from messagehub.version import __version__
from registry import commands, replies
from registry.access import LISTS
from registry.events import AnyEvent
from registry.registry import Registry

if TYPE_CHECKING:
    from messagehub.broker.site.member import SiteMember

log = logging.getLogger("messagehub.broker")

RECEIVED_PER_TURN = 1024
SERVED_PER_TURN = 64
DRAIN_SECONDS = 0.1
ADOPT_SECONDS = 5.0
_COUNTED = commands.ServiceCommand | commands.UnregisterSubscriber


class Broker:
    def __init__(
        self, settings: Settings, open_store: Callable[[], Store], site: "Callable[[], SiteMember] | None" = None
    ) -> None:
        """`open_store` is called only once the locks of the directory are ours, and then `site`, which makes the hub a
        member of a site."""
        self.settings = settings
        self.broker_id = os.urandom(8).hex()
        self.supervisor = Supervisor()
        """Of all threads of the hub; its restarts are counted in the statistics."""
        self._discoveries = EncodedDiscoveries()
        self._stop_reason = "it was asked to"
        self._is_closed = self._is_watching = False
        self._is_due = True
        """Whether anything but discoveries has happened since the loop last looked for what is due."""
        self._due_at = 0.0
        self._new_settings: Settings | None = None
        self._parts = parts = Parts(self.broker_id, settings, open_store, self.supervisor)
        self._stored = StoredRegistry(parts, settings)
        self._access_control, self._answers, self._commit = parts.access_control, parts.answers, parts.commit
        self._host_watcher, self._metrics, self._publisher = parts.host_watcher, parts.metrics, parts.publisher
        self._requests, self._retained, self._schema_checker = parts.requests, parts.retained, parts.schema_checker
        self._router, self._local_socket, self._polling = parts.router, parts.local_socket, parts.polling
        self._topics, self._stop_fd, self._now, self.status = parts.topics, parts.stop_fd, parts.now, parts.status
        try:
            self._site = site() if site is not None else None
        except BaseException:
            parts.close()
            raise
        if self._site is not None:
            self._site.join(parts, self._stored, lambda: self._look_at_host(self._host_watcher.begin))

    @property
    def endpoint(self) -> str:
        return self.status.endpoints["control"]

    @property
    def local_endpoint(self) -> str:
        return self.status.local_endpoints["control"]

    @property
    def events_endpoint(self) -> str:
        return self.status.endpoints["events"]

    def stop(self, why: str = "it was asked to") -> None:
        """Ask the loop to finish. Safe from any thread and from a signal handler, also when the loop has finished."""
        if not self._is_closed:
            self._stop_reason = why
            os.eventfd_write(self._stop_fd, 1)

    def reload(self, settings: Settings) -> None:
        """Apply the settings that can change while the broker runs (settings.RELOADABLE) at the next turn of the loop.

        Safe from any thread.
        """
        self._new_settings = settings

    def note_problem(self, part: str, problem: str | None) -> None:
        """Show a problem of a part of the hub in its health, until the problem is None."""
        if problem is None:
            self.status.problems.pop(part, None)
        else:
            self.status.problems[part] = problem

    def add_counters(self, counters: Callable[[], dict[str, int]]) -> None:
        """Add counters to the statistics."""
        self._parts.stats.add(counters)

    @property
    def gid(self) -> int:
        """The group that the hub is shared with, or -1."""
        return self._parts.place.gid

    @property
    def server_key(self) -> str:
        """The public key that clients need to connect; empty if the hub has no keys."""
        return self._parts.authentication.server_key

    def warm_up(self) -> None:
        """Return when schemas can be checked and every living producer of this host is registered.

        It returns early when `stop` is called meanwhile.
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
        """Close a broker that does not run: one that was never started, or that has ended."""
        self._is_closed = True
        self._parts.close()

    def run(self) -> None:
        """Serve until `stop`, then drain what was received, answer it and close."""
        polling, publisher = self._polling, self._publisher
        handlers: dict[int, Callable[[], None]] = {
            self._commit.wake_fd: self._after_commit,
            self._schema_checker.wake_fd: self._take_check_results,
            self._retained.wake_fd: self._after_reading,
        }
        if self._site is not None:
            handlers |= self._site.handlers
        for fd in (self._stop_fd, *handlers):
            polling.add(fd)
        polling.add_socket(self._router.polled)
        polling.add_socket(publisher.polled)
        handlers[publisher.polled.fd] = lambda: publisher.read_subscriptions(self._stored.registry)
        if publisher.monitor is not None:
            polling.add_socket(publisher.monitor)
            handlers[publisher.monitor.fd] = publisher.read_connections
        handlers[self._host_watcher.fileno()] = self._look_at_host  # polled while the registry can be written
        wait_seconds = 0.0
        cleaner = Cleaner(directory_of(self.settings), self.supervisor)
        try:
            self._watch_host(adopt_seconds=ADOPT_SECONDS)
            self._log_start()
            while True:
                for fd in self._receive(polling.wait(wait_seconds)):
                    self._is_due = True
                    if fd == self._stop_fd:
                        log.info("stopping, because %s", self._stop_reason)
                        self._drain()
                        return
                    if fd in handlers:
                        handlers[fd]()
                    elif self._site is not None and self._site.polls(fd):
                        self._site.take()
                    # or else it is a connection that has just ended
                wait_seconds = self._turn()
        finally:
            cleaner.close(timeout=STOP_SECONDS)
            self.close()

    def _receive(self, ready: list[tuple[int, int]]) -> list[int]:
        """Receive requests, and return the descriptors that are for somebody else."""
        others = self._local_socket.receive(ready, self._stored.registry)
        if self._router.polled.fd in others:
            others.remove(self._router.polled.fd)
            self._router.receive(RECEIVED_PER_TURN, self._requests, self._stored.registry)
        return others

    def _log_start(self) -> None:
        held = self._stored.registry
        log.info("messagehub %s serves in %s at %s, pid %d", __version__, self.settings.dir, self.endpoint, os.getpid())
        log.info("%d channels, %d schemas, revision %d", len(held.channels), len(held.schemas), held.revision)
        if self._parts.others_of_domain:
            log.warning(
                "another broker serves domain %r: both show the same rings and tables. Give each hub a domain of its"
                " own, with domain in messagehub.toml",
                self.settings.domain,
            )

    def _turn(self) -> float:
        """Serve requests, do what is due, and return how long the loop may sleep."""
        if self._new_settings is not None:
            self._take_over(self._new_settings)
        if self._access_control is not None and self._access_control.refresh():
            self._cut()
        requests, local_socket = self._requests, self._local_socket
        backlog = requests.backlog
        if backlog:
            self._serve(min(SERVED_PER_TURN, backlog))
        if self._site is not None:
            self._site.flush()  # before what is due is done, which nobody waits for
        self._commit.write_submitted()
        now = self._now()
        if self._is_due or now >= self._due_at:
            self._is_due = False
            self._due_at = now + self._maintain(now)
        local_socket.flush()
        if local_socket.has_received:
            local_socket.receive_held(self._stored.registry)
        is_busy = backlog > SERVED_PER_TURN or local_socket.has_received or requests.backlog
        return 0.0 if is_busy else max(self._due_at - now, 0.0) + 0.001

    def _maintain(self, now: float) -> float:
        """Expire leases, follow changes, send beacons, and return the seconds until there may be more to do.

        Discoveries change nothing, so turns that serve nothing else pass this over.
        """
        registry = self._stored.registry
        deadline = registry.next_deadline()
        may_expire = not self.status.is_read_only and (self._site is None or not self._site.is_loading)
        if deadline is not None and deadline <= now and may_expire:
            self._stored.record(registry.expire(now=now))
            deadline = registry.next_deadline()
        apply_changes(registry, self._publisher, self._host_watcher, self._topics, now=now)
        ended = registry.leases.take_ended()
        if self._access_control is not None and ended:
            self._access_control.leases_ended([lease for lease in ended if registry.leases.get(lease) is None])
        idle_seconds = self._publisher.beacons(registry, now=now)
        if not self.status.is_read_only:
            if deadline is not None:
                idle_seconds = min(idle_seconds, max(deadline - now, 0.0))
            unseen_seconds = self._host_watcher.seconds_to_next_look()
            if unseen_seconds <= 0.0:
                self._look_at_host()
            idle_seconds = min(idle_seconds, unseen_seconds)
        if self._site is not None:
            idle_seconds = min(idle_seconds, self._site.maintain())
        self._commit.write_submitted()
        return idle_seconds

    def _take_over(self, settings: Settings) -> None:
        self._new_settings = None
        self._stored.registry.topics.limit_bytes = settings.kept_limit_bytes
        if self._site is not None:
            self._site.set_kept_limit(settings.kept_limit_bytes)
        reloaded = {name: getattr(settings, name) for name in RELOADABLE}
        self.settings = self._stored.settings = msgspec.structs.replace(self.settings, **reloaded)
        if self._access_control is not None:
            self._access_control.reload(self.settings)

    def _cut(self) -> None:
        """Enforce rights that were reduced: end connections that libzmq serves by itself, so that each is authenticated
        anew, and the registrations of peers that are not listed any more."""
        self._publisher.cut()
        self._local_socket.end_others()
        self._topics.cut()
        if self._access_control is not None and not self.status.is_read_only:
            self._stored.record(self._seen_registry.end_leases(self._access_control.unlisted_leases(), now=self._now()))

    def _watch_host(self, *, adopt_seconds: float = 0.0) -> None:
        """Watch this host from now on, and begin with all that happened before.

        At the start, wait for the schema checks of producers that came while no broker ran, so that no client is told
        that they do not exist.
        """
        if self._is_watching:
            return
        self._is_watching = True
        self._polling.add(self._host_watcher.fileno())
        self._look_at_host(self._host_watcher.begin)
        deadline = monotonic() + adopt_seconds
        while self._host_watcher.checks.is_asking and monotonic() < deadline and not self._is_stopping():
            self._schema_checker.wait(DRAIN_SECONDS)
            self._take_check_results()
            self._look_at_host()

    def _is_stopping(self) -> bool:
        return bool(wait_readable([self._stop_fd], 0.0))

    @property
    def _seen_registry(self) -> Registry:
        """The registry that hears of what is seen on this host."""
        return self._stored.registry if self._site is None else self._site.view

    def _look_at_host(self, look: Callable[..., list[AnyEvent]] | None = None) -> None:
        defects = self._host_watcher.defects
        self._stored.record((look or self._host_watcher.look)(self._seen_registry, now=self._now()))
        if self._host_watcher.defects > defects:
            self._metrics.count("internal_errors")
            self._reload()

    # -- serving -------------------------------------------------------------------------------------------

    def _serve(self, limit: int) -> None:
        now = self._now()
        requests, stored, access_control = self._requests, self._stored, self._access_control
        registry, unwritten = stored.registry, stored.unwritten
        high, normal, low = requests.high, requests.normal, requests.low
        services = registry.services
        for _ in range(limit):
            request = (high or normal or low).popleft()
            path, command, received_at, _ = request
            if type(command) is not commands.Discover:
                self._is_due = True
            services_revision = services.revision
            answer = self._answers.answer(request, registry, now=now, is_read_only=self.status.is_read_only)
            if answer is None:
                continue  # its schema is being checked, or what it asks for is being read
            reply, emitted = answer
            is_change = bool(emitted)
            if access_control is not None and (command.writes or isinstance(command, _COUNTED)):
                access_control.answered(path, command, reply)
                is_change = is_change or services.revision > services_revision
            if access_control is not None and type(reply) in LISTS:
                access_control.leave_out(path, command, reply)
            if emitted:
                stored.record(emitted)
                waits_for = registry.revision
            else:
                waits_for = unwritten.read_by(command, revision=registry.revision) if unwritten.changed else 0
            if type(reply) is replies.Discovered and reply.compatible is UNSET:
                payload = self._discoveries.payload(reply, command.id)
            else:
                payload = protocol.encode_reply(reply, command.id)
            if waits_for > self._commit.written:
                stored.hold(HeldReply(waits_for, path, command, received_at, reply, payload, is_change))
            else:
                requests.reply(path, command, received_at, reply, payload, is_change=is_change)
            if self._answers.is_suspect:
                self._reload()
                break

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

    # -- the store -----------------------------------------------------------------------------------------

    def _after_commit(self) -> None:
        stored = self._stored
        self._commit.acknowledge_wake()
        if self._site is not None and self._site.after_commit():
            return
        if self._commit.failure is None:
            stored.release()
        elif not self.status.is_read_only:
            log.error("%s; serving reads only", self._commit.failure.message)
            self._metrics.count("store_failures")
            said = "the change could not be stored (disk full or failing) and was undone"
            if self._commit.reloaded is None:
                said = "whether the change was stored is not known, since the store does not answer: try again later"
            stored.refuse_unwritten(StoreReadOnly(said))
            self.status.is_read_only = True
            self._polling.remove(self._host_watcher.fileno())
            self._is_watching = False
            stored.settle()
        elif self._commit.is_writable_again:
            stored.settle()
            self._commit.resume(written=stored.registry.revision)
            self.status.is_read_only = False
            log.warning("the registry can be written again")
            self._watch_host()

    def _reload(self) -> None:
        """Restore the registry from the store after a defect, since it may hold half a change."""
        self._answers.is_suspect = False
        if self._site is not None:
            self._site.load_anew("a defect may have left half a change in its registry")
        else:
            self._stored.reload()

    # -- ending --------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Answer the requests that have arrived, within a bound; those in the kernel's buffers get a moment to come.

        Half of the time is for receiving at most: requests that are refused as they come are no backlog, and a peer
        may send them without end.
        """
        self._polling.keep_only(self._router.polled)  # and the local socket's own
        deadline = monotonic() + STOP_SECONDS
        grace, requests = monotonic() + DRAIN_SECONDS, self._requests
        while (ready := self._polling.wait(max(grace - monotonic(), 0.0))) and requests.backlog < MAX_BACKLOG:
            self._receive(ready)
            self._local_socket.receive_held(self._stored.registry)
            self._local_socket.flush()
            if monotonic() > deadline - STOP_SECONDS / 2:
                break
        while (requests.backlog or self._schema_checker.waiting or self._retained.waiting) and monotonic() < deadline:
            if not requests.backlog:
                (self._schema_checker if self._schema_checker.waiting else self._retained).wait(deadline - monotonic())
            self._take_check_results()
            self._after_reading()
            self._serve(min(SERVED_PER_TURN, requests.backlog))
        if self._site is not None:
            self._site.end()
        if not self.status.is_read_only:
            self._commit.flush(self._stored.unwritten.newest, timeout=max(deadline - monotonic(), 0.0))
        self._after_commit()
        if self._site is not None:
            self._site.flush()
