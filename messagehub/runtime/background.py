"""Threads of one hub for what must not block its caller: deliveries that are tried again, and calls that are awaited.

Rule 1: a job runs once, at its time or later; or it is cancelled; or its `drop` is called once, when the threads are
closed before that.
Rule 2: threads are started as jobs need them, at most MOST_THREADS. A job whose time has come never waits for one whose
time has not. When all threads are busy it waits, so that it may run late.
Rule 3: whoever awaits a job is told at its deadline, also while the job still runs or has not begun.
Rule 4: no job ends a thread, whatever it raises.
"""

import asyncio
import contextlib
import functools
import heapq
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from messagehub.arguments import MOST_SECONDS
from messagehub.errors import NotInitialised, RequestTimeout

log = logging.getLogger("messagehub")

MOST_THREADS = 32
CLOSE_SECONDS = 5.0
MOST_CANCELLED = 64
T = TypeVar("T")
P = ParamSpec("P")


class BackgroundJob:
    """`run` is called at the job's time, or `drop` when the threads are closed before that. None when it is over."""

    __slots__ = ("at", "drop", "number", "run")

    def __init__(self, at: float, number: int, run: Callable[[], Any], drop: Callable[[], Any]) -> None:
        self.at = at
        self.number = number
        self.run: Callable[[], Any] | None = run
        self.drop: Callable[[], Any] | None = drop

    def __lt__(self, other: "BackgroundJob") -> bool:
        return (self.at, self.number) < (other.at, other.number)


class BackgroundThreads:
    """The jobs of one hub, and the threads that run them."""

    def __init__(self) -> None:
        self._jobs: list[BackgroundJob] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._cancelled = 0
        self._is_closed = False

    @property
    def is_used(self) -> bool:
        return bool(self._threads)

    def add(self, run: Callable[[], Any], *, drop: Callable[[], Any], at: float = 0.0) -> BackgroundJob:
        """Call `run` at that time (`time.monotonic()`), or as soon as possible; `drop` at once when this is closed."""
        job = BackgroundJob(at, next(self._numbers), run, drop)
        with self._changed:
            if not self._is_closed:
                heapq.heappush(self._jobs, job)
                if self._idle == 0 and len(self._threads) < MOST_THREADS:
                    self._start()
                elif self._jobs[0] is job:
                    self._changed.notify()
                return job
        drop()
        return job

    def cancel(self, job: BackgroundJob) -> None:
        """Forget a job that has not begun, and what it refers to."""
        with self._changed:
            if job.run is None:
                return
            job.run = job.drop = None
            self._cancelled += 1
            if self._cancelled > MOST_CANCELLED and 2 * self._cancelled > len(self._jobs):
                self._jobs = [each for each in self._jobs if each.run is not None]
                heapq.heapify(self._jobs)
                self._cancelled = 0

    async def call(self, function: Callable[[float], T], *, timeout: float) -> T:
        """Return what `function(seconds that are left)` returns on one of the threads. RequestTimeout at the deadline.

        What it returns and nobody receives, because that was over or was cancelled, is closed if it has a `close`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        deadline = monotonic() + timeout
        handing_over = threading.Lock()
        returned: Any = None
        is_over = False

        def hand_over(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def tell(result: Any, error: BaseException | None) -> None:
            nonlocal returned
            with (
                handing_over,
                contextlib.suppress(RuntimeError),
            ):  # the loop has ended, and everything that waited in it
                if not is_over:
                    loop.call_soon_threadsafe(hand_over, result, error)
                    returned = result
                    return
            if hasattr(result, "close"):
                result.close()

        def run() -> None:
            try:
                result = function(max(deadline - monotonic(), 0.0))
            except BaseException as error:  # noqa: BLE001  raised where it is awaited
                tell(None, error)
            else:
                tell(result, None)

        job = self.add(run, drop=lambda: tell(None, NotInitialised("this hub is closed")))
        is_received = False
        try:
            try:
                async with asyncio.timeout(timeout):
                    await future
            except TimeoutError:
                if not future.done() or future.cancelled():  # else at the last moment, or the function's own timeout
                    raise RequestTimeout(f"no answer came within {timeout:g} s") from None
            found = future.result()
            is_received = True
            return found
        finally:
            self.cancel(job)
            with handing_over:  # a loop that ends may never run what was handed to it
                is_over = True
            if not is_received and hasattr(returned, "close"):
                self.add(returned.close, drop=returned.close)

    def close(self) -> None:
        """Drop what has not begun, and wait, within a bound, for what runs. Idempotent."""
        with self._changed:
            self._is_closed = True
            jobs, self._jobs = self._jobs, []
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
            self._changed.notify_all()
        for job in sorted(jobs):
            drop = job.drop  # read once: whoever awaits it may cancel it at this moment
            if drop is not None:
                drop()
        deadline = monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(deadline - monotonic(), 0.0))

    def abandon(self) -> None:
        """In a forked child, where the threads are not: what is added from now on is dropped."""
        self._changed = threading.Condition()  # the parent's may be held by a thread that is not here
        self._is_closed = True
        self._jobs, self._threads = [], []

    # -- on the threads ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start one more. Called with the lock."""
        thread = threading.Thread(target=self._work, name="messagehub-background", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (run := self._next()) is not None:
            try:
                run()
            except BaseException:  # a defect of ours, or a callback that would exit: the thread goes on
                log.exception("a job in the background failed")
            del run  # what it refers to may be forgotten by its user, and is to be collected

    def _next(self) -> Callable[[], Any] | None:
        with self._changed:
            while not self._is_closed:
                now = monotonic()
                while self._jobs and (self._jobs[0].run is None or self._jobs[0].at <= now):
                    job = heapq.heappop(self._jobs)
                    if job.run is None:
                        self._cancelled -= 1
                        continue
                    run, job.run, job.drop = job.run, None, None
                    self._have_next_watched()
                    return run
                self._idle += 1
                try:
                    self._changed.wait(self._jobs[0].at - now if self._jobs else None)
                finally:
                    self._idle -= 1
            return None

    def _have_next_watched(self) -> None:
        """Have another thread wait for the next job, since the one that is about to run may take its time.

        Called with the lock.
        """
        if not self._jobs:
            return
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < MOST_THREADS:
            self._start()


class HasBackground(Protocol):
    @property
    def _background(self) -> BackgroundThreads: ...

    def _limit(self, timeout: float | None, /) -> float: ...


Self = TypeVar("Self", bound=HasBackground)


def awaitable(method: Callable[Concatenate[Self, P], T]) -> Callable[Concatenate[Self, P], Coroutine[Any, Any, T]]:
    """Return the asynchronous form of a method: it runs on a background thread, and `timeout` bounds all of it.

    A method that takes no timeout copies or writes data here, and is awaited until it has.
    """
    own = inspect.signature(method).parameters.get("timeout")

    @functools.wraps(method, updated=())  # not its attributes: the asynchronous form is not itself delegated
    async def call(self: Self, /, *arguments: P.args, **options: P.kwargs) -> T:
        if own is None:
            return await self._background.call(lambda _: method(self, *arguments, **options), timeout=MOST_SECONDS)
        given: Any = options.get("timeout", own.default)
        timeout = self._limit(given)

        def run(remaining: float) -> T:
            return method(self, *arguments, **{**options, "timeout": remaining})  # type: ignore[arg-type]

        return await self._background.call(run, timeout=timeout)

    call.__name__ = call.__qualname__ = f"{method.__name__}_async"
    call.__doc__ = f"As `{method.__name__}`, to be awaited. {method.__doc__ or ''}"
    return call
