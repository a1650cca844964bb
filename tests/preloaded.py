"""Python programs as processes of their own, forked from one that has imported the hub already: a new interpreter takes
ten times as long, and the tests start more than a thousand.

`Popen` is `subprocess.Popen` for commands that begin with `sys.executable`. What a program is given (arguments,
environment, directory, standard files) and what it does is the same; limits, umask and the command line in /proc are
those of the process that forked it. So are modules: tests of what is imported, and of Python's own options, start
Python anew.

The processes that a hub itself starts (the one that checks schemas, the one of HTTP) have to be its own children. A hub
that is forked here forks a few of them before it begins (`_Reserve`), which wait until the hub starts a process; when
none is left, and in hubs that are no children of this, Python starts anew. An embedded hub of the tests' own process
has its process forked like any other.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

ROOT = Path(__file__).parents[1]
MAX_BYTES = 1 << 20
MORE = "TESTS_WAITING_PROCESSES"
"""The variable that gives a hub so many more, for tests in which it starts HTTP again and again."""


class Popen(subprocess.Popen[Any]):
    """What starts and what waits is overridden: the process is the child of another one, which tells its exit."""

    _status = -1
    _namespaces_of = 0

    def __init__(
        self,
        args: list[str],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        bufsize: int = -1,
        start_new_session: bool = False,
        namespaces_of: int = 0,
    ) -> None:
        """`namespaces_of` is a process on whose host (mounts, hostname, network) the program runs; 0: on this one."""
        self._namespaces_of = namespaces_of
        super().__init__(
            args,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=text,
            env=env,
            cwd=cwd,
            bufsize=bufsize,
            start_new_session=start_new_session,
        )

    def _execute_child(self, args: Any, *rest: Any) -> None:  # private: there is no other place to start it differently
        cwd, env, has_session, group = rest[4], rest[5], rest[20], rest[21]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[9:15]
        files = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, 2 if errwrite == -1 else errwrite]
        program = {"args": [str(part) for part in args], "env": dict(os.environ if env is None else env)}
        self._status, told = os.pipe2(os.O_CLOEXEC)
        try:
            program |= {"cwd": str(cwd or Path.cwd()), "group": group, "has_session": has_session}
            program["namespaces_of"] = self._namespaces_of
            self.pid = _parent().fork(program, [*files, told])
        finally:
            os.close(told)
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(
            blocking=False
        ):  # or else another thread waits for it
            try:
                if self.returncode is None and self._try_wait(os.WNOHANG)[0]:
                    self._handle_exitstatus(self._exit)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status != -1:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            if not poll.poll(0 if wait_flags & os.WNOHANG else None):
                return 0, 0
            told = os.read(self._status, 4)
            self._exit = int.from_bytes(told, "little") if told else signal.SIGKILL  # nothing: whoever forks was killed
            os.close(self._status)
            self._status = -1
        return self.pid, self._exit


class _Embedded(subprocess.Popen[Any]):
    """`subprocess.Popen` of the tests' own process: what checks schemas for an embedded hub is forked.

    All others start as usual. A process of HTTP ends with its parent, which has to be the tests' own process.
    """

    def __new__(cls, args: Any, *rest: Any, **options: Any) -> Any:
        is_forked = _is_of_a_hub(args) and not options.get("pass_fds")
        return object.__new__(_OfEmbedded if is_forked else cls)


class _OfEmbedded(_Embedded, Popen):
    __init__ = _Embedded.__init__  # with all of its options
    _execute_child = Popen._execute_child


def _is_of_a_hub(args: Any) -> bool:
    """Whether the command is one of `messagehub.runtime.child_process`."""
    return isinstance(args, list) and args[:3] == [sys.executable, "-P", "-c"]


def run(
    args: list[str],
    *,
    timeout: float,
    env: dict[str, str] | None = None,
    input: str | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text."""
    stdin = None if input is None else subprocess.PIPE
    pipe = subprocess.PIPE
    with Popen(args, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=env, cwd=cwd) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


class _Parent:
    """The process that forks, as its user sees it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
        with other:
            command = [sys.executable, "-m", "tests.preloaded", str(other.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT)
        self.pid = self._process.pid

    def fork(self, program: dict[str, Any], files: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(program).encode()], files)
            return int(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


_started: list[_Parent] = []


def start() -> None:
    """Before the first test, so that nobody takes it for what a test left behind."""
    _started.append(_Parent())
    atexit.register(_started[0].close)
    subprocess.Popen = _Embedded  # type: ignore[misc]


def _parent() -> _Parent:
    return _started[0]


def pid() -> int:
    return _started[0].pid if _started else 0


# -- the process that forks ----------------------------------------------------------------------------------


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork whenever asked. Returns in each child, with what it shall run, and at the end of the one who asks."""
    exits: dict[int, tuple[int, int]] = {}
    poller = select.poll()
    poller.register(link, select.POLLIN)
    while True:
        for fd, _ in poller.poll():
            if fd == link.fileno():
                asked, files, _, _ = socket.recv_fds(link, MAX_BYTES, 4)
                if not asked:
                    return None
                child = os.fork()
                if child == 0:
                    for open_fd in [link.detach(), files[3], *exits, *(told for _, told in exits.values())]:
                        os.close(open_fd)
                    for standard, given in enumerate(files[:3]):
                        os.dup2(given, standard)
                        os.close(given)
                    return dict(json.loads(asked))
                for given in files[:3]:
                    os.close(given)
                pid_fd = os.pidfd_open(child)
                exits[pid_fd] = child, files[3]
                poller.register(pid_fd, select.POLLIN)
                link.send(str(child).encode())
            else:
                poller.unregister(fd)
                child, told = exits.pop(fd)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(told, os.waitpid(child, 0)[1].to_bytes(4, "little"))
                os.close(told)
                os.close(fd)


