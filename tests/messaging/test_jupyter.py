"""Real ipykernel processes: everything here is what a notebook would see."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from jupyter_client.session import Session

from messagehub.errors import ConfigurationError
from messagehub.jupyter.kernel import (
    ClearOutput,
    Comm,
    Display,
    Execution,
    ExecutionClosed,
    ExecutionTimedOut,
    Failure,
    Input,
    InputRequest,
    Kernel,
    KernelClosed,
    KernelDied,
    KernelNotFound,
    KernelNotOwned,
    KernelNotReady,
    KernelRestarted,
    Reply,
    Result,
    Status,
    Text,
)
from messagehub.streams import Collector

LONG = 30.0  # a wait that only a failure uses up
# For code that is interrupted. Not one long sleep: Python sees a signal that comes right before it only at its end.
SLEEPS = "import time\nwhile True:\n    time.sleep(0.01)"


@pytest.fixture(scope="module")
def shared():
    """One kernel for all tests that leave it as they found it."""
    with Kernel.start() as kernel:
        yield kernel


@pytest.fixture
def gate(tmp_path):
    """A file that code in a kernel waits for: `gate.touch()` lets it go on."""
    return tmp_path / "gate"


def waits_for(gate, then=""):
    return (
        "import os, sys, time\n"
        "sys.stdout.write('waiting\\n')\n"  # at once: what `print` writes may be sent before its line's end
        f"sys.stdout.flush()\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n{then}"
    )


def read_until(execution: Execution, text: str) -> None:
    while not (isinstance(output := execution.read(LONG), Text) and text in output.text):
        assert output is not None, f"ended without {text!r}"


def eventually(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends between the opening and the reading
        return False
    return state != "Z"


def test_outputs_arrive_typed_and_in_order(shared):
    code = """
import sys
for stream, text in ((sys.stdout, "out\\n"), (sys.stderr, "err\\n")):
    stream.write(text)  # at once: what `print` writes may be sent before its line's end
    stream.flush()
display({"text/html": "<b>x</b>"}, raw=True, metadata={"a": 1})
6 * 7
"""
    execution = shared.execute(code)
    outputs = [output for output in execution if not isinstance(output, Reply)]
    busy, echo, out, err, shown, result, idle = outputs
    assert isinstance(busy, Status)
    assert busy.execution_state == "busy"
    assert isinstance(echo, Input)
    assert echo.code == code
    assert isinstance(out, Text)
    assert (out.name, out.text) == ("stdout", "out\n")
    assert (err.name, err.text) == ("stderr", "err\n")
    assert isinstance(shown, Display)
    assert (shown.data, shown.metadata) == ({"text/html": "<b>x</b>"}, {"a": 1})
    assert isinstance(result, Result)
    assert result.data == {"text/plain": "42"}
    assert idle.execution_state == "idle"
    completed = execution.wait(0.0)
    assert completed.status == "ok"
    assert completed.execution_count == result.execution_count == echo.execution_count
    assert completed.stdout == "out\n"
    assert completed.stderr == "err\n"


def test_outputs_arrive_while_the_code_still_runs(shared, gate):
    execution = shared.execute(waits_for(gate, "'done'"))
    read_until(execution, "waiting")
    with pytest.raises(ExecutionTimedOut, match=r"^the code still runs after 0\.05 s$") as late:
        execution.wait(0.05)
    with pytest.raises(ExecutionTimedOut, match=r"^nothing came in 0\.01 s: the code still runs$"):
        execution.read(0.01)
    assert late.value.code == "EXECUTION_TIMED_OUT"
    gate.touch()
    assert execution.wait(LONG).result.data["text/plain"] == "'done'"


def test_an_error_in_the_code_is_an_output_and_the_kernel_goes_on(shared):
    completed = shared.execute("1 / 0").wait(LONG)
    assert completed.status == "error"
    assert isinstance(completed.error, Failure)
    assert completed.error.ename == "ZeroDivisionError"
    assert "ZeroDivisionError" in completed.error.traceback[-1]
    assert shared.execute("1").wait(LONG).status == "ok"


def test_input_is_answered_by_a_callback(shared):
    prompts = []

    def ask(prompt):
        prompts.append(prompt)
        return f"answer {len(prompts)}"

    execution = shared.execute("[input('first? '), input('second? ')]", on_input=ask)
    assert execution.wait(LONG).result.data["text/plain"] == "['answer 1', 'answer 2']"
    assert prompts == ["first? ", "second? "]


def test_input_is_answered_by_whoever_reads(shared):
    execution = shared.execute("import getpass\nlen(getpass.getpass('secret: '))", allow_input=True)
    asked = next(output for output in execution if isinstance(output, InputRequest))
    assert (asked.prompt, asked.password) == ("secret: ", True)
    with pytest.raises(ConfigurationError, match="text"):
        execution.answer(7)
    execution.answer("hidden")
    assert execution.wait(LONG).result.data["text/plain"] == "6"
    with pytest.raises(ExecutionClosed):
        execution.answer("too late")


def test_input_that_nobody_answers_fails_in_the_code(shared):
    assert shared.execute("input('anybody?')").wait(LONG).error.ename == "StdinNotImplementedError"
    with pytest.raises(ConfigurationError, match="on_input"):
        shared.execute("input()", on_input=lambda: "no argument")

    async def ask_later(prompt: str) -> str:
        return prompt

    with pytest.raises(ConfigurationError, match="not awaited"):
        shared.execute("input()", on_input=ask_later)  # type: ignore[arg-type]


def test_what_a_thread_prints_after_the_end_belongs_to_its_execution(shared, gate):
    late = waits_for(gate, "print('late', flush=True)")
    execution = shared.execute(f"import threading\nthreading.Thread(target=exec, args=({late!r}, {{}})).start()")
    with pytest.raises(ConfigurationError, match="first"):
        execution.read_late()
    execution.wait(LONG)
    before = shared.router.stats().orphans
    gate.touch()
    texts = ""
    while "late\n" not in texts:
        output = execution.read_late(LONG)
        assert isinstance(output, Text)
        texts += output.text
    assert "late\n" in execution.wait(LONG).stdout
    assert shared.router.stats().orphans == before
    assert shared.router.stats().active_requests == 0


def test_displays_are_updated_and_cleared(shared):
    code = """
