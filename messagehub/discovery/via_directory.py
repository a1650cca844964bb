"""Discovery without a broker: the registry's own rules, applied to the directory under the channel's lock.

Rule 1: reading takes no lock and waits for nobody.
Rule 2: what is registered here lives as long as this process, or until it is unregistered; the kernel keeps count.
Rule 3: what a broker would refuse is refused here too, and in the same words.
Rule 4: what needs one authority for all hosts (declarations, schemas, shares of a group) raises BrokerRequired.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from messagehub import protocol
from messagehub.discovery import Discovery
from messagehub.discovery.consumer_files import ConsumerFiles
from messagehub.discovery.directory_cache import DirectoryCache, stamps_of
from messagehub.errors import (
    BrokerRequired,
    ChannelNotFound,
    HubError,
    NotOwner,
    ProtocolError,
    SchemaIncompatible,
    TableNotFound,
)
from messagehub.shm.channel_directory.cleaning import LINGER_SECONDS, Cleaned, clean_channel
from messagehub.shm.channel_directory.directory import Directory, EntryRegistration, LockedChannel
from messagehub.shm.channel_directory.entries import adopt, entry_of, file_id, living, newest_table
from messagehub.shm.channel_directory.entry_locks import ProcessLock
from messagehub.shm.errors import NameTaken
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.mapped_file import remove_file, replace_file
from messagehub.shm.tables.tables import TableStore
from registry import commands, events, names, replies
from registry.channels.tables import table_of
from registry.errors import ConsumerAlreadyRegistered, ProducerAlreadyRegistered, Refusal
from registry.registry import Registry

log = logging.getLogger("messagehub")

LOCK_SECONDS = 0.1  # for a channel's lock, also after a broker has taken all of the time


class ViaFiles:
    def __init__(self, directory: Directory, *, shm_prefix: str) -> None:
        self.directory = directory
        self._shm_prefix = shm_prefix
        self._producers: dict[tuple[str, str], EntryRegistration] = {}
        self._consumers: set[tuple[str, str]] = set()
        self._process_lock = ProcessLock()
        self._cache = DirectoryCache()
        self._mutex = threading.Lock()
        self._handlers: dict[type[commands.Command], Callable[[Any, float], replies.Reply]] = {
            commands.Discover: self._read,
            commands.DescribeChannel: self._read,
            commands.ListConsumers: self._read,
            commands.ListChannels: self._list_channels,
            commands.RegisterProducer: self._register,
            commands.RegisterConsumer: self._register,
            commands.UnregisterProducer: self._unregister,
            commands.UnregisterConsumer: self._unregister,
            commands.CheckTable: self._check_table,
            commands.DropTable: self._drop_table,
            commands.ListTables: self._list_tables,
        }

    def ask(self, command: commands.Command, *, timeout: float) -> replies.Reply:
        handler = self._handlers.get(type(command))
        if handler is None or (isinstance(command, commands.RegisterConsumer) and command.group is not None):
            kind = str(command.__struct_config__.tag)
            raise BrokerRequired(f"{kind} needs a broker, and none answers: start one with `messagehub serve`")
        return handler(command, timeout)

    def discover(self, channel: str, expected_schema_hash: str | None = None) -> Discovery | None:
        """Return what the directory says.

        An expected schema is compatible if its hash is equal, since no registry compares.
        """
        known = self._cache.get(channel) if expected_schema_hash is None else None
        if known is not None:
            return known
        logical = names.check_channel(names.logical(channel))
        path = self.directory.channel_path(logical)
        stamps = stamps_of((path, ConsumerFiles(path).path, self.directory.tables_path(logical)))
        if not stamps:
            return None
        try:
            command = commands.Discover(channel=logical, expected_schema_hash=expected_schema_hash)
            reply = self._replay(logical).apply(command, now=time.time()).reply
        except ChannelNotFound:
            return None
        assert isinstance(reply, replies.Discovered)
        found = Discovery.of(reply, "files")
        if expected_schema_hash is None:
            self._cache.put(channel, found, stamps, self._locks(path, reply))
        return found

    def register_blocks(
        self, command: commands.RegisterProducer, blocks: tuple[str, ...], make: Callable[[], Any], *, timeout: float
    ) -> tuple[replies.ProducerRegistered, Any]:
        """Register a producer, and make its blocks before anybody else may change the channel.

        The entry comes first, so that blocks are never without one; where making them fails it goes again.
        """
        with self.directory.locked(command.channel, timeout) as locked:
            clean_channel(locked, Cleaned(), now=time.time(), linger_seconds=LINGER_SECONDS)
            reply = self._apply(locked, command, blocks)
            assert isinstance(reply, replies.ProducerRegistered)
            try:
                return reply, make()
            except BaseException:
                self._drop_producer(locked.path, command.channel, file_id(command.producer_id))
                raise

    def check(self, command: commands.RegisterProducer) -> None:
        """Raise what `register_blocks` would raise now."""
        _check_as_a_broker(command)
        if (command.channel, file_id(command.producer_id)) in self._producers:
            raise _taken(command)
        with _advised(command.channel):
            self._replay_for(command).apply(command, now=time.time())

    def release(self, channel: str, producer_id: str | None) -> None:
        """End a producer whose blocks stay for a while. Its entry stays for whoever cleans them."""
        with self._mutex:
            held = self._producers.pop((channel, file_id(producer_id)), None)
        if held is not None:
            held.close()

    def close(self, *, left: Collection[tuple[str, str | None]] = ()) -> None:
        """Unregister everything without blocks. What has blocks lingers, and so do the producers named in `left`."""
        lingering = {(channel, file_id(producer_id)) for channel, producer_id in left}
        self._cache.clear()
        for channel, consumer_id in list(self._consumers):
            self._drop_consumer(self.directory.channel_path(channel), channel, consumer_id)
        for (channel, entry_id), held in list(self._producers.items()):
            if held.entry.blocks or (channel, entry_id) in lingering:
                self.release(channel, entry_id)
            else:
                self._drop_producer(self.directory.channel_path(channel), channel, entry_id)
        self._process_lock.close()

    # -- reading -------------------------------------------------------------------------------------------

    def _replay(self, channel: str, *, with_table_schema: bool = False) -> Registry:
        """Return a registry that knows this one channel, as the directory has it now."""
        now = time.time()
        registry = Registry(shm_prefix=self._shm_prefix)
        adopt(registry, living(self.directory, channel), channel, now=now)
        self._adopt_table(registry, channel, with_schema=with_table_schema, now=now)
        for consumer in ConsumerFiles(self.directory.channel_path(channel)).living():
            registry.adopt_consumer(consumer.command, now=consumer.registered_at)
        return registry

    def _adopt_table(self, registry: Registry, channel: str, *, with_schema: bool, now: float) -> None:
        """Register the newest table; without its schema where that is of no use, so that it speaks against nobody."""
        table = newest_table(self.directory, channel, with_schema=with_schema)
        if table is None:
            return
        try:
            registry.apply(table, now=now)
        except Refusal:
            registry.apply(msgspec.structs.replace(table, schema=None), now=now)

    def _replay_for(self, command: commands.RegisterProducer | commands.RegisterConsumer) -> Registry:
        """Return a registry in which the newest table stands for the channel's subject, if a schema is checked."""
        brings_schema = isinstance(command, commands.RegisterProducer) and command.schema is not None
        return self._replay(names.check_channel(command.channel), with_table_schema=brings_schema)

    def _locks(self, path: str, found: replies.Discovered) -> list[str]:
        """Return the locks of all members that live: the death of any would change the answer."""
        producers = [_entry_id(found.channel, producer.producer_id) for producer in found.producers]
        consumers = ConsumerFiles(path).locks() if found.consumer_count else []
        return [*(os.path.join(path, f"{entry_id}.lock") for entry_id in producers), *consumers]

    def _read(self, command: Any, _timeout: float) -> replies.Reply:
        channel = names.check_channel(names.logical(command.channel))
        return self._replay(channel).apply(command, now=time.time()).reply

    def _list_channels(self, command: commands.ListChannels, _timeout: float) -> replies.Reply:
        summaries = []
        for channel in self.directory.channels():
            if channel.startswith(command.prefix) and channel > command.after:
                try:
                    found = self._replay(channel).apply(commands.ListChannels(), now=time.time()).reply
                except HubError as error:  # of this one channel: the others are listed all the same
                    log.warning("channel %r cannot be listed: %s", channel, error)
                    continue
                assert isinstance(found, replies.ChannelList)
                summaries += found.channels
                if len(summaries) > command.limit:
                    break
        page = summaries[: command.limit]
        following = page[-1].channel if len(summaries) > command.limit else None
        return replies.ChannelList(channels=page, next=following, revision=0)

    def _list_tables(self, command: commands.ListTables, _timeout: float) -> replies.Reply:
        names_here = [name for name in self.directory.channels() if name.startswith(command.prefix)]
        behind = [name for name in names_here if name > command.after]
        page = behind[: command.limit]
        found = [replies.TableSummary(channel=name, table=table_of(table, None, now=table.committed_at))
                 for name in page if (table := newest_table(self.directory, name)) is not None]  # fmt: skip
        return replies.TableList(tables=found, next=page[-1] if len(behind) > len(page) else None, revision=0)

    def _check_table(self, command: commands.CheckTable, _timeout: float) -> replies.Reply:
        """Check a table against the newest one here and the living producers, at the registry's default level."""
        channel = names.check_channel(command.channel)
        registry = Registry(shm_prefix=self._shm_prefix)
        now = time.time()
        self._adopt_table(registry, channel, with_schema=True, now=now)
        adopt(registry, living(self.directory, channel, with_schema=True), channel, now=now)
        with _advised(channel):
            registry.apply(command, now=now)
        return replies.TableChecked(channel=command.channel, schema_id=None, schema_version=None, revision=0)

    # -- changing ------------------------------------------------------------------------------------------

    def _drop_table(self, command: commands.DropTable, _timeout: float) -> replies.Reply:
        """Remove a table, also one that is too damaged to be shown: then the caller is told that there was none."""
        channel = names.check_channel(names.logical(command.channel))
        try:
            reply = self._replay(channel).apply(command, now=time.time()).reply
        except (ChannelNotFound, TableNotFound):
            self.tables(channel).drop()
            raise
        self.tables(channel).drop()
        return reply

    def tables(self, channel: str) -> TableStore:
        return TableStore(self.directory.tables_path(channel))

    def _register(
        self, command: commands.RegisterProducer | commands.RegisterConsumer, timeout: float
    ) -> replies.Reply:
        _check_as_a_broker(command)
        if isinstance(command, commands.RegisterConsumer):
            command = msgspec.structs.replace(command, channel=names.logical(command.channel))
            self._check_known(command.channel)
        with self.directory.locked(names.check_channel(command.channel), timeout) as locked:
            return self._apply(locked, command, ())

    def _check_known(self, channel: str) -> None:
        """Refuse what nobody here has registered, without making a directory for it."""
        if not os.path.isdir(self.directory.channel_path(names.check_channel(channel))):
            raise ChannelNotFound(f"nobody has registered channel {channel!r}", channel=channel)

    def _unregister(
        self, command: commands.UnregisterProducer | commands.UnregisterConsumer, timeout: float
    ) -> replies.Reply:
        channel = names.check_channel(names.logical(command.channel))
        self._check_known(channel)
        with self.directory.locked(channel, timeout) as locked:
            reply = self._replay(channel).apply(command, now=time.time()).reply
            if isinstance(command, commands.UnregisterConsumer):
                is_ours = self._drop_consumer(locked.path, channel, command.consumer_id)
            else:
                is_ours = self._drop_producer(locked.path, channel, _entry_id(channel, command.producer_id))
            if not is_ours:  # named by its lease, but only who holds the lock can let go of it
                raise NotOwner(f"the registration on channel {channel!r} is another process's", channel=channel)
            return reply

    def _apply(
        self,
        locked: LockedChannel,
        command: commands.RegisterProducer | commands.RegisterConsumer,
        blocks: tuple[str, ...],
    ) -> replies.Reply:
        """Have the registry decide the command, then write what happened."""
        registry = self._replay_for(command)
        with _advised(command.channel):
            outcome = registry.apply(command, now=time.time())
        # The priority is the channel's: with this entry it outlives whoever brought it.
        said = msgspec.structs.replace(command, priority=registry.channels[command.channel].priority)
        for event in outcome.events:
            if isinstance(event, events.ProducerRegistered) and isinstance(said, commands.RegisterProducer):
                self._write_producer(locked, said, blocks)
            elif isinstance(event, events.ConsumerRegistered) and isinstance(said, commands.RegisterConsumer):
                self._write_consumer(locked, said)
        if isinstance(outcome.reply, replies.ProducerRegistered):
            outcome.reply.schema_id = None  # ids are the broker's to give
        return outcome.reply

    def _write_producer(
        self, locked: LockedChannel, command: commands.RegisterProducer, blocks: tuple[str, ...]
    ) -> None:
        key = (command.channel, file_id(command.producer_id))
        entry = entry_of(command, ProcessIdentity.current(), blocks=blocks)
        held = self._producers.get(key)
        if held is not None:
            held.entry = entry
            replace_file(os.path.join(locked.path, f"{key[1]}.json"), entry.to_json())
            return
        try:
            registration = locked.register(entry, None if blocks else self._process_lock)
        except NameTaken:
            raise _taken(command) from None
        with self._mutex:
            self._producers[key] = registration

    def _write_consumer(self, locked: LockedChannel, command: commands.RegisterConsumer) -> None:
        key = (command.channel, command.consumer_id)
        process_lock = None if key in self._consumers else self._process_lock
        if not ConsumerFiles(locked.path).write(command, process_lock):
            raise ConsumerAlreadyRegistered(
                f"channel {command.channel!r} has a living consumer {command.consumer_id!r}",
                channel=command.channel,
                consumer_id=command.consumer_id,
            )
        with self._mutex:
            self._consumers.add(key)

    def _drop_producer(self, path: str, channel: str, entry_id: str) -> bool:
        """Remove the entry of a producer without data, its lock last. Return False if it is not ours."""
        with self._mutex:
            held = self._producers.pop((channel, entry_id), None)
        if held is None or not held.is_held:
            return False
        for suffix in (".json", ".lock"):
            remove_file(os.path.join(path, entry_id + suffix))
        held.close()
        return True

    def _drop_consumer(self, path: str, channel: str, consumer_id: str) -> bool:
        with self._mutex:
            is_ours = (channel, consumer_id) in self._consumers
            self._consumers.discard((channel, consumer_id))
        if is_ours:
            ConsumerFiles(path).remove(consumer_id)
        return is_ours


@contextlib.contextmanager
def _advised(channel: str) -> Iterator[None]:
    """Add to the refusal of a schema what to do where no broker can be asked for another level."""
    try:
        yield
    except SchemaIncompatible as refused:
        raise SchemaIncompatible(
            f"{refused.message} While no broker answers, the default level counts. To go on: publish to another"
            f" channel, or start a hub and set the compatibility of subject {channel!r} to NONE.",
            **refused.details,
        ) from None


def _check_as_a_broker(command: commands.Command) -> None:
    """Refuse what a broker would not decode: nobody could decode the entry either."""
    try:
        protocol.decode(protocol.encode(command))
    except ProtocolError as refused:
        protocol.unwrap(protocol.error_reply(refused))


def _entry_id(channel: str, producer_id: str | None) -> str:
    return file_id(None if producer_id == f"{channel}/default" else producer_id)


def _taken(command: commands.RegisterProducer) -> ProducerAlreadyRegistered:
    return ProducerAlreadyRegistered(
        f"channel {command.channel!r} has a living producer {command.producer_id or 'default'!r}: close that one, or"
        " give both access='shared' and each a producer_id of its own",
        channel=command.channel,
        producer_id=command.producer_id,
    )
