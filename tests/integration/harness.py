"""What the tests of a running hub share: real brokers, plain sockets, deadlines."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import zmq

from messagehub import MessageHub, embedded_broker
from tests import preloaded

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 30.0
"""Far more than anything here takes, so that a loaded machine fails no test."""

ANSWER_SECONDS = 10.0

T = TypeVar("T")
Message = dict[str, Any]

REGISTER: Message = {
    "type": "PRODUCER_REGISTER",
    "channel": "sensor_data",
    "schema_hash": "abc123...",
    "schema_version": "1.0.0",
    "config": {"policy": "RingBuffer", "capacity": 10, "page_size": 4096},
}
CONSUME: Message = {
    "type": "CONSUMER_REGISTER",
    "channel": "sensor_data",
    "consumer_id": "consumer_001",
    "expected_schema_hash": "abc123...",
}
DISCOVER: Message = {"type": "DISCOVERY_REQUEST", "channel": "sensor_data"}
DISCOVERED: Message = {
    "type": "DISCOVERY_RESPONSE",
    "channel": "sensor_data",
    "shm_name": "/pylabhub_sensor_data",
    "schema_hash": "abc123...",
    "schema_version": "1.0.0",
    "status": "active",
}


def eventually(condition: Callable[..., T | None], *arguments: Any, timeout: float = PATIENCE_SECONDS) -> T:
    """What the condition gives once that is true; fails at the deadline with what it gave last."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition(*arguments)
        if value:
            return value
        assert time.monotonic() < deadline, f"still {value!r} after {timeout} s"
        time.sleep(0.01)


def producer(channel: str, **fields: Any) -> Message:
    return {"type": "PRODUCER_REGISTER", "channel": channel, "schema_hash": "h", "schema_version": "1.0.0", **fields}


def without(message: Message, *fields: str) -> Message:
    return {name: value for name, value in message.items() if name not in fields}


