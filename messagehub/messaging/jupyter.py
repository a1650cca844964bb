"""Code run in real Jupyter kernels: each request's outputs arrive typed, and apart from all others.

    with Kernel.start() as kernel:
        for output in kernel.execute("print(1); 2"):
            ...                                          # Status, Text, Result, Display, Comm, Failure, ...
        assert kernel.execute("6 * 7").wait().result.data["text/plain"] == "42"

Rule 1: one thread per kernel owns its sockets; callers only leave requests in a queue and wake it.
Rule 2: a request is registered before it is sent, and complete when both its reply and its "idle" have
        come; they travel on two sockets and may come in either order.
Rule 3: a link to a kernel ends exactly once, closed or dead, and with it every execution still open.
Rule 4: a kernel that was started here never outlives its `Kernel`: it ends on close, when nobody holds
        it any more and at exit. If this process is killed, ipykernel sees its parent change and leaves.

The only module that imports jupyter_client (extra `jupyter`). Its own kernel manager is not used: that
leaves an event loop behind in each thread, and notices a death by asking.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import queue
import select
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import zmq
from jupyter_client.client import KernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.launcher import launch_kernel
from traitlets import TraitError

from messagehub.messaging.streams import Message, StreamLimits, StreamRouter

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.2
GRACE_SECONDS = 2.0
LAST_WORDS_MILLISECONDS = 50
LAST_WORDS_LIMIT_SECONDS = 1.0
RECEIVE_BURST = 100
UNIX_PATH_BYTES = 107


class KernelNotFound(Exception):
    """No kernel of that name is installed, or the connection file cannot be read."""

    code: ClassVar[str] = "KERNEL_NOT_FOUND"


class KernelNotReady(Exception):
    """The kernel did not answer in time after its start or on connecting."""

    code: ClassVar[str] = "KERNEL_NOT_READY"


class KernelDied(Exception):
    """The kernel's process ended by itself, or the connection to it broke."""

    code: ClassVar[str] = "KERNEL_DIED"


class KernelRestarted(Exception):
    """The kernel was restarted on request while this execution was open."""

    code: ClassVar[str] = "KERNEL_RESTARTED"


class KernelClosed(Exception):
    """This side closed the kernel, or another process (before a fork) owns it."""

    code: ClassVar[str] = "KERNEL_CLOSED"


class KernelNotOwned(Exception):
    """Only the process that started a kernel can restart it."""

    code: ClassVar[str] = "KERNEL_NOT_OWNED"


class ExecutionTimedOut(Exception):
    """The next output, or the end, did not come in time. The code still runs; waiting again is fine."""

    code: ClassVar[str] = "EXECUTION_TIMED_OUT"


class ExecutionClosed(Exception):
    """The execution was closed on this side before its end."""

    code: ClassVar[str] = "EXECUTION_CLOSED"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a kernel. Fields are named as in Jupyter's messaging specification."""

    kind: str


class Status(Output, frozen=True, kw_only=True):
    execution_state: str


class Input(Output, frozen=True, kw_only=True):
    code: str = ""
    execution_count: int | None = None


class Text(Output, frozen=True, kw_only=True):
    name: str
    text: str


class Display(Output, frozen=True, kw_only=True):
    """`kind` tells a new display from an update of the one with the same `transient["display_id"]`."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class Result(Output, frozen=True, kw_only=True):
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    execution_count: int | None = None


class ClearOutput(Output, frozen=True, kw_only=True):
    wait: bool = False


class Failure(Output, frozen=True, kw_only=True):
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


class Comm(Output, frozen=True, kw_only=True):
    comm_id: str
    target_name: str = ""
    data: dict[str, Any] = {}
    buffers: tuple[bytes, ...] = ()


class Reply(Output, frozen=True, kw_only=True):
    """The end of the code itself: "ok", "error" or "aborted". Outputs may still follow."""

    status: str
    execution_count: int | None = None


class _Ports(msgspec.Struct):
    """What a connection file must have; Jupyter takes a missing port for port 0."""

    shell_port: int
    iopub_port: int
    control_port: int


class _Parent(msgspec.Struct):
    msg_id: str | None = None


class _Head(msgspec.Struct):
    """What routing needs of a message on the wire."""

    msg_type: str
    parent_header: _Parent
    content: dict[str, Any]


_OUTPUT_TYPES: Mapping[str, type[Output]] = {
    "status": Status,
    "execute_input": Input,
    "stream": Text,
    "display_data": Display,
    "update_display_data": Display,
    "execute_result": Result,
    "clear_output": ClearOutput,
    "error": Failure,
    "comm_open": Comm,
    "comm_msg": Comm,
    "comm_close": Comm,
    "execute_reply": Reply,
}


def typed_output(message: Message) -> Output:
    buffers = tuple(bytes(buffer) for buffer in message.body["buffers"])
    fields = message.body["content"] | {"kind": message.kind, "buffers": buffers}
    return msgspec.convert(fields, _OUTPUT_TYPES[message.kind])


@dataclass(frozen=True, slots=True)
class Completed:
    """All of one execution. `status` is "ok", "error" or, after another's error, "aborted"."""

    outputs: tuple[Output, ...]
    status: str
    execution_count: int | None

    @property
    def stdout(self) -> str:
        return "".join(o.text for o in self.outputs if isinstance(o, Text) and o.name == "stdout")

    @property
    def result(self) -> Result | None:
        return next((o for o in self.outputs if isinstance(o, Result)), None)

    @property
    def error(self) -> Failure | None:
        return next((o for o in self.outputs if isinstance(o, Failure)), None)


