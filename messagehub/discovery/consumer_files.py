"""Consumers of a channel that found no broker: one small file and one lock each, beside the producers' entries.

    <channel>/consumers/<consumer_id>.json    what the consumer would tell a broker
    <channel>/consumers/<consumer_id>.lock    held while it lives

Whoever registers next removes what the dead left. Only on a locked channel may anything change here.
"""

import os

import msgspec

from messagehub.datablock.directory import component, read_small_file
from messagehub.datablock.entry_locks import ProcessLock, is_held
from messagehub.datablock.errors import DataBlockError
from messagehub.datablock.segment import make_own_directory, remove_file, replace_file
from registry.commands import RegisterConsumer

_decoder = msgspec.json.Decoder(RegisterConsumer)


class ConsumerFiles:
    def __init__(self, channel_path: str) -> None:
        self.path = os.path.join(channel_path, "consumers")

    def living(self) -> list[RegisterConsumer]:
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        found = []
        for name in sorted(names):
            if name.endswith(".json") and self._is_held(name[:-5]):
                try:
                    found.append(_decoder.decode(read_small_file(os.path.join(self.path, name))))
                except (DataBlockError, msgspec.DecodeError):
                    continue  # gone meanwhile, or not ours to understand
        return found

    def locks(self) -> list[str]:
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if name.endswith(".lock")]

    def write(self, command: RegisterConsumer, process_lock: ProcessLock | None) -> bool:
        """Write the entry, which the lock of the process keeps alive; False when another process holds it.

        Without a process lock it is held already.
        """
        make_own_directory(self.path)
        self._remove_dead()
        base = os.path.join(self.path, component(command.consumer_id))
        if process_lock is not None and not process_lock.hold(f"{base}.lock"):
            return False
        replace_file(f"{base}.json", msgspec.json.encode(msgspec.structs.replace(command, id=None)))
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
        return is_held(os.path.join(self.path, f"{consumer_id}.lock"))