class Peer:
    """A plain ZeroMQ socket, as a script in any language would have it; knows nothing of our client."""

    def __init__(self, endpoint: str, kind: int = zmq.REQ, **options: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.kind = kind
        self.socket = self._context.socket(kind)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.SNDTIMEO, int(PATIENCE_SECONDS * 1000))
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(endpoint)

    def send(self, message: Message | bytes) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.socket.send_multipart([body] if self.kind == zmq.REQ else [b"", body])

    def send_in_vain(self, message: Message) -> None:
        """Send to a broker that lets this peer in nowhere. If it has said so already, libzmq takes no message."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(json.dumps(message).encode(), zmq.DONTWAIT)

    def receive(self, timeout: float = PATIENCE_SECONDS) -> Message:
        assert self.socket.poll(int(timeout * 1000)), "no reply"
        reply: Message = json.loads(self.socket.recv_multipart()[-1])
        return reply

    def hears_nothing(self, seconds: float) -> bool:
        return not self.socket.poll(int(seconds * 1000))

    def ask(self, message: Message | bytes, timeout: float = PATIENCE_SECONDS) -> Message:
        self.send(message)
        return self.receive(timeout)

    def stats(self) -> Message:
        return self.ask({"type": "STATS_REQUEST"})

    def counter(self, name: str) -> int:
        return int(self.stats()["counters"][name])

    def snapshot(self) -> dict[str, Message]:
        """Every channel record, by name, over all pages."""
        found: dict[str, Message] = {}
        after: str | None = ""
        while after is not None:
            page = self.ask({"type": "SNAPSHOT_REQUEST", "after": after})
            found |= {channel["name"]: channel for channel in page["channels"]}
            after = page["next"]
        return found

    def close(self) -> None:
        self.socket.close(0)
        self._context.term()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener:
    """A plain SUB on the event socket: what leaves, in the order in which it leaves."""

    def __init__(self, endpoint: str, topic: bytes = b"", queue: int = 0) -> None:
        """`queue` is how many events wait here; 0 is without a bound."""
        with Peer(endpoint) as peer:
            self.hello = peer.ask({"type": "HELLO"})
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, queue)
        self.socket.connect(self.hello["endpoints"]["events"])
        self.socket.subscribe(topic)
        self.echo = self.next()

    def next(self, timeout: float = PATIENCE_SECONDS) -> tuple[bytes, Message]:
        assert self.socket.poll(int(timeout * 1000)), "no event"
        topic, payload = self.socket.recv_multipart()
        return topic, json.loads(payload)

    def event(self, timeout: float = PATIENCE_SECONDS) -> tuple[bytes, Message]:
        """The next event that is no beacon."""
        deadline = time.monotonic() + timeout
        while True:
            heard = self.next(max(deadline - time.monotonic(), 0.0))
            if heard[1]["type"] != "BEACON":
                return heard

    def beacon(self, timeout: float = PATIENCE_SECONDS) -> tuple[bytes, Message]:
        deadline = time.monotonic() + timeout
        while True:
            heard = self.next(max(deadline - time.monotonic(), 0.0))
            if heard[1]["type"] == "BEACON":
                return heard

    def close(self) -> None:
        self.socket.close(0)
        self._context.term()

    def __enter__(self) -> "Listener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Served:
    """`messagehub serve` as a process of its own."""

    kind = "serve"

    def __init__(self, directory: Path, *arguments: str, with_http: bool = False, **settings: Any) -> None:
        self.dir = directory
        self.arguments = arguments
        self.with_http = with_http
        named = os.environ.get("MESSAGEHUB_DOMAIN") or settings.get("domain", "")
        self.domain = "" if "--group" in arguments else named  # a group's directory is elsewhere
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if settings:
            lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
            (directory / "messagehub.toml").write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[str] | None = None
        self.endpoint = self.http = ""
        self.start()

    def start(self) -> None:
        """Returns when the broker has said that it is ready."""
        assert self.process is None
        self.process = launch(self.dir, *self.arguments, log=self.dir / "serve.log", with_http=self.with_http)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if " ready: " not in ready:
            self.end_at_once()
            raise AssertionError(f"the broker said {ready!r}, and {self.log()!r}")
        self.endpoint = ready.split("endpoint=")[1].split()[0]
        self.http = ready.split("http=")[1].split()[0]

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return (self.dir / "serve.log").read_text()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._check()
        self.signal(signal.SIGTERM)
        return self._end()

    def _check(self) -> None:
        """Fail where the broker keeps what belongs to nobody; one that has ended or is paused is passed over."""
        if self.process is None or self.process.poll() is not None or _is_paused(self.pid):
            return
        with contextlib.suppress(FileNotFoundError):  # it has just begun, or is about to end
            check_broker(json.loads((self.dir / "broker.json").read_text())["endpoint"], self.domain)

    def _end(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(PATIENCE_SECONDS)
        self.process.stdout.close()
        self.process = None
        return code

    def close(self) -> None:
        try:
            self._check()
        finally:
            self.end_at_once()

    def end_at_once(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                end_at_once(self.process)
            self._end()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.end_at_once()


def _is_paused(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def check_broker(endpoint: str, domain: str = "") -> None:
    """Fail unless everything that the broker keeps belongs to somebody; `domain` is its directory of channels."""
    from tests.integration.invariants import kept_in_vain  # which asks through a Peer

    found: list[str] = []

    def is_true() -> bool:
        found[:] = kept_in_vain(endpoint, domain)
        return not found

    try:
        eventually(is_true, timeout=ANSWER_SECONDS)
    except AssertionError:
        raise AssertionError(f"the broker keeps what belongs to nobody: {found}") from None


@contextlib.contextmanager
def checked_broker(local: str = "", **settings: Any) -> Iterator[str]:
    """`embedded_broker`, with `check_broker` at its end; `local` is where a peer of this host needs no key."""
    domain = "" if "group" in settings else settings.get("domain") or os.environ.get("MESSAGEHUB_DOMAIN", "")
    with embedded_broker(**settings) as endpoint:
        yield endpoint
        check_broker(local or endpoint, domain)


class Embedded:
    """The broker of this process, behind the same face."""

    kind = "embedded"

    def __init__(self, **settings: Any) -> None:
        before = _cleaners()
        self._running = checked_broker(**settings)
        self.endpoint = self._running.__enter__()
        eventually(lambda: _cleaners() > before)  # its last thread; or else it is taken for somebody's leak

    def close(self) -> None:
        self._running.__exit__(None, None, None)


def _cleaners() -> int:
    return sum(thread.name == "messagehub-cleaner" for thread in threading.enumerate())


AnyBroker = Served | Embedded


def launch(directory: Path, *arguments: str, log: Path | None = None, with_http: bool = False) -> subprocess.Popen[str]:
    """A `messagehub serve` process; its complaints go to `log`, or to a pipe."""
    command = [sys.executable, "-m", "messagehub", "serve", "--dir", str(directory), *arguments]
    command += [] if with_http else ["--no-http"]
    with contextlib.ExitStack() as stack:
        stderr: Any = stack.enter_context(log.open("a")) if log else subprocess.PIPE
        return preloaded.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env=clean_environment()
        )


def refused(directory: Path, *arguments: str, with_http: bool = False) -> tuple[int, str]:
    """Exit code and complaint of a `serve` that must not start."""
    process = launch(directory, *arguments, with_http=with_http)
    try:
        out, complaint = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, complaint = process.communicate()
    assert out == "", out
    return process.returncode, complaint


def end_at_once(process: "subprocess.Popen[Any]") -> None:
    """Kill a process; under `make coverage` end it by SIGTERM first, since a killed process cannot write down what it
    ran. One whose main thread is inside a system call never gets to that."""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    process.kill()


def clean_environment() -> dict[str, str]:
    """Nothing of the user's own hub, but the domain and the transport of this test run."""
    ours = ("MESSAGEHUB_DOMAIN", "MESSAGEHUB_TRANSPORT")
    kept = {n: v for n, v in os.environ.items() if not n.startswith("MESSAGEHUB_") or n in ours}
    return kept | {"PYTHONPATH": str(ROOT)}


