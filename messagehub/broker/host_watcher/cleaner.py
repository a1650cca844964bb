"""A thread that removes files of dead producers, tables that retention ends and old message blocks.

It shares nothing with the broker's loop, which notices in the directory what was removed.
"""

import logging
import threading
import time

from messagehub.runtime.supervision import Supervisor
from messagehub.shm.channel_directory.cleaning import Stamps, clean
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.errors import DataBlockError
from messagehub.shm.messages import sweep_messages

log = logging.getLogger("messagehub.broker")

CLEAN_SECONDS = 5.0


class Cleaner:
    def __init__(self, directory: Directory, supervisor: Supervisor) -> None:
        self._directory = directory
        self._settled: dict[str, Stamps] = {}
        self._stop = threading.Event()
        self._thread = supervisor.start("messagehub-cleaner", self._run)

    def close(self, *, timeout: float) -> None:
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.wait(CLEAN_SECONDS):
            try:
                done = clean(self._directory, now=time.time(), settled=self._settled)
                sweep_messages(self._directory)
            except (DataBlockError, OSError) as error:
                log.warning("cleaning shared memory failed: %s", error)
                continue
            if done.producers or done.channels:
                said = "cleaned %d dead producers, %d blocks and the directories of %d ended channels"
                log.info(said, len(done.producers), len(done.blocks), len(done.channels))