from IPython.display import clear_output
handle = display("one", display_id="x")
handle.update("two")
clear_output(wait=True)
"""
    outputs = shared.execute(code).wait(LONG).outputs
    first, second = (output for output in outputs if isinstance(output, Display))
    assert (first.kind, second.kind) == ("display_data", "update_display_data")
    assert first.transient == second.transient == {"display_id": "x"}
    assert second.data == {"text/plain": "'two'"}
    assert [output.wait for output in outputs if isinstance(output, ClearOutput)] == [True]


def test_comms_arrive_with_their_binary_buffers(shared):
    code = """
from comm import create_comm
link = create_comm(target_name="plot", data={"a": 1}, buffers=[b"xyz"])
link.send({"b": 2})
link.close()
"""
    comms = [output for output in shared.execute(code).wait(LONG).outputs if isinstance(output, Comm)]
    assert [comm.kind for comm in comms] == ["comm_open", "comm_msg", "comm_close"]
    assert len({comm.comm_id for comm in comms}) == 1
    assert (comms[0].target_name, comms[0].data, comms[0].buffers) == ("plot", {"a": 1}, (b"xyz",))
    assert comms[1].data == {"b": 2}


def test_twenty_requests_at_once_over_two_kernels_mix_nothing(shared):
    code = """