def _show_module(program: str) -> None:
    """Write the module that a program runs over the command line in /proc, by which tests tell a hub's processes."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(words[45]), int(words[46])  # where the kernel reads the command line
    (module,) = re.findall(r"from (\S+) import main", program)
    ctypes.memmove(start, module.encode().ljust(end - start, b"\0")[: end - start], end - start)


class _Reserve(subprocess.Popen[Any]):
    """`subprocess.Popen` of a hub: its own processes are children that wait for what they shall be."""

    waiting: ClassVar[list[tuple[int, socket.socket]]] = []

    @classmethod
    def fork(cls, program: dict[str, Any]) -> dict[str, Any]:
        """Return the program of the hub; in a child, later, that of the child. Without a program the child ends."""
        words = program["args"]
        has_gateway = "--site" in words and "--no-gateway" not in words
        has_http = "--no-http" not in words
        for _ in range(1 + has_http + has_gateway + int(program["env"].get(MORE, "0"))):  # one checks schemas
            link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            child = os.fork()
            if child == 0:
                for unused in [link, *(earlier for _, earlier in cls.waiting)]:
                    unused.close()
                with other:
                    asked, files, _, _ = socket.recv_fds(other, MAX_BYTES, 16)
                if not asked:
                    os._exit(0)
                found = dict(json.loads(asked))
                _show_module(found["args"][3])
                # Above all numbers that they shall have, so that none is overwritten before it is used.
                high = [fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 512) for given in files]
                for given in files:
                    os.close(given)
                for given, wanted in zip(high, found["files"], strict=True):
                    os.dup2(given, wanted)
                    os.close(given)
                return found
            other.close()
            cls.waiting.append((child, link))
        subprocess.Popen = cls  # type: ignore[misc]
        return program

    def _execute_child(self, args: Any, *rest: Any) -> None:  # private: as above
        if not (_is_of_a_hub(args) and _Reserve.waiting):
            super()._execute_child(args, *rest)
            return
        pass_fds, cwd, env, group = rest[3], rest[4], rest[5], rest[21]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = rest[9:15]
        standard = [
            0 if p2cread == -1 else p2cread,
            1 if c2pwrite == -1 else c2pwrite,
            2 if errwrite == -1 else errwrite,
        ]
        program = {
            "args": [str(part) for part in args],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "group": group,
            "files": [0, 1, 2, *pass_fds],
        }
        self.pid, link = _Reserve.waiting.pop()
        with link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
            socket.send_fds(link, [json.dumps(program).encode()], [*standard, *pass_fds])
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True


def _enter_namespaces(pid: int) -> None:
    """Go to the host that a process is on. Before any thread begins: the kernel takes only processes with one."""
    kinds = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")]
    libc = ctypes.CDLL(None, use_errno=True)
    for fd in kinds:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), f"the namespaces of process {pid} cannot be entered")
        os.close(fd)


def _run(program: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    imports_ours = program["env"].get("PYTHONPATH", str(ROOT)).split(os.pathsep)[0] == str(ROOT)
    if program.get("namespaces_of"):
        _enter_namespaces(program["namespaces_of"])
    if program["args"][1:4] == ["-m", "messagehub", "serve"] and imports_ours:
        program = _Reserve.fork(program)
    sys.orig_argv = program["args"]
    os.environ.clear()
    os.environ.update(program["env"])
    os.chdir(program["cwd"])
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry not in sys.path]
    sys.path[:0] = path  # of modules that were not imported before
    if program.get("has_session"):
        os.setsid()
    if program["group"] >= 0:
        os.setpgid(0, program["group"])
    words = program["args"][1:]
    if words[0] == "-P":
        words = words[1:]
    if words[0] == "-W":
        warnings.simplefilter(words[1])
        words = words[2:]
    if not words[0].startswith("-"):
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).absolute().parent))
        runpy.run_path(words[0], run_name="__main__")
        return
    kind, what, *arguments = words
    if kind == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), sys.modules["__main__"].__dict__)


def _run_to_the_end(program: dict[str, Any]) -> None:
    """Run it, and end as Python does, but without freeing what the process that forked had already.

    Freeing copies every page that is shared with it: 50 ms, more than most commands take. What a program (`-c`) has
    made itself is freed, so that tests see what happens then; with `-W error` everything is.
    """
    code: Any = 0
    try:
        _run(program)
    except SystemExit as ended:
        code = ended.code or 0
    is_ours = program["args"][1:3] == ["-m", "messagehub"] or _is_of_a_hub(program["args"])
    is_program = program["args"][1] == "-c"
    if (is_ours or is_program) and isinstance(code, int):
        threading._shutdown()  # type: ignore[attr-defined]  # private: what Python calls when it ends
        atexit._run_exitfuncs()  # private: as above
        if is_program:
            sys.modules["__main__"].__dict__.clear()
            gc.collect()
        with contextlib.suppress(OSError, ValueError):  # then Python says that it could not be written
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 0xFF)
    sys.exit(code)


def _preload() -> None:
    """Import what most of the processes import anyway."""
    for module in (
        "numpy",
        "pyarrow",
        "uvicorn",
        "messagehub.admin.app",
        "messagehub.broker.embedded",
        "messagehub.broker.schema_worker.process",
        "messagehub.cli.serve",
        "messagehub.hub",
    ):
        importlib.import_module(module)
    sys.modules["registry.schemas.checks"].preload()
    sys.modules["messagehub.cli"].root_command()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    gc.collect()
    gc.freeze()
    to_run = _serve(socket.socket(fileno=int(sys.argv[1])))
    if to_run is not None:
        _run_to_the_end(to_run)
