"""The clients of a storm over a site: `python -m tests.site.storm.roles ROLE DIR HISTORY_FILE HOST[,HOST…]`.

Each is a process on a host, with the hub of that host. It works until it is killed, notes what it asked, when, and what
it was told, and ends with 1 when something happens that a storm does not explain.
"""

import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from messagehub import MessageHub
from messagehub.errors import BrokerRequired, ChannelNotFound, HubError, ProducerAlreadyRegistered, ReceiveTimeout
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.errors import BlockOnOtherHost, NameTaken, RingFull
from messagehub.shm.rings.read_results import Gap
from tests.faults.chaos.history import Writer

SHARED = "storm.shared"
NOTE_SECONDS = 0.2
WRITE_PAUSE_SECONDS = 0.05
ITEM_PAUSE_SECONDS = 0.01
ITEM_BYTES = 2000
RING_CAPACITY = 2000


def subject_of(host: str) -> str:
    return f"storm.{host}"


def ring_of(host: str) -> str:
    return f"ring.{host}"


def topic_of(host: str) -> str:
    return f"news.{host}"


class Client:
    def __init__(self, directory: str, history: Writer, hosts: list[str]) -> None:
        self.host, self.hosts = socket.gethostname(), hosts
        self.hub = MessageHub(dir=directory)
        self.history = history
        self._noted_at: dict[str, float] = {}

    def note(self, what: str, **details: Any) -> None:
        self.history.note(what, host=self.host, **details)

    def now_and_then(self, what: str, key: str, **details: Any) -> None:
        if time.monotonic() - self._noted_at.get(what + key, 0.0) > NOTE_SECONDS:
            self._noted_at[what + key] = time.monotonic()
            self.note(what, **details)

    # -- the registry --------------------------------------------------------------------------------------

    def write(self) -> None:
        """Register schemas and channels, and read subjects of all hosts in between."""
        for number in range(1, sys.maxsize):
            title = f"{self.host}-{os.getpid()}-{number}"
            subject = SHARED if number % 3 == 0 else subject_of(self.host)
            schema = {"type": "object", "title": title}
            self.note("asks", title=title)
            made = self._asked("register", lambda: self.hub.register_schema(subject, schema), title=title)  # noqa: B023
            if made is not None:
                self.note("schema", subject=subject, version=made.version, id=made.schema_id, title=title)
            if number % 2 == 0:
                name = f"declared.{title}"
                if self._asked("declare", lambda: self.hub.create_channel(name), title=title) is not None:  # noqa: B023
                    self.note("channel", channel=name)
            for read in (subject_of(random.choice(self.hosts)), subject):
                self._read(read)
            time.sleep(WRITE_PAUSE_SECONDS)

    def _read(self, subject: str) -> None:
        found = self._asked("read", lambda: self.hub.schema(subject), subject=subject)
        if found is not None:
            schema = found.schema
            self.note("read", subject=subject, version=schema.version, id=schema.schema_id)

    def _asked(self, what: str, call: Callable[[], Any], **details: Any) -> Any:
        """Return the answer; None, and a line with the reason, for a refusal that may be tried again."""
        began_at = time.time()
        try:
            answer = call()
        except HubError as error:
            if error.code == "SCHEMA_NOT_FOUND" and what == "read":
                self.note("absent", **details)
                return None
            if not (error.retryable or isinstance(error, BrokerRequired)):
                raise
            self.note("refused", asked=what, began_at=began_at, code=error.code, why=error.message, **details)
            return None
        self.note("answered", asked=what, began_at=began_at)
        return answer

    def watch(self) -> None:
        """Write down every event of channels and schemas."""

        def take(payload: bytes | None) -> None:
            if payload is None:
                self.note("again")  # some may be missing
                return
            event = msgspec.json.decode(payload)
            if event["type"] != "BEACON":
                self.note("event", revision=event["revision"], type=event["type"], crc=zlib.crc32(payload))

        ends = [self.hub.tap(prefix, take) for prefix in (b"channel/", b"schema/")]
        while ends:
            time.sleep(1.0)

    # -- data ----------------------------------------------------------------------------------------------

    def produce(self) -> None:
        while True:
            try:
                producer = self.hub.producer(
                    ring_of(self.host), capacity=RING_CAPACITY, page_size=4096, checksum="verify", when_full="block"
                )
                break
            except (ProducerAlreadyRegistered, NameTaken):  # nobody has seen yet that the one before is dead
                time.sleep(0.05)
        number = 0
        while True:
            number += 1
            try:
                producer.write(payload(self.host, number), timeout=1.0)
            except RingFull:
                self.now_and_then("full", "", number=number)
                number -= 1  # its readers are paused or dead
                continue
            self.now_and_then("wrote", "", number=number)
            time.sleep(ITEM_PAUSE_SECONDS)

    def consume(self) -> None:
        """Read the rings of all hosts, the own one included."""
        in_threads([lambda host=host: self._consume(host) for host in self.hosts])

    def _consume(self, host: str) -> None:
        while True:
            try:
                consumer = self.hub.consumer(ring_of(host), start="oldest", on_lag="gap")
                break
            except (HubError, BlockOnOtherHost) as error:
                if not explains(error):
                    raise
                self.note("unreachable", of=host, why=str(error))
                time.sleep(0.1)
        last: dict[int, int] = {}
        missing = 0
        while True:
            try:
                value = consumer.read(timeout=1.0)
            except (HubError, BlockOnOtherHost) as error:
                if not explains(error):
                    raise
                self.note("unreachable", of=host, why=str(error))
                time.sleep(0.1)
                continue
            if value is None:
                continue
            if isinstance(value, Gap):
                self.note("gap", of=host, first=value.first, last=value.last)
                continue
            writer, pid, number = checked(value)
            before = last.get(pid)
            if writer != host or (before is not None and number <= before):
                self.note("wrong", of=host, pid=pid, writer=writer, number=number, before=before)
            lost = number - before - 1 if before is not None else 0
            last[pid], missing = number, missing + lost
            details = {"of": host, "writer_pid": pid, "number": number, "missing": missing, "counted": consumer.missed}
            if lost:
                self.note("got", **details)
            else:
                self.now_and_then("got", host, **details)

    # -- topics --------------------------------------------------------------------------------------------

    def talk(self) -> None:
        in_threads([self._publish, *(lambda host=host: self._hear(host) for host in self.hosts)])

    def _publish(self) -> None:
        number = 1
        while True:
            try:
                self.hub.publish(topic_of(self.host), payload(self.host, number))
            except HubError as error:
                if not explains(error):
                    raise
                time.sleep(0.05)
                continue
            self.now_and_then("published", "", number=number)
            number += 1
            time.sleep(ITEM_PAUSE_SECONDS)

    def _hear(self, host: str) -> None:
        while True:
            try:
                subscription = self.hub.subscribe(topic_of(host), buffer=1000)
                break
            except HubError as error:
                if not explains(error):
                    raise
                time.sleep(0.05)
        last: dict[int, int] = {}
        missing = 0
        while True:
            try:
                value = subscription.receive(timeout=1.0).payload
            except ReceiveTimeout:
                continue
            _, pid, number = checked(value)
            before = last.get(pid)
            if before is not None and number <= before:
                self.note("wrong", of=host, pid=pid, writer=host, number=number, before=before)
            lost = number - before - 1 if before is not None else 0
            last[pid], missing = number, missing + lost
            details = {
                "of": host,
                "writer_pid": pid,
                "number": number,
                "missing": missing,
                "counted": subscription.lost,
            }
            if lost:
                self.note("heard", **details)
            else:
                self.now_and_then("heard", host, **details)

    # -- after the storm -----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Write down all that the own hub has of what the others registered, and end."""
        for subject in (SHARED, *map(subject_of, self.hosts)):
            for each in self.hub.schema_versions(subject, timeout=30.0):
                found = self.hub.schema(subject, version=each.version, timeout=30.0).schema
                title = msgspec.json.decode(found.schema)["title"]
                self.note("kept_schema", subject=subject, version=found.version, id=found.schema_id, title=title)
        for channel in self.hub.channels("declared.", timeout=30.0):
            self.note("kept_channel", channel=channel.channel)
        self.note("collected")
        self.hub.close()

    def clean(self) -> None:
        """Remove what dead producers have left, as a hub does after a while, and end."""
        clean(directory_of(self.hub.settings), now=time.time(), linger_seconds=0.0)
        self.hub.close()


