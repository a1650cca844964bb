"""Round trips and streams through the peers of the rings, and the process on their other side.

Each is the plainest use of its library. `python -m benchmarks.shared_memory KIND PLACE` is the other side: it says
`ready` on stdout and lives until its stdin closes.
"""

import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from benchmarks import hub_rows
from benchmarks.harness import CannotMeasure, PeerMissing
from benchmarks.placement import on_the_other_side
from benchmarks.processes import spawn

START_SECONDS = 60.0
PAYLOAD_BYTES = 1024


@contextmanager
def partner(kind: str, place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "benchmarks.shared_memory", kind, str(place)]
    process = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if said(process, START_SECONDS) != "ready":
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


def said(process: "subprocess.Popen[bytes]", seconds: float) -> str:
    """The next line of a partner."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        raise CannotMeasure("a partner says nothing")
    return process.stdout.readline().decode().strip()


def need(package: str, distribution: str) -> None:
    if find_spec(package) is None:
        raise PeerMissing(f"not installed: {distribution}")


# -- one round trip, as the measuring side makes it --------------------------------------------------------


@contextmanager
def fifo_trip(place: Path) -> Iterator[Callable[[], None]]:
    """The bare mechanism: one byte through a FIFO wakes the other side, which wakes this one."""
    for name in ("there", "back"):
        with suppress(FileExistsError):
            os.mkfifo(place / name)
    there, back = os.open(place / "there", os.O_RDWR), os.open(place / "back", os.O_RDWR)
    poll = select.poll()
    poll.register(back, select.POLLIN)

    def trip() -> None:
        os.write(there, b"!")
        poll.poll(10_000)
        os.read(back, 1)

    try:
        with partner("fifo", place):
            yield trip
    finally:
        os.close(there)
        os.close(back)


@contextmanager
def zmq_trip(place: Path) -> Iterator[Callable[[], None]]:
    import zmq

    payload = bytes(PAYLOAD_BYTES)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.bind(f"ipc://{place}/pair")
    socket.rcvtimeo = 10_000

    def trip() -> None:
        socket.send(payload)
        socket.recv()

    try:
        with partner("zmq", place):
            yield trip
    finally:
        socket.close(0)
        context.term()


@contextmanager
def queue_trip(_place: Path) -> Iterator[Callable[[], None]]:
    import multiprocessing

    spawned = multiprocessing.get_context("spawn")
    there, back = spawned.Queue(), spawned.Queue()
    process = spawned.Process(target=_echo_queue, args=(there, back), daemon=True)
    with on_the_other_side():
        process.start()
    payload = bytes(PAYLOAD_BYTES)

    def trip() -> None:
        there.put(payload)
        back.get(timeout=60.0)

    try:
        trip()
        yield trip
    finally:
        there.put(None)
        process.join(10.0)


@contextmanager
def iceoryx_trip(place: Path) -> Iterator[Callable[[], None]]:
    need("iceoryx2", "iceoryx2 (pip install iceoryx2)")
    import ctypes

    import iceoryx2 as iox2  # type: ignore[import-untyped]

    with partner("iceoryx2", place):
        node = _iceoryx_node(iox2)
        ports = _iceoryx_ports(iox2, ctypes, node, place.name, send="there", receive="back")
        yield lambda: _iceoryx_exchange(iox2, *ports)


@contextmanager
def zenoh_trip(place: Path) -> Iterator[Callable[[], None]]:
    need("zenoh", "eclipse-zenoh (pip install eclipse-zenoh)")
    import zenoh

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


# -- a stream of items, none of them lost: µs an item from the first to the last one read ------------------


@contextmanager
def iceoryx_stream(place: Path) -> Iterator[Callable[[float], float]]:
    """The publisher waits for room; nothing is copied, for the memory that it lends is sent as it is."""
    need("iceoryx2", "iceoryx2 (pip install iceoryx2)")
    import iceoryx2 as iox2

    node = _iceoryx_node(iox2)
    data, event = _iceoryx_stream(iox2, node, place.name)
    waiting = iox2.BackpressureStrategy.RetryUntilDelivered
    publisher = data.publisher_builder().initial_max_slice_len(PAYLOAD_BYTES).backpressure_strategy(waiting).create()
    notifier = event.notifier_builder().create()

    def send(size: int) -> None:
        publisher.loan_slice_uninit(size).assume_init().send()
        notifier.notify()

    with partner("iceoryx2-count", place) as process:
        yield _streaming(lambda: send(PAYLOAD_BYTES), lambda: send(1), process)


@contextmanager
def zenoh_stream(place: Path) -> Iterator[Callable[[float], float]]:
    need("zenoh", "eclipse-zenoh (pip install eclipse-zenoh)")
    import zenoh

    payload = bytes(PAYLOAD_BYTES)
    with zenoh.open(zenoh.Config()) as session:
        publisher = session.declare_publisher(
            f"{place.name}/stream",
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
        )
        with partner("zenoh-count", place) as process:
            deadline = perf_counter() + START_SECONDS
            while not publisher.matching_status.matching:
                if perf_counter() > deadline:
                    raise CannotMeasure("zenoh's subscriber was not found")
                sleep(0.01)
            yield _streaming(lambda: publisher.put(payload), lambda: publisher.put(b"\0"), process)


def _streaming(
    send: Callable[[], None], send_last: Callable[[], None], process: "subprocess.Popen[bytes]"
) -> Callable[[float], float]:
    """As `hub_rows.stream` measures: the partner says after the last item, of one byte, how many came."""

    def measure(seconds: float) -> float:
        sent, began = 1, perf_counter()
        while perf_counter() < began + seconds:
            for _ in range(hub_rows.BURST):
                send()
            sent += hub_rows.BURST
        send_last()
        if int(said(process, START_SECONDS)) != sent:
            raise CannotMeasure("items were lost")
        return (perf_counter() - began) / sent * 1e6

    return measure


# -- the partner's side ------------------------------------------------------------------------------------


def _echo_queue(there: object, back: object) -> None:
    while (payload := there.get()) is not None:  # type: ignore[attr-defined]
        back.put(payload)  # type: ignore[attr-defined]


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

    node = _iceoryx_node(iox2)
    publisher, notifier, subscriber, listener = _iceoryx_ports(
        iox2, ctypes, node, place.name, send="back", receive="there"
    )
    _say_ready()
    while True:
        listener.timed_wait(iox2.Duration.from_secs(1))
        while subscriber.receive() is not None:
            publisher.loan_slice_uninit(PAYLOAD_BYTES).assume_init().send()
            notifier.notify()


def _iceoryx_count(place: Path) -> None:
    import iceoryx2 as iox2

    node = _iceoryx_node(iox2)
    data, event = _iceoryx_stream(iox2, node, place.name)
    subscriber, listener = data.subscriber_builder().create(), event.listener_builder().create()
    _say_ready()
    count = 0
    while True:
        listener.timed_wait(iox2.Duration.from_secs(1))
        while (sample := subscriber.receive()) is not None:
            count += 1
            if sample.payload().number_of_elements == 1:
                _say(str(count))
                count = 0


def _iceoryx_node(iox2: Any) -> Any:
    iox2.set_log_level(iox2.LogLevel.Error)  # it says at each start that there is no configuration file
    return iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)


def _iceoryx_stream(iox2: Any, node: Any, name: str) -> tuple[Any, Any]:
    import ctypes

    service = iox2.ServiceName.new(f"{name}/stream")
    data = node.service_builder(service).publish_subscribe(iox2.Slice[ctypes.c_uint8])
    data = data.enable_safe_overflow(False).subscriber_max_buffer_size(hub_rows.BURST).open_or_create()
    return data, node.service_builder(service).event().open_or_create()


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


def _zenoh_count(place: Path) -> None:
    import zenoh

    count = 0

    def note(sample: Any) -> None:
        nonlocal count
        count += 1
        if len(sample.payload) == 1:
            _say(str(count))
            count = 0

    with zenoh.open(zenoh.Config()) as session:
        session.declare_subscriber(f"{place.name}/stream", note)
        _say_ready()
        threading.Event().wait()


def _say_ready() -> None:
    _say("ready")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


_PARTNERS: dict[str, Callable[[Path], None]] = {
    **hub_rows.PARTNERS,
    "fifo": _fifo,
    "zmq": _zmq,
    "iceoryx2": _iceoryx,
    "iceoryx2-count": _iceoryx_count,
    "zenoh": _zenoh,
    "zenoh-count": _zenoh_count,
}


def main() -> None:
    logging.getLogger("messagehub").setLevel(logging.ERROR)
    hub_rows.end_with_stdin()
    _PARTNERS[sys.argv[1]](Path(sys.argv[2]))


if __name__ == "__main__":
    main()
