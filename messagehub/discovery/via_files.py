"""Discovery with no broker: the registry's own rules, applied to the directory under the channel's lock.

Rule 1: reading takes no lock and waits for nobody.
Rule 2: what is registered here lives as long as this process, or until it is unregistered; the kernel keeps count.
Rule 3: what needs one authority for all hosts (declarations, schemas, shares of a group) raises BrokerRequired.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from messagehub.datablock.cleaning import LINGER_SECONDS, Cleaned, clean_channel
from messagehub.datablock.directory import Directory, LockedChannel, Registration
from messagehub.datablock.entry_locks import ProcessLock
from messagehub.datablock.errors import NameTaken
from messagehub.datablock.identity import ProcessIdentity
from messagehub.datablock.segment import remove_file, replace_file
from messagehub.discovery import Discovery
from messagehub.discovery.consumer_files import ConsumerFiles
from messagehub.discovery.remembered import Remembered, stamps_of
from messagehub.entries import adopt, entry_of, file_id, living, newest_table
from messagehub.errors import BrokerRequired, ChannelNotFound
from registry import commands, events, names, replies
from registry.errors import ConsumerAlreadyRegistered, ProducerAlreadyRegistered
from registry.records import Channel
from registry.registry import Registry


class ViaFiles:
    def __init__(self, directory: Directory, *, shm_prefix: str) -> None:
        self.directory = directory
        self._shm_prefix = shm_prefix
        self._producers: dict[tuple[str, str], Registration] = {}
        self._consumers: set[tuple[str, str]] = set()
        self._process_lock = ProcessLock()
        self._remembered = Remembered()
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
        }

    def ask(self, command: commands.Command, *, timeout: float) -> replies.Reply:
        handler = self._handlers.get(type(command))
        if handler is None or (isinstance(command, commands.RegisterConsumer) and command.group is not None):
            kind = str(command.__struct_config__.tag)
            raise BrokerRequired(f"{kind} needs a broker, and none answers: start one with `messagehub serve`")
        return handler(command, timeout)

    def discover(self, channel: str) -> Discovery | None:
        known = self._remembered.get(channel)
        if known is not None:
            return known
        logical = names.check_channel(names.logical(channel))
        path = self.directory.channel_path(logical)
        stamps = stamps_of((path, ConsumerFiles(path).path, self.directory.tables_path(logical)))
        if not stamps:
            return None
        try:
            reply = self._replay(logical).apply(commands.Discover(channel=logical), now=time.time()).reply
        except ChannelNotFound:
            return None
        assert isinstance(reply, replies.Discovered)
        found = Discovery.of(reply, "files")
        self._remembered.keep(channel, found, stamps, self._locks(path, reply))
        return found

    def register_blocks(
        self, command: commands.RegisterProducer, blocks: tuple[str, ...], make: Callable[[], Any], *, timeout: float
    ) -> tuple[replies.ProducerRegistered, Any]:
        """Register a producer and make its blocks before anybody else may change the channel.

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
        if (command.channel, file_id(command.producer_id)) in self._producers:
            raise _taken(command)
        self._replay(names.check_channel(command.channel)).apply(command, now=time.time())

    def release(self, channel: str, producer_id: str | None) -> None:
        """The producer has ended, its blocks linger: the entry stays for whoever cleans them."""
        with self._mutex:
            held = self._producers.pop((channel, file_id(producer_id)), None)
        if held is not None:
            held.close()

    def close(self, *, left: Collection[tuple[str, str | None]] = ()) -> None:
        """Unregister everything without blocks. What has blocks lingers, and so do the producers named in `left`."""
        lingering = {(channel, file_id(producer_id)) for channel, producer_id in left}
        self._remembered.clear()
        for channel, consumer_id in list(self._consumers):
            self._drop_consumer(self.directory.channel_path(channel), channel, consumer_id)
        for (channel, entry_id), held in list(self._producers.items()):
            if held.entry.blocks or (channel, entry_id) in lingering:
                self.release(channel, entry_id)
            else:
                self._drop_producer(self.directory.channel_path(channel), channel, entry_id)
        self._process_lock.close()

    # -- reading -------------------------------------------------------------------------------------------

    def _replay(self, channel: str) -> Registry:
        """A registry that knows this one channel, as the directory has it now."""
        now = time.time()
        registry = Registry(shm_prefix=self._shm_prefix)
        adopt(registry, living(self.directory, channel), channel, now=now)
        registry.show_table(channel, newest_table(self.directory, channel), now=now)
        consumers = ConsumerFiles(self.directory.channel_path(channel)).living()
        if consumers and channel not in registry.channels:
            registry.restore([Channel(name=channel)], revision=0, now=now)
        for consumer in consumers:
            registry.apply(consumer, now=now)
        return registry

    def _locks(self, path: str, found: replies.Discovered) -> list[str]:
        """Of everybody who lives, and whose death would change the answer."""
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
                found = self._replay(channel).apply(commands.ListChannels(), now=time.time()).reply
                assert isinstance(found, replies.ChannelList)
                summaries += found.channels
                if len(summaries) > command.limit:
                    break
        page = summaries[: command.limit]
        following = page[-1].channel if len(summaries) > command.limit else None
        return replies.ChannelList(channels=page, next=following, revision=0)

    # -- changing ------------------------------------------------------------------------------------------

    def _register(
        self, command: commands.RegisterProducer | commands.RegisterConsumer, timeout: float
    ) -> replies.Reply:
        with self.directory.locked(names.check_channel(command.channel), timeout) as locked:
            return self._apply(locked, command, ())

    def _unregister(
        self, command: commands.UnregisterProducer | commands.UnregisterConsumer, timeout: float
    ) -> replies.Reply:
        channel = names.check_channel(names.logical(command.channel))
        with self.directory.locked(channel, timeout) as locked:
            reply = self._replay(channel).apply(command, now=time.time()).reply
            if isinstance(command, commands.UnregisterConsumer):
                self._drop_consumer(locked.path, channel, command.consumer_id)
            else:
                self._drop_producer(locked.path, channel, _entry_id(channel, command.producer_id))
            return reply

    def _apply(
        self,
        locked: LockedChannel,
        command: commands.RegisterProducer | commands.RegisterConsumer,
        blocks: tuple[str, ...],
    ) -> replies.Reply:
        """Ask the rules, then write down what happened."""
        outcome = self._replay(command.channel).apply(command, now=time.time())
        for event in outcome.events:
            if isinstance(event, events.ProducerRegistered) and isinstance(command, commands.RegisterProducer):
                self._write_producer(locked, command, blocks)
            elif isinstance(event, events.ConsumerRegistered) and isinstance(command, commands.RegisterConsumer):
                self._write_consumer(locked, command)
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

    def _drop_producer(self, path: str, channel: str, entry_id: str) -> None:
        """Data is gone already or there never was any: the entry goes, its lock last."""
        with self._mutex:
            held = self._producers.pop((channel, entry_id), None)
        if held is not None and held.is_held:
            for suffix in (".json", ".lock"):
                remove_file(os.path.join(path, entry_id + suffix))
            held.close()

    def _drop_consumer(self, path: str, channel: str, consumer_id: str) -> None:
        with self._mutex:
            is_ours = (channel, consumer_id) in self._consumers
            self._consumers.discard((channel, consumer_id))
        if is_ours:
            ConsumerFiles(path).remove(consumer_id)


def _entry_id(channel: str, producer_id: str | None) -> str:
    return file_id(None if producer_id == f"{channel}/default" else producer_id)


def _taken(command: commands.RegisterProducer) -> ProducerAlreadyRegistered:
    return ProducerAlreadyRegistered(
        f"channel {command.channel!r} has a living producer {command.producer_id or 'default'!r}",
        channel=command.channel,
        producer_id=command.producer_id,
    )