_Reason = Callable[[], Exception]  # not an exception: each reader raises its own


@dataclass(frozen=True, slots=True)
class _End:
    """The last item of an execution's queue: complete when there is no reason."""

    why: _Reason | None


_Inbox = queue.SimpleQueue[Message | _End]


class Execution:
    """One piece of code on its way through a kernel. One thread reads it, once, in order."""

    def __init__(self, kernel: Kernel, link: _Link, code: dict[str, Any]) -> None:
        self._kernel = kernel  # keeps the kernel alive as long as somebody may still read
        self._link = link
        self._inbox: _Inbox = queue.SimpleQueue()
        self.outputs: list[Output] = []  # what was read so far
        self._end: _End | None = None
        self.request_id = link.submit(code, self._inbox)

    def read(self, timeout_seconds: float | None = None) -> Output | None:
        """The next output as it comes; None after the last.

        Without a timeout this ends all the same when the kernel dies, restarts or is closed: it raises that.
        """
        if self._end is None:
            try:
                item = self._inbox.get(timeout=timeout_seconds)
            except queue.Empty:
                raise ExecutionTimedOut(f"nothing came for {timeout_seconds} s") from None
            if isinstance(item, Message):
                output = typed_output(item)
                self.outputs.append(output)
                return output
            self._end = item
        if self._end.why is not None:
            raise self._end.why()
        return None

    def __iter__(self) -> Iterator[Output]:
        return iter(self.read, None)

    def wait(self, timeout_seconds: float | None = None) -> Completed:
        """Read to the end and return everything, also what was read before."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self.read(None if deadline is None else max(0.0, deadline - time.monotonic())) is not None:
            continue
        reply = next(output for output in self.outputs if isinstance(output, Reply))
        return Completed(tuple(self.outputs), reply.status, reply.execution_count)

    def close(self) -> None:
        """Stop listening; the code runs on. What still comes is an orphan."""
        self._link.finish(self.request_id, functools.partial(ExecutionClosed, "the execution was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Process:
    """A kernel process of our own, in a private directory with its sockets, connection file and log."""

    def __init__(self, name: str, cwd: str | None, env: Mapping[str, str]) -> None:
        try:
            spec = KernelSpecManager().get_kernel_spec(name)
        except NoSuchKernel as missing:
            raise KernelNotFound(f"no kernel {name!r} is installed") from missing
        self.is_interrupted_by_message = spec.interrupt_mode == "message"
        longest = len(os.fsencode(tempfile.gettempdir())) + len("/mhk-12345678/k-5")
        self._directory = tempfile.mkdtemp("", "mhk-", None if longest <= UNIX_PATH_BYTES else "/tmp")
        # Unix sockets: no port that another process can take before the kernel does, or connect to.
        self.connection_file, _ = write_connection_file(
            os.path.join(self._directory, "kernel.json"),
            transport="ipc",
            ip=os.path.join(self._directory, "k"),
            key=uuid.uuid4().hex.encode(),
            kernel_name=name,
        )
        self._command = [
            part.replace("{connection_file}", self.connection_file).replace("{resource_dir}", spec.resource_dir)
            for part in spec.argv
        ]
        if self._command[0] in ("python", "python3"):
            self._command[0] = sys.executable
        self._cwd = cwd
        self._env = {**os.environ, **env}
        self._env |= {key: string.Template(text).safe_substitute(self._env) for key, text in spec.env.items()}
        self._log = os.path.join(self._directory, "kernel.log")
        self._lock = threading.Lock()
        self.pidfd = -1
        self.launch()

    def launch(self) -> None:
        with open(self._log, "wb") as output:
            try:
                self._popen: subprocess.Popen[bytes] = launch_kernel(
                    self._command,
                    stdout=output.fileno(),
                    stderr=output.fileno(),
                    cwd=self._cwd,
                    env=self._env,
                )
            except OSError as missing:
                self.forget()
                raise KernelNotFound(f"kernel {self._command[0]!r} cannot be started: {missing}") from missing
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)

    def interrupt(self) -> None:
        with self._lock:
            self._signal(signal.SIGINT)

    def reap(self) -> str:
        """End what is left of the kernel and its children, and say how it ended.

        The group is killed before its leader is reaped: until then its id cannot belong to anybody else.
        """
        with self._lock:
            self._signal(signal.SIGKILL)
            code = self._popen.wait()
        with open(self._log, "rb") as output:
            output.seek(max(0, os.fstat(output.fileno()).st_size - 500))
            last_words = output.read().decode(errors="replace").strip()
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"kernel {self.pid} ended {ended}" + (f"; it last wrote: {last_words}" if last_words else "")

    def _signal(self, number: signal.Signals) -> None:
        if self._popen.returncode is not None:
            return
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # in a process that ignores SIGCHLD the system reaps children itself
            log.debug("kernel %d had left before %s", self.pid, number.name)

    def stop(self, grace_seconds: float) -> None:
        """Give the kernel time to leave by itself, then end it. Harmless when done twice."""
        if self.pidfd < 0:
            return
        leaving = select.poll()
        leaving.register(self.pidfd, select.POLLIN)
        leaving.poll(grace_seconds * 1000)
        self.reap()
        os.close(self.pidfd)
        self.pidfd = -1

    def forget(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


@dataclass(slots=True)
class _Open:
    inbox: _Inbox
    missing: set[str] = field(default_factory=lambda: {"reply", "idle"})


class _Link:
    """The sockets of one kernel and the thread that owns them, from connecting to the one end."""

    def __init__(self, connection_file: str, router: StreamRouter, process: _Process | None) -> None:
        self._router = router
        self._process = process
        self._lock = threading.RLock()  # a finalizer may close in the middle of a call
        self._linger_milliseconds = 0
        self._open: dict[str, _Open] = {}
        self._outgoing: deque[tuple[zmq.Socket[bytes], str, str, dict[str, Any]]] = deque()
        self._closing: _Reason | None = None
        self._why: _Reason | None = None
        self._probes: set[str] = set()
        self._awaited = {"reply", "broadcast"}
        self._settled = threading.Event()
        self._context = zmq.Context()
        # Without limits on our side nothing is lost here; a lost "idle" would never come again.
        self._context.setsockopt(zmq.RCVHWM, 0)
        self._context.setsockopt(zmq.SNDHWM, 0)
        # A host that vanishes says no goodbye.
        for option, value in (("", 1), ("_IDLE", 5), ("_INTVL", 2), ("_CNT", 3)):
            self._context.setsockopt(getattr(zmq, f"TCP_KEEPALIVE{option}"), value)
        client = KernelClient(context=self._context)
        try:
            info = msgspec.json.decode(Path(connection_file).read_bytes())
            msgspec.convert(info, _Ports)
            client.load_connection_info(info)
            self._session = client.session
            self._shell = client.connect_shell(identity=self._session.bsession)
            self._control = client.connect_control(identity=self._session.bsession)
            self._iopub = client.connect_iopub()
        except (OSError, msgspec.MsgspecError, TraitError, zmq.ZMQError) as unusable:
            self._context.destroy(linger=0)
            raise KernelNotFound(f"connection file {connection_file} is of no use: {unusable}") from unusable
        self._monitor = self._shell.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="messagehub-kernel", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._why is None

    def wait_ready(self, timeout_seconds: float) -> None:
        if not self._settled.wait(timeout_seconds):
            raise KernelNotReady(f"the kernel did not answer in {timeout_seconds} s")
        self.check()

    def submit(self, content: dict[str, Any], inbox: _Inbox) -> str:
        request_id = uuid.uuid4().hex
        queues = dict.fromkeys(self._router.categories, inbox)
        with self._lock:
            self.check()
            self._open[request_id] = _Open(inbox)
            self._router.register(request_id, queues, now=time.monotonic())
            self._leave(self._shell, "execute_request", request_id, content)
        return request_id

    def control(self, kind: str, content: dict[str, Any]) -> None:
        with self._lock:
            self.check()
            self._leave(self._control, kind, uuid.uuid4().hex, content)

    def finish(self, request_id: str, why: _Reason | None) -> None:
        with self._lock:
            ended = self._open.pop(request_id, None)
        if ended is not None:
            self._router.unregister(request_id)
            ended.inbox.put(_End(why))

    def close(self, why: _Reason, *, shut_down: bool) -> None:
        """End the link, asking the kernel to leave as well if `shut_down`. Harmless when it has ended."""
        with self._lock:
            if self._why is None:
                self._closing = why
                if shut_down:
                    self._linger_milliseconds = int(GRACE_SECONDS * 1000)
                    self._leave(self._control, "shutdown_request", uuid.uuid4().hex, {"restart": False})
                os.eventfd_write(self._wake, 1)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def check(self) -> None:
        if self._why is not None:
            raise self._why()

    def _leave(self, socket: zmq.Socket[bytes], kind: str, request_id: str, content: dict[str, Any]) -> None:
        self._outgoing.append((socket, kind, request_id, content))
        os.eventfd_write(self._wake, 1)

    # From here on: the thread.

    def _run(self) -> None:
        why: _Reason = functools.partial(KernelDied, "the thread that served the kernel failed")
        try:
            why = self._serve()
        finally:
            with self._lock:
                self._why = why
                os.close(self._wake)
            for request_id in list(self._open):
                self.finish(request_id, why)
            self._settled.set()
            self._shell.disable_monitor()
            self._context.destroy(linger=self._linger_milliseconds)

    def _serve(self) -> _Reason:
        death = self._monitor if self._process is None else self._process.pidfd
        poller = zmq.Poller()
        for source in (self._wake, death, self._shell, self._control, self._iopub):
            poller.register(source, zmq.POLLIN)
        probe_at = -math.inf
        while self._closing is None:
            now = time.monotonic()
            if now >= self._router.next_cleanup_at:
                self._router.cleanup(now=now)
            if self._awaited and now >= probe_at:
                self._probe()
                probe_at = now + PROBE_SECONDS
            due_at = min(self._router.next_cleanup_at, probe_at if self._awaited else math.inf)
            ready = dict(poller.poll(math.ceil(max(0.0, due_at - now) * 1000)))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            self._send_all()
            self._receive()
            if death in ready:
                return self._post_mortem()
        self._send_all()
        return self._closing

    def _send_all(self) -> None:
        while self._outgoing:
            self._send(*self._outgoing.popleft())

    def _probe(self) -> None:
        """Ask on both channels: a busy kernel answers on control only, and some kernels not there."""
        for socket in (self._shell, self._control):
            request_id = uuid.uuid4().hex
            self._probes.add(request_id)
            self._send(socket, "kernel_info_request", request_id, {})

    def _send(self, socket: zmq.Socket[bytes], kind: str, request_id: str, content: dict[str, Any]) -> None:
        header = self._session.msg_header(kind) | {"msg_id": request_id}
        self._session.send(socket, self._session.msg(kind, content, header=header))

    def _receive(self) -> None:
        """Take a bounded number of messages from each socket, so that none starves the others.

        Outputs first: a reply that came together with them then stands after them, where readers expect it.
        """
        for socket in (self._iopub, self._shell, self._control):
            for _ in range(RECEIVE_BURST):
                try:
                    _, raw = self._session.recv(socket)
                    if raw is None:
                        break
                    head = msgspec.convert(raw, _Head)
                except (ValueError, TypeError, LookupError, msgspec.ValidationError) as bad:
                    log.warning("a message of the kernel could not be read: %s", bad)
                else:
                    self._take(socket, Message(head.parent_header.msg_id, head.msg_type, raw))

    def _take(self, socket: zmq.Socket[bytes], message: Message) -> None:
        if self._awaited:
            self._awaited.discard("broadcast" if socket is self._iopub else "reply")
            if not self._awaited:
                self._settled.set()
        request_id = message.request_id
        if request_id in self._probes or socket is self._control:
            return
        self._router.route(message, now=time.monotonic())
        if request_id is None or (waiting := self._open.get(request_id)) is None:
            return
        if message.kind == "execute_reply":
            waiting.missing.discard("reply")
        elif message.kind == "status" and message.body["content"].get("execution_state") == "idle":
            waiting.missing.discard("idle")
        if not waiting.missing:
            self.finish(request_id, None)

    def _post_mortem(self) -> _Reason:
        """What the kernel said before it died is still on its way to us; take it, then tell."""
        poller = zmq.Poller()
        for socket in (self._shell, self._iopub):
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + LAST_WORDS_LIMIT_SECONDS
        while poller.poll(LAST_WORDS_MILLISECONDS) and time.monotonic() < deadline:
            self._receive()
        how = self._process.reap() if self._process else "the connection to the kernel broke"
        return functools.partial(KernelDied, how)


@dataclass(slots=True)
class _Parts:
    link: _Link
    process: _Process | None


def _shut_down(owner_pid: int, parts: _Parts) -> None:
    if os.getpid() != owner_pid:  # a forked copy: the kernel is its parent's
        return
    if parts.process is not None:
        parts.process.interrupt()
    why = functools.partial(KernelClosed, "the kernel was closed")
    parts.link.close(why, shut_down=parts.process is not None)
    if parts.process is not None:
        parts.process.stop(GRACE_SECONDS)
        parts.process.forget()


class Kernel:
    """A running kernel. Any thread may use it; requests run in the order in which they were given."""

    def __init__(self, connection_file: str, process: _Process | None, timeout_seconds: float) -> None:
        # A silent computation may take hours: the kernel's life, not its chatter, bounds a request.
        self.router = StreamRouter(limits=StreamLimits(idle_seconds=math.inf))
        self.connection_file = connection_file
        self._lock = threading.Lock()
        self._owner_pid = os.getpid()
        self._parts = _Parts(_Link(connection_file, self.router, process), process)
        self._finalizer = weakref.finalize(self, _shut_down, self._owner_pid, self._parts)
        self._wait_ready(timeout_seconds)

    @classmethod
    def start(
        cls,
        name: str = "python3",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float = 60.0,
    ) -> Self:
        """Start an installed kernel and wait until it answers."""
        process = _Process(name, cwd, env or {})
        try:
            return cls(process.connection_file, process, timeout_seconds)
        except BaseException:
            process.stop(0.0)
            process.forget()
            raise

    @classmethod
    def connect(cls, connection_file: str | os.PathLike[str], *, timeout_seconds: float = 10.0) -> Self:
        """Share a kernel that runs already, busy or not; closing leaves it running."""
        return cls(os.fspath(connection_file), None, timeout_seconds)

    @property
    def is_alive(self) -> bool:
        return self._parts.link.is_open

    @property
    def pid(self) -> int | None:
        """The process of a kernel started here."""
        return self._parts.process.pid if self._parts.process else None

    def execute(self, code: str, *, stop_on_error: bool = False) -> Execution:
        """Send code and return at once; read the outputs as they come.

        `stop_on_error` makes an error of this code abort the requests that wait behind it.
        """
        self._check_owner()
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": stop_on_error,
        }
        return Execution(self, self._parts.link, content)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt (or its like) in the code that runs now; what waits runs after it."""
        self._check_owner()
        self._parts.link.check()
        process = self._parts.process
        if process is None or process.is_interrupted_by_message:
            self._parts.link.control("interrupt_request", {})
        else:
            process.interrupt()

    def restart(self, timeout_seconds: float = 60.0) -> None:
        """A new process in place of the old one, alive or dead. Open executions end at once."""
        self._check_owner()
        process = self._parts.process
        if process is None:
            raise KernelNotOwned("this kernel was not started here")
        with self._lock:
            if not self._finalizer.alive:
                raise KernelClosed("the kernel was closed")
            process.interrupt()
            self._parts.link.close(functools.partial(KernelRestarted, "the kernel was restarted"), shut_down=True)
            process.stop(GRACE_SECONDS)
            process.launch()
            self._parts.link = _Link(self.connection_file, self.router, process)
        self._wait_ready(timeout_seconds)

    def close(self) -> None:
        """End the kernel if it was started here, else leave it. Harmless when done twice."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_owner(self) -> None:
        if os.getpid() != self._owner_pid:
            raise KernelClosed(f"this kernel belongs to process {self._owner_pid}, from before the fork")

    def _wait_ready(self, timeout_seconds: float) -> None:
        try:
            self._parts.link.wait_ready(timeout_seconds)
        except BaseException:
            self.close()
            raise
