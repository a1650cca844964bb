"""Code run in real Jupyter kernels: each request's outputs arrive typed, and apart from all others.

    with Kernel.start() as kernel:
        for output in kernel.execute("print(1); 2"):
            ...                                          # Status, Text, Result, Display, Comm, Failure, ...
        assert kernel.execute("6 * 7").wait().result.data["text/plain"] == "42"

Rule 1: one thread per kernel owns its sockets; callers only leave requests in a queue and wake it.
Rule 2: a request is registered before it is sent, and complete when both its reply and its "idle" have
        come; they travel on two sockets and may come in either order.
Rule 3: a connection to a kernel ends exactly once, closed or dead, and with it every execution still open.
Rule 4: a kernel that was started here never outlives its `Kernel`: it ends on close, when nobody holds
        it any more and at exit. If this process is killed, ipykernel sees its parent change and leaves.

Only `connection.py` and `process.py` import jupyter_client (extra `jupyter`). Its own kernel manager is not
used: that leaves an event loop behind in each thread, and notices a death by asking.
"""

from __future__ import annotations

import atexit
import functools
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from messagehub.arguments import checks_arguments
from messagehub.errors import ConfigurationError
from messagehub.jupyter.connection import GRACE_SECONDS, End, Inbox, KernelConnection
from messagehub.jupyter.outputs import (
    ClearOutput,
    Comm,
    Completed,
    Display,
    ExecutionClosed,
    ExecutionTimedOut,
    Failure,
    Input,
    InputRequest,
    KernelClosed,
    KernelDied,
    KernelNotFound,
    KernelNotOwned,
    KernelNotReady,
    KernelOutputUnreadable,
    KernelRestarted,
    Output,
    Reply,
    Result,
    Status,
    Text,
    typed_output,
)
from messagehub.jupyter.process import KernelProcess
from messagehub.runtime.callbacks import check_callback, is_async
from messagehub.runtime.forgotten import ClosedWhenForgotten, run_soon
from messagehub.streams import EXPIRED, StreamExpired, StreamLimits, StreamMessage, StreamRouter

__all__ = [
    "ClearOutput",
    "Comm",
    "Completed",
    "Display",
    "Execution",
    "ExecutionClosed",
    "ExecutionTimedOut",
    "Failure",
    "Input",
    "InputRequest",
    "Kernel",
    "KernelClosed",
    "KernelDied",
    "KernelNotFound",
    "KernelNotOwned",
    "KernelNotReady",
    "KernelOutputUnreadable",
    "KernelRestarted",
    "Output",
    "Reply",
    "Result",
    "Status",
    "StreamExpired",
    "StreamLimits",
    "Text",
    "typed_output",
]


DEFAULT_LIMITS = StreamLimits(idle_seconds=math.inf)
"""A silent computation may take hours: the kernel's life, not its chatter, bounds an execution unless limits say so."""

OnInput = Callable[[str], str]
"""Called with the prompt of `input()`; returns what it is to return."""


