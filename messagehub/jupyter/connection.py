"""The connection to one kernel. Its rules are in `kernel.py`."""

from __future__ import annotations

import functools
import logging
import math
import os
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
from jupyter_client.client import KernelClient
from traitlets import TraitError

from messagehub.jupyter.outputs import ExecutionClosed, KernelDied, KernelNotFound, KernelNotReady
from messagehub.jupyter.process import KernelProcess
from messagehub.shm.locks import check_spare_files
from messagehub.streams import StreamMessage, StreamRouter
from registry.decoding import decodable

log = logging.getLogger("messagehub.jupyter")

KERNEL_FILES = 24
"""So many the sockets of a kernel take at most, with libzmq's own threads."""
PROBE_SECONDS = 0.2
GRACE_SECONDS = 2.0
SILENCE_MILLISECONDS = 50
"""After the end of its outputs was seen, nothing more of a dead kernel comes than what was read together with it."""
LONG_SILENCE_MILLISECONDS = 1000
"""Where no end is seen, since another process has the kernel's sockets."""
LAST_WORDS_LIMIT_SECONDS = 10.0
RECEIVE_BURST = 100


@decodable
class _Ports(msgspec.Struct):
    """The ports that a connection file must have. Jupyter itself takes a missing port for port 0."""

    shell_port: int
    iopub_port: int
    control_port: int
    stdin_port: int


class _Parent(msgspec.Struct):
    msg_id: str | None = None


@decodable
class _Head(msgspec.Struct):
    """The part of a message on the wire that routing needs."""

    msg_type: str
    parent_header: _Parent
    content: dict[str, Any]


Reason = Callable[[], Exception]  # not an exception: each reader raises its own


@dataclass(frozen=True, slots=True)
class End:
    """The last item of an execution's queue: complete when there is no reason."""

    why: Reason | None


Inbox = queue.SimpleQueue[StreamMessage | End]


@dataclass(slots=True)
class _Open:
    inbox: Inbox
    missing: set[str] = field(default_factory=lambda: {"reply", "idle"})


class KernelConnection:
    """The sockets of one kernel and the thread that owns them, from connecting to the one end."""

    def __init__(self, connection_file: str, router: StreamRouter, process: KernelProcess | None) -> None:
        self._router = router
        self._process = process
        self._lock = threading.RLock()  # a finalizer may close in the middle of a call
        self._linger_milliseconds = 0
        self._open: dict[str, _Open] = {}
        self._outgoing: deque[tuple[zmq.Socket[bytes], str, str, dict[str, Any]]] = deque()
        self._closing: Reason | None = None
        self._why: Reason | None = None
        self._probes: set[str] = set()
        self._awaited = {"reply", "broadcast"}
        self._settled = threading.Event()
        check_spare_files(KERNEL_FILES)
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
            self._stdin = client.connect_stdin(identity=self._session.bsession)
        except (OSError, msgspec.MsgspecError, TraitError, zmq.ZMQError) as unusable:
            self._context.destroy(linger=0)
            raise KernelNotFound(f"connection file {connection_file} is of no use: {unusable}") from unusable
        self._monitor = self._shell.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._outputs_monitor = self._iopub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
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

    def submit(self, content: dict[str, Any], inbox: Inbox) -> str:
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

    def answer(self, request_id: str, text: str) -> None:
        """Have `input()` return this text in the code of a request.

        Raise ExecutionClosed or the like if that has ended.
        """
        with self._lock:
            self.check()
            if request_id not in self._open:
                raise ExecutionClosed("the execution has ended: nothing waits for an answer")
            self._leave(self._stdin, "input_reply", uuid.uuid4().hex, {"value": text})

    def finish(self, request_id: str, why: Reason | None) -> None:
        """End a request, as complete or for a reason.

        What a thread of complete code still prints goes to its reader.
        """
        with self._lock:
            ended = self._open.pop(request_id, None)
        if ended is not None:
            if why is None:
                self._router.complete(request_id)
            else:
                self._router.unregister(request_id)
            ended.inbox.put(End(why))

    def forget(self, request_id: str) -> None:
        """Unregister a request that has ended and that nobody reads. What still comes for it is an orphan."""
        self._router.unregister(request_id)

    def close(self, why: Reason, *, shut_down: bool) -> None:
        """End the connection, asking the kernel to leave as well if `shut_down`. Harmless when it has ended."""
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
        why: Reason = functools.partial(KernelDied, "the thread that served the kernel failed")
        try:
            why = self._serve()
        except Exception:  # whoever waits is told by `why`
            log.exception("the thread that served the kernel failed")
        finally:
            with self._lock:
                self._why = why
                os.close(self._wake)
            for request_id in list(self._open):
                self.finish(request_id, why)
            self._settled.set()
            self._shell.disable_monitor()
            self._iopub.disable_monitor()
            self._context.destroy(linger=self._linger_milliseconds)

    def _serve(self) -> Reason:
        death = self._monitor if self._process is None else self._process.pidfd
        poller = zmq.Poller()
        for source in (self._wake, death, self._shell, self._control, self._iopub, self._stdin):
            poller.register(source, zmq.POLLIN)
        probe_at = -math.inf
        while self._closing is None:
            now = time.monotonic()
            if now >= self._router.next_cleanup_at:
                for expired in self._router.cleanup(now=now).expired:
                    with self._lock:
                        self._open.pop(expired.request_id, None)  # its reader was told by the router
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
        for socket in (self._iopub, self._shell, self._control, self._stdin):
            for _ in range(RECEIVE_BURST):
                try:
                    _, raw = self._session.recv(socket)
                    if raw is None:
                        break
                    head = msgspec.convert(raw, _Head)
                except Exception as bad:  # noqa: BLE001  whatever jupyter_client raises of bytes that are no message
                    log.warning("a message of the kernel could not be read: %s", bad)
                else:
                    self._take(socket, StreamMessage(head.parent_header.msg_id, head.msg_type, raw))

    def _take(self, socket: zmq.Socket[bytes], message: StreamMessage) -> None:
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

    def _post_mortem(self) -> Reason:
        """Receive what the kernel sent before it died, then end the connection."""
        poller = zmq.Poller()
        for source in (self._shell, self._iopub, self._outputs_monitor):
            poller.register(source, zmq.POLLIN)
        silence = LONG_SILENCE_MILLISECONDS
        deadline = time.monotonic() + LAST_WORDS_LIMIT_SECONDS
        while (ready := dict(poller.poll(silence))) and time.monotonic() < deadline:
            if self._outputs_monitor in ready:
                poller.unregister(self._outputs_monitor)
                silence = SILENCE_MILLISECONDS
            self._receive()
        how = self._process.reap() if self._process else "the connection to the kernel broke"
        return functools.partial(KernelDied, how)
