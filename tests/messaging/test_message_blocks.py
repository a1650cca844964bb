"""Large Arrow payloads of topics travel as references to shared memory."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zmq

from messagehub import MessageHub
from messagehub.errors import DataLost, MessageTooLarge
from messagehub.payloads import blocks as message_blocks
from messagehub.protocol.topic_frames import ARROW_BATCH, HEAD, IN_BLOCK
from messagehub.shm import messages as message_files
from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.errors import DataBlockError
from messagehub.topics.messages import Message
from tests import preloaded
from tests.conftest import QUICK
from tests.integration.harness import ROOT, Peer, Served, clean_environment, eventually, hub_of, run_script

SECONDS = 30.0
READY = b"\0ready"  # of no topic


@pytest.fixture
def broker(served: Callable[..., Served]) -> Served:
    return served(**QUICK)


def large(rows: int = 1_000_000) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.arange(rows)), pa.array(np.ones(rows))], names=["a", "b"])


def blocks() -> list[Path]:
    return sorted(Path(message_files.messages_path(Directory(os.environ["MESSAGEHUB_DOMAIN"]))).glob("*"))


def mapped() -> str:
    return Path("/proc/self/maps").read_text()


@contextmanager
def frames_of(broker: Served) -> Iterator[tuple[Peer, Peer]]:
    """Plain sockets: one that sends any frame, and one that receives the frames of topic `frames`."""
    with Peer(broker.endpoint) as peer:
        ends = peer.ask({"type": "HELLO"})["endpoints"]
    with Peer(ends["topics_in"], zmq.PUSH) as sender, Peer(ends["topics_out"], zmq.SUB) as receiver:
        receiver.socket.subscribe(b"frames\0")
        receiver.socket.subscribe(READY)

        def is_subscribed() -> bool:
            sender.socket.send(READY)
            return bool(receiver.socket.poll(10))

        eventually(is_subscribed)
        yield sender, receiver


def next_frame(receiver: Peer) -> bytes:
    """The next frame of the topic."""
    frame = READY
    while frame == READY:
        assert receiver.socket.poll(SECONDS * 1000), "no message"
        frame = receiver.socket.recv()
    return frame


PUBLISHER = """
import sys, numpy as np, pyarrow as pa
from messagehub import MessageHub
with MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5) as hub:
    for n in range(3):
        batch = pa.RecordBatch.from_arrays([pa.array(np.full(1_000_000, n))], names=["a"])
        hub.publish("frames", batch, headers={"n": n})
