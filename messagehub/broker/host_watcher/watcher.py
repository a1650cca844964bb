"""What the broker sees of its own host: the directory of channels, and which processes live.

Rule 1: nothing here is slow or waits: one channel's directory is read when the kernel says that it changed; a full look
happens at the start, and afterwards a few channels at a time. Schemas are checked elsewhere (`entry_checks`).
Rule 2: for this host the directory decides who lives. A producer whose lock is free is gone; one whose lock is held is
registered, also when it was born while no broker ran.
Rule 3: what the registry refuses is shown as a conflict of its channel. No data and no entry is touched.
Rule 4: the directory is input. What it holds is decoded like a request, and nothing in it ends the loop: a channel that
meets a defect is left alone for a while.
Rule 5: a producer that let go of its lock, or removed its entry, while its process lives has released its channel; it
did not die. One that said so to the broker first, or was evicted, is not registered anew while its entry is there.
"""

import logging
import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from messagehub.broker.access.access_control import AccessControl
from messagehub.broker.host_watcher.entry_checks import Adoption, Ask, EntryChecks
from messagehub.broker.host_watcher.processes import MemberProcesses
from messagehub.broker.host_watcher.tables import TableWatcher
from messagehub.shm import inotify
from messagehub.shm.channel_directory.directory import CHANNEL_LOCK, Directory, Listed, is_component
from messagehub.shm.channel_directory.entries import MAX_REASON, Live, clash_of, command_of, is_about_members
from messagehub.shm.errors import DataBlockError
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.rings.ring import evict_reader
from registry import commands, events
from registry.channels.leases import Member, default_owner
from registry.channels.members import members_of
from registry.errors import InvalidName, Refusal
from registry.records import Producer, Subscriber, Table, Worker
from registry.registry import Registry

log = logging.getLogger("messagehub.broker")

LOOK_SECONDS = 0.5
SOON_SECONDS = 0.05
CHANNELS_PER_LOOK = 32
DEFECT_SECONDS = 60.0
_BIRTHS = inotify.CREATE | inotify.MOVED_TO
_CHANNEL = inotify.MOVED_TO | inotify.CLOSE_WRITE | inotify.DELETE | inotify.CREATE
_TABLES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM


class TablesFollower(Protocol):
    @property
    def site_id(self) -> str:
        """The id of the site; not final until something was written to it."""

    def tables_seen(self, tables: Mapping[str, Table]) -> None:
        """Take all tables of the registry, by channel."""

    def table_changed(self, channel: str, table: Table | None) -> None:
        """Take the newest table of a channel, or that there is none any more."""


