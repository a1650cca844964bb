"""The broker in this process, for tests and notebooks: the same loop in a thread, on a socket of its own."""

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from messagehub.broker.loop import Broker
from messagehub.broker.parts import STOP_SECONDS
from messagehub.client import ended_brokers
from messagehub.settings import Settings
from messagehub.store import Store
from messagehub.store.memory import MemoryStore

log = logging.getLogger("messagehub.broker")


@contextmanager
def embedded_broker(store: Store | None = None, **settings: Any) -> Iterator[str]:
    """Run a broker while the block runs, and yield its endpoint. Nothing is stored unless `store` says so.

    The broker belongs to this process: a forked child that leaves the block does not end it. If the broker fails
    meanwhile, that is logged, and its error is raised at the end of the block. After the block
    `MessageHub.get_instance()` makes a new hub if the last one was connected to this broker.
    """
    owner = os.getpid()
    directory = Path(tempfile.mkdtemp(prefix="messagehub-"))
    try:
        settings.setdefault("dir", directory)
        settings.setdefault("endpoint", f"ipc://{directory / 'broker.sock'}")
        broker = Broker(Settings.load(**settings), lambda: store or MemoryStore())
        failed: list[Exception] = []

        def run() -> None:
            try:
                broker.run()
            except Exception as defect:
                log.exception("the embedded broker failed")
                failed.append(defect)

        thread = threading.Thread(target=run, name="messagehub-broker", daemon=True)
        thread.start()
        ended_brokers.ENDPOINTS.discard(broker.endpoint)
        try:
            yield broker.endpoint
        finally:
            ended_brokers.ENDPOINTS.add(broker.endpoint)
            if os.getpid() == owner:
                broker.stop()
                thread.join(2 * STOP_SECONDS + 2)
        if failed:
            raise failed[0]
    finally:
        if os.getpid() == owner:
            shutil.rmtree(directory)
