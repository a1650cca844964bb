"""One thread at a time uses a socket: a caller that finds it idle, or another thread that asks for it."""

import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from messagehub.runtime import handover_lock
from messagehub.runtime.handover_lock import HandoverLock
from tests.integration.harness import eventually

LONG = 30.0
NUMBER = 4


class Numbers:
    """A client whose server sends every number back. Whoever holds the lock receives for all."""

    def __init__(self) -> None:
        self.lock = HandoverLock()
        self.client, self.server = socket.socketpair()
        self.client.setblocking(False)
        self.pending: dict[int, threading.Event] = {}
        self.late: list[int] = []
        self.receivers: set[str] = set()
        self.orders: deque[Callable[[], None]] = deque()
        self._poll = select.poll()
        self._poll.register(self.client, select.POLLIN)
        self._poll.register(self.lock.open(), select.POLLIN)

    def answer(self, count: int = 1) -> None:
        for _ in range(count):
            self.server.sendall(self.server.recv(NUMBER, socket.MSG_WAITALL))

    def step(self, deadline: float) -> None:
        while self.orders:
            self.orders.popleft()()
        ready = self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
        if any(fd == self.client.fileno() for fd, _ in ready):
            self.receivers.add(threading.current_thread().name)
            received = self.client.recv(100 * NUMBER)
            for at in range(0, len(received), NUMBER):
                number = int.from_bytes(received[at : at + NUMBER], "little")
                replied = self.pending.pop(number, None)
                if replied is None:
                    self.late.append(number)
                else:
                    replied.set()

    def ask(self, number: int, deadline: float) -> bool:
        """Send and receive; False when the lock was handed over, or at the deadline. The lock is held."""
        self.pending[number] = replied = threading.Event()
        self.client.sendall(number.to_bytes(NUMBER, "little"))
        return self.lock.drive(replied.is_set, self.step, deadline)

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.lock.close()


@pytest.fixture
def numbers() -> Iterator[Numbers]:
    made = Numbers()
    yield made
    made.close()


@pytest.fixture
def started() -> Iterator[Callable[[Callable[[], object], str], threading.Thread]]:
    threads: list[threading.Thread] = []

    def start(run: Callable[[], object], name: str) -> threading.Thread:
        threads.append(threading.Thread(target=run, name=name))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


Started = Callable[[Callable[[], object], str], threading.Thread]


def holding(numbers: Numbers, started: Started, seconds: float = 10 * LONG) -> list[bool]:
    """Have a caller wait for a reply that does not come; return where it says how that ended."""
    ends: list[bool] = []

    def call() -> None:
        assert numbers.lock.acquire_if_free()
        try:
            ends.append(numbers.ask(1, time.monotonic() + seconds))
        finally:
            numbers.lock.release()

    started(call, "caller")
    eventually(lambda: 1 in numbers.pending)
    return ends


def test_a_caller_that_finds_the_socket_idle_receives_its_reply_itself(numbers: Numbers) -> None:
    assert numbers.lock.acquire_if_free()
    assert not numbers.lock.acquire_if_free()
    numbers.pending[7] = replied = threading.Event()
    numbers.client.sendall((7).to_bytes(NUMBER, "little"))
    numbers.answer()
    assert numbers.lock.drive(replied.is_set, numbers.step, time.monotonic() + LONG)
    numbers.lock.release()
    assert numbers.receivers == {threading.current_thread().name}
    assert not numbers.lock.is_held


def test_what_is_done_already_is_not_waited_for(numbers: Numbers) -> None:
    def step(_: float) -> None:
        raise AssertionError("nothing is to be waited for")

    numbers.lock.acquire()
    assert numbers.lock.drive(lambda: True, step, time.monotonic() + LONG)
    numbers.lock.release()


def test_a_holder_stops_within_one_poll_when_another_thread_asks(numbers: Numbers, started: Started) -> None:
    ends = holding(numbers, started)
    assert numbers.lock.take_over(LONG)  # long before the holder's deadline
    eventually(lambda: ends == [False])
    numbers.answer()  # to the request that was handed over
    assert numbers.lock.drive(lambda: not numbers.pending, numbers.step, time.monotonic() + LONG)
    numbers.lock.release()
    assert numbers.late == []


