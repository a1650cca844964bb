"""MessageHub: the object that users hold.

An ordinary class with one shared instance per process (`get_instance`). Nothing is opened before the first call.
Without a broker nothing raises or hangs: one warning is logged, and what a broker is not needed for is done
through the directory in shared memory. Answers that nobody could give are falsy.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from messagehub.arguments import checked, flag, json_object, seconds, text
from messagehub.channels.methods import DataMethods
from messagehub.channels.payload_schema import hash_of
from messagehub.channels.producers import LOCK_SECONDS
from messagehub.channels.table_methods import TableMethods
from messagehub.client import ended_brokers
from messagehub.client.catalog_methods import CatalogMethods
from messagehub.client.connection import Connection
from messagehub.client.event_listeners import EventListeners, OnEvent
from messagehub.client.group_changes import GroupChanges
from messagehub.client.heartbeats import Heartbeats, Registration
from messagehub.client.unregistered_tables import UnregisteredTables
from messagehub.client.watch import Watch, Watches
from messagehub.discovery import Discovery
from messagehub.discovery.chain import Chain
from messagehub.discovery.listings import Listings
from messagehub.discovery.via_broker import ViaBroker
from messagehub.discovery.via_directory import ViaFiles
from messagehub.discovery.via_shm_name import ViaShmName
from messagehub.errors import BrokerRequired, ChannelNotFound, ChannelNotReady, HubError, NotInitialised, is_unable
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.runtime.callbacks import check_callback
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.runtime.logs import set_client_level
from messagehub.runtime.process_end import ProcessEnd
from messagehub.runtime.signals import wait_for_signal, wait_for_signal_async
from messagehub.runtime.spark_task import SparkTask, close_with_task, current_task, noted
from messagehub.services.methods import ServiceMethods
from messagehub.services.services import Services
from messagehub.services.workers import DRAIN_SECONDS
from messagehub.settings import Settings
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.location import directory_of
from messagehub.shm.locks import open_files_limited
from messagehub.topics.methods import TopicMethods
from messagehub.topics.topics import Topics
from registry import commands, names, replies
from registry.records import Access, Block, Consumer, Priority, SchemaType

log = logging.getLogger("messagehub")

PAGE = 1000
WAIT_SECONDS = 0.25
_AnyReply = TypeVar("_AnyReply", bound=replies.Reply)


@checked(but=("discover",))
class MessageHub(CatalogMethods, DataMethods, TableMethods, TopicMethods, ServiceMethods, ClosedWhenForgotten):
    """A client of one hub. Threads share it; a forked child gets a connection and registrations of its own.

    What it made keeps it alive. It is closed, with all that it serves, when nobody holds it or anything of it.
    """

    _instance: ClassVar["MessageHub | None"] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()
    _count: ClassVar["itertools.count[int]"] = itertools.count(1)

    def __init__(self, settings: Settings | None = None, **arguments: Any) -> None:
        """`MessageHub(endpoint=…, dir=…, domain=…)`, or ready-made settings."""
        if settings is not None and arguments:
            raise TypeError("give either settings or single arguments")
        self.settings = settings or Settings.load(**_paths(arguments))
        set_client_level(arguments.get("log") or os.environ.get("MESSAGEHUB_LOG"))
        self._number = next(MessageHub._count)
        self._roles = itertools.count(1)
        self._is_closed = False
        self._begin()
        self._opened_in = os.getpid()
        _alive.add(self)
        _process_end.expect_end()

    def _begin(self) -> None:
        self._identity = ProcessIdentity.current()
        identity = self._identity
        self.lease = f"{identity.host}:{identity.boot_id[:8]}:{identity.pid}:{identity.start_time}:{self._number}"
        self._has_warned = False
        self._connection = Connection(self.settings, name=f"{identity.pid:x}.{self._number:x}")
        directory = directory_of(self.settings)
        files = ViaFiles(directory, shm_prefix=self.settings.shm_prefix)
        self._listings = Listings(files, timeout=self.settings.request_timeout_seconds)
        self._heartbeats = Heartbeats(self._connection, lease=self.lease, when_alone=self._listings.enter)
        self._watches = Watches(self._connection)
        self._taps = EventListeners(self._connection)
        self._unregistered_tables = UnregisteredTables(self._connection, directory)
        self._via_broker = ViaBroker(self._connection)
        self._cached: Callable[[str], Discovery | None] = self._via_broker.cache.get
        self._chain = Chain(self._via_broker, files, ViaShmName(directory))
        self._group_news = GroupChanges(self._connection)
        self._background = BackgroundThreads()
        self._topics = Topics(self._connection, self._heartbeats, owner=self._owner(), background=self._background)
        self._services = Services(
            self._connection,
            self._heartbeats,
            sender=self._role("hub"),
            owner=self._owner(),
            default_timeout=self.settings.request_timeout_seconds,
            background=self._background,
        )
        self._open = weakref.WeakSet()
        self._connection.parts = (
            self._heartbeats,
            self._via_broker.cache,
            self._watches,
            self._taps,
            self._unregistered_tables,
            self._group_news,
            self._services.requests.directory,
        )

    @classmethod
    def get_instance(cls, **arguments: Any) -> "MessageHub":
        """The one of this process, made on first use. Arguments count only then; others later are refused.

        One whose embedded broker has ended is closed, and the next is made as if it were the first.
        """
        with cls._instance_lock:
            if cls._instance is not None and cls._instance.settings.endpoint in ended_brokers.ENDPOINTS:
                cls._instance.close()
            if cls._instance is None or cls._instance._is_closed:
                cls._instance = cls(**arguments)
                # Whoever asks for a hub there now expects somebody else to answer, perhaps later.
                ended_brokers.ENDPOINTS.discard(cls._instance.settings.endpoint)
            elif arguments and Settings.load(**_paths(arguments)) != cls._instance.settings:
                raise HubError("get_instance was called before with other settings; use MessageHub(…) for a second hub")
            return cls._instance

    @classmethod
    def reset_instance(cls) -> None:
        """Close and forget the shared instance, for tests."""
        with cls._instance_lock:
            if cls._instance is not None:
                cls._instance.close()
                cls._instance = None

    # -- the connection ------------------------------------------------------------------------------------

    def connect(self, *, timeout: float | None = None, required: bool = False) -> bool:
        """Be connected now instead of at the first call. Harmless when connected already."""
        return self._ask(commands.Ping(), replies.Pong, timeout=timeout, required=required) is not None

    connect_async = awaitable(connect)

    def disconnect(self) -> None:
        """Give up registrations and the connection; the next call connects again."""
        self._services.close()
        self._background.close()
        self._topics.close_shared()
        unconfirmed = self._heartbeats.end_all()
        for opened in list(self._open):
            opened.close()
        self._watches.close_all()
        self._topics.close()
        self._connection.close()
        self._via_broker.cache.end_waits()
        self._listings.close(unconfirmed)  # at last: the I/O thread may have been entering some
        if not self._is_closed:
            self._begin()

    def close(self) -> None:
        """Unregister everything and release sockets and threads. Idempotent.

        Whoever reads or waits is told: loops end. From then on this hub neither makes nor finds anything: every such
        call raises NotInitialised. `health`, `metrics` and `notices` still answer.
        """
        if not self._is_closed:
            self._is_closed = True
            self._cached = _refuse
            self.disconnect()

    async def close_async(self) -> None:
        """As `close`, while the event loop goes on."""
        await asyncio.to_thread(self.close)

    def run_forever(self, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Serve until this process gets SIGTERM or SIGINT, then close, with so long for what has been taken.

        Only in the main thread. A second signal ends the process as it would without this.
        """
        wait_for_signal()
        self._services.close(timeout=drain_seconds)
        self.close()

    async def run_forever_async(self, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        """As `run_forever`, for programs with an event loop."""
        await wait_for_signal_async()
        await asyncio.to_thread(self._services.close, timeout=drain_seconds)
        await self.close_async()

    @property
    def is_connected(self) -> bool:
        return self._connection.hello is not None

    def health(self, *, timeout: float = 1.0) -> dict[str, Any]:
        """`healthy`, `degraded` with the problems, or `unavailable` with the reason, within the timeout."""
        started = time.monotonic()
        try:
            pong = self._ask(commands.Ping(priority="high"), replies.Pong, timeout=timeout, required=True)
        except HubError as error:
            return {"status": "unavailable", "reason": error.message, "endpoint": self.settings.endpoint}
        assert pong is not None
        problems = pong.problems or []
        return {
            "status": "degraded" if problems else "healthy",
            "problems": problems,
            "broker_id": pong.broker_id,
            "revision": pong.revision,
            "read_only": pong.read_only,
            "seconds": round(time.monotonic() - started, 6),
        }

    def metrics(self) -> dict[str, Any]:
        """This client's own requests, errors, timeouts, latencies and reconnects."""
        connection = self._connection
        counters = connection.metrics.counters
        return {
            "requests": connection.metrics.report(),
            **counters,
            "reconnects": max(counters["connects"] - 1, 0),
            "services": self._services.metrics.report(),
            "topics": self._topics.report(),
        }

    def stats(self, *, timeout: float | None = None) -> replies.StatsReport | None:
        """The broker's own numbers."""
        return self._ask(commands.Stats(), replies.StatsReport, timeout=timeout)

    stats_async = awaitable(stats)

    def trace(self, correlation_id: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Both sides of the newest exchanges, or of one: what this client saw and what the broker saw."""
        own = [
            {
                "side": "client",
                "at": at,
                "correlation_id": request_id,
                "request": request,
                "answer": answer,
                "seconds": round(seconds, 7),
            }
            for at, request_id, request, answer, seconds in list(self._connection.exchanges)
            if correlation_id is None or request_id == correlation_id
        ]
        asked = commands.Trace(correlation_id=correlation_id, limit=limit)
        report = self._ask(asked, replies.TraceReport)
        theirs = report.exchanges if report else []
        return sorted([*own[-limit:], *theirs], key=lambda exchange: exchange["at"])

    # -- producers and consumers ---------------------------------------------------------------------------

    def register_producer(
        self,
        channel: str,
        *,
        schema_hash: str,
        schema_version: str = "",
        config: dict[str, Any] | None = None,
        schema: commands.Schema | None = None,
        schema_type: SchemaType | None = None,
        producer_id: str | None = None,
        shm_name: str | None = None,
        blocks: list[Block] | None = None,
        access: Access | None = None,
        metadata: dict[str, Any] | None = None,
        priority: Priority = "normal",
        ready: bool = True,
        timeout: float | None = None,
        required: bool = False,
    ) -> Registration:
        """Say that this process produces a channel, to the broker or, while none answers, in the directory.

        The handle is falsy when nothing took it, and becomes true by itself when a broker does. `access` is exclusive
        or, in a task of Spark, shared under an id of the task, unless said otherwise; the task's end closes it.
        """
        task = current_task()
        access, producer_id = self._place(task, access, producer_id)
        command = commands.RegisterProducer(
            channel=channel,
            schema_hash=schema_hash,
            schema_version=schema_version,
            config=json_object(config, "config"),
            schema=schema,
            schema_type=schema_type,
            producer_id=producer_id,
            shm_name=shm_name,
            blocks=blocks or [],
            access=access,
            metadata=noted(task, json_object(metadata, "metadata")),
            priority=priority,
            ready=ready,
            **self._owner(),
        )
        registration = self._register(command, timeout, required)
        if task is not None:
            close_with_task(registration)
        return registration

    register_producer_async = awaitable(register_producer)

    def register_consumer(
        self,
        channel: str,
        *,
        consumer_id: str | None = None,
        expected_schema_hash: str | None = None,
        group: str | None = None,
        metadata: dict[str, Any] | None = None,
        timeout: float | None = None,
        required: bool = False,
    ) -> Registration:
        """Say that this process consumes a channel; `required` also asks for an active producer."""
        command = commands.RegisterConsumer(
            channel=channel,
            consumer_id=self._role("consumer") if consumer_id is None else consumer_id,
            expected_schema_hash=expected_schema_hash,
            group=group,
            metadata=json_object(metadata, "metadata"),
            required=required,
            **self._owner(),
        )
        return self._register(command, timeout, required)

    register_consumer_async = awaitable(register_consumer)

    def notices(self) -> list[replies.Notice]:
        """What happened to the channels this process is a member of, since the last call."""
        taken = list(self._heartbeats.notices)
        del self._heartbeats.notices[: len(taken)]
        return taken

    # -- finding -------------------------------------------------------------------------------------------

    def discover(
        self,
        channel: str,
        *,
        expected_schema: Any = None,
        timeout: float | None = None,
        wait: bool = False,
        required: bool = False,
    ) -> Discovery | None:
        """Where the channel lives, or None when nobody knows. `wait` keeps asking until it is active.

        With `expected_schema` (as producers give it, or its hash) the answer says whether a reader of that schema can
        read the channel (`compatible`), and what is in the way (`differences`).
        From memory, without a round trip, once this client has discovered the channel before.
        """
        if expected_schema is not None:
            channel = text(channel, "channel")
            return self._discover_compatible(channel, hash_of(expected_schema), timeout, wait=wait, required=required)
        found = self._cached(channel)
        if found is not None and not (wait and not found.is_active):
            return found
        channel = text(channel, "channel")
        flag(required, "required")
        if flag(wait, "wait"):
            return self._discover_active(channel, self._limit(timeout), required)
        return self._discover_now(channel, self._limit(timeout), required)

    async def discover_async(
        self,
        channel: str,
        *,
        expected_schema: Any = None,
        timeout: float | None = None,
        wait: bool = False,
        required: bool = False,
    ) -> Discovery | None:
        """As `discover`, to be awaited. What is known is returned at once."""
        if expected_schema is None:
            found = self._cached(channel)
            if found is not None and not (wait and not found.is_active):
                return found
        deadline = time.monotonic() + self._limit(timeout)
        if wait:
            found = await self._discover_active_async(channel, self._limit(timeout), required)
            if expected_schema is None:
                return found
        return await self._background.call(
            lambda remaining: self.discover(
                channel, expected_schema=expected_schema, timeout=remaining, required=required
            ),
            timeout=max(deadline - time.monotonic(), 0.001),
        )

    @open_files_limited()
    def channels(self, prefix: str = "", *, timeout: float | None = None) -> list[replies.ChannelSummary]:
        """All channels whose name starts with the prefix."""
        found: list[replies.ChannelSummary] = []
        after: str | None = ""
        deadline = time.monotonic() + self._limit(timeout)
        while after is not None:
            asked = commands.ListChannels(prefix=prefix, after=after, limit=PAGE)
            page = self._ask(asked, replies.ChannelList, timeout=max(deadline - time.monotonic(), 0.0))
            if page is None:
                return []
            found += page.channels
            after = page.next
        return found

    channels_async = awaitable(channels)

    @open_files_limited()
    def consumers(self, channel: str, *, timeout: float | None = None) -> list[Consumer]:
        """Who consumes a channel."""
        reply = self._ask(commands.ListConsumers(channel=channel), replies.ConsumerList, timeout=timeout)
        return reply.consumers if reply else []

    consumers_async = awaitable(consumers)

    @open_files_limited()
    def describe(self, channel: str, *, timeout: float | None = None) -> replies.ChannelDescription | None:
        return self._ask(commands.DescribeChannel(channel=channel), replies.ChannelDescription, timeout=timeout)

    describe_async = awaitable(describe)

    def watch(self, channel: str | None = None) -> Watch:
        """A live view of one channel, or of all, and the events that change it."""
        return self._watches.add(names.logical(channel) if channel else None, keeps=self)

    def tap(self, prefix: bytes, on_event: OnEvent) -> Callable[[], None]:
        """Raw events whose topic starts with the prefix, on the I/O thread; None when some may have been missed.

        Returns the function that ends it.
        """
        check_callback(on_event, name="on_event", arguments=("event",), may_await=False)
        return self._taps.add(prefix, on_event)

    def ask(self, command: commands.Command, *, timeout: float | None = None) -> replies.AnyReply:
        """Send any command and return its reply; refusals, timeouts and no broker are raised."""
        return self._connection.request(command, timeout=self._limit(timeout), is_patient=True)

    ask_async = awaitable(ask)

    # -- inside --------------------------------------------------------------------------------------------

    def _limit(self, timeout: float | None) -> float:
        return self.settings.request_timeout_seconds if timeout is None else seconds(timeout)

    def _ask(
        self, command: commands.Command, kind: type[_AnyReply], *, timeout: float | None = None, required: bool = False
    ) -> _AnyReply | None:
        """The reply, or None and one warning when no broker answers."""
        try:
            return self._must(command, kind, timeout, is_patient=required)
        except HubError as error:
            if required or not is_unable(error):
                raise
            self._warn(error)
            return self._ask_directory(command, kind)

    def _ask_directory(self, command: commands.Command, kind: type[_AnyReply]) -> _AnyReply | None:
        """What the directory of this host can say in a broker's place; None where it cannot."""
        try:
            reply = self._chain.files.ask(command, timeout=0.0)
        except (BrokerRequired, ChannelNotFound, DataBlockError):
            return None
        assert isinstance(reply, kind), reply
        return reply

    def _must(
        self, command: commands.Command, kind: type[_AnyReply], timeout: float | None, *, is_patient: bool = True
    ) -> _AnyReply:
        reply = self._connection.ask(command, kind, timeout=self._limit(timeout), is_patient=is_patient)
        self._has_warned = False
        channel = getattr(command, "channel", None)
        if command.writes and channel:
            self._via_broker.cache.changed(channel, getattr(reply, "revision", 0))
        return reply

    def _warn(self, error: HubError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s; going on without a broker", error.message)

    def _discover_compatible(
        self, channel: str, expected: str, timeout: float | None, *, wait: bool, required: bool
    ) -> Discovery | None:
        """Equal hashes need no question."""
        deadline = time.monotonic() + self._limit(timeout)
        found = self._cached(channel)
        if wait and not (found is not None and found.is_active):
            found = self._discover_active(channel, deadline - time.monotonic(), required)
        if found is not None and found.schema_hash == expected:
            return msgspec.structs.replace(found, compatible=True)
        return self._discover_now(channel, max(deadline - time.monotonic(), 0.0), required, expected)

    @open_files_limited()
    def _discover_now(
        self, channel: str, timeout: float, required: bool, expected_schema_hash: str | None = None
    ) -> Discovery | None:
        found, unavailable = self._chain.discover(channel, timeout=timeout, expected_schema_hash=expected_schema_hash)
        if unavailable is None:
            self._has_warned = False
        elif required and found is None:
            raise unavailable
        else:
            self._warn(unavailable)
        return found

    def _discover_active(self, channel: str, timeout: float, required: bool) -> Discovery | None:
        """Ask again whenever something was heard of the channel; while nobody tells, now and then."""
        deadline = time.monotonic() + timeout
        while True:
            cache = self._via_broker.cache
            heard = cache.heard
            found = self._look_for_active(channel, timeout)
            if not _is_active(found) and (timeout := deadline - time.monotonic()) > 0:
                cache.wait(self._until_next_look(channel, timeout), heard)
                timeout = deadline - time.monotonic()
            if _is_active(found) or timeout <= 0:
                return _in_time(channel, found, required)

    async def _discover_active_async(self, channel: str, timeout: float, required: bool) -> Discovery | None:
        """As `_discover_active`. It waits in the event loop: a background thread would be held for all that time."""
        deadline = time.monotonic() + timeout
        while True:
            cache = self._via_broker.cache
            heard = cache.heard
            found = await self._background.call(partial(self._look_for_active, channel), timeout=timeout)
            if not _is_active(found) and (timeout := deadline - time.monotonic()) > 0:
                await cache.wait_async(self._until_next_look(channel, timeout), heard)
                timeout = deadline - time.monotonic()
            if _is_active(found) or timeout <= 0:
                return _in_time(channel, found, required)

    def _look_for_active(self, channel: str, timeout: float) -> Discovery | None:
        """Ask once, and follow the channel from now on."""
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        self._via_broker.cache.follow(names.logical(channel))
        return self._discover_now(channel, timeout, required=False)

    def _until_next_look(self, channel: str, remaining: float) -> float:
        """Return how many seconds to wait for news of a channel before it is asked for again."""
        is_told = self.is_connected and self._via_broker.cache.follows(names.logical(channel))
        return remaining if is_told else min(WAIT_SECONDS, remaining)

    @open_files_limited()
    def _register(
        self, command: commands.RegisterProducer | commands.RegisterConsumer, timeout: float | None, required: bool
    ) -> Registration:
        """With the broker, else in the directory."""
        deadline = time.monotonic() + self._limit(timeout)
        registration = self._tell_broker(command, timeout, required)
        if registration.ack is not None:
            return registration
        try:
            taken = self._chain.files.ask(command, timeout=max(deadline - time.monotonic(), LOCK_SECONDS))
        except DataBlockError as error:
            log.warning("nor can the directory in shared memory take it: %s", error)
            return registration
        except ChannelNotFound:
            return registration  # nobody here produces it yet; a broker may know more when one comes
        except BaseException:
            registration.close()
            raise
        self._listings.entered(registration, taken)
        return registration

    def _tell_broker(
        self, command: commands.RegisterProducer | commands.RegisterConsumer, timeout: float | None, required: bool
    ) -> Registration:
        registration = self._heartbeats.register(command, timeout=self._limit(timeout), required=required)
        ack = registration.ack
        if isinstance(ack, replies.ProducerRegistered | replies.ConsumerRegistered):
            self._via_broker.cache.changed(command.channel, ack.revision)
        elif registration.error is not None:
            self._warn(registration.error)
        return registration

    def _owner(self) -> dict[str, Any]:
        identity = self._identity
        return {
            "lease": self.lease,
            "host": identity.host,
            "pid": identity.pid,
            "start_time": identity.start_time,
            "boot_id": identity.boot_id,
        }

    def _place(
        self, task: SparkTask | None, access: Access | None, producer_id: str | None
    ) -> tuple[Access, str | None]:
        """Return the access and the id of a producer that leaves one or both open."""
        if access is None:
            access = "shared" if task is not None else "exclusive"
        if producer_id is None and access == "shared":
            producer_id = names.to_role(task.producer_id) if task is not None else self._role("producer")
        return access, producer_id

    def _role(self, kind: str) -> str:
        identity = self._identity
        return names.to_role(f"{kind}-{identity.host[:20]}-{identity.pid}-{self._number}-{next(self._roles)}")

    def _is_forgotten(self) -> bool:
        """One that was never used has nothing to close."""
        return not self._is_closed and (self._connection.is_used or self._background.is_used)

    def _named(self) -> str:
        return f"the hub at {self.settings.endpoint} (close it, or use `with MessageHub(…) as hub:`)"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "connected" if self.is_connected else "not connected"
        return f"<MessageHub at {self.settings.endpoint}: {state}>"

    def __enter__(self) -> "MessageHub":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "MessageHub":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


def _is_active(found: Discovery | None) -> bool:
    return found is not None and found.is_active


def _in_time(channel: str, found: Discovery | None, required: bool) -> Discovery | None:
    """Return what was found of a channel that was waited for; raise ChannelNotReady where it has to be active."""
    if required and not _is_active(found):
        logical = names.logical(channel)
        raise ChannelNotReady(f"channel {logical!r} did not become active in time", channel=logical)
    return found


def _paths(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments.get("dir") is not None:
        arguments["dir"] = Path(arguments["dir"])
    return arguments


def _refuse(_: str) -> Discovery | None:
    raise NotInitialised("this hub is closed")


_alive: "weakref.WeakSet[MessageHub]" = weakref.WeakSet()


def _forget_parent() -> None:
    """In a forked child: what was registered is the parent's; this process has its own lease."""
    MessageHub._instance_lock = threading.Lock()
    for hub in list(_alive):
        if hub._is_closed:
            continue
        hub._heartbeats.forget_parent()
        hub._watches.forget_parent()
        hub._topics.abandon()
        hub._services.abandon()
        hub._background.abandon()
        hub._connection.abandon()
        hub._begin()
        hub._opened_in = os.getpid()


def _say_goodbye() -> None:
    """At the end of the process: without a word, other hosts would believe in it until its lease ends."""
    for hub in list(_alive):
        try:
            hub.close()
        except Exception:  # the others are to be closed too
            log.exception("a hub could not be closed at the end of the process")


os.register_at_fork(after_in_child=_forget_parent)
_process_end = ProcessEnd(_say_goodbye)
