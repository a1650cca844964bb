"""The processes of a storm: `python -m tests.faults.chaos.roles ROLE DIR DOMAIN HISTORY_FILE`.

Each works until it is killed, notes what it was promised and what it saw, and ends with 1 when that was wrong.
"""

import contextlib
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

import numpy as np
import pyarrow as pa

from messagehub import MessageHub
from messagehub.channels.producers import Producer
from messagehub.errors import (
    BrokerRequired,
    BrokerUnavailable,
    ChannelNotFound,
    DuplicateRegistration,
    MailboxClosed,
    NoResponse,
    ProducerAlreadyRegistered,
    RateLimited,
    ReceiveTimeout,
    RouteError,
    SendTimeout,
    ServiceNotFound,
)
from messagehub.services.context import ServiceContext, ServiceMessage
from messagehub.services.replies import PendingReply
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.errors import NameTaken, RingFull, TableMissing
from messagehub.shm.rings.read_results import Gap
from messagehub.shm.tables.tables import TableStore
from messagehub.topics.subscriptions import Subscription
from registry.records import Keep
from tests.faults.chaos.flood import Flood
from tests.faults.chaos.history import History, Writer
from tests.faults.chaos.web import ask

NOTE_SECONDS = 0.2
WORK = "work"
STREAM = "stream"
NUMBERS = "numbers"
SPARK = "spark"
PLAIN = "chaos.plain"
RETAINED = "chaos.retained"
KEEP = Keep(size_bytes=2**34)  # more than a storm publishes: retention removes nothing
REPLAYED = 1000
SERVICE = "service:chaos"
AT_ONCE = 4
CALL_SECONDS = 60.0
AWAY = (BrokerRequired, BrokerUnavailable)
UNREACHED = (*AWAY, ServiceNotFound, MailboxClosed, RouteError)


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
            except (BrokerUnavailable, RateLimited):  # no broker; or its schema worker is killed faster than it starts
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
        producer = self._producer(STREAM, schema=np.dtype("u1"), capacity=16)  # small raw values would be copies
        for number in range(1, sys.maxsize):
            producer.write(np.frombuffer(payload(number), np.uint8))
            self.progress(number=number)
            time.sleep(0.002)

    def consume(self) -> None:
        consumer = self.hub.consumer(STREAM, start="oldest", on_lag="gap")
        held: list[tuple[Any, bytes]] = []
        last: dict[int, int] = {}
        while True:
            value = consumer.read(timeout=1.0)
            if value is None:
                continue
            if isinstance(value, Gap):
                self.note("gap", first=value.first, last=value.last)
                continue
            pid, number = checked(value)
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
                producer.write(payload(number), timeout=1.0)
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
                pid, number = checked(value)
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

    # -- topics --------------------------------------------------------------------------------------------

    def publish_plain(self) -> None:
        """A message counts when `publish` has returned; before that it was not sent, and is tried again."""
        number = 1
        while True:
            try:
                self.hub.publish(PLAIN, payload(number, 200_000 if number % 20 == 0 else 2000))
            except (*AWAY, SendTimeout):
                time.sleep(0.01)
                continue
            self.progress(number=number)
            number += 1
            time.sleep(0.005)

    def hear_plain(self) -> None:
        """What is lost was counted before the next message of the same publisher is read."""
        subscription = self._subscribe(PLAIN)
        last: dict[int, int] = {}
        missed = 0
        while True:
            try:
                value = subscription.receive(timeout=1.0).payload
            except ReceiveTimeout:
                continue
            pid, number = checked(value)
            assert number > last.get(pid, 0), f"{pid} published {number} once, and it came again after {last[pid]}"
            missing = number - last.get(pid, number - 1) - 1
            last[pid] = number
            missed += missing
            if missing:
                self.note("missed", missed=missed, lost=subscription.lost)
            self.progress(number=number)

    def publish_retained(self) -> None:
        """What is acknowledged is there for ever, once, at its offset."""
        topic = None
        number = 0
        while True:
            try:
                topic = topic or self.hub.topic(RETAINED, keep=KEEP)
                number += 1
                offset = topic.publish(payload(number, 100))
            except (*AWAY, SendTimeout):  # stored or not: the number is not used again
                time.sleep(0.01)
                continue
            self.note("stored", offset=offset, number=number)
            self.progress(number=number)
            time.sleep(0.01)

    def replay(self) -> None:
        """Goes on behind, or some way before, what the process before it has heard last."""
        heard = History(Path(self.directory) / "history").last("replay", "heard")
        after = heard["offset"] + 1 if heard else 0
        subscription = self._subscribe(RETAINED, since=max(after - random.randrange(REPLAYED), 0))
        while True:
            try:
                message = subscription.receive(timeout=1.0)
            except ReceiveTimeout:
                continue
            assert message.offset is not None
            pid, number = checked(message.payload)
            self.note("heard", offset=message.offset, writer=pid, number=number)
            self.progress(offset=message.offset)

    def _subscribe(self, topic: str, **arguments: int) -> Subscription:
        while True:
            try:
                if "since" in arguments:
                    self.hub.topic(topic, keep=KEEP)
                return self.hub.subscribe(topic, buffer=1000, **arguments)  # type: ignore[arg-type]
            except (*AWAY, SendTimeout):
                time.sleep(0.05)

    # -- services ------------------------------------------------------------------------------------------

    def serve(self) -> None:
        def handle(message: ServiceMessage, _: ServiceContext) -> dict[str, int]:
            asked = message.payload
            self.note("handled", caller=asked["caller"], number=asked["number"])
            self.progress(number=asked["number"])
            return {"caller": asked["caller"], "number": asked["number"], "sum": zlib.crc32(asked["text"].encode())}

        while True:
            try:
                with self.hub.serve(SERVICE, handle, concurrency=2):
                    signal.pause()
            except (*AWAY, DuplicateRegistration):  # nobody has seen yet that the one before is dead
                time.sleep(0.01)

    def call(self) -> None:
        """Several at once on one connection. Only a worker that was killed leaves a request without an answer."""
        for first in range(1, sys.maxsize, AT_ONCE):
            asked_at = time.time()
            texts = {number: random.randbytes(300).hex() for number in range(first, first + AT_ONCE)}
            pending = {}
            for number, text in texts.items():
                with contextlib.suppress(*UNREACHED):
                    pending[number] = self._begin(number, text)
            replied = []
            for number, each in pending.items():
                try:
                    reply = each.result()
                except UNREACHED:
                    continue
                except NoResponse as error:
                    self.note("unanswered", asked_at=asked_at, number=number, error=error.message)
                    continue
                right = {"caller": os.getpid(), "number": number, "sum": zlib.crc32(texts[number].encode())}
                assert reply == right, f"the reply to {right} is {reply}"
                replied.append(number)
            if replied:
                self.note("replied", numbers=replied)
                self.progress(number=first)
            time.sleep(0.01)

    def _begin(self, number: int, text: str) -> PendingReply:
        asked = {"caller": os.getpid(), "number": number, "text": text}
        return self.hub.begin_request(SERVICE, asked, timeout=CALL_SECONDS, retries=2)

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

    def flood(self) -> None:
        """Subscribes, unsubscribes and publishes without end, and harms nobody: everybody else goes on."""
        flood = Flood(self.hub.settings)
        while True:
            if sent := flood.burst():
                self.progress(sent=sent)
            time.sleep(0.01)

    def _producer(self, channel: str, **arguments: object) -> Producer:
        while True:
            try:
                return self.hub.producer(channel, page_size=4096, checksum="verify", **arguments)  # type: ignore[arg-type]
            except (ProducerAlreadyRegistered, NameTaken):  # nobody has seen yet that the one before is dead
                time.sleep(0.01)


def payload(number: int, most_bytes: int = 2000) -> bytes:
    body = b"%d:%d:" % (os.getpid(), number) + random.randbytes(random.randrange(most_bytes))
    return zlib.crc32(body).to_bytes(4, "little") + body


def checked(value: memoryview | bytes) -> tuple[int, int]:
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
