"""The parts of a broker: which there are, and in what order they are made and closed.

Rule 1: every part that was made is closed, whatever fails later: last made, first closed.
Rule 2: the store is opened only once the locks of the directory are ours.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

import zmq

from messagehub import protocol
from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.access.access_version import AccessVersion
from messagehub.broker.access.authentication import CONTROL, SERVICES_SITE, Authentication
from messagehub.broker.answers import Answers
from messagehub.broker.event_publisher import Publisher
from messagehub.broker.host_watcher.entry_checks import Adoption
from messagehub.broker.host_watcher.watcher import HostWatcher
from messagehub.broker.instance_lock import InstanceLock
from messagehub.broker.persistence.restore import load, load_copy
from messagehub.broker.polling import Polling
from messagehub.broker.request_queue import COUNTERS, UNKNOWN, Request, RequestQueue
from messagehub.broker.schema_worker.checker import SchemaChecker
from messagehub.broker.stats import BrokerStats
from messagehub.broker.status import BrokerInfo
from messagehub.broker.topics.message_traces import MessageTraces
from messagehub.broker.topics.proxy import SiteEnds, TopicProxy
from messagehub.broker.topics.retained import RetainedTopics
from messagehub.broker.topics.subscriptions import ReportedSubscriptions
from messagehub.broker.tracing import TraceRing
from messagehub.broker.transports.local_socket import LocalSocket
from messagehub.broker.transports.router import Router
from messagehub.errors import ConfigurationError
from messagehub.runtime.metrics import Metrics
from messagehub.runtime.supervision import Supervisor
from messagehub.settings import Settings, ports_above
from messagehub.shm.channel_directory.domain_lock import DomainLock
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.errors import Busy, DataBlockError
from messagehub.store import Store
from messagehub.store.commit import GroupCommit
from messagehub.store.sqlite import SQLiteStore
from registry import commands
from registry.topics.subscriber_groups import VALID_SECONDS

log = logging.getLogger("messagehub.broker")

STOP_SECONDS = 5.0


class Parts:
    def __init__(
        self, broker_id: str, settings: Settings, open_store: Callable[[], Store], supervisor: Supervisor
    ) -> None:
        self.broker_id = broker_id
        self.home_commit: GroupCommit | None = None
        """In a member of a site: what stores the messages of the retained topics whose home is this host."""
        self.wall_offset = time.time() - monotonic()
        with ExitStack() as closing:
            self._closing = closing
            self._make_access(settings, supervisor)
            written = self._make_registry(settings, open_store, supervisor)
            self._make_sockets(broker_id, settings)
            self._make_topics(supervisor, is_fresh=written == 0)
            self._make_answers(broker_id, settings, supervisor)
            self._bind(settings, settings.local if settings.curve else settings)
            self._closing = closing.pop_all()

    def close(self) -> None:
        self._closing.close()

    def now(self) -> float:
        """Return seconds since the epoch that never jump: the wall clock at the start plus monotonic time since."""
        return monotonic() + self.wall_offset

    def _make_access(self, settings: Settings, supervisor: Supervisor) -> None:
        self.place = InstanceLock(settings)
        self._closing.callback(self.place.leave)
        self.access_control = access_control = AccessControl.of(settings)
        self.access_version = AccessVersion(access_control)
        if access_control is not None:
            self._closing.callback(access_control.close)
        identify = access_control.identify if access_control else None
        self.authentication = Authentication(settings, self.place, identify, supervisor)
        self.stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing.callback(os.close, self.stop_fd)
        self.topics = TopicProxy(self.authentication, supervisor, is_member=bool(settings.site))
        self._closing.callback(self.topics.close)

    def _make_registry(self, settings: Settings, open_store: Callable[[], Store], supervisor: Supervisor) -> int:
        """Return the revision that the store has."""
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._closing.callback(self.context.term)
        store = open_store()
        with ExitStack() as unused:
            unused.callback(store.close)
            if settings.site:
                self.registry = load_copy(store, settings)
                written = self.registry.revision
            else:
                self.registry, written = load(store, settings, now=self.now())
            self.commit = GroupCommit(store, written=written, supervisor=supervisor)
            unused.pop_all()
        self._closing.callback(self.commit.close, timeout=STOP_SECONDS)
        if settings.site:
            self.home_commit = self._open_home(settings, supervisor)
        self.schema_checker: SchemaChecker[Request | Adoption] = SchemaChecker(supervisor)
        self._closing.callback(self.schema_checker.close, timeout=STOP_SECONDS)
        self.host_watcher = HostWatcher(
            directory_of(settings),
            lambda adoption, result, registry: self.schema_checker.must_wait(
                adoption, adoption.command, result, registry
            ),
            self.access_control,
            stored_revision=lambda: self.commit.written,
        )
        self._closing.callback(self.host_watcher.close)
        self._hold_domain(settings)
        return written

    def _open_home(self, settings: Settings, supervisor: Supervisor) -> GroupCommit:
        """Open the database of the retained topics of a site whose home is this host."""
        store = SQLiteStore(settings.home_topics_path, sync=settings.store_sync)
        try:
            commit = GroupCommit(store, written=store.load().revision, supervisor=supervisor)
        except BaseException:
            store.close()
            raise
        self._closing.callback(commit.close, timeout=STOP_SECONDS)
        return commit

    def _hold_domain(self, settings: Settings) -> None:
        self.others_of_domain = 0
        try:
            lock = DomainLock(directory_of(settings))
        except Busy as error:
            raise ConfigurationError(
                f"domain {settings.domain!r} is being removed by `messagehub purge`: start the hub again when that has"
                f" ended. {error.message}"
            ) from None
        except (OSError, DataBlockError) as error:  # a broker serves without shared memory too
            log.warning("domain %r is not held, so `messagehub purge` may remove it: %s", settings.domain, error)
            return
        self._closing.callback(lock.close)
        self.others_of_domain = lock.others

    def _make_sockets(self, broker_id: str, settings: Settings) -> None:
        self.metrics = Metrics(
            [*protocol.COMMANDS_BY_TYPE, UNKNOWN],
            [*COUNTERS, "hung_up_locally", "held", "store_failures", "internal_errors"],
        )
        self.trace = TraceRing(settings.trace_size, wall_offset=self.wall_offset)
        self.context.set(zmq.MAX_SOCKETS, 1024)
        self.authentication.start(self.context)
        self.publisher = Publisher(
            self.context,
            broker_id=broker_id,
            beacon_seconds=settings.beacon_seconds,
            access_control=self.access_control,
            counts_services_apart=not settings.site,
        )
        self._closing.callback(self.publisher.close)
        self.publisher.reset(self.registry.revision)
        self.router = Router(self.context, self.access_control, self.metrics)
        self._closing.callback(self.router.socket.close)
        self.requests = RequestQueue(self.router.send, self.access_control, self.metrics, self.trace)
        self.polling = Polling()
        self._closing.callback(self.polling.close)
        self.local_socket = LocalSocket(
            self.requests, self.publisher, self.access_control, self.metrics, self.polling.epoll
        )
        self._closing.callback(self.local_socket.close)

    def _make_topics(self, supervisor: Supervisor, *, is_fresh: bool) -> None:
        self.registry.subscribers.groups.settle_until = 0.0 if is_fresh else self.now() + VALID_SECONDS
        topic_store = self.commit.store if self.home_commit is None else self.home_commit.store
        self.retained = RetainedTopics(topic_store, self.topics.retained, supervisor, is_fresh=is_fresh)
        self._closing.callback(self.retained.close, timeout=STOP_SECONDS)

    def _make_answers(self, broker_id: str, settings: Settings, supervisor: Supervisor) -> None:
        self.stats = BrokerStats(broker_id, self.metrics, self.commit)
        self.stats.add(lambda: {"published": self.publisher.published} | self.retained.counters)
        self.stats.add(lambda: {"threads_restarted": supervisor.restarts})
        self.stats.add_gauges(
            lambda: {"subscriptions": self.publisher.subscriptions, "local_connections": len(self.local_socket)}
        )
        self.stats.add_gauges(self.host_watcher.gauges)
        if self.access_control is not None:
            self.stats.add(self.access_control.counters)
            self.stats.add_gauges(self.access_control.gauges)
        self.status = status = BrokerInfo(
            broker_id,
            settings,
            access_control=self.access_control,
            access_version=self.access_version,
            topics=self.topics,
            schema_checker=self.schema_checker,
            stats=self.stats,
            trace=self.trace,
            origins=self.retained.origins,
        )
        subscriptions = ReportedSubscriptions()
        self.message_traces = MessageTraces(subscriptions, self.retained.origins, self.now)
        self.answers = Answers(
            broker_id,
            {
                commands.Hello: status.hello,
                commands.ListHosts: status.hosts,
                commands.RequestGateway: status.gateway,
                commands.Ping: status.ping,
                commands.Stats: status.stats,
                commands.Trace: status.trace,
                commands.ReportSubscriptions: subscriptions.report,
                commands.ListSubscriptions: subscriptions.list,
                commands.TraceMessage: self.message_traces.trace,
            },
            schema_checker=self.schema_checker,
            retained=self.retained,
            access_version=self.access_version,
            metrics=self.metrics,
        )

    def _bind(self, settings: Settings, local: Settings) -> None:
        authentication = self.authentication
        control, control_here = authentication.bind(self.router.socket, CONTROL, settings.endpoint, local.endpoint)
        events, events_here = self.publisher.bind(authentication, settings.events_endpoint, local.events_endpoint)
        site = None
        if settings.site:
            hubs = ports_above(settings.hubs_endpoint, 2), ports_above(settings.hubs_endpoint, 3)
            site = SiteEnds(hubs, settings.site_topics_endpoints, local.site_topics_endpoints)
        topics, topics_here = self.topics.start(
            settings.topic_endpoints, local.topic_endpoints, is_first=self.place.is_first, site=site
        )
        if local.local_socket is not None:
            self.local_socket.bind(local.local_socket)
            self.place.share(f"ipc://{local.local_socket}")
        services = {}
        if settings.site:  # workers choose ports of their own
            services[SERVICES_SITE] = f"{settings.hubs_endpoint.rpartition(':')[0]}:0"
        self.status.endpoints = {"control": control, "events": events, **topics, **services}
        self.status.local_endpoints = {"control": control_here, "events": events_here, **topics_here, **services}
