"""A sampling profiler for the broker, from outside its code: `python -m benchmarks.sampler REPORT serve …`.

The kernel's profiling timer ticks with the CPU time of the whole process. Each tick is given to the Python
thread whose own CPU clock moved most since the tick before, or to `(native threads)` when none of them moved,
which is libzmq's I/O thread. Unlike cProfile this costs nothing per call, so proportions stay true. Mind
that Python runs signal handlers in the main thread only: another thread is seen where it lets go of the GIL.
"""

import collections
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

TICK_SECONDS = 0.002
NATIVE = "(native threads: libzmq I/O)"


class Sampler:
    def __init__(self) -> None:
        self._owner = os.getpid()
        self._busy: dict[int, float] = {}
        self._own: collections.Counter[str] = collections.Counter()
        self._under: collections.Counter[str] = collections.Counter()
        self._stacks: collections.Counter[str] = collections.Counter()
        self._ticks = 0
        self._imports = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        self._ticks += 1
        thread = self._thread_that_ran()
        if thread is None:
            self._own[NATIVE] += 1
            self._stacks[NATIVE] += 1
            return
        if thread.ident != threading.get_ident():
            frame = sys._current_frames().get(thread.ident or 0)
        names: list[str] = []
        lines: list[str] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith("<frozen importlib"):
                self._imports += 1
                return
            names.append(f"{_short(code.co_filename)}:{code.co_qualname}")
            lines.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_qualname}")
            frame = frame.f_back
        if lines:
            self._own[f"[{thread.name}] {lines[0]}"] += 1
            self._under.update(set(names))
            self._stacks[";".join([thread.name, *reversed(names)])] += 1

    def _thread_that_ran(self) -> threading.Thread | None:
        best, most = None, TICK_SECONDS / 4
        for thread in threading.enumerate():
            if thread.ident is None or not thread.is_alive():
                continue
            busy = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            moved = busy - self._busy.get(thread.ident, 0.0)
            self._busy[thread.ident] = busy
            if moved > most:
                best, most = thread, moved
        return best

    def write(self, report: Path) -> None:
        if os.getpid() != self._owner or not self._ticks:
            return  # a forked worker inherits neither the timer nor the right to write here
        share = 100 / max(self._ticks - self._imports, 1)
        text = [f"{self._ticks} samples of CPU time; left out: {self._imports} while importing modules", ""]
        text += ["own time by line (C calls count for the line that makes them)"]
        text += [f"{count * share:6.1f}%  {line}" for line, count in self._own.most_common(40)]
        text += ["", "time in and below each function"]
        text += [f"{count * share:6.1f}%  {name}" for name, count in self._under.most_common(40)]
        report.write_text("\n".join(text) + "\n")
        folded = "".join(f"{stack} {count}\n" for stack, count in self._stacks.most_common())
        report.with_suffix(".folded").write_text(folded)


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 2)[-2:])


def main() -> None:
    report = Path(sys.argv[1])
    sys.argv[1:] = sys.argv[2:]
    sampler = Sampler()
    sampler.start()
    try:
        runpy.run_module("messagehub", run_name="__main__", alter_sys=True)
    finally:
        sampler.stop()
        sampler.write(report)


if __name__ == "__main__":
    main()