class HostWatcher:
    """`fileno` is readable when `look` has something to do."""

    def __init__(
        self,
        directory: Directory,
        ask: Ask,
        access_control: AccessControl | None,
        *,
        stored_revision: Callable[[], int],
    ) -> None:
        """Access control refuses an entry whose writer, a user of this host, has no right to it. `stored_revision` is
        that of the last change that is stored."""
        self.defects = 0
        self._tables_elsewhere: TablesFollower | None = None
        self._directory = directory
        self.checks = EntryChecks(ask, self._look_again)
        self._access_control = access_control
        self._left_alone: dict[str, float] = {}
        self._tables = TableWatcher(directory, self.checks, self._look_again, access_control, stored_revision)
        self._epoll = select.epoll()
        self._news = inotify.Inotify()
        self._is_usable = _prepare(directory)
        if self._is_usable and self._news.watch(directory.path, _BIRTHS):
            self._epoll.register(self._news.fileno(), select.EPOLLIN)
        self._watched: set[str] = set()
        self._processes = MemberProcesses(self._epoll)
        self._soon: dict[str, float] = {}
        self._destroyed: dict[str, set[tuple[str, float]]] = {}
        """By a channel that was destroyed: the entries that lived then, and are not registered again."""
        self._seen: dict[str, dict[str, str]] = {}  # by channel: producers that live in the directory, and their leases
        self._released: dict[str, dict[str, tuple[str, float]]] = {}  # likewise: who told us, and when
        self._unsure: dict[tuple[str, str], float] = {}
        self._dirty: set[str] = set()
        self._round: Iterator[str] = iter(())
        self._look_at = 0.0

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._processes.close()
        self._news.close()
        self._epoll.close()

    def join_site(self, tables_elsewhere: TablesFollower) -> None:
        """Remember which tables of this host the site has had, and have somebody hear of the tables of all hosts."""
        self._tables_elsewhere = tables_elsewhere
        self._tables.generations.keep_for(lambda: tables_elsewhere.site_id)

    # -- what happened in the registry ---------------------------------------------------------------------

    def begin(self, registry: Registry, *, now: float) -> list[events.AnyEvent]:
        """Find out, at the start, which registered members are alive and which have come meanwhile."""
        happened: list[events.AnyEvent] = []
        if self._tables_elsewhere is not None:
            tables_known = {name: known.table for name, known in registry.channels.items() if known.table is not None}
            self._tables_elsewhere.tables_seen(tables_known)
        for known in list(registry.channels.values()):
            for member, record in members_of(known):
                if not self._processes.follow(registry, member, record):
                    happened += registry.host_events.died([member], now=now)
        for worker in registry.services.workers():
            if not self.follow_worker(registry, worker):
                happened += registry.host_events.died([_member_of(worker)], now=now)
        tables = self._tables.channels(registry) if self._is_usable else []
        for channel in dict.fromkeys([*self._channels(), *tables]):
            happened += self._look_at_channel(registry, channel, now)
        return happened + registry.host_events.end_empty(now=now)

    def follow(self, registry: Registry, happened: Iterable[events.AnyEvent]) -> None:
        """Watch the processes of new members, forget those of members that are gone; events of `look` too."""
        for event in happened:
            if isinstance(event, events.ProducerRegistered):
                self._processes.follow(
                    registry, Member("producer", event.channel, event.producer.producer_id), event.producer
                )
            elif isinstance(event, events.ConsumerRegistered):
                self._processes.follow(
                    registry, Member("consumer", event.channel, event.consumer.consumer_id), event.consumer
                )
            elif isinstance(event, events.ProducerUnregistered):
                lease = self._processes.forget(registry, Member("producer", event.channel, event.producer_id))
                if (
                    lease
                    and event.reason in ("released", "evicted")
                    and os.path.isdir(self._directory.channel_path(event.channel))
                ):
                    self._released.setdefault(event.channel, {})[event.producer_id] = (lease, time.time())
            elif isinstance(event, events.ConsumerUnregistered):
                self._processes.forget(registry, Member("consumer", event.channel, event.consumer_id))
                if event.reason == "evicted":
                    self._evict_reader(event.channel, event.consumer_id)
            elif isinstance(event, events.ChannelDestroyed):
                self._processes.forget_members(registry, event.channel)
                self._destroyed[event.channel] = self._living(event.channel)
                self._follow_table(registry, event, None)
                self._dirty.add(event.channel)
            elif isinstance(event, events.TableCommitted):
                self._follow_table(registry, event, event.table)
            elif isinstance(event, events.ServiceChanged) and event.address.startswith("id:"):
                self._follow_change_of(registry, event)

    def _follow_table(
        self, registry: Registry, event: events.TableCommitted | events.ChannelDestroyed, table: Table | None
    ) -> None:
        is_destroyed = isinstance(event, events.ChannelDestroyed)
        self._tables.changed(registry, event.channel, table, event.revision, is_destroyed=is_destroyed)
        if self._tables_elsewhere is not None:
            self._tables_elsewhere.table_changed(event.channel, table)

    def stored(self, registry: Registry) -> None:
        """Act on what the store has by now, before anybody is told of it."""
        self._tables.stored(registry)

    def registry_replaced(self) -> None:
        """Go on with another registry, all of which is stored. A look at the whole host follows."""
        self._tables.forget_unstored()

    def _follow_change_of(self, registry: Registry, event: events.ServiceChanged) -> None:
        """Watch the process of a worker of a site, or forget it; `look` ends one that is gone already."""
        self.forget_worker(registry, event.address.removeprefix("id:"))
        for worker in event.service.workers if event.service is not None else ():
            if not self.follow_worker(registry, worker):
                self._processes.note_dead(_member_of(worker), worker.lease)

    def follow_worker(self, registry: Registry, worker: Worker) -> bool:
        """Watch the process of a worker. Return False if it is gone already."""
        return self._processes.follow(registry, _member_of(worker), worker)

    def forget_worker(self, registry: Registry, worker_id: str) -> None:
        self._processes.forget(registry, Member("worker", "", worker_id))

    def follow_subscriber(self, registry: Registry, subscriber: Subscriber) -> bool:
        """Watch the process of a subscriber. Return False if it is gone already."""
        return self._processes.follow(registry, Member("subscriber", "", subscriber.member_id), subscriber)

    def forget_subscriber(self, registry: Registry, member_id: str) -> None:
        self._processes.forget(registry, Member("subscriber", "", member_id))

    def look(self, registry: Registry, *, now: float) -> list[events.AnyEvent]:
        """Everything that the kernel told since the last time."""
        happened: list[events.AnyEvent] = []
        for fd, _ in self._epoll.poll(0):
            if fd == self._news.fileno():
                self._hear()
            else:
                self._processes.ended(registry, fd)
        happened += self._processes.remove_dead(registry, now)
        for channel in self._take_due():
            happened += self._look_at_channel(registry, channel, now)
        return happened

    def _look_again(self, channel: str, seconds: float) -> None:
        self._soon[channel] = min(time.monotonic() + seconds, self._soon.get(channel, float("inf")))

    def seconds_to_next_look(self) -> float:
        return (
            0.0
            if self._dirty or self._processes.has_dead
            else max(min([self._look_at, *self._soon.values()]) - time.monotonic(), 0.0)
        )

    def gauges(self) -> dict[str, int]:
        return {"watched_processes": len(self._processes), "watched_directories": len(self._watched)}

    # -- the directory -------------------------------------------------------------------------------------

    def _channels(self) -> list[str]:
        return self._directory.channels() if self._is_usable else []

    def _hear(self) -> None:
        for news in self._news.read():
            if not news.path or not (news.name or news.mask & inotify.IGNORED):
                self._dirty.update(self._channels())  # overflow, or a directory went away: anything may have happened
            elif news.path == self._directory.path:
                if is_component(news.name):  # or else it is no channel's, or not yet: a group's gets its name last
                    self._forget_directory(news.name)
                    self._dirty.add(news.name)
            elif is_about_members(news.name) or _is_removal(news):
                relative = os.path.relpath(news.path, self._directory.path)
                self._dirty.add(relative.split(os.sep, 1)[0])

    def _take_due(self) -> list[str]:
        """What changed, and now and then some more, in case the kernel had no watch to give; so many at a time."""
        due, self._dirty = self._dirty, set()
        for channel in [channel for channel, at in self._soon.items() if time.monotonic() >= at]:
            del self._soon[channel]
            due.add(channel)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_SECONDS
            for _ in range(CHANNELS_PER_LOOK):
                following = next(self._round, None)
                if following is None:
                    self._round = iter({*self._channels(), *(name for name in self._watched if os.sep not in name)})
                    break
                due.add(following)
        ordered = sorted(due)
        self._dirty.update(ordered[CHANNELS_PER_LOOK:])
        return ordered[:CHANNELS_PER_LOOK]

    def _look_at_channel(self, registry: Registry, channel: str, now: float) -> list[events.AnyEvent]:
        if self._left_alone.get(channel, 0.0) > time.monotonic():
            return []
        happened: list[events.AnyEvent] = []
        try:
            self._watch(channel)
            listed = self._directory.producers(channel, with_refused=True)
            said = [(each, command_of(each, with_schema=False)) for each in listed]
            happened += self._end_gone(registry, channel, said, now)
            clash = None
            for each, command in said:
                if each.is_alive:
                    clash = self._adopt(registry, channel, each, command, happened, now) or clash
            living = {each.producer_id for each in listed if each.is_alive}
            self.checks.forget_producers_but(channel, living)
            if not living:
                self._destroyed.pop(channel, None)
            clash = self._tables.look(registry, channel, happened, now) or clash
            if not self.checks.is_asking_about(channel):
                happened += registry.host_events.show_conflict(channel, clash, now=now)
        except InvalidName as error:
            log.warning("%s holds something that is no channel: %s", self._directory.path, error.message)
        except (DataBlockError, OSError) as error:
            log.warning("the directory of channel %r cannot be read: %s", channel, error)
        except Exception:
            self.defects += 1
            self._left_alone = {name: at for name, at in self._left_alone.items() if at > time.monotonic()}
            self._left_alone[channel] = time.monotonic() + DEFECT_SECONDS
            log.exception("channel %r is left alone for %g s: its directory meets a defect", channel, DEFECT_SECONDS)
        return happened

    def _adopt(
        self,
        registry: Registry,
        channel: str,
        listed: Listed,
        known: commands.RegisterProducer | None,
        happened: list[events.AnyEvent],
        now: float,
    ) -> str | None:
        """Register a living producer that is not registered; returns what stands against it.

        `known` is what it would say, without its schema.
        """
        record = registry.channels.get(channel)
        present = record.producers.get(_producer_id(known)) if record and known else None
        if known is not None and present is not None and present.lease == known.lease:
            return None
        command = command_of(listed, with_schema=True)
        if command is None or listed.entry is None or command.channel != channel:
            flaw = listed.flaw or "it would not pass as a registration"
            return f"entry {listed.producer_id!r} cannot be read: {flaw}"[:MAX_REASON]
        live = Live(listed.entry, command)
        lease, released_at = self._released.get(channel, {}).get(_producer_id(command), ("", 0.0))
        if command.lease == lease and live.entry.registered_at < released_at:
            return None  # its owner has unregistered it, and is about to let go of it
        if (listed.producer_id, live.entry.registered_at) in self._destroyed.get(channel, ()):
            pid = live.entry.process.pid
            return f"the channel was destroyed, but its producer {listed.producer_id!r} (pid {pid}) lives on"
        if live.entry.process.is_alive() is False:
            # Its successor holds the lock and is about to replace the entry.
            self._soon[channel] = time.monotonic() + SOON_SECONDS
            return None
        if present is not None and not self._lives(present):
            happened += registry.host_events.died([Member("producer", channel, present.producer_id)], now=now)
        try:
            if self._access_control is not None:
                self._access_control.check_entry(listed.uid, command)
            adoption = Adoption(channel, listed.producer_id, command)
            result = self.checks.result(adoption)
            if self.checks.must_wait(adoption, result, registry):
                return None
            happened += registry.apply(command, now=now, result=result).events
            self.checks.forget(channel, listed.producer_id)
            if self._access_control is not None:
                self._access_control.adopted(listed.uid, command)
        except Refusal as refused:
            return clash_of(live, refused)
        return None

    def _end_gone(
        self, registry: Registry, channel: str, said: list[tuple[Listed, commands.RegisterProducer | None]], now: float
    ) -> list[events.AnyEvent]:
        """End whose lock is free, whose entry was removed, and whose place in the directory another has taken."""
        alive: dict[str, str] = {}
        over = self._seen.pop(channel, {})
        for listed, command in said:
            if command is not None and command.channel == channel:
                (alive if listed.is_alive else over)[_producer_id(command)] = command.lease or ""
        happened: list[events.AnyEvent] = []
        seen = dict(alive)
        for producer_id, lease in over.items():
            record = registry.channels.get(channel)
            present = record.producers.get(producer_id) if record else None
            if present is None or present.lease != lease or alive.get(producer_id) == lease:
                self._unsure.pop((channel, producer_id), None)
                continue
            member = Member("producer", channel, producer_id)
            if not self._lives(present):
                self._unsure.pop((channel, producer_id), None)
                happened += registry.host_events.died([member], now=now)
            elif producer_id in alive or self._is_sure(channel, producer_id):
                happened += registry.host_events.let_go([member], now=now)
            else:
                seen[producer_id] = lease
        if seen:
            self._seen[channel] = seen
        released = self._released.get(channel, {})
        for producer_id in released.keys() - alive.keys():
            del released[producer_id]
        if not released:
            self._released.pop(channel, None)
        return happened

    def _is_sure(self, channel: str, producer_id: str) -> bool:
        """A process that is being killed lets go of its files a moment before it ends: look again."""
        at = self._unsure.setdefault((channel, producer_id), time.monotonic() + SOON_SECONDS)
        if time.monotonic() < at:
            self._soon[channel] = at
            return False
        del self._unsure[channel, producer_id]
        return True

    def _evict_reader(self, channel: str, consumer_id: str) -> None:
        """Its own process does the same when it hears of it; one that is stopped cannot."""
        try:
            evict_reader(self._directory, channel, consumer_id)
        except (DataBlockError, OSError) as error:
            log.warning("producers of %r may go on waiting for %r, which was evicted: %s", channel, consumer_id, error)

    def _living(self, channel: str) -> set[tuple[str, float]]:
        try:
            listed = self._directory.producers(channel, with_refused=True)
        except (DataBlockError, OSError):
            return set()
        return {(each.producer_id, each.entry.registered_at) for each in listed if each.is_alive and each.entry}

    def _lives(self, present: Producer) -> bool:
        if present.pid is None or present.start_time is None or present.boot_id is None or present.host is None:
            return True  # nothing is known of its process: its lease decides
        return ProcessIdentity(present.pid, present.start_time, present.boot_id, present.host).is_alive() is not False

    def _forget_directory(self, channel: str) -> None:
        self._watched.discard(channel)
        self._watched.discard(self._directory.tables_path(channel))

    def _watch(self, channel: str) -> None:
        path = self._directory.channel_path(channel)
        if not os.path.isdir(path):
            self._forget_directory(channel)
            self._news.unwatch(path)
            self._news.unwatch(self._directory.tables_path(channel))
            return
        if channel not in self._watched and self._news.watch(path, _CHANNEL):
            self._watched.add(channel)
        tables = self._directory.tables_path(channel)
        if tables not in self._watched and os.path.isdir(tables) and self._news.watch(tables, _TABLES):
            self._watched.add(tables)


def _member_of(worker: Worker) -> Member:
    return Member("worker", "", worker.worker_id)


def _producer_id(command: commands.RegisterProducer) -> str:
    return command.producer_id or default_owner(command.channel)


def _is_removal(news: inotify.Happened) -> bool:
    """Whether a channel's directory goes: its lock goes just before it."""
    return bool(news.mask & inotify.IGNORED or (news.name == CHANNEL_LOCK and news.mask & inotify.DELETE))


def _prepare(directory: Directory) -> bool:
    """The directory's own directory, so that there is something to watch."""
    try:
        directory.make()
    except (OSError, DataBlockError) as error:
        log.warning("the directory of channels cannot be used, so nothing of this host is seen: %s", error)
        return False
    return True
