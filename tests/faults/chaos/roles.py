"""The processes of a storm: `python -m tests.faults.chaos.roles ROLE DIR DOMAIN HISTORY_FILE`.

Each works until it is killed, notes what it was promised and what it saw, and ends with 1 when that was wrong.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from messagehub import MessageHub
from messagehub.block_place import directory_of
from messagehub.data.producers import Producer
from messagehub.datablock.errors import NameTaken, RingFull, TableMissing
from messagehub.datablock.items import Gap
from messagehub.datablock.tables import TableStore
from messagehub.errors import BrokerRequired, BrokerUnavailable, ChannelNotFound, ProducerAlreadyRegistered, RateLimited
from tests.faults.chaos.history import History, Writer
from tests.faults.chaos.web import ask

NOTE_SECONDS = 0.2
WORK = "work"
STREAM = "stream"
NUMBERS = "numbers"
SPARK = "spark"


class Role:
    def __init__(self, directory: str, domain: str, history: Writer) -> None:
        self.directory = directory
        self.hub = MessageHub(dir=directory, domain=domain)
        self.note = history.note
        self._noted_at = 0.0

    def progress(self, **details: int) -> None:
        """Now and then, so that a stall shows."""
        if time.monotonic() - self._noted_at > NOTE_SECONDS:
            self._noted_at = time.monotonic()
            self.note("progress", **details)

    # -- durable writes ------------------------------------------------------------------------------------

    def schemas(self) -> None:
        """What is acknowledged is there for ever, under the same id."""
        for number in range(1, sys.maxsize):
            subject = f"chaos.{number % 3}"
            text = {"type": "object", "title": f"{os.getpid()}-{number}"}
            try:
                kept = self.hub.register_schema(subject, text)
            except (BrokerUnavailable, RateLimited):  # no broker; or its judge is killed faster than it starts
                time.sleep(0.01)
                continue
            self.note("schema", subject=subject, version=kept.version, id=kept.schema_id, title=text["title"])
            self.progress(number=number)
            time.sleep(0.02)

    def channels(self) -> None:
        for number in range(1, sys.maxsize):
            name = f"declared.p{os.getpid()}.n{number}"
            try:
                self.hub.create_channel(name, metadata={"number": number})
            except BrokerUnavailable:
                time.sleep(0.01)
                continue
            self.note("channel", channel=name, number=number)
            self.progress(number=number)
            time.sleep(0.02)

    def admin(self) -> None:
        """The same over HTTP; and an id always gives back what was registered under it, by whichever process."""
        kept = {line["id"]: line["title"] for line in _lines(self.directory, "admin", "schema")}
        for number in range(1, sys.maxsize):
            subject, title = f"chaos.{number % 3}", f"http-{os.getpid()}-{number}"
            body = {"schemaType": "JSON", "schema": json.dumps({"type": "object", "title": title})}
            made = ask(self.hub.settings, "POST", f"/subjects/{subject}/versions", body)
            if made is not None:
                self.note("schema", subject=subject, version=made["version"], id=made["id"], title=title)
                kept[made["id"]] = title
            schema_id = random.choice(list(kept)) if kept else 0
            found = ask(self.hub.settings, "GET", f"/schemas/ids/{schema_id}") if kept else None
            if found is not None:
                title = json.loads(found["schema"])["title"]
                assert title == kept[schema_id], f"id {schema_id} gave {title}, not {kept[schema_id]}"
            if made is not None and found is not None:
                self.progress(number=number)
            time.sleep(0.1)

    # -- rings ---------------------------------------------------------------------------------------------

    def produce(self) -> None:
        producer = self._producer(STREAM, capacity=16)
        for number in range(1, sys.maxsize):
            producer.write(_payload(number))
            self.progress(number=number)
            time.sleep(0.002)

    def consume(self) -> None:
        consumer = self.hub.consumer(STREAM, start="oldest")
        held: list[tuple[memoryview, bytes]] = []
        last: dict[int, int] = {}
        while True:
            value = consumer.read(timeout=1.0)
            if value is None:
                continue
            if isinstance(value, Gap):
                self.note("gap", first=value.first, last=value.last)
                continue
            pid, number = _checked(value)
            assert number > last.get(pid, 0), f"{pid} wrote {number} after {last[pid]}"
            last[pid] = number
            held = [*held[-2:], (value, bytes(value))]
            assert all(bytes(view) == copy for view, copy in held), "a view changed while it was held"
            self.progress(number=number)

    def work(self) -> None:
        """For a group: nothing is overwritten before a member is done with it."""
        producer = self._producer(WORK, capacity=64, when_full="block")
        number = 0
        while True:
            number += 1
            try:
                producer.write(_payload(number), timeout=1.0)
            except RingFull:
                number -= 1  # its readers are paused or dead
                continue
            self.note("wrote", number=number)
            time.sleep(0.005)

    def member(self) -> None:
        while True:
            try:
                consumer = self.hub.consumer(WORK, start="oldest", group="workers")
                break
            except (BrokerRequired, BrokerUnavailable, ChannelNotFound):
                time.sleep(0.05)
        while True:
            value = consumer.read(timeout=1.0)
            if value is not None and not isinstance(value, Gap):
                pid, number = _checked(value)
                self.note("did", writer=pid, number=number)  # acknowledged by asking for the next one

    # -- tables --------------------------------------------------------------------------------------------

    def publish(self) -> None:
        number = max((line["number"] for line in _lines(self.directory, "publish", "published")), default=0)
        while True:
            number += 1
            self.hub.publish_table(NUMBERS, _numbers(number), checksum="verify", metadata={"number": number})
            self.note("published", number=number)
            self.progress(number=number)
            time.sleep(0.05)

    def read_tables(self) -> None:
        """Whole tables only, and never an older one than before."""
        directory = directory_of(self.hub.settings)
        newest = {NUMBERS: 0, SPARK: 0}
        while True:
            for channel in (NUMBERS, SPARK):
                try:
                    with TableStore(directory.tables_path(channel)).open() as snapshot:
                        table = snapshot.table()
                except TableMissing:
                    assert not newest[channel], f"the table of {channel} is gone"
                    continue
                values = set(table.column("n").to_pylist())
                assert len(values) == 1, f"a torn table of {channel}: {values}"
                number = values.pop()
                assert table.num_rows == number % 50 + 1 or channel == SPARK, "rows are missing"
                assert number >= newest[channel], f"{channel} went back from {newest[channel]} to {number}"
                newest[channel] = number
                self.progress(**{channel: number})
            time.sleep(0.02)

    def spark(self) -> None:
        """One overwrite after the other. A killed task is tried again; a killed planner fails the job.

        Spark looks for sources once per session, in a worker; when that one is killed, it must be told.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions

        from messagehub.spark import register
        from tests.spark.sessions import new_session

        session = new_session(Path(self.directory) / f"spark-{os.getpid()}", "local[2, 20]")
        options = {"channel": SPARK, "dir": self.directory, "domain": self.hub.settings.domain}
        while True:
            number = time.time_ns() // 1_000_000
            frame = session.range(0, 2000, 1, 3).select(functions.lit(number).alias("n"), "id")
            try:
                frame.write.format("messagehub").options(**options).mode("overwrite").save()
            except (PySparkException, Py4JJavaError) as error:  # the latter when a planner is killed
                self.note("failed", error=str(error)[:500])
                if "DATA_SOURCE_NOT_FOUND" in str(error):
                    register(session)
                continue
            self.note("published", number=number)
            self.progress(number=number)

    # -- onlookers -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        with self.hub.watch() as watch:
            while True:
                event = watch.get(timeout=1.0)
                if event is not None:
                    self.note("event", revision=event.revision)

    def discover(self) -> None:
        """Somebody answers at every moment, broker or not."""
        sources: dict[str, int] = {}
        while True:
            found = self.hub.discover(STREAM)
            if found is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
                self.progress(**sources)
            time.sleep(0.01)

    def _producer(self, channel: str, **arguments: object) -> Producer:
        while True:
            try:
                return self.hub.producer(channel, page_size=4096, checksum="verify", **arguments)  # type: ignore[arg-type]
            except (ProducerAlreadyRegistered, NameTaken):  # nobody has seen yet that the one before is dead
                time.sleep(0.01)


def _payload(number: int) -> bytes:
    body = b"%d:%d:" % (os.getpid(), number) + random.randbytes(random.randrange(2000))
    return zlib.crc32(body).to_bytes(4, "little") + body


def _checked(value: memoryview) -> tuple[int, int]:
    data = bytes(value)
    assert zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4], "a wrong byte"
    pid, number, _ = data[4:].split(b":", 2)
    return int(pid), int(number)


def _numbers(number: int) -> pa.Table:
    return pa.table({"n": pa.array([number] * (number % 50 + 1), pa.int64())})


def _lines(directory: str, role: str, what: str) -> list[dict[str, Any]]:
    """What the processes of a role before this one noted."""
    return list(History(Path(directory) / "history").lines(role, what))


def main() -> None:
    name, directory, domain, history = sys.argv[1:]
    role = Role(directory, domain, Writer(Path(history), name.partition("-")[0]))
    run: Callable[[], None] = getattr(role, name.partition("-")[0])
    faulthandler.register(signal.SIGUSR1)  # what it does when it should have moved
    role.note("started")
    run()


if __name__ == "__main__":
    main()