class Execution:
    """One piece of code on its way through a kernel. One thread reads it, once, in order."""

    def __init__(
        self, kernel: Kernel, connection: KernelConnection, code: dict[str, Any], on_input: OnInput | None
    ) -> None:
        self._on_input = on_input
        self._kernel = kernel  # keeps the kernel alive as long as somebody may still read
        self._connection = connection
        self._inbox: Inbox = queue.SimpleQueue()
        self.outputs: list[Output] = []
        """What was read so far."""
        self._end: End | None = None
        self.request_id = connection.submit(code, self._inbox)
        """The id that the kernel's messages name."""
        forget = functools.partial(connection.forget, self.request_id)  # which takes a lock, so not in a finalizer
        weakref.finalize(self, run_soon, forget).atexit = False

    @checks_arguments
    def read(self, timeout_seconds: float | None = None) -> Output | None:
        """Return the next output as it comes; None after the last.

        Without a timeout this ends all the same when the kernel dies, restarts or is closed, or when the execution was
        silent for longer than the kernel's limits allow: it raises that.
        """
        if self._end is None:
            try:
                item = self._inbox.get(timeout=timeout_seconds)
            except queue.Empty:
                raise ExecutionTimedOut(f"nothing came in {timeout_seconds:.4g} s: the code still runs") from None
            if isinstance(item, StreamMessage) and item.kind == EXPIRED:
                item = End(item.body.error)
            if isinstance(item, StreamMessage):
                return self._taken(item)
            self._end = item
        if self._end.why is not None:
            raise self._end.why()
        return None

    @checks_arguments
    def read_late(self, timeout_seconds: float = 0.0) -> Output | None:
        """Return the next output that came after the end, such as what a thread of the code prints, or None.

        Late outputs come for as long as somebody holds the execution, and are among its `outputs`. The kernel says
        whose they are: once other code has run, ipykernel takes what a thread prints for that code's.
        """
        if self._end is None:
            raise ConfigurationError("late outputs come after the end: read the execution, or wait, first")
        try:
            item = self._inbox.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        return self._taken(item) if isinstance(item, StreamMessage) else None

    def _taken(self, message: StreamMessage) -> Output:
        output = typed_output(message)
        self.outputs.append(output)
        if isinstance(output, InputRequest) and self._on_input is not None:
            self.answer(self._on_input(output.prompt))
        return output

    def answer(self, text: str) -> None:
        """Have `input()` return this text in the code, which has waited for it since an `InputRequest` came."""
        if not isinstance(text, str):
            raise ConfigurationError(f"input() returns text, not {text!r}")
        self._connection.answer(self.request_id, text)

    def __iter__(self) -> Iterator[Output]:
        return iter(self.read, None)

    @checks_arguments
    def wait(self, timeout_seconds: float | None = None) -> Completed:
        """Read to the end and return everything, also what was read before."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        try:
            while self.read(None if deadline is None else max(0.0, deadline - time.monotonic())) is not None:
                continue
        except ExecutionTimedOut:
            raise ExecutionTimedOut(f"the code still runs after {timeout_seconds} s") from None
        reply = next((output for output in self.outputs if isinstance(output, Reply)), None)
        if reply is None:
            raise KernelOutputUnreadable("the kernel's reply to this execution could not be read")
        return Completed(tuple(self.outputs), reply.status, reply.execution_count)

    def close(self) -> None:
        """Stop listening; the code runs on. What still comes is an orphan."""
        self._connection.finish(self.request_id, functools.partial(ExecutionClosed, "the execution was closed"))
        self._connection.forget(self.request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Parts:
    connection: KernelConnection
    process: KernelProcess | None


def _shut_down(owner_pid: int, parts: _Parts) -> None:
    if os.getpid() != owner_pid:  # a forked copy: the kernel is its parent's
        return
    if parts.process is not None:
        parts.process.interrupt()
    why = functools.partial(KernelClosed, "the kernel was closed")
    parts.connection.close(why, shut_down=parts.process is not None)
    if parts.process is not None:
        parts.process.stop(GRACE_SECONDS)
        parts.process.forget()


class Kernel(ClosedWhenForgotten):
    """A running kernel. Any thread may use it; requests run in the order in which they were given."""

    def __init__(
        self,
        connection_file: str,
        process: KernelProcess | None,
        timeout_seconds: float,
        limits: StreamLimits | None = None,
    ) -> None:
        self.router = StreamRouter(limits=limits or DEFAULT_LIMITS)
        """Gives each execution its outputs; `router.tap()` sees all of them."""
        self.connection_file = connection_file
        """The file by which others connect to the kernel."""
        self._lock = threading.Lock()
        self._owner_pid = os.getpid()
        self._parts = _Parts(KernelConnection(connection_file, self.router, process), process)
        self._is_closed = False
        self._opened_in = self._owner_pid
        _running.add(self)
        self._wait_ready(timeout_seconds)

    @classmethod
    def start(
        cls,
        name: str = "python3",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = 60.0,
        limits: StreamLimits | None = None,
    ) -> Self:
        """Start an installed kernel and wait until it answers.

        `limits` say how many outputs without an execution are kept and for how long, and for how long an execution may
        be silent (`idle_seconds`, without end by default) before it ends with StreamExpired; its code runs on.
        """
        process = KernelProcess(name, cwd, env or {})
        try:
            return cls(process.connection_file, process, timeout_seconds, limits)
        except BaseException:
            process.stop(0.0)
            process.forget()
            raise

    @classmethod
    def connect(
        cls,
        connection_file: str | os.PathLike[str],
        *,
        timeout_seconds: float = 10.0,
        limits: StreamLimits | None = None,
    ) -> Self:
        """Share a kernel that runs already, busy or not; closing leaves it running. `limits` are those of `start`."""
        return cls(os.fspath(connection_file), None, timeout_seconds, limits)

    @property
    def is_alive(self) -> bool:
        """Whether the kernel answers."""
        return self._parts.connection.is_open

    @property
    def pid(self) -> int | None:
        """The process id of a kernel that was started here."""
        return self._parts.process.pid if self._parts.process else None

    def execute(
        self,
        code: str,
        *,
        stop_on_error: bool = False,
        allow_input: bool = False,
        on_input: OnInput | None = None,
    ) -> Execution:
        """Send code and return at once; read the outputs as they come.

        `stop_on_error` makes an error of this code abort the requests that wait behind it. `on_input(prompt)` is called
        by whoever reads when the code calls `input()`, which returns what it returns. With `allow_input` the reader
        gets an `InputRequest` and calls `execution.answer(text)`. Without either `input()` fails in the code.
        """
        self._check_owner()
        if on_input is not None:
            check_callback(on_input, name="on_input", arguments=("prompt",))
            if is_async(on_input):
                raise ConfigurationError("on_input returns text, and is not awaited: answer an InputRequest instead")
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": allow_input or on_input is not None,
            "stop_on_error": stop_on_error,
        }
        return Execution(self, self._parts.connection, content, on_input)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt (or its like) in the code that runs now; what waits runs after it.

        A kernel of IPython ignores it until the code has begun, which is a moment after it is `busy`.
        """
        self._check_owner()
        self._parts.connection.check()
        process = self._parts.process
        if process is None or process.is_interrupted_by_message:
            self._parts.connection.control("interrupt_request", {})
        else:
            process.interrupt()

    @checks_arguments
    def restart(self, timeout_seconds: float = 60.0) -> None:
        """Start a new process in place of the old one, alive or dead. Open executions end at once."""
        self._check_owner()
        process = self._parts.process
        if process is None:
            raise KernelNotOwned("this kernel was not started here")
        with self._lock:
            if self._is_closed:
                raise KernelClosed("the kernel was closed")
            process.interrupt()
            self._parts.connection.close(functools.partial(KernelRestarted, "the kernel was restarted"), shut_down=True)
            process.stop(GRACE_SECONDS)
            process.launch()
            self._parts.connection = KernelConnection(self.connection_file, self.router, process)
        self._wait_ready(timeout_seconds)

    def close(self) -> None:
        """End the kernel if it was started here, else leave it. Harmless when done twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                _shut_down(self._owner_pid, self._parts)

    def _is_forgotten(self) -> bool:
        return not self._is_closed

    def _named(self) -> str:
        return f"the kernel of {self.connection_file} (close it, or use `with Kernel.start() as kernel:`)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_owner(self) -> None:
        if os.getpid() != self._owner_pid:
            raise KernelClosed(f"this kernel belongs to process {self._owner_pid}, from before the fork")

    def _wait_ready(self, timeout_seconds: float) -> None:
        try:
            self._parts.connection.wait_ready(timeout_seconds)
        except BaseException:
            self.close()
            raise


_running: weakref.WeakSet[Kernel] = weakref.WeakSet()


def _close_running() -> None:
    """Close all kernels at the end of the process."""
    for kernel in list(_running):
        kernel.close()


atexit.register(_close_running)
