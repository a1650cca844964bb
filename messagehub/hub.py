"""MessageHub: the object that users hold.

An ordinary class with one shared instance per process (`get_instance`). Nothing is opened before the first call.
Without a broker nothing raises or hangs: one warning is logged, and what a broker is not needed for is done
through the directory in shared memory. Answers that nobody could give are falsy.

Its parts (hub_parts.py) do the work. A method that is delegated to one has its signature and docstring there.
"""

import asyncio
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from messagehub.arguments import checked, flag, text
from messagehub.channels.members import ChannelMembers
from messagehub.channels.payload_schema import hash_of
from messagehub.channels.tables import ChannelTables
from messagehub.client import ended_brokers
from messagehub.client.event_listeners import OnEvent
from messagehub.client.watch import Watch
from messagehub.discovery import Discovery
from messagehub.discovery.catalog import Catalog
from messagehub.discovery.diagnostics import Diagnostics
from messagehub.discovery.registry_client import RegistryClient
from messagehub.discovery.waiting import ChannelWaiter, in_time, is_active
from messagehub.errors import HubError, NotInitialised
from messagehub.hub_parts import HubParts
from messagehub.runtime.background import BackgroundThreads, awaitable
from messagehub.runtime.callbacks import check_callback
from messagehub.runtime.delegation import delegate
from messagehub.runtime.forgotten import ClosedWhenForgotten
from messagehub.runtime.logs import set_client_level
from messagehub.runtime.process_hubs import ProcessHubs
from messagehub.runtime.signals import ended_by_signal, ended_by_signal_async
from messagehub.services.hub_calls import ServiceCalls
from messagehub.services.workers import DRAIN_SECONDS
from messagehub.settings import Settings
from messagehub.topics.hub_calls import TopicCalls
from messagehub.topics.publishing import TopicPublisher
from messagehub.topics.topic import Bounds, Topic, open_topic
from registry import names, replies


