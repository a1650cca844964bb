"""The victim: `python -m tests.faults.blocks.reading` reads what it is told to and says how that went.

A line of JSON in, a line of JSON out: the code of a refusal, or `data`, or `wrong` with the stack. A signal, a hang and
memory are for the one who asks to see.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from messagehub import MessageHub
from messagehub.errors import HubError
from messagehub.shm.locks import OWNER, Descriptor, exclusive, try_lock
from messagehub.shm.rings.read_results import Gap, Item
from messagehub.shm.rings.ring import describe, open_reader
from messagehub.shm.tables.tables import TableStore
from tests.faults.blocks.originals import GROUP, MEMBER

READS = 12


class Invalid(Exception):
    """What came out is no valid Arrow data."""


def use(value: Any) -> None:
    """Touch every byte, but cells of Arrow data only when they are what they claim."""
    if isinstance(value, (bytes, memoryview)):
        bytes(value)
    elif isinstance(value, np.ndarray):
        value.tobytes()
        repr(value)
    elif isinstance(value, (pa.RecordBatch, pa.Table)):
        try:
            value.validate(full=True)
        except pa.ArrowException as error:
            raise Invalid(str(error)) from None
        value.to_pylist()
    else:
        assert isinstance(value, Gap), type(value)


@contextlib.contextmanager
def writer_of(path: str, is_wanted: bool) -> Iterator[None]:
    """As if the block's writer lived."""
    lock = Descriptor.open(path, os.O_RDWR) if is_wanted else None
    try:
        if lock is not None:
            assert try_lock(lock.fd, exclusive(OWNER))
        yield
    finally:
        if lock is not None:
            lock.close()


def ring(path: str, **share: Any) -> None:
    describe(path)
    with open_reader(path, start="oldest", wait_for_writer=True, verify=True, **share) as reader:
        newest = reader.latest()
        if newest is not None:
            use(newest.value)
        for _ in range(READS):
            found = reader.read(0.0)
            if found is None:
                break
            use(found if isinstance(found, Gap) else found.value)
            if isinstance(found, Item):
                reader.acknowledge(found.sequence)


def table(path: str) -> None:
    store = TableStore(path)
    with store.open() as snapshot:
        manifest = snapshot.manifest
        assert manifest.rows >= 0
        assert manifest.size_bytes >= 0
        use(snapshot.table(verify=True))


def consumer(hub: MessageHub, channel: str) -> None:
    with hub.consumer(channel, start="oldest", verify=True) as found:
        value = found.latest()
        if value is not None:
            use(value)
        for _ in range(READS):
            value = found.read(timeout=0.0)
            if value is None:
                break
            use(value)


def main() -> None:
    hub = MessageHub(dir=sys.argv[1], domain=sys.argv[2])
    for line in sys.stdin:
        task = json.loads(line)
        try:
            with writer_of(task["damaged"], task["has_writer"]):
                match task["kind"]:
                    case "consumer":
                        consumer(hub, task["opened"])
                    case "table":
                        table(task["opened"])
                    case "member":
                        ring(task["opened"], group=GROUP, assignment=MEMBER)
                    case "ring":
                        ring(task["opened"])
            outcome = "data"
        except HubError as error:
            outcome = error.code
        except Invalid:
            outcome = "wrong: Arrow data that is not valid" if task["must_be_valid"] else "invalid"
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            outcome = f"wrong: {traceback.format_exc()}"
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
