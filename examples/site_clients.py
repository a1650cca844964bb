"""The clients of `make demo-site`: each is a process on its host, says what it sees in lines of JSON, and ends when its
stdin does, or with the stream that it reads.

    python examples/site_clients.py ROLE DIRECTORY [ARGUMENT…]
"""

import contextlib
import itertools
import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from messagehub import MessageHub
from messagehub.errors import HubError, ReceiveTimeout
from messagehub.shm.errors import DataBlockError

WAVES, NEWS, FRAME = "demo.waves", "demo.news", "demo.frame"
JOBS, ORDERS, DOUBLE = "demo.jobs", "demo.orders", "service:double"
SCHEMA = pa.schema([("number", pa.int64()), ("value", pa.float64())])
HERTZ, JOB_HERTZ, ORDER_HERTZ, ASK_HERTZ = 200, 40, 10, 20
FRAME_ROWS = 200_000
START_SECONDS = 120.0
ASK_SECONDS = 3.0
"""How long a caller waits for an answer: less than the link is cut, so that the cut shows."""
PATIENT_SECONDS = 60.0
"""How long publishing and acknowledging may take: longer than anything here is away."""
LATE_SECONDS = 1.0
"""A pause that is longer is told."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def say_done(*what: Any) -> None:
    """Say that something is done. It is not printed; the report counts it."""
    say(done=what)


def is_over(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def measure(hub: MessageHub) -> None:
    """Write to a ring, and publish every tenth number."""
    number = published = refused = 0
    with hub.producer(WAVES, schema=SCHEMA, capacity=16_384) as producer:
        say(ready=True)
        while not is_over(1 / HERTZ):
            producer.write(pa.record_batch([[number], [number / HERTZ]], schema=SCHEMA))
            if number % 10 == 0:
                try:
                    hub.publish(NEWS, published)
                    published += 1
                except HubError as error:
                    if not refused:
                        say(client="the producer", error=f"{type(error).__name__}: {error}")
                    refused += 1
            number += 1
    say(client="the producer", written=number, published=published, refused=refused)


class Watched:
    """Tells pauses, and what is missing between numbers that should follow each other."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._last: int | None = None
        self._at = time.monotonic()
        self.seen = self.missing = 0

    def take(self, number: int) -> None:
        now, before = time.monotonic(), self._at
        if self._last is not None and now - before > LATE_SECONDS:
            say(client=self._client, paused_seconds=round(now - before, 1), then="went on")
        if self._last is not None and number != self._last + 1:
            self.missing += number - self._last - 1
            say(client=self._client, missing=number - self._last - 1)
        self._last, self._at = number, now
        self.seen += 1


def read(hub: MessageHub) -> None:
    """Read all that is written to the ring, wherever it is, until its producer ends."""
    watched = Watched("the reader")
    sources: set[str] = set()
    with hub.consumer(WAVES, start="oldest", timeout=START_SECONDS) as consumer:
        say(ready=True)
        while not consumer.has_ended and not is_over(0):
            try:
                batch = consumer.read(timeout=0.2)
            except (HubError, DataBlockError) as error:
                say(client="the reader", error=f"{type(error).__name__}: {error}")
                continue
            for number in batch["number"].to_pylist() if batch is not None else ():
                sources.update(consumer.block_sources.values())
                watched.take(number)
        by = ", ".join(sorted(sources))
        say(client="the reader", read=watched.seen, by=by, missing=watched.missing, counted=consumer.missed)


def hear(hub: MessageHub) -> None:
    watched = Watched("the subscriber")
    with hub.subscribe(NEWS) as subscription:
        say(ready=True)
        while not is_over(0):
            with contextlib.suppress(TimeoutError):
                watched.take(subscription.receive(0.2).payload)
        say(client="the subscriber", heard=watched.seen, missing=watched.missing, counted=subscription.lost)


def write(hub: MessageHub) -> None:
    """Register schemas, and look at the end whether all that were acknowledged are there."""
    acknowledged: dict[str, int] = {}
    refused, slowest, number = 0, 0.0, 0
    say(ready=True)
    while not is_over(0.05):
        subject = f"demo.{os.uname().nodename}.{number}"
        began_at = time.monotonic()
        try:
            acknowledged[subject] = hub.register_schema(subject, {"type": "object", "title": subject}).schema_id
        except HubError as error:
            refused += 1
            if not error.retryable:
                raise
            continue  # the same again
        finally:
            slowest = max(slowest, time.monotonic() - began_at)
        number += 1
    lost = [subject for subject, given in acknowledged.items() if hub.schema(subject).schema.schema_id != given]
    say(client="the writer", acknowledged=len(acknowledged), lost=len(lost), refused=refused, slowest=round(slowest, 1))