def test_a_socket_that_is_idle_is_taken_over_at_once(numbers: Numbers) -> None:
    assert numbers.lock.take_over(0.0)
    assert not numbers.lock.is_wanted
    numbers.lock.release()


def test_no_reply_is_lost_while_the_socket_is_handed_over_again_and_again(numbers: Numbers, started: Started) -> None:
    """Replies arrive at any moment of a hand-over: each is received once, by whoever holds the lock then."""
    count = 2_000
    is_over = threading.Event()
    handed_over = 0

    def take_over_and_receive() -> None:
        while not is_over.is_set():
            assert numbers.lock.take_over(LONG)
            numbers.step(time.monotonic() + 0.001)
            numbers.lock.release()

    started(lambda: numbers.answer(count), "server")
    started(take_over_and_receive, "thread")
    try:
        for number in range(count):
            assert numbers.lock.take_over(LONG)
            numbers.pending[number] = replied = threading.Event()
            numbers.client.sendall(number.to_bytes(NUMBER, "little"))
            is_ours = numbers.lock.drive(replied.is_set, numbers.step, time.monotonic() + LONG)
            numbers.lock.release()
            assert is_ours or replied.wait(LONG)
            handed_over += not is_ours
    finally:
        is_over.set()
    assert (numbers.pending, numbers.late) == ({}, [])
    assert handed_over > 0


def test_a_caller_that_times_out_while_it_receives_leaves_the_late_reply_to_the_next(numbers: Numbers) -> None:
    numbers.lock.acquire()
    assert not numbers.ask(1, time.monotonic() + 0.01)
    del numbers.pending[1]
    numbers.lock.release()
    numbers.answer()
    assert numbers.lock.acquire_if_free()
    numbers.pending[2] = replied = threading.Event()
    numbers.client.sendall((2).to_bytes(NUMBER, "little"))
    numbers.answer()
    assert numbers.lock.drive(replied.is_set, numbers.step, time.monotonic() + LONG)
    numbers.lock.release()
    assert numbers.late == [1]


def test_whoever_gives_up_waiting_leaves_the_holder_in_peace(numbers: Numbers, started: Started) -> None:
    """The holder is busy for longer than the other thread waits; then it goes on to its own reply."""
    is_busy, may_go_on = threading.Event(), threading.Event()
    ends: list[bool] = []
    steps = itertools.count()

    def step(deadline: float) -> None:
        if next(steps) == 0:
            is_busy.set()
            assert may_go_on.wait(LONG)
        else:
            numbers.step(deadline)

    def call() -> None:
        numbers.lock.acquire()
        numbers.pending[1] = replied = threading.Event()
        numbers.client.sendall((1).to_bytes(NUMBER, "little"))
        ends.append(numbers.lock.drive(replied.is_set, step, time.monotonic() + LONG))
        numbers.lock.release()

    started(call, "caller")
    assert is_busy.wait(LONG)
    assert not numbers.lock.take_over(0.01)
    assert not numbers.lock.is_wanted
    may_go_on.set()
    numbers.answer()
    eventually(lambda: ends == [True])
    assert next(steps) < 10  # it did not spin on what the other thread had left