import sys
for part in range(3):
    print("{me}", part, flush=True)
    print("{me}", part, file=sys.stderr, flush=True)
    display({{"text/plain": "{me}"}}, raw=True)
{number} / (0 if {number} % 5 == 4 else 1)
"""
    with Kernel.start() as other:
        for name, kernel in (("first", shared), ("second", other)):
            kernel.execute(f"whoami = {name!r}").wait(LONG)

        def run(number):
            kernel = (shared, other)[number % 2]
            own = kernel.execute(code.format(me=f"request-{number}", number=number)).wait(LONG)
            return own, kernel.execute("whoami").wait(LONG).result.data["text/plain"]

        with ThreadPoolExecutor(20) as pool:
            results = list(pool.map(run, range(20)))
    for number, (completed, kernel_name) in enumerate(results):
        me = f"request-{number}"
        assert kernel_name == repr(("first", "second")[number % 2])
        for name in ("stdout", "stderr"):
            texts = [o.text for o in completed.outputs if isinstance(o, Text) and o.name == name]
            assert "".join(texts) == f"{me} 0\n{me} 1\n{me} 2\n"
        displays = [o.data for o in completed.outputs if isinstance(o, Display)]
        assert displays == [{"text/plain": me}] * 3
        states = [o.execution_state for o in completed.outputs if isinstance(o, Status)]
        assert states == ["busy", "idle"]
        if number % 5 == 4:
            assert completed.error.ename == "ZeroDivisionError"
        else:
            assert completed.result.data["text/plain"] == str(number / 1)
    stats = shared.router.stats()
    assert stats.active_requests == 0
    assert stats.received == stats.routed + stats.orphans + stats.dropped


def test_many_requests_may_wait_in_one_kernel_and_run_in_order(shared):
    executions = [shared.execute(f"print({number})") for number in range(20)]
    assert [execution.wait(LONG).stdout for execution in executions] == [f"{n}\n" for n in range(20)]


def test_large_output_arrives_whole(shared):
    completed = shared.execute("print('x' * 5_000_000)").wait(LONG)
    assert len(completed.stdout) == 5_000_001


def test_an_interrupt_ends_what_runs_and_what_waits_runs_after_it(shared):
    running = shared.execute(f"print('go', flush=True)\n{SLEEPS}")
    waiting = shared.execute("'next'")
    read_until(running, "go")
    shared.interrupt()
    assert running.wait(LONG).error.ename == "KeyboardInterrupt"
    assert waiting.wait(LONG).result.data["text/plain"] == "'next'"


def test_stop_on_error_aborts_what_waits_behind(shared, gate):
    failing = shared.execute(waits_for(gate, "1/0"), stop_on_error=True)
    behind = shared.execute("2")
    read_until(failing, "waiting")
    gate.touch()
    assert failing.wait(LONG).status == "error"
    aborted = behind.wait(LONG)
    assert aborted.status == "aborted"
    assert aborted.result is None
    eventually(lambda: shared.execute("3").wait(LONG).status == "ok")


def test_a_closed_execution_no_longer_listens_and_the_kernel_goes_on(shared, gate):
    with shared.execute(waits_for(gate, "print('unheard')")) as execution:
        read_until(execution, "waiting")
    assert shared.router.stats().active_requests == 0
    gate.touch()
    assert shared.execute("1").wait(LONG).status == "ok"
    with pytest.raises(ExecutionClosed) as closed:
        execution.wait(LONG)
    assert closed.value.code == "EXECUTION_CLOSED"


def test_closing_a_complete_execution_changes_nothing(shared):
    with shared.execute("1") as execution:
        completed = execution.wait(LONG)
    assert execution.wait(0.0) == completed


def test_output_after_its_execution_was_closed_is_kept_as_an_orphan_and_seen_by_a_tap(shared, gate):
    code = f"""
import threading
def later():
    while not os.path.exists({str(gate)!r}): time.sleep(0.01)
    sys.stdout.write("late\\n")  # at once: what `print` writes may be sent before its line's end
    sys.stdout.flush()
