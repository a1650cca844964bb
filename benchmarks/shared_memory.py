"""The other side of the shared-memory rows: `python -m benchmarks.shared_memory KIND PLACE` echoes or swallows.

Each kind is the plainest use of its library. A partner says `ready` on stdout and lives until its stdin closes.
"""

import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import CannotMeasure, PeerMissing
from benchmarks.processes import ROOT

START_SECONDS = 60.0
PAYLOAD_BYTES = 1024


@contextmanager
def partner(kind: str, place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.shared_memory", kind, str(place)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not select.select([process.stdout], [], [], START_SECONDS)[0] or process.stdout.readline() != b"ready\n":
            raise CannotMeasure(f"the {kind} partner did not start")
        yield process
    finally:
        process.stdin.close()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def need(package: str, distribution: str) -> None:
    if find_spec(package) is None:
        raise PeerMissing(f"not installed: {distribution}")


def hub_in(place: Path) -> "object":
    from messagehub import MessageHub

    return MessageHub(dir=place, domain=place.name)


# -- one round trip, as the measuring side makes it --------------------------------------------------------


@contextmanager
def ring_trip(place: Path) -> Iterator[Callable[[], None]]:
    hub = hub_in(place)
    producer = hub.producer("there", capacity=8)  # type: ignore[attr-defined]
    payload = bytes(PAYLOAD_BYTES)
    with partner("ring", place), hub.consumer("back") as consumer:  # type: ignore[attr-defined]
        if consumer.read(timeout=0.0) is not None or consumer.source is None:
            raise CannotMeasure("the partner's ring was not found")

        def trip() -> None:
            producer.write(payload)
            if consumer.read(timeout=10.0) is None:
                raise CannotMeasure("no echo")

        yield trip
    hub.close()  # type: ignore[attr-defined]


@contextmanager
def fifo_trip(place: Path) -> Iterator[Callable[[], None]]:
    """The bare mechanism: one byte through a FIFO wakes the other side, which wakes this one."""
    for name in ("there", "back"):
        with suppress(FileExistsError):
            os.mkfifo(place / name)
    there, back = os.open(place / "there", os.O_RDWR), os.open(place / "back", os.O_RDWR)
    poll = select.poll()
    poll.register(back, select.POLLIN)
    with partner("fifo", place):

        def trip() -> None:
            os.write(there, b"!")
            poll.poll(10_000)
            os.read(back, 1)

        yield trip
    os.close(there)
    os.close(back)


@contextmanager
def zmq_trip(place: Path) -> Iterator[Callable[[], None]]:
    import zmq

    payload = bytes(PAYLOAD_BYTES)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.bind(f"ipc://{place}/pair")
    with partner("zmq", place):

        def trip() -> None:
            socket.send(payload)
            socket.recv()

        yield trip
    socket.close(0)
    context.term()


@contextmanager
def queue_trip(_place: Path) -> Iterator[Callable[[], None]]:
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    there, back = spawn.Queue(), spawn.Queue()
    process = spawn.Process(target=_echo_queue, args=(there, back), daemon=True)
    process.start()
    payload = bytes(PAYLOAD_BYTES)

    def trip() -> None:
        there.put(payload)
        back.get(timeout=60.0)

    trip()
    yield trip
    there.put(None)
    process.join(10.0)


@contextmanager
def iceoryx_trip(place: Path) -> Iterator[Callable[[], None]]:
    need("iceoryx2", "iceoryx2 (pip install iceoryx2)")
    import ctypes

    import iceoryx2 as iox2  # type: ignore[import-not-found]

    with partner("iceoryx2", place):
        node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
        ports = _iceoryx_ports(iox2, ctypes, node, place.name, send="there", receive="back")
        yield lambda: _iceoryx_exchange(iox2, *ports)


@contextmanager
def zenoh_trip(place: Path) -> Iterator[Callable[[], None]]:
    need("zenoh", "eclipse-zenoh (pip install eclipse-zenoh)")
    import zenoh  # type: ignore[import-not-found]

    heard = threading.Event()
    with zenoh.open(zenoh.Config()) as session:
        subscriber = session.declare_subscriber(f"{place.name}/back", lambda _: heard.set())
        publisher = session.declare_publisher(f"{place.name}/there")
        payload = bytes(PAYLOAD_BYTES)
        with partner("zenoh", place):

            def trip() -> None:
                heard.clear()
                publisher.put(payload)
                if not heard.wait(10.0):
                    raise CannotMeasure("no echo")

            yield trip
        subscriber.undeclare()


# -- the partner's side ------------------------------------------------------------------------------------


def _echo_queue(there: object, back: object) -> None:
    while (payload := there.get()) is not None:  # type: ignore[attr-defined]
        back.put(payload)  # type: ignore[attr-defined]


def _ring(place: Path) -> None:
    hub = hub_in(place)
    with hub.producer("back", capacity=8) as producer, hub.consumer("there") as consumer:  # type: ignore[attr-defined]
        _say_ready()
        while True:
            producer.write(consumer.read())


def _swallow(place: Path) -> None:
    hub = hub_in(place)
    with hub.consumer("stream") as consumer:  # type: ignore[attr-defined]
        consumer.read(timeout=0.0)
        _say_ready()
        while True:
            consumer.read()


def _keep(place: Path) -> None:
    hub = hub_in(place)
    kept: deque[object] = deque(maxlen=1000)
    with hub.consumer("stream") as consumer:  # type: ignore[attr-defined]
        consumer.read(timeout=0.0)
        _say_ready()
        while True:
            kept.append(consumer.read())


def _fifo(place: Path) -> None:
    there, back = os.open(place / "there", os.O_RDWR), os.open(place / "back", os.O_RDWR)
    poll = select.poll()
    poll.register(there, select.POLLIN)
    _say_ready()
    while True:
        poll.poll()
        os.read(there, 1)
        os.write(back, b"!")


def _zmq(place: Path) -> None:
    import zmq

    socket = zmq.Context().socket(zmq.PAIR)
    socket.connect(f"ipc://{place}/pair")
    _say_ready()
    while True:
        socket.send(socket.recv())


def _iceoryx(place: Path) -> None:
    import ctypes

    import iceoryx2 as iox2

    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    publisher, notifier, subscriber, listener = _iceoryx_ports(
        iox2, ctypes, node, place.name, send="back", receive="there"
    )
    _say_ready()
    while True:
        listener.timed_wait(iox2.Duration.from_secs(1))
        while subscriber.receive() is not None:
            publisher.loan_slice_uninit(PAYLOAD_BYTES).assume_init().send()
            notifier.notify()


def _iceoryx_ports(iox2: object, ctypes: object, node: object, name: str, *, send: str, receive: str) -> tuple:  # type: ignore[type-arg]
    def service(topic: str) -> tuple:  # type: ignore[type-arg]
        builder = node.service_builder(iox2.ServiceName.new(f"{name}/{topic}"))  # type: ignore[attr-defined]
        data = builder.publish_subscribe(iox2.Slice[ctypes.c_uint8]).open_or_create()  # type: ignore[attr-defined]
        event = node.service_builder(iox2.ServiceName.new(f"{name}/{topic}")).event().open_or_create()  # type: ignore[attr-defined]
        return data, event

    out, out_event = service(send)
    back, back_event = service(receive)
    return (
        out.publisher_builder().initial_max_slice_len(PAYLOAD_BYTES).create(),
        out_event.notifier_builder().create(),
        back.subscriber_builder().create(),
        back_event.listener_builder().create(),
    )


def _iceoryx_exchange(iox2: object, publisher: object, notifier: object, subscriber: object, listener: object) -> None:
    publisher.loan_slice_uninit(PAYLOAD_BYTES).assume_init().send()  # type: ignore[attr-defined]
    notifier.notify()  # type: ignore[attr-defined]
    while subscriber.receive() is None:  # type: ignore[attr-defined]
        listener.timed_wait(iox2.Duration.from_secs(10))  # type: ignore[attr-defined]


def _zenoh(place: Path) -> None:
    import zenoh

    with zenoh.open(zenoh.Config()) as session:
        publisher = session.declare_publisher(f"{place.name}/back")
        session.declare_subscriber(f"{place.name}/there", lambda sample: publisher.put(sample.payload.to_bytes()))
        _say_ready()
        threading.Event().wait()


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


_PARTNERS: dict[str, Callable[[Path], None]] = {
    "ring": _ring,
    "swallow": _swallow,
    "keep": _keep,
    "fifo": _fifo,
    "zmq": _zmq,
    "iceoryx2": _iceoryx,
    "zenoh": _zenoh,
}


def main() -> None:
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
    _PARTNERS[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
