"""Schemas are checked in a process of their own, so that no schema, however nasty, holds up the broker.

Rule 1: the broker's thread only hands checks over and takes results; a thread here talks to the process.
Rule 2: every check gets a result: a process that dies, takes too long or cannot be started is replaced, and the
result says so.
Rule 3: the process says when it is ready. Only then does the time of its first check begin.
"""

import logging
import os
import queue
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from messagehub.broker.schema_worker import process as schema_worker
from messagehub.broker.schema_worker.process import READ_BYTES, READY, framed, is_light, whole_frames
from messagehub.errors import RateLimited
from messagehub.runtime.child_process import module_command
from messagehub.runtime.descriptors import wait_readable
from messagehub.runtime.supervision import Supervisor
from registry import commands
from registry.registry import Registry
from registry.schemas.checks import CheckResult, SchemaCheck

log = logging.getLogger("messagehub.broker")

CHECK_SECONDS = 10.0
MAX_WAITING = 4096
MAX_AT_ONCE = 64
MAX_TAKEN = 256
ATTEMPTS = 3
RETRY_SECONDS = 0.1
BEGIN_SECONDS = 1.0
START_SECONDS = 30.0
_encode = msgspec.json.Encoder().encode
_result_decoder = msgspec.json.Decoder(CheckResult)
Ticket = TypeVar("Ticket")


class SchemaChecker(Generic[Ticket]):
    """A ticket is whatever the caller needs to go on with the result."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._is_ready = threading.Event()
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting = 0
        self.problem = ""
        """The reason why schemas cannot be checked now, or None."""
        self._checks: queue.SimpleQueue[tuple[Ticket, SchemaCheck] | None] = queue.SimpleQueue()
        self._results: deque[tuple[Ticket, CheckResult]] = deque()
        self._thread: threading.Thread | None = None
        self._process: _Process | None = None
        self._is_closing = False

    def submit(self, ticket: Ticket, check: SchemaCheck) -> bool:
        """Return whether the check was taken; it is not when too many wait already."""
        if self.waiting >= MAX_WAITING:
            return False
        self.start()
        self.waiting += 1
        self._checks.put((ticket, check))
        return True

    def must_wait(
        self, ticket: Ticket, command: commands.Command, result: CheckResult | None, registry: Registry
    ) -> bool:
        """Submit the check that the command needs, and return whether the command must wait for its result.

        `result` is the result of an earlier check. The registry may need another one by now.
        """
        if result is not None and result.is_lost:
            raise RateLimited("the process that checks schemas died, again and again: try again in a moment")
        check = registry.needed_check(command)
        if check is None or (result is not None and result.check == check):
            return False
        if not self.submit(ticket, check):
            raise RateLimited("too many schemas wait to be checked: try again in a moment")
        return True

    def start(self) -> None:
        """Start the process before the first check, which starts it otherwise."""
        if self._thread is None:
            self._thread = self._supervisor.start("messagehub-schemas", self._run)

    def wait_ready(self, seconds: float) -> bool:
        """Wait until the process has said that it is ready; False at the timeout."""
        return self._is_ready.wait(seconds)

    def results(self) -> list[tuple[Ticket, CheckResult]]:
        """Return the results that came since the last call, up to MAX_TAKEN of them."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        taken = [self._results.popleft() for _ in range(min(len(self._results), MAX_TAKEN))]
        if self._results:
            os.eventfd_write(self.wake_fd, 1)
        self.waiting -= len(taken)
        return taken

    def wait(self, seconds: float) -> None:
        """Wait until a result is there or the seconds have passed."""
        wait_readable([self.wake_fd], seconds)

    def close(self, *, timeout: float) -> None:
        if self._thread is not None:
            self._is_closing = True
            self._checks.put(None)
            process = self._process
            if process is not None:
                process.end()
            self._thread.join(timeout)
        os.close(self.wake_fd)

    def _run(self) -> None:
        while not self._is_closing:
            self._begin()
            try:
                first = self._checks.get(timeout=None if self._process else BEGIN_SECONDS)
            except queue.Empty:
                continue
            if first is None:
                break
            self._check([first, *self._more()])
        self._end()

    def _begin(self) -> None:
        """Start the process if it does not run. If that fails, try again soon, and at the next check."""
        try:
            self._ready_process()
        except (OSError, EOFError) as error:
            self.problem = f"schemas cannot be checked, because their process does not start: {error}"
            self._replace(error)

    def _ready_process(self) -> "_Process":
        if self._process is None:
            self._process = _Process()
            self._process.await_ready()
            self.problem = ""
            self._is_ready.set()
        return self._process

    def _replace(self, error: Exception) -> None:
        if not self._is_closing:
            log.warning("the schema worker is replaced: %s", error)
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None

    def _more(self) -> Iterator[tuple[Ticket, SchemaCheck]]:
        """Yield the checks that wait by now, so that they share the two process switches that a single one costs."""
        for _ in range(MAX_AT_ONCE - 1):
            try:
                asked = self._checks.get_nowait()
            except queue.Empty:
                return
            if asked is None:
                self._checks.put(None)
                return
            yield asked

    def _check(self, asked: list[tuple[Ticket, SchemaCheck]]) -> None:
        """Let the process run these checks, and hand over a result for each of them, whatever goes wrong.

        A process that dies is replaced and gets the checks again, because somebody may have killed it. The first
        schema without a result may have killed it too, so this is tried only ATTEMPTS times. It is alone then:
        the results of light checks come together, so that any of those without a result may be to blame.
        """
        waiting = deque(asked)
        attempts = 0
        while waiting and not self._is_closing:
            asked_now = [check for _, check in waiting]
            if attempts:
                del asked_now[1:]
            try:
                process = self._ready_process()
                for results in process.run(asked_now):
                    attempts = 0
                    asked = [waiting.popleft() for _ in results]
                    pairs = zip(asked, results, strict=True)
                    self._deliver([(ticket, replace(result, check=check)) for (ticket, check), result in pairs])
            except Exception as error:  # noqa: BLE001  it is logged, and every check gets a result
                self._replace(error)
                attempts += 1
                is_slow = isinstance(error, TooSlow)
                is_certain = len(asked_now) == 1 or not is_light(waiting[0][1])
                if attempts > 1:
                    time.sleep(RETRY_SECONDS)
                if (is_slow and is_certain) or attempts == ATTEMPTS:
                    attempts = 0
                    ticket, check = waiting.popleft()
                    refusal = str(error) if is_slow else None
                    result = CheckResult(refusal=refusal, is_budget=is_slow, is_lost=not is_slow, check=check)
                    self._deliver([(ticket, result)])

    def _deliver(self, results: list[tuple[Ticket, CheckResult]]) -> None:
        self._results.extend(results)
        os.eventfd_write(self.wake_fd, 1)