import os, sys, time
threading.Thread(target=later).start()
"""
    with shared.router.tap() as tap:
        execution = shared.execute(code)
        execution.wait(LONG)
        execution.close()
        before = shared.router.stats().orphans
        gate.touch()
        while (message := tap.read(LONG)).kind != "stream":
            assert message is not None
    assert message.body["content"]["text"] == "late\n"
    assert message.request_id == execution.request_id
    eventually(lambda: shared.router.stats().orphans > before)


def test_a_connected_client_shares_a_busy_kernel_and_leaves_it_running(shared, gate):
    shared.execute("secret = 7").wait(LONG)
    busy = shared.execute(waits_for(gate))
    read_until(busy, "waiting")
    with Kernel.connect(shared.connection_file, timeout_seconds=LONG) as guest:
        assert guest.pid is None
        execution = guest.execute("secret * 6")
        gate.touch()
        assert execution.wait(LONG).result.data["text/plain"] == "42"
        running = guest.execute(f"print('go', flush=True)\n{SLEEPS}")
        read_until(running, "go")
        guest.interrupt()
        assert running.wait(LONG).error.ename == "KeyboardInterrupt"
        with pytest.raises(KernelNotOwned) as refused:
            guest.restart()
        assert refused.value.code == "KERNEL_NOT_OWNED"
    assert busy.wait(LONG).status == "ok"
    assert shared.execute("secret").wait(LONG).status == "ok"


def test_a_collector_takes_up_a_request_that_another_client_sent_before(shared):
    with Kernel.connect(shared.connection_file, timeout_seconds=LONG) as guest:
        execution = shared.execute("import sys\nsys.stdout.write('shared\\n')\nsys.stdout.flush()")
        execution.wait(LONG)
        with Collector(guest.router, execution.request_id, timeout_seconds=LONG) as collector:
            collected = collector.collect()
    assert collected.is_complete
    assert [message.kind for message in collected.messages] == ["status", "execute_input", "stream", "status"]


def test_a_killed_kernel_is_reported_at_once_to_everybody_and_can_be_restarted():
    with Kernel.start() as kernel, Kernel.connect(kernel.connection_file) as guest:
        running = kernel.execute("import time\nprint('go', flush=True)\ntime.sleep(60)")
        waiting = [kernel.execute("1") for _ in range(3)]
        read_until(running, "go")
        elsewhere = guest.execute("2")
        os.kill(kernel.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        for execution in (running, *waiting, elsewhere):
            with pytest.raises(KernelDied) as died:
                execution.wait(LONG)
            assert died.value.code == "KERNEL_DIED"
        assert time.monotonic() - killed_at < LONG / 3
        with pytest.raises(KernelDied, match="SIGKILL"):
            kernel.execute("1")
        assert not kernel.is_alive
        assert not guest.is_alive
        eventually(lambda: kernel.router.stats().active_requests == 0)
        kernel.restart()
        assert kernel.is_alive
        assert kernel.execute("1 + 1").wait(LONG).result.data["text/plain"] == "2"


def test_a_kernel_that_leaves_by_itself_is_reported_with_its_exit_code(gate):
    with Kernel.start() as kernel:
        execution = kernel.execute(waits_for(gate, "os._exit(3)"))
        read_until(execution, "waiting")
        gate.touch()
        with pytest.raises(KernelDied, match="exit code 3"):
            execution.wait(LONG)


def test_a_restart_ends_open_executions_and_forgets_all_state(gate):
    with Kernel.start() as kernel:
        old_pid = kernel.pid
        kernel.execute("x = 1").wait(LONG)
        running = kernel.execute(waits_for(gate))
        read_until(running, "waiting")
        kernel.restart()
        with pytest.raises(KernelRestarted) as restarted:
            running.wait(LONG)
        assert restarted.value.code == "KERNEL_RESTARTED"
        assert kernel.pid != old_pid
        assert not is_running(old_pid)
        assert kernel.execute("x").wait(LONG).error.ename == "NameError"


def test_close_ends_the_kernel_its_children_and_open_executions_and_may_be_repeated(gate):
    kernel = Kernel.start()
    spawn = "import subprocess\nsubprocess.Popen(['sleep', '1000']).pid"
    child = int(kernel.execute(spawn).wait(LONG).result.data["text/plain"])
    running = kernel.execute(waits_for(gate))
    read_until(running, "waiting")
    assert is_running(child)
    pid, directory = kernel.pid, Path(kernel.connection_file).parent
    kernel.close()
    kernel.close()
    with pytest.raises(KernelClosed) as closed:
        running.wait(LONG)
    assert closed.value.code == "KERNEL_CLOSED"
    for late in (lambda: kernel.execute("1"), kernel.restart):
        with pytest.raises(KernelClosed):
            late()
    eventually(lambda: not is_running(pid) and not is_running(child))
    assert not directory.exists()


def test_a_kernel_nobody_holds_any_more_is_ended():
    kernel = Kernel.start()
    pid, directory = kernel.pid, Path(kernel.connection_file).parent
    with pytest.warns(ResourceWarning, match="the kernel of .*close it, or use `with.* was never closed"):
        del kernel
    eventually(lambda: not is_running(pid) and not directory.exists())


def test_starting_and_closing_leaves_no_thread_file_or_process_behind():
    def left_over():
        gc.collect()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return set(threading.enumerate()), set(children), len(os.listdir("/proc/self/fd"))

    def is_nothing_more(before):  # what an earlier test forgot may be closed meanwhile
        threads, children, files = left_over()
        return threads <= before[0] and children <= before[1] and files <= before[2]

    before = left_over()
    for _ in range(2):
        with Kernel.start() as kernel, Kernel.connect(kernel.connection_file) as guest:
            guest.execute("1").wait(LONG)
            kernel.restart()
    eventually(lambda: is_nothing_more(before))


SCRIPT = """
import sys
from messagehub.jupyter.kernel import Kernel
kernel = Kernel.start()
execution = kernel.execute("import time; print('go', flush=True); time.sleep(60)")
while execution.read(30.0).kind != "stream": continue
print(kernel.pid, kernel.connection_file, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(5)", 5), ("import time; time.sleep(60)", -signal.SIGKILL)],
    ids=["end of script", "exit code", "killed"],
)
def test_no_kernel_outlives_the_process_that_started_it(end, code):
    script = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pid, connection_file = script.stdout.readline().split()
        if code < 0:
            script.kill()
        _, errors = script.communicate(timeout=LONG)
    finally:
        script.kill()
        script.communicate()
    assert (script.returncode, errors) == (code, "")
    eventually(lambda: not is_running(int(pid)))
    if code < 0:  # nobody was left to tidy up
        shutil.rmtree(Path(connection_file).parent)
    assert not Path(connection_file).exists()


