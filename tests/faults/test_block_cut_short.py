"""A block that is cut short while it is mapped: whoever touches what is gone ends, and nobody else.

Nothing can prevent it. A file of tmpfs cannot be sealed against shrinking (only a memfd can, which has no name to be
found by), and Python has no way back from SIGBUS.
"""

import faulthandler
import fcntl
import os
import signal
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.shm.errors import TruncatedBlock
from tests.conftest import QUICK
from tests.integration.harness import PATIENCE_SECONDS, Peer, Served
from tests.shm.children import fork, wait

pytestmark = pytest.mark.usefixtures("no_leaks")
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
ITEM = b"x" * 3000


class Child:
    """A process that does one thing, and then another when it is told to."""

    def __init__(self, work: Callable[[Connection], object]) -> None:
        self.link, theirs = Pipe()
        self.pid = fork(lambda: (faulthandler.disable(), work(theirs)))  # its end is what is looked for
        theirs.close()

    def says(self) -> object:
        assert self.link.poll(PATIENCE_SECONDS), "it says nothing"
        return self.link.recv()

    def ends_with(self) -> int:
        self.link.close()
        return wait(self.pid, PATIENCE_SECONDS)


def test_a_block_cannot_be_sealed_against_it() -> None:
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        with pytest.raises(PermissionError):
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    finally:
        os.close(fd)


def test_only_who_touches_what_was_cut_ends_and_everybody_else_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "hub"

    def produce(channel: str) -> Callable[[Connection], object]:
        def work(link: Connection) -> None:
            with MessageHub(dir=directory) as hub, hub.producer(channel, capacity=16) as producer:
                for _ in range(10):
                    producer.write(ITEM)
                link.send(producer.shm_name)
                while link.recv() == "more":
                    link.send(producer.write(ITEM))

        return work

    def read(channel: str) -> Callable[[Connection], object]:
        def work(link: Connection) -> None:
            with MessageHub(dir=directory) as hub, hub.consumer(channel, start="oldest") as consumer:
                assert bytes(consumer.read(PATIENCE_SECONDS)) == ITEM
                link.send("reads")
                while link.recv() == "more":
                    link.send(bytes(consumer.read(PATIENCE_SECONDS)) == ITEM)

        return work

    with Served(directory, **QUICK) as server, Peer(server.endpoint) as peer:
        writer, other_writer = Child(produce("cut")), Child(produce("whole"))
        block = Path(f"/dev/shm{writer.says()}")
        other_writer.says()
        victim, other = Child(read("cut")), Child(read("whole"))
        assert (victim.says(), other.says()) == ("reads", "reads")

        assert "/dev/shm/" not in Path(f"/proc/{server.pid}/maps").read_text()  # the broker maps none of them
        os.truncate(block, 4096)
        victim.link.send("more")
        assert victim.ends_with() == -signal.SIGBUS

        other.link.send("more")
        assert other.says() is True
        assert peer.ask({"type": "PING"})["type"] == "PONG"
        with MessageHub(dir=directory) as hub, pytest.raises(TruncatedBlock):
            hub.consumer("cut", start="oldest").read(PATIENCE_SECONDS)

        writer.link.send("more")
        assert writer.ends_with() == -signal.SIGBUS
        with MessageHub(dir=directory) as hub, hub.producer("cut", capacity=16) as successor:
            assert successor.write(ITEM) == 1

        for child in (other, other_writer):
            child.link.send("end")
            assert child.ends_with() == 0
        assert peer.ask({"type": "PING"})["type"] == "PONG"
