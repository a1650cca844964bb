"""Schemas are judged in a process of their own, so that no schema, however nasty, holds up the broker.

Rule 1: the broker's thread only hands questions over and takes verdicts; a thread here talks to the process.
Rule 2: every question gets a verdict: a process that dies or takes too long is replaced, and the verdict says so.
"""

import logging
import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from registry.verdicts import Question, Verdict, judge, preload

log = logging.getLogger("messagehub.broker")

QUESTION_SECONDS = 10.0
MAX_WAITING = 4096
ATTEMPTS = 3
_LENGTH = struct.Struct("<I")
_encode = msgspec.json.Encoder().encode
_question_decoder = msgspec.json.Decoder(Question)
_verdict_decoder = msgspec.json.Decoder(Verdict)
Ticket = TypeVar("Ticket")


class Judge(Generic[Ticket]):
    """A ticket is whatever the asker needs to go on with the verdict."""

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting = 0
        self._questions: queue.SimpleQueue[tuple[Ticket, Question] | None] = queue.SimpleQueue()
        self._verdicts: deque[tuple[Ticket, Verdict]] = deque()
        self._thread: threading.Thread | None = None
        self._process: _Process | None = None
        self._is_closing = False

    def ask(self, ticket: Ticket, question: Question) -> bool:
        """False when too many wait already."""
        if self.waiting >= MAX_WAITING:
            return False
        self.start()
        self.waiting += 1
        self._questions.put((ticket, question))
        return True

    def start(self) -> None:
        """Have the process ready before the first question, which starts it otherwise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="messagehub-judge", daemon=True)
            self._thread.start()

    def verdicts(self) -> list[tuple[Ticket, Verdict]]:
        """What has been decided since the last call."""
        try:
            os.eventfd_read(self.wake_fd)
        except BlockingIOError:
            return []
        taken = [self._verdicts.popleft() for _ in range(len(self._verdicts))]
        self.waiting -= len(taken)
        return taken

    def wait(self, seconds: float) -> None:
        """Until a verdict is there, or the seconds have passed."""
        select.select([self.wake_fd], [], [], max(seconds, 0.0))

    def close(self, *, timeout: float) -> None:
        if self._thread is not None:
            self._is_closing = True
            self._questions.put(None)
            process = self._process
            if process is not None:
                process.kill()
            self._thread.join(timeout)
        os.close(self.wake_fd)

    def _run(self) -> None:
        self._process = _Process()
        while (asked := self._questions.get()) is not None and not self._is_closing:
            ticket, question = asked
            self._verdicts.append((ticket, self._judge(question)))
            os.eventfd_write(self.wake_fd, 1)
        if self._process is not None:
            self._process.kill()

    def _judge(self, question: Question) -> Verdict:
        """A process that dies is replaced and asked again: somebody may have killed it. Or the schema did, so not for
        ever."""
        for _ in range(ATTEMPTS):
            try:
                if self._process is None:
                    self._process = _Process()
                return self._process.judge(question)
            except (OSError, msgspec.DecodeError, EOFError) as error:
                if not self._is_closing:
                    log.warning("the schema judge is replaced: %s", error)
                if self._process is not None:
                    self._process.kill()
                self._process = None
                if isinstance(error, TimeoutError):
                    return Verdict(refusal=str(error), is_budget=True, revision=question.revision)
                if self._is_closing:
                    break
        return Verdict(is_lost=True, revision=question.revision)


class _Process:
    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._child = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            bufsize=0,
        )

    def judge(self, question: Question) -> Verdict:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        deadline = time.monotonic() + QUESTION_SECONDS
        asked = _encode(question)
        _transfer(self._child.stdin.fileno(), _LENGTH.pack(len(asked)) + asked, deadline)
        (size,) = _LENGTH.unpack(_receive(self._child.stdout.fileno(), _LENGTH.size, deadline))
        return _verdict_decoder.decode(_receive(self._child.stdout.fileno(), size, deadline))

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()


def _transfer(fd: int, data: bytes, deadline: float) -> None:
    rest = memoryview(data)
    while rest:
        _await([], [fd], deadline)
        rest = rest[os.write(fd, rest[: select.PIPE_BUF]) :]


def _receive(fd: int, size: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        _await([fd], [], deadline)
        part = os.read(fd, size - len(parts))
        if not part:
            raise EOFError("the process ended")
        parts += part
    return bytes(parts)


def _await(readable: list[int], writable: list[int], deadline: float) -> None:
    poller = select.poll()
    for fd in readable:
        poller.register(fd, select.POLLIN)
    for fd in writable:
        poller.register(fd, select.POLLOUT)
    if not poller.poll(max(deadline - time.monotonic(), 0.0) * 1000):
        raise TimeoutError(f"exceeds the budget seconds of judging = {QUESTION_SECONDS:g}")


def main() -> None:
    """The process: questions in, verdicts out, until the broker closes the pipe."""
    os.nice(5)
    preload()
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    while len(head := questions.read(_LENGTH.size)) == _LENGTH.size:
        (size,) = _LENGTH.unpack(head)
        answer = _encode(judge(_question_decoder.decode(questions.read(size))))
        try:
            answers.write(_LENGTH.pack(len(answer)) + answer)
            answers.flush()
        except BrokenPipeError:
            os._exit(0)  # the broker was killed while this was judged; nobody wants it, not even at exit