def test_a_forked_child_can_neither_use_nor_end_the_kernel(shared):
    child = os.fork()
    if child == 0:
        try:
            shared.execute("1")
        except KernelClosed:
            shared.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert shared.execute("1").wait(LONG).status == "ok"


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(KernelNotFound, match="no kernel 'klingon' is installed") as refused:
        Kernel.start("klingon")
    assert refused.value.code == "KERNEL_NOT_FOUND"


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"transport": "pigeon"}', '{"shell_port": "x"}'])
def test_an_unusable_connection_file_is_refused(tmp_path, content):
    path = tmp_path / "kernel.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KernelNotFound, match=r"kernel\.json"):
        Kernel.connect(path)


def test_a_kernel_that_dies_on_starting_is_reported_at_once_with_its_last_words():
    with pytest.raises(KernelDied, match=r"(?s)exit code 1.*No module named 'encodings'"):
        Kernel.start(env={"PYTHONHOME": "/nonexistent"})


def test_connecting_where_nobody_answers_ends_at_the_timeout(tmp_path):
    path = tmp_path / "kernel.json"
    ports = {f"{name}_port": n for n, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
    path.write_text(json.dumps({"transport": "ipc", "ip": str(tmp_path / "k"), "key": "k", **ports}))
    with pytest.raises(KernelNotReady) as late:
        Kernel.connect(path, timeout_seconds=0.3)
    assert late.value.code == "KERNEL_NOT_READY"


def test_a_long_temporary_directory_does_not_break_the_sockets(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with Kernel.start() as kernel:
        assert kernel.execute("1").wait(LONG).status == "ok"


def test_a_kernel_whose_program_is_missing_is_refused(tmp_path, monkeypatch):
    spec = tmp_path / "jupyter" / "kernels" / "broken"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps({"argv": ["/nonexistent/kernel"], "display_name": "x"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    with pytest.raises(KernelNotFound, match="/nonexistent/kernel"):
        Kernel.start("broken")


def test_a_kernel_that_is_interrupted_by_message_and_has_an_environment_of_its_own(tmp_path, monkeypatch):
    spec = tmp_path / "jupyter" / "kernels" / "polite"
    spec.mkdir(parents=True)
    argv = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    environment = {"WHERE": "${HOME}/x"}
    content = {"argv": argv, "display_name": "x", "interrupt_mode": "message", "env": environment}
    (spec / "kernel.json").write_text(json.dumps(content))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    with Kernel.start("polite") as kernel:
        running = kernel.execute(f"import os\nprint(os.environ['WHERE'], flush=True)\n{SLEEPS}")
        read_until(running, f"{os.environ['HOME']}/x")
        kernel.interrupt()
        assert running.wait(LONG).error.ename == "KeyboardInterrupt"


def test_kernels_get_their_directory_and_environment(tmp_path):
    with Kernel.start(cwd=str(tmp_path), env={"GREETING": "hello"}) as kernel:
        completed = kernel.execute("import os\nprint(os.getcwd(), os.environ['GREETING'])").wait(LONG)
    assert completed.stdout == f"{tmp_path} hello\n"


class Puppet:
    """The kernel's side of the wire, for what a real kernel does not do on command."""

    def __init__(self, directory):
        self.path, base = directory / "kernel.json", str(directory / "k")
        ports = {f"{name}_port": n for n, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
        info = {"transport": "ipc", "ip": base, "key": "secret", **ports}
        self.path.write_text(json.dumps(info))
        self.session = Session(key=b"secret")
        self.context = zmq.Context()
        self.shell, self.iopub = self.context.socket(zmq.ROUTER), self.context.socket(zmq.XPUB)
        self.shell.bind(f"ipc://{base}-1")
        self.iopub.bind(f"ipc://{base}-2")
        self.shell.rcvtimeo = self.iopub.rcvtimeo = int(LONG * 1000)
        self.iopub.sndhwm = 0

    def accept(self):
        """A kernel connected to this puppet."""
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(Kernel.connect, self.path, timeout_seconds=LONG)
            assert self.iopub.recv() == b"\x01"
            self.session.send(self.iopub, "status", {"execution_state": "starting"})
            while not connecting.done():
                if self.shell.poll(50):
                    idents, request = self.session.recv(self.shell)
                    self.session.send(self.shell, "kernel_info_reply", {}, request, idents)
        return connecting.result(0)

    def next_request(self):
        while True:
            idents, request = self.session.recv(self.shell, mode=0)
            if request["msg_type"] == "execute_request":
                return idents, request

    def die(self):
        self.context.destroy(linger=int(LONG * 1000))


@pytest.fixture
def puppet(tmp_path):
    puppet = Puppet(tmp_path)
    yield puppet
    puppet.context.destroy(linger=0)


def test_what_a_kernel_said_before_it_died_is_not_lost(puppet):
    with puppet.accept() as kernel:
        execution = kernel.execute("")
        _, request = puppet.next_request()
        for number in range(2000):
            puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": f"{number} "}, request)
        puppet.die()
        with pytest.raises(KernelDied, match="connection to the kernel broke"):
            execution.wait(LONG)
    assert "".join(output.text for output in execution.outputs).split() == [str(n) for n in range(2000)]


def test_what_a_kernel_said_is_read_to_its_end_however_slowly_it_comes(puppet):
    with puppet.accept() as kernel:
        execution = kernel.execute("")
        _, request = puppet.next_request()
        puppet.shell.close(linger=0)
        for number in range(4):
            assert not puppet.iopub.poll(200)  # so long nothing comes
            puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": f"{number} "}, request)
        puppet.die()
        with pytest.raises(KernelDied, match="connection to the kernel broke"):
            execution.wait(LONG)
    assert "".join(output.text for output in execution.outputs).split() == ["0", "1", "2", "3"]


def test_an_execution_ends_with_reply_and_idle_in_either_order(puppet):
    with puppet.accept() as kernel:
        for reply_first in (True, False):
            execution = kernel.execute("")
            idents, request = puppet.next_request()
            for is_reply in (reply_first, not reply_first):
                if is_reply:
                    puppet.session.send(puppet.shell, "execute_reply", {"status": "ok"}, request, idents)
                else:
                    puppet.session.send(puppet.iopub, "status", {"execution_state": "idle"}, request)
                read_first = execution.read(LONG)
                assert isinstance(read_first, Reply if is_reply else Status)
            assert execution.wait(LONG).status == "ok"


def test_a_thread_of_a_kernel_that_fails_is_logged_and_ends_what_waits(puppet, caplog, monkeypatch):
    """There is no known way to break it from outside: the break is made here."""

    def fail(*_, **__):
        raise ZeroDivisionError

    with puppet.accept() as kernel:
        execution = kernel.execute("")
        _, request = puppet.next_request()
        monkeypatch.setattr(type(kernel.router), "route", fail)
        puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": "x"}, request)
        with pytest.raises(KernelDied, match="the thread that served the kernel failed"):
            execution.wait(LONG)
        with pytest.raises(KernelDied):
            kernel.execute("")
        assert not kernel.is_alive
    assert "ZeroDivisionError" in caplog.text


def test_messages_that_cannot_be_read_are_skipped_with_a_warning(puppet, caplog):
    with puppet.accept() as kernel:
        before = kernel.router.stats().received
        sign, empty = puppet.session.sign, [b"{}"] * 4
        for bad in (
            [b"no delimiter"],
            [b"<IDS|MSG>"],
            [b"<IDS|MSG>", b"forged", *empty],
            [b"<IDS|MSG>", sign([b"not json", *empty[1:]]), b"not json", *empty[1:]],
            [b"<IDS|MSG>", sign(empty), *empty],
        ):
            puppet.iopub.send_multipart(bad)
        puppet.session.send(puppet.iopub, "stream", {"name": "stdout", "text": "fine"})
        eventually(lambda: kernel.router.stats().received > before)
        assert kernel.is_alive
    warnings = [record for record in caplog.records if record.name == "messagehub.jupyter"]
    assert len(warnings) == 5


def test_without_its_extra_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['jupyter_client'] = None; import messagehub.jupyter.kernel"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert 'pip install "messagehub[jupyter]"' in ended.stderr.splitlines()[-1]