def test_who_asks_between_two_polls_of_the_holder_is_heard(
    numbers: Numbers, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder looks at the clock when it has looked at who asks; the other thread asks just then."""
    is_asked = threading.Event()
    waited: list[bool] = []
    lock = numbers.lock

    def ask() -> None:
        assert lock.take_over(10 * LONG)
        lock.release()

    def clock() -> float:
        if threading.current_thread() is threading.main_thread() and not is_asked.is_set():
            started(ask, "other")
            eventually(lambda: lock.is_wanted and select.select([lock.fd], [], [], 0)[0])
            is_asked.set()
        return time.monotonic()

    def step(deadline: float) -> None:
        waited.append(not select.select([lock.fd], [], [], 1.0 if is_asked.is_set() else 0.0)[0])

    lock.acquire()
    monkeypatch.setattr(handover_lock, "monotonic", clock)
    assert not lock.drive(lambda: False, step, time.monotonic() + LONG)
    lock.release()
    assert waited == [True, False]


def test_who_finds_the_lock_free_before_the_one_that_waits_for_it_stops_too(numbers: Numbers, started: Started) -> None:
    """It polled to its own deadline: the holder before it had used up what was to end its poll."""
    lock = numbers.lock
    assert lock.acquire_if_free()
    asking = started(lambda: lock.take_over(LONG) and lock.release(), "asking")
    eventually(lambda: lock.is_wanted)
    for _ in range(3):  # as one holder after the other
        assert not lock.drive(lambda: False, numbers.step, time.monotonic() + 10 * LONG)
        assert select.select([lock.fd], [], [], 0)[0]
    lock.release()
    asking.join(LONG)
    assert not select.select([lock.fd], [], [], 0)[0]


def test_two_threads_that_ask_get_the_socket_one_after_the_other(numbers: Numbers, started: Started) -> None:
    ends = holding(numbers, started)
    taken: list[str] = []

    def take() -> None:
        assert numbers.lock.take_over(LONG)
        taken.append(threading.current_thread().name)
        numbers.lock.drive(lambda: len(taken) == 2, numbers.step, time.monotonic() + LONG)
        numbers.lock.release()

    started(take, "first")
    started(take, "second")
    eventually(lambda: sorted(taken) == ["first", "second"])
    eventually(lambda: ends == [False] and not numbers.lock.is_held)


def test_what_a_holder_is_told_to_do_is_done_whoever_holds_the_lock(numbers: Numbers, started: Started) -> None:
    """A new holder looks for orders first, so that none waits for the next reply."""
    count = 2_000
    is_over = threading.Event()

    def drive() -> None:
        while not is_over.is_set():
            assert numbers.lock.take_over(LONG)
            numbers.lock.drive(is_over.is_set, numbers.step, time.monotonic() + LONG)
            numbers.lock.release()

    started(drive, "first")
    started(drive, "second")
    try:
        for number in range(count):
            is_done = threading.Event()
            numbers.orders.append(is_done.set)
            numbers.lock.interrupt()
            assert is_done.wait(LONG), number
    finally:
        is_over.set()
        numbers.lock.interrupt()


def test_a_socket_is_closed_under_a_caller_that_waits_for_its_reply(numbers: Numbers, started: Started) -> None:
    ends = holding(numbers, started)
    assert numbers.lock.take_over(LONG)
    numbers.client.close()
    numbers.lock.close()
    numbers.lock.release()
    eventually(lambda: ends == [False])


def test_a_closed_lock_writes_to_no_descriptor(numbers: Numbers) -> None:
    """The number of a closed descriptor may belong to another file a moment later."""
    fd = numbers.lock.fd
    numbers.lock.close()
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert other == fd
        numbers.lock.interrupt()
        numbers.lock.clear()
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        assert numbers.lock.take_over(0.0)
        assert not numbers.lock.take_over(0.0)
        numbers.lock.release()
    finally:
        os.close(other)


def test_a_lock_that_nobody_takes_over_opens_no_descriptor() -> None:
    lock = HandoverLock()
    assert lock.acquire_if_free()
    assert lock.drive(lambda: True, lambda _: None, 0.0)
    lock.release()
    assert lock.fd == -1


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # a fork beside threads is what is tested
def test_a_forked_child_abandons_a_lock_that_a_thread_of_its_parent_holds(numbers: Numbers, started: Started) -> None:
    ends = holding(numbers, started)
    child = os.fork()
    if child == 0:
        try:
            fd = numbers.lock.fd
            numbers.lock.abandon()
            numbers.lock.abandon()
            try:
                os.fstat(fd)
            except OSError:
                os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    numbers.answer()
    eventually(lambda: ends == [True])
