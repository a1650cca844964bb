"""Consumers of a channel that found no broker: one small file and one lock each, beside the producers' entries.

    <channel>/consumers/<consumer_id>.json    what the consumer would tell a broker, and since when
    <channel>/consumers/<consumer_id>.lock    held while it lives

Whoever registers next removes what the dead left. Only on a locked channel may anything change here.

Rule 1: a consumer was checked when it registered. It is listed while it lives, whatever has changed since.
Rule 2: an entry that cannot be read, or that names another channel or consumer, is passed over: it harms nobody else.
"""

import os
import time

import msgspec

from messagehub.shm.channel_directory.directory import component, read_small_file
from messagehub.shm.channel_directory.entries import FAR
from messagehub.shm.channel_directory.entry_locks import ProcessLock, is_held
from messagehub.shm.errors import DataBlockError
from messagehub.shm.mapped_file import make_own_directory, remove_file, replace_file
from registry.commands import RegisterConsumer
from registry.errors import HubError
from registry.names import check_role


class ConsumerEntry(msgspec.Struct):
    registered_at: float
    command: RegisterConsumer


_decoder = msgspec.json.Decoder(ConsumerEntry)


class ConsumerFiles:
    def __init__(self, channel_path: str) -> None:
        self.path = os.path.join(channel_path, "consumers")
        self._channel = os.path.basename(channel_path)

    def living(self) -> list[ConsumerEntry]:
        """Return the consumers that live, in the order in which they came."""
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [self._entry(name[:-5]) for name in names if name.endswith(".json") and self._is_held(name[:-5])]
        return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.registered_at)

    def _entry(self, consumer_id: str) -> ConsumerEntry | None:
        """Return an entry; None if it is gone meanwhile, or is not what its name says."""
        try:
            entry = _decoder.decode(read_small_file(os.path.join(self.path, f"{consumer_id}.json")))
            check_role("consumer", entry.command.consumer_id)
        except (HubError, msgspec.DecodeError, ValueError, RecursionError):
            return None
        command = entry.command
        is_right = (command.channel, command.consumer_id, command.group) == (self._channel, consumer_id, None)
        return entry if is_right and 0.0 <= entry.registered_at < FAR else None

    def locks(self) -> list[str]:
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(".lock")]

    def write(self, command: RegisterConsumer, process_lock: ProcessLock | None) -> bool:
        """Write the entry, which the lock of the process keeps alive. Return False if another process holds it.

        Without a lock to take, this process holds it already.
        """
        make_own_directory(self.path)
        self._remove_dead()
        base = os.path.join(self.path, component(command.consumer_id))
        if process_lock is not None and not process_lock.hold(f"{base}.lock"):
            return False
        entry = ConsumerEntry(time.time(), msgspec.structs.replace(command, id=None))
        replace_file(f"{base}.json", msgspec.json.encode(entry))
        return True

    def remove(self, consumer_id: str) -> None:
        base = os.path.join(self.path, component(consumer_id))
        remove_file(f"{base}.json")
        remove_file(f"{base}.lock")

    def _remove_dead(self) -> None:
        for name in os.listdir(self.path):
            if name.endswith(".lock") and not self._is_held(name[:-5]):
                remove_file(os.path.join(self.path, f"{name[:-5]}.json"))
                remove_file(os.path.join(self.path, name))

    def _is_held(self, consumer_id: str) -> bool:
        try:
            return is_held(os.path.join(self.path, f"{consumer_id}.lock"))
        except DataBlockError:
            return False  # not a lock that its consumer could have made