@checked(but=("discover", "publish"))
class MessageHub(ClosedWhenForgotten):
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
        self.settings = settings or Settings.for_client(**_paths(arguments))
        set_client_level(arguments.get("log") or os.environ.get("MESSAGEHUB_LOG"))
        self._number = next(MessageHub._count)
        self._roles = itertools.count(1)
        self._is_closed = False
        self._begin()
        self._opened_in = os.getpid()
        _hubs.add(self)

    def _begin(self) -> None:
        """Begin with parts of its own: when the hub is made, after `disconnect`, and in a forked child."""
        self._parts = HubParts(self.settings, self._number, self._roles, hub=weakref.ref(self))
        self._cached: Callable[[str], Discovery | None] = self._parts.cache.get
        self.lease = self._parts.lease

    def _begin_in_child(self) -> None:
        """Begin anew in a forked child: registrations are the parent's, and this process has a lease of its own."""
        if not self._is_closed:
            self._parts.abandon()
            self._begin()
            self._opened_in = os.getpid()

    @classmethod
    def get_instance(cls, **arguments: Any) -> "MessageHub":
        """Return the instance of this process, made on first use. Arguments count only then; others later are refused.

        One whose embedded broker has ended is closed, and the next is made as if it were the first.
        """
        with cls._instance_lock:
            if cls._instance is not None and cls._instance.settings.endpoint in ended_brokers.ENDPOINTS:
                cls._instance.close()
            if cls._instance is None or cls._instance._is_closed:
                cls._instance = cls(**arguments)
                # Whoever asks for a hub there now expects somebody else to answer, perhaps later.
                ended_brokers.ENDPOINTS.discard(cls._instance.settings.endpoint)
            elif arguments and Settings.for_client(**_paths(arguments)) != cls._instance.settings:
                raise HubError("get_instance was called before with other settings; use MessageHub(…) for a second hub")
            return cls._instance

    @classmethod
    def reset_instance(cls) -> None:
        """Close and forget the shared instance, for tests."""
        with cls._instance_lock:
            if cls._instance is not None:
                cls._instance.close()
                cls._instance = None

    # -- ending --------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Give up registrations and the connection; the next call connects again."""
        self._parts.close()
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

        Only in the main thread. Another signal, a second or more after the first, does what it would without this.
        """
        with ended_by_signal():
            self._parts.services.close(timeout=drain_seconds)
            self.close()

    async def run_forever_async(self, *, drain_seconds: float = DRAIN_SECONDS) -> None:
        """As `run_forever`, for programs with an event loop."""
        async with ended_by_signal_async():
            await asyncio.to_thread(self._parts.services.close, timeout=drain_seconds)
            await self.close_async()

    # -- the broker ----------------------------------------------------------------------------------------

    connect = delegate("_parts.registry", RegistryClient.connect)
    connect_async = awaitable(connect)
    ask = delegate("_parts.registry", RegistryClient.ask)
    ask_async = delegate("_parts.registry", RegistryClient.ask_async)
    submit = delegate("_parts.registry", RegistryClient.submit)
    health = delegate("_parts.diagnostics", Diagnostics.health)
    health_async = awaitable(health)
    stats = delegate("_parts.diagnostics", Diagnostics.stats)
    stats_async = awaitable(stats)
    exchanges = delegate("_parts.diagnostics", Diagnostics.exchanges)
    trace = delegate("_parts.diagnostics", Diagnostics.trace)
    trace_async = awaitable(trace)

    @property
    def publisher_id(self) -> str:
        """Who publishes, as subscribers of plain topics see it: `message.publisher.hex()`."""
        return self._parts.topics.publisher.id

    @property
    def is_connected(self) -> bool:
        return self._parts.connection.hello is not None

    @property
    def site(self) -> str | None:
        """The site that the hub is a member of, once the hub has said so; None of a hub on its own."""
        hello = self._parts.connection.hello
        return (hello.site or None) if hello is not None else None

    def metrics(self) -> dict[str, Any]:
        """Return what this client counts: requests, errors, timeouts, latencies and reconnects."""
        connection = self._parts.connection
        counters = connection.metrics.counters
        return {
            "requests": connection.metrics.report(),
            **counters,
            "reconnects": max(counters["connects"] - 1, 0),
            "services": self._parts.services.metrics.report(),
            "topics": self._parts.topics.report(),
        }

    def notices(self) -> list[replies.Notice]:
        """Return what happened to the channels that this process is a member of, since the last call."""
        taken = list(self._parts.heartbeats.notices)
        del self._parts.heartbeats.notices[: len(taken)]
        return taken

    def watch(self, channel: str | None = None) -> Watch:
        """Return a live view of one channel, or of all, and the events that change it.

        It is filled in the background: once `wait_current` returns True, `channels` is what there is, and every later
        change comes as an event. What happened before that is in `channels` only.
        """
        return self._parts.watches.add(names.logical(channel) if channel else None, keeps=self)

    def tap(self, prefix: bytes, on_event: OnEvent) -> Callable[[], None]:
        """Have `on_event` called, on the I/O thread, with raw events of this prefix; with None if some may be missing.

        Returns the function that ends it.
        """
        check_callback(on_event, name="on_event", arguments=("event",), may_await=False)
        return self._parts.event_listeners.add(prefix, on_event)

    # -- channels ------------------------------------------------------------------------------------------

    producer = delegate("_parts.members", ChannelMembers.producer)
    producer_async = awaitable(producer)
    consumer = delegate("_parts.members", ChannelMembers.consumer)
    consumer_async = awaitable(consumer)
    register_producer = delegate("_parts.members", ChannelMembers.register_producer)
    register_producer_async = awaitable(register_producer)
    register_consumer = delegate("_parts.members", ChannelMembers.register_consumer)
    register_consumer_async = awaitable(register_consumer)
    delete_group = delegate("_parts.members", ChannelMembers.delete_group)
    delete_group_async = awaitable(delete_group)

    publish_table = delegate("_parts.tables", ChannelTables.publish_table)
    publish_table_async = awaitable(publish_table)
    check_table = delegate("_parts.tables", ChannelTables.check_table)
    check_table_async = awaitable(check_table)
    register_table = delegate("_parts.tables", ChannelTables.register_table)
    register_table_async = awaitable(register_table)
    drop_table = delegate("_parts.tables", ChannelTables.drop_table)
    drop_table_async = awaitable(drop_table)
    compact_table = delegate("_parts.tables", ChannelTables.compact_table)
    compact_table_async = awaitable(compact_table)
    tables = delegate("_parts.tables", ChannelTables.tables)
    tables_async = awaitable(tables)
    destroy_channel = delegate("_parts.tables", ChannelTables.destroy_channel)
    destroy_channel_async = awaitable(destroy_channel)

    # -- what is declared ----------------------------------------------------------------------------------

    channels = delegate("_parts.catalog", Catalog.channels)
    channels_async = awaitable(channels)
    consumers = delegate("_parts.catalog", Catalog.consumers)
    consumers_async = awaitable(consumers)
    describe = delegate("_parts.catalog", Catalog.describe)
    describe_async = awaitable(describe)
    create_channel = delegate("_parts.catalog", Catalog.create_channel)
    create_channel_async = awaitable(create_channel)
    evict = delegate("_parts.catalog", Catalog.evict)
    evict_async = awaitable(evict)
    register_schema = delegate("_parts.catalog", Catalog.register_schema)
    register_schema_async = awaitable(register_schema)
    schema = delegate("_parts.catalog", Catalog.schema)
    schema_async = awaitable(schema)
    subjects = delegate("_parts.catalog", Catalog.subjects)
    subjects_async = awaitable(subjects)
    schema_versions = delegate("_parts.catalog", Catalog.schema_versions)
    schema_versions_async = awaitable(schema_versions)

    # -- topics --------------------------------------------------------------------------------------------

    publish = delegate("_parts.publisher", TopicPublisher.publish)
    publish_async = awaitable(publish)
    subscribe = delegate("_parts.topic_calls", TopicCalls.subscribe)
    subscribe_async = delegate("_parts.topic_calls", TopicCalls.subscribe_async)
    topics = delegate("_parts.topic_calls", TopicCalls.topics)
    topics_async = awaitable(topics)
    plain_topics = delegate("_parts.topic_calls", TopicCalls.plain_topics)
    plain_topics_async = awaitable(plain_topics)
    subscribers = delegate("_parts.topic_calls", TopicCalls.subscribers)
    subscribers_async = awaitable(subscribers)
    trace_message = delegate("_parts.topic_calls", TopicCalls.trace_message)
    trace_message_async = awaitable(trace_message)

    def topic(
        self,
        name: str,
        *,
        keep: Bounds | None = None,
        replace: bool = False,
        home: str | None = None,
        timeout: float | None = None,
    ) -> Topic:
        """Return one topic to hold on to. With `keep` the broker stores what is published to it.

        `keep` is a number of messages, an age (a timedelta, or text such as "7d"), or several bounds as a `Keep`.
        Saying the same again is harmless; other bounds are refused, or with `replace` taken over. In a site its
        messages are on one host, `home`: by default that of the hub that is asked first.
        """
        limit = self.settings.request_timeout_seconds
        options: dict[str, Any] = {"keep": keep, "replace": replace, "home": home, "timeout": timeout}
        return open_topic(name, lambda: self._parts.topics, limit, **options)

    topic_async = awaitable(topic)

    # -- services ------------------------------------------------------------------------------------------

    serve = delegate("_parts.service_calls", ServiceCalls.serve)
    serve_async = delegate("_parts.service_calls", ServiceCalls.serve_async)
    request = delegate("_parts.service_calls", ServiceCalls.request)
    request_async = delegate("_parts.service_calls", ServiceCalls.request_async)
    begin_request = delegate("_parts.service_calls", ServiceCalls.begin_request)
    send = delegate("_parts.service_calls", ServiceCalls.send)
    send_async = delegate("_parts.service_calls", ServiceCalls.send_async)
    stream = delegate("_parts.service_calls", ServiceCalls.stream)
    services = delegate("_parts.service_calls", ServiceCalls.services)
    services_async = awaitable(services)
    remove_pool = delegate("_parts.service_calls", ServiceCalls.remove_pool)
    remove_pool_async = awaitable(remove_pool)
    dead_letters = delegate("_parts.service_calls", ServiceCalls.dead_letters)
    dead_letters_async = awaitable(dead_letters)
    resend_dead_letters = delegate("_parts.service_calls", ServiceCalls.resend_dead_letters)
    resend_dead_letters_async = awaitable(resend_dead_letters)

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
        """Return where the channel lives, or None if nobody knows. `wait` keeps asking until it is active.

        With `expected_schema` (as producers give it, or its hash) the answer says whether a reader of that schema can
        read the channel (`compatible`), and what is in the way (`differences`).
        Once this client has discovered the channel, the answer comes from memory, without a round trip.
        """
        if expected_schema is not None:
            channel = text(channel, "channel")
            return self._discover_compatible(channel, hash_of(expected_schema), timeout, wait=wait, required=required)
        found = self._cached(channel)
        if found is not None and not (wait and not found.is_active):
            return found
        channel = text(channel, "channel")
        flag(required, "required")
        if wait is not False and flag(wait, "wait"):
            return self._discover_active(channel, self._limit(timeout), required)
        return self._parts.registry.discover(channel, timeout, required=required)

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

    def _discover_compatible(
        self, channel: str, expected: str, timeout: float | None, *, wait: bool, required: bool
    ) -> Discovery | None:
        """Discover a channel for a reader of this schema. Equal hashes need no question to the broker."""
        deadline = time.monotonic() + self._limit(timeout)
        found = self._cached(channel)
        if wait and not is_active(found):
            found = self._discover_active(channel, deadline - time.monotonic(), required)
        if found is not None and found.schema_hash == expected:
            return msgspec.structs.replace(found, compatible=True)
        remaining = max(deadline - time.monotonic(), 0.0)
        return self._parts.registry.discover(channel, remaining, required=required, expected_schema_hash=expected)

    def _discover_active(self, channel: str, timeout: float, required: bool) -> Discovery | None:
        deadline = time.monotonic() + timeout
        while True:
            found = self._waiter_now().look(channel, deadline)
            if is_active(found) or time.monotonic() >= deadline:
                return in_time(channel, found, required=required)

    async def _discover_active_async(self, channel: str, timeout: float, required: bool) -> Discovery | None:
        deadline = time.monotonic() + timeout
        while True:
            found = await self._waiter_now().look_async(channel, deadline)
            if is_active(found) or time.monotonic() >= deadline:
                return in_time(channel, found, required=required)

    def _waiter_now(self) -> ChannelWaiter:
        """Return the waiter of now: whoever waits while the hub is disconnected goes on over the next connection."""
        if self._is_closed:
            raise NotInitialised("this hub is closed")
        return self._parts.waiter

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _background(self) -> BackgroundThreads:
        return self._parts.background

    def _limit(self, timeout: float | None, /) -> float:
        return self._parts.registry.limit(timeout)

    def _is_forgotten(self) -> bool:
        """Return whether it has to be closed; one that was never used has not."""
        return not self._is_closed and (self._parts.connection.is_used or self._background.is_used)

    def _named(self) -> str:
        return f"the hub at {self.settings.endpoint} (close it, or use `with MessageHub(…) as hub:`)"

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "connected" if self.is_connected else "not connected"
        return f"<MessageHub at {self.settings.endpoint}: {state}>"

    def _repr_html_(self) -> str:
        """Ask a broker that is connected how it is, for at most a second each; connect to none."""
        from messagehub.display.records import hub_html

        if self._is_closed or not self.is_connected:
            return hub_html(self.settings, "closed" if self._is_closed else "not connected", {}, None)
        health = self.health(timeout=1.0)
        try:
            stats = self.stats(timeout=1.0) if health["status"] != "unavailable" else None
        except HubError:  # of a key with rights to some names only
            stats = None
        return hub_html(self.settings, health["status"], health, stats)

    def __enter__(self) -> "MessageHub":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "MessageHub":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


def _paths(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments.get("dir") is not None:
        arguments["dir"] = Path(arguments["dir"])
    return arguments


def _refuse(_: str) -> Discovery | None:
    raise NotInitialised("this hub is closed")


def _renew_instance_lock() -> None:
    """In a forked child: another thread of the parent may have held it."""
    MessageHub._instance_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_instance_lock)
_hubs = ProcessHubs(MessageHub._begin_in_child)