def hand_out(hub: MessageHub) -> None:
    """Write jobs to a ring, which waits for the group that shares them."""
    with hub.producer(JOBS, capacity=1024, when_full="block") as producer:
        say(ready=True)
        for number in itertools.count():
            if is_over(1 / JOB_HERTZ):
                break
            producer.write(b"%d" % number, timeout=PATIENT_SECONDS)
    say(client="the producer of jobs", wrote=number)


def work(hub: MessageHub) -> None:
    """Do the jobs of this member of the group, until the group has done all."""
    done = 0
    with hub.consumer(JOBS, group="crew", start="oldest", timeout=START_SECONDS) as member:
        say(ready=True)
        while not member.has_ended and not is_over(0):
            try:
                job = member.read(timeout=0.5)
            except (HubError, DataBlockError) as error:
                say(client="the member", error=f"{type(error).__name__}: {error}")
                continue
            if job is not None:
                say_done(int(bytes(job)))
                done += 1
    say(client="the member", did=done)


def serve(hub: MessageHub) -> None:
    """Answer what is asked, on whatever host."""

    def double(message: Any, _: Any) -> int:
        host, number = message.payload
        say_done(host, number)
        return 2 * int(number)

    with hub.serve(DOUBLE, double):
        say(ready=True)
        sys.stdin.read()
    say(client="the service", closed=True)


def ask(hub: MessageHub) -> None:
    """Ask the service, one request after the other, and go on where there is no answer."""
    host, answered, refused, slowest = os.uname().nodename, 0, 0, 0.0
    hub.request(DOUBLE, [host, -1], timeout=START_SECONDS, retries=1000)
    say(ready=True)
    for number in itertools.count():
        if is_over(1 / ASK_HERTZ):
            break
        began_at = time.monotonic()
        try:
            answer = hub.request(DOUBLE, [host, number], timeout=ASK_SECONDS)
        except HubError as error:
            refused += 1
            say(client="the caller", refused=f"{type(error).__name__}: {error}")
            continue
        slowest = max(slowest, time.monotonic() - began_at)
        if answer == 2 * number:
            say_done(host, number)
            answered += 1
    say(client="the caller", asked=number, answered=answered, refused=refused, slowest=round(slowest, 1))


def order(hub: MessageHub, home: str) -> None:
    """Publish to a retained topic, each message until it is acknowledged."""
    host, slowest = os.uname().nodename, 0.0
    topic = hub.topic(ORDERS, keep=100_000, home=home, timeout=START_SECONDS)
    say(ready=True)
    for number in itertools.count():
        if is_over(1 / ORDER_HERTZ):
            break
        began_at = time.monotonic()
        topic.publish([host, number], timeout=PATIENT_SECONDS)
        say_done(host, number)
        slowest = max(slowest, time.monotonic() - began_at)
    say(client="the publisher of orders", acknowledged=number, slowest=round(slowest, 1))


def book(hub: MessageHub) -> None:
    """Read the retained topic by a durable name, and acknowledge each message."""
    booked = 0
    with hub.subscribe(ORDERS, durable="books", ack="manual", timeout=START_SECONDS) as subscription:
        say(ready=True)
        while not is_over(0):
            try:
                message = subscription.receive(0.2)
            except ReceiveTimeout:
                continue
            message.ack(timeout=PATIENT_SECONDS)
            say_done(*message.payload)
            booked += 1
        say(client="the reader of orders", booked=booked, lost=subscription.lost)


def spark(hub: MessageHub, *master: str) -> None:
    """Write a table from tasks on two hosts."""
    from pyspark.sql import SparkSession

    from messagehub import spark as hub_spark

    address = os.environ["SPARK_LOCAL_IP"]
    builder = SparkSession.builder.master(master[0]).appName("make demo-site")
    for name, value in {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # begin when both hosts are there
        "spark.locality.wait": "0",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    frame = session.range(0, FRAME_ROWS, 1, 8).selectExpr("id", "id * 0.5d as half")
    hub_spark.publish(frame, FRAME, progress=False, dir=str(hub.settings.dir), domain=hub.settings.domain)
    session.stop()
    say(client="the Spark job", wrote=FRAME_ROWS)


def fetch(hub: MessageHub) -> None:
    with hub.consumer(FRAME, timeout=30.0) as consumer:
        table = consumer.read(timeout=30.0)
    hosts = hub.tables(FRAME)[0].table.hosts
    rows = sorted(table["id"].to_pylist()) if table is not None else []
    say(client="the reader of the table", rows=len(rows), all_there=rows == list(range(FRAME_ROWS)), parts_on=hosts)


ROLES: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (measure, read, hear, write, hand_out, work, serve, ask, order, book, spark, fetch)
}

if __name__ == "__main__":
    with MessageHub(dir=sys.argv[2]) as connected:
        ROLES[sys.argv[1]](connected, *sys.argv[3:])