def run_script(text: str, *arguments: str, timeout: float = 2 * PATIENCE_SECONDS) -> str:
    """Run a Python program of its own and return what it printed; its failure is ours."""
    done = preloaded.run(
        [sys.executable, "-W", "error", "-c", text, *arguments], timeout=timeout, env=clean_environment(), cwd=ROOT
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def wait_until_asleep(thread_id: int) -> None:
    """Wait until a thread of this process, by its native id, sleeps in a call.

    One that waits for the GIL wakes every 5 ms, and one that could go on does not sleep.
    """
    switches, since = "", 0.0

    def is_asleep() -> bool:
        nonlocal switches, since
        status = Path(f"/proc/self/task/{thread_id}/status").read_text()
        (state,) = (line.split()[1] for line in status.splitlines() if line.startswith("State:"))
        (now,) = (line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches:"))
        if state != "S" or now != switches:
            switches, since = now, time.monotonic()
            return False
        return time.monotonic() - since > 0.1

    eventually(is_asleep)


@contextlib.contextmanager
def hub_of(broker: AnyBroker | str, **settings: Any) -> Iterator[MessageHub]:
    endpoint = broker if isinstance(broker, str) else broker.endpoint
    if os.environ.get("MESSAGEHUB_TRANSPORT") == "zmq":
        # By ZeroMQ a process that a busy machine holds up looks like one that is stopped.
        settings = {"hello_timeout_seconds": 5.0} | settings
    hub = MessageHub(endpoint=endpoint, **settings)
    try:
        yield hub
    finally:
        hub.close()


# -- what a process holds, to see what it leaks -----------------------------------------------------------


def open_files() -> dict[str, str]:
    """Descriptors of this process and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own descriptor
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return {name: what for name, what in found.items() if not what.startswith(f"/proc/{os.getpid()}/fd")}


LEFT = "somebody who has left"


def ends_of(fd: str, what: str) -> str:
    """Both addresses of a socket, to tell whose it is; nothing for other descriptors."""
    if not what.startswith("socket:"):
        return ""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as opened:
        ends = f" from {opened.getsockname()!r} to "
        try:
            return f"{ends}{opened.getpeername()!r}"
        except OSError:
            return f"{ends}{LEFT if opened.family == socket.AF_INET else 'nobody'}"
    return ""


def is_to_spark(ends: str) -> bool:
    """Whether a socket leads to the JVM of a Spark session that other tests of this process use.

    py4j opens such connections when objects of Spark are collected, whichever test runs then, and keeps those that the
    JVM has closed.
    """
    module = sys.modules.get("pyspark.core.context")
    gateway = module.SparkContext._gateway if module is not None else None
    return gateway is not None and ends.endswith((f", {gateway.gateway_parameters.port})", LEFT))


def children() -> set[int]:
    """Of this process, and of the one that forks for it."""
    found: set[int] = set()
    for parent in (os.getpid(), preloaded.pid()):
        for task in Path(f"/proc/{parent}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
                found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


class Held:
    """Threads, descriptors and children at one moment."""

    def __init__(self) -> None:
        self.threads = {thread.name: thread for thread in threading.enumerate()}
        self.files = open_files()
        self.children = children()

    def leaked_since(self) -> list[str]:
        now = Held()
        threads = [f"thread {name}" for name, it in now.threads.items() if it not in self.threads.values()]
        new = {fd: what for fd, what in now.files.items() if self.files.get(fd) != what}
        ends = {fd: ends_of(fd, what) for fd, what in new.items()}
        files = [f"fd {fd} {what}{ends[fd]}" for fd, what in new.items() if not is_to_spark(ends[fd])]
        return [*threads, *files, *(f"child {pid}" for pid in now.children - self.children)]
