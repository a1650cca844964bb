"""The broker in this process, for tests and notebooks: the same loop in a thread, on a socket of its own."""

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from messagehub.broker.loop import STOP_SECONDS, Broker
from messagehub.settings import Settings
from messagehub.store import Store
from messagehub.store.memory import MemoryStore


@contextmanager
def embedded_broker(store: Store | None = None, **settings: Any) -> Iterator[str]:
    """Run a broker while the block runs and give its endpoint; nothing is kept unless `store` says so.

    The broker is its process's own: a forked child that leaves the block ends nothing.
    """
    owner = os.getpid()
    directory = Path(tempfile.mkdtemp(prefix="messagehub-"))
    try:
        settings.setdefault("dir", directory)
        settings.setdefault("endpoint", f"ipc://{directory / 'broker.sock'}")
        broker = Broker(Settings.load(**settings), lambda: store or MemoryStore())
        thread = threading.Thread(target=broker.run, name="messagehub-broker", daemon=True)
        thread.start()
        try:
            yield broker.endpoint
        finally:
            if os.getpid() == owner:
                broker.stop()
                thread.join(2 * STOP_SECONDS + 2)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(directory)
