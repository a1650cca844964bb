import asyncio
import os
import resource
import signal
import threading
import time

import pytest

from messagehub.shm import errors
from messagehub.shm.layout import WhenFull
from messagehub.shm.rings.ring import open_reader
from tests.shm.children import fork, kill, parked, wait
from tests.shm.rings import checked, drain, payload, writer


def ring(root: str) -> str:
    return os.path.join(root, "ring")


def later(seconds: float, action: object) -> threading.Timer:
    timer = threading.Timer(seconds, action)  # type: ignore[arg-type]
    timer.start()
    return timer


def test_a_sleeping_reader_in_another_process_is_woken_for_every_item(root: str) -> None:
    told, ready = os.pipe()
    with writer(root, when_full=WhenFull.BLOCK, slot_count=2) as made:

        def read_all() -> None:
            with open_reader(ring(root), start="oldest") as reader:
                os.write(ready, b"!")
                for number in range(1, 301):
                    assert checked(reader.read(10)) == number

        pid = fork(read_all)
        assert os.read(told, 1) == b"!"
        for number in range(1, 301):
            made.write(payload(number), timeout_seconds=10)
        assert wait(pid) == 0
    os.close(told)
    os.close(ready)


def test_an_idle_reader_uses_no_cpu(root: str) -> None:
    with writer(root), open_reader(ring(root)) as reader:
        before = resource.getrusage(resource.RUSAGE_THREAD)
        assert reader.read(1.0) is None
        after = resource.getrusage(resource.RUSAGE_THREAD)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.02
        assert after.ru_nvcsw - before.ru_nvcsw < 10


def test_a_reader_that_does_not_sleep_is_not_woken(root: str) -> None:
    with writer(root) as made, open_reader(ring(root), start="oldest") as reader:
        for number in range(1, 5):
            made.write(payload(number))
        with pytest.raises(BlockingIOError):
            os.read(reader.wake_fds()[0], 1)
        assert drain(reader) == [1, 2, 3, 4]


def test_a_killed_writer_is_noticed_at_once_by_a_sleeping_reader(root: str) -> None:
    pid = parked(lambda: writer(root))
    with open_reader(ring(root)) as reader:
        killed_at = []

        def murder() -> None:
            killed_at.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        timer = later(0.2, murder)
        with pytest.raises(errors.WriterGone):
            reader.read(60)
        assert time.monotonic() - killed_at[0] < 30  # not at the deadline
        timer.join(30)
        wait(pid)


def test_what_a_killed_writer_had_published_is_read_before_its_death_is_told(root: str) -> None:
    pid = parked(lambda: (made := writer(root), [made.write(payload(n)) for n in (1, 2, 3)]))
    with open_reader(ring(root), start="oldest") as reader:
        kill(pid)
        assert [checked(reader.read(10)) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(errors.WriterGone):
            reader.read(10)


def test_a_patient_reader_sleeps_over_a_restart(root: str) -> None:
    pid = parked(lambda: writer(root).write(payload(1)))
    with open_reader(ring(root), wait_for_writer=True) as reader:
        kill(pid)
        assert reader.read(0.05) is None
        made = []

        def restart() -> None:
            made.append(writer(root))
            made[0].write(payload(2))

        timer = later(0.1, restart)
        assert checked(reader.read(10)) == 2
        timer.join(30)
        made[0].close()


def test_a_stopped_writer_is_stalled_and_not_gone(root: str) -> None:
    def write_on_signal() -> object:
        made = writer(root)
        signal.signal(signal.SIGUSR1, lambda *_: made.write(payload(1)))
        return made

    pid = parked(write_on_signal)
    with open_reader(ring(root)) as reader:
        os.kill(pid, signal.SIGSTOP)
        assert reader.read(0.1) is None
        assert reader.is_writer_alive()
        with pytest.raises(errors.NameTaken):
            writer(root)
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGCONT)
        assert checked(reader.read(10)) == 1
        kill(pid)


def test_a_stopped_reader_is_never_robbed_of_what_it_holds_or_must_not_lose(root: str) -> None:
    with writer(root, when_full=WhenFull.BLOCK) as made:

        def hold() -> object:
            reader = open_reader(ring(root), start="oldest")
            signal.signal(signal.SIGUSR1, lambda *_: os._exit(0 if drain(reader)[:4] == [1, 2, 3, 4] else 1))
            return reader

        pid = parked(hold)
        os.kill(pid, signal.SIGSTOP)
        for number in range(1, 5):
            made.write(payload(number))
        with pytest.raises(errors.RingFull):
            made.write(payload(5), timeout_seconds=0.15)
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGCONT)
        assert made.write(payload(5), timeout_seconds=10).first == 5
        assert wait(pid) == 0


def test_dropping_a_view_wakes_a_writer_that_waits_for_the_slot(root: str) -> None:
    with writer(root, slot_count=1) as made, open_reader(ring(root), start="oldest") as reader:
        made.write(payload(1))
        held = [reader.read(0).value]
        timer = later(0.05, held.clear)
        started = time.monotonic()
        made.write(payload(2), timeout_seconds=60)
        assert time.monotonic() - started < 30
        timer.join(30)


def test_reading_in_an_event_loop(root: str) -> None:
    async def scenario() -> list[int]:
        with (
            writer(root, when_full=WhenFull.BLOCK) as made,
            open_reader(ring(root), start="oldest") as reader,
        ):
            assert await reader.read_async(0.01) is None

            async def produce() -> None:
                for number in range(1, 21):
                    await asyncio.to_thread(made.write, payload(number), 10)
                made.close()

            task = asyncio.create_task(produce())
            seen = [checked(item) async for item in reader]
            await task
            return seen

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == list(range(1, 21))


def test_an_event_loop_hears_of_the_writers_death(root: str) -> None:
    pid = parked(lambda: writer(root))

    async def scenario() -> None:
        with open_reader(ring(root)) as reader:
            asyncio.get_running_loop().call_later(0.1, os.kill, pid, signal.SIGKILL)
            with pytest.raises(errors.WriterGone):
                await reader.read_async(10)

    asyncio.run(asyncio.wait_for(scenario(), 20))
    wait(pid)