def explains(error: Exception) -> bool:
    """Return whether a storm explains an error, and the same may be tried again."""
    if isinstance(error, (BlockOnOtherHost, BrokerRequired, ChannelNotFound)):
        return True
    return isinstance(error, HubError) and error.retryable


def payload(host: str, number: int) -> bytes:
    body = b"%s:%d:%d:" % (host.encode(), os.getpid(), number) + random.randbytes(random.randrange(ITEM_BYTES))
    return zlib.crc32(body).to_bytes(4, "little") + body


def checked(value: memoryview | bytes) -> tuple[str, int, int]:
    """Return who wrote an item, and its number; fail if a byte of it is wrong."""
    data = bytes(value)
    assert zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4], "a wrong byte"
    host, pid, number, _ = data[4:].split(b":", 3)
    return host.decode(), int(pid), int(number)


def in_threads(jobs: list[Callable[[], None]]) -> None:
    """Run all of them until one fails, which ends the process."""

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException:  # noqa: BLE001  a thread that fails ends the process
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ROLES = ("write", "watch", "produce", "consume", "talk")


def main() -> None:
    role, directory, history, hosts = sys.argv[1:]
    client = Client(directory, Writer(Path(history), role), hosts.split(","))
    faulthandler.register(signal.SIGUSR1)  # what it does when it should have moved
    client.note("started")
    getattr(client, role)()


if __name__ == "__main__":
    main()