class TooSlow(TimeoutError):
    """One check took longer than it may."""


class _Process:
    def __init__(self) -> None:
        self._child = subprocess.Popen(
            module_command(schema_worker.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,  # Ctrl-C in a terminal must reach the broker only, which ends this process
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._pipes = self._child.stdin, self._child.stdout
        self._into, self._out_of = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._into, False)

    def await_ready(self) -> None:
        received = bytearray()
        deadline = time.monotonic() + START_SECONDS
        while bytes(received) != framed(READY):
            if not wait_readable([self._out_of], deadline - time.monotonic()):
                raise TimeoutError(f"the process is not ready after {START_SECONDS:g} s")
            part = os.read(self._out_of, READ_BYTES)
            if not part:
                raise EOFError("the process ended before it was ready")
            received += part

    def run(self, checks: list[SchemaCheck]) -> Iterator[list[CheckResult]]:
        """Yield the results of these checks, in order and as they come. Each check has its own time limit.

        Results are read while checks are written: a process whose results nobody reads would stop reading checks.
        """
        unsent = memoryview(b"".join(framed(_encode(check)) for check in checks))
        received = bytearray()
        due = len(checks)
        poller = select.poll()
        poller.register(self._out_of, select.POLLIN)
        poller.register(self._into, select.POLLOUT)
        deadline = time.monotonic() + CHECK_SECONDS
        while due:
            ready = dict(poller.poll(max(deadline - time.monotonic(), 0.0) * 1000))
            if not ready:
                raise TooSlow(f"exceeds the budget seconds of checking = {CHECK_SECONDS:g}")
            if self._into in ready:
                unsent = unsent[os.write(self._into, unsent) :]
                if not unsent:
                    poller.unregister(self._into)
            if self._out_of in ready:
                part = os.read(self._out_of, READ_BYTES)
                if not part:
                    raise EOFError("the process ended")
                received += part
                results = [_result_decoder.decode(frame) for frame in whole_frames(received)]
                if results:
                    due -= len(results)
                    deadline = time.monotonic() + CHECK_SECONDS
                    yield results

    def end(self) -> None:
        """Kill the process. Safe from any thread: the thread that reads its results sees the end."""
        self._child.kill()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in self._pipes:
            pipe.close()