"""


def test_batches_of_any_size_arrive_zero_copy_from_another_process(broker: Served) -> None:
    with hub_of(broker) as one, hub_of(broker) as two:
        subscriptions = [hub.subscribe("frames") for hub in (one, one, two)]
        run_script(PUBLISHER, broker.endpoint)
        for subscription in subscriptions:
            for n in range(3):
                message = subscription.receive(SECONDS)
                assert message.headers == {"n": n}
                # private: what is in shared memory counts as the message's size
                assert len(message._frame) < 1000, "only a reference went through the socket"
                assert message.size_bytes == 8_000_000
                batch = message.payload
                assert isinstance(batch, pa.RecordBatch)
                assert batch.column(0).to_numpy().min() == batch.column(0).to_numpy().max() == n
                address = batch.column(0).buffers()[1].address
                ranges = [line.split()[0].split("-") for line in mapped().splitlines() if "/messages/" in line]
                assert any(int(low, 16) <= address < int(high, 16) for low, high in ranges), "read where it lies"
        del message, batch


def test_tables_dictionaries_and_nested_columns_come_back_as_they_were(broker: Served) -> None:
    words = pa.array(["red", "green", None, "red"] * 100_000).dictionary_encode()
    nested = pa.array([{"x": [1, 2]}, None, {"x": []}, {"x": [3]}] * 100_000)
    table = pa.table({"words": words, "nested": nested})
    chunked = pa.concat_tables([table, table.slice(0, 7)])
    with hub_of(broker) as hub, hub.subscribe("tables") as subscription:
        for payload in (table, chunked, table.to_batches()[0]):
            hub.publish("tables", payload)
        received = [subscription.receive(SECONDS).payload for _ in range(3)]
    assert received[0].equals(table)
    assert received[1].equals(chunked)
    assert received[2].equals(table.to_batches()[0])


def test_small_batches_still_go_through_the_socket(broker: Served) -> None:
    with hub_of(broker) as hub, hub.subscribe("small") as subscription:
        hub.publish("small", large(1000))
        assert subscription.receive(SECONDS).payload == large(1000)
    assert blocks() == []


def test_what_was_received_stays_readable_when_its_block_is_gone(broker: Served) -> None:
    with hub_of(broker) as hub, hub.subscribe("frames") as subscription:
        hub.publish("frames", large())
        message = subscription.receive(SECONDS)
        batch = message.payload
        for path in blocks():
            path.unlink()
        assert batch.equals(large())
        assert message.payload.equals(large())
        hub.close()
        assert batch.equals(large())


def test_a_block_that_is_gone_before_its_message_comes_is_an_error_of_that_message_alone(broker: Served) -> None:
    with hub_of(broker) as hub, frames_of(broker) as (sender, receiver):
        hub.publish("frames", large())
        frame = next_frame(receiver)
        for path in blocks():
            path.unlink()
        with hub.subscribe("frames") as subscription:
            sender.socket.send(frame)
            lost = subscription.receive(SECONDS)
            hub.publish("frames", b"next")
            with pytest.raises(DataLost):
                _ = lost.payload
            assert lost.topic == "frames"
            assert subscription.receive(SECONDS).payload == b"next"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"name":"../../etc/passwd","host":"HOST","boot_id":"BOOT"}',
        b'{"name":"messagehub-0/x/messages/../../../etc/passwd","host":"HOST","boot_id":"BOOT"}',
        b'{"name":"messagehub-0/x/messages/0123456789abcdef-1.block","host":"HOST","boot_id":"BOOT"}',
        b'{"name":"messagehub-0/x/messages/0123456789abcdef-1.block","host":"elsewhere","boot_id":"BOOT"}',
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_with_the_reason(broker: Served, body: bytes) -> None:
    from messagehub.shm.identity import boot_id, host

    body = body.replace(b"HOST", host().encode()).replace(b"BOOT", boot_id().encode())
    with hub_of(broker) as hub, hub.subscribe("odd") as subscription, frames_of(broker) as (sender, _):
        sender.socket.send(b"odd\0" + HEAD.pack(b"12345678", 1, 0.0, 0, ARROW_BATCH | IN_BLOCK) + body)
        message = subscription.receive(SECONDS)
        with pytest.raises(DataLost) as refused:
            _ = message.payload
        if b"elsewhere" in body:
            assert "elsewhere" in refused.value.message


def test_a_damaged_block_is_an_error_of_its_message(broker: Served) -> None:
    with (
        hub_of(broker) as hub,
        frames_of(broker) as (sender, receiver),
        hub.subscribe("frames") as subscription,
    ):
        hub.publish("frames", large())
        subscription.receive(SECONDS)
        (path,) = blocks()
        path.unlink()
        path.write_bytes(b"x" * 100)
        sender.socket.send(next_frame(receiver))
        with pytest.raises(DataLost):
            _ = subscription.receive(SECONDS).payload


KILLED = """
import os, signal, sys, numpy as np, pyarrow as pa
from messagehub import MessageHub
hub = MessageHub(endpoint=sys.argv[1], hello_timeout_seconds=5)
batch = pa.RecordBatch.from_arrays([pa.array(np.arange(1_000_000))], names=["a"])
for n in range(5):
    hub.publish("frames", batch)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_blocks_of_a_dead_publisher_end_by_age_and_all_blocks_are_bounded(
    broker: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", KILLED, broker.endpoint]
    killed = preloaded.run(command, env=clean_environment(), cwd=ROOT, timeout=SECONDS)
    assert (killed.returncode, len(blocks())) == (-9, 5)
    directory = Directory(os.environ["MESSAGEHUB_DOMAIN"])
    assert message_files.sweep_messages(directory) == 0, "they are young"
    for path in blocks()[:3]:
        os.utime(path, (time.time() - 31, time.time() - 31))
    eventually(lambda: len(blocks()) == 2)  # the broker's cleaner comes every few seconds
    monkeypatch.setattr(message_files, "MOST_BYTES", 20_000_000)
    monkeypatch.setattr(message_blocks, "SWEEP_SECONDS", 0.0)
    with hub_of(broker) as hub:
        for _ in range(4):
            hub.publish("frames", large(500_000))
        assert sum(path.stat().st_size for path in blocks()) <= 21_000_000
        assert message_files.sweep_messages(directory, now=time.time() + 31) == len(blocks()) + 2


def test_a_full_shared_memory_is_a_clear_error(broker: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_of(broker) as hub, hub.subscribe("frames") as subscription:
        directory = Path(message_files.make_messages_directory(directory_of(hub.settings)))
        hub.publish("frames", b"first")
        directory.rmdir()
        directory.touch()
        with pytest.raises(DataBlockError):
            hub.publish("frames", large())
        hub.publish("frames", b"after")
        assert [subscription.receive(SECONDS).payload for _ in range(2)] == [b"first", b"after"]
        assert subscription.lost == 0, "what was not sent took no number"
        directory.unlink()


def test_a_retained_topic_takes_what_fits_and_says_so_otherwise(broker: Served) -> None:
    with hub_of(broker) as hub:
        topic = hub.topic("kept", keep=10)
        middle = large(40_000)
        assert topic.publish(middle) == 1
        with pytest.raises(MessageTooLarge):
            topic.publish(large())
        with topic.subscribe(since=0) as subscription:
            assert subscription.receive(SECONDS).payload == middle
    assert blocks() == []


def test_in_process_delivery_needs_no_broker(tmp_path: Path) -> None:
    with MessageHub(dir=tmp_path) as hub, hub.subscribe("frames", local=True) as subscription:
        hub.publish("frames", large(), local=True)
        message = subscription.receive(SECONDS)
        assert isinstance(message, Message)
        assert message.payload.equals(large())
