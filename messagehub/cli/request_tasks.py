"""Many exchanges with the broker at once, each of them written as if it were alone.

A task is a generator that yields commands and is given their replies; a refusal is raised inside it. All tasks run in
the thread that calls `turn`: they share state without locks.

Rule 1: at most `most` tasks are under way; the others wait for their turn, in order.
Rule 2: a broker that is asked too fast is given a pause, and the same command again.
Rule 3: an error that a task lets out ends the task and is remembered as `failure`; the other tasks go on.
"""

import queue
import time
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from messagehub.errors import HubError, RateLimited
from registry import commands, replies

if TYPE_CHECKING:
    from messagehub.hub import MessageHub

T = TypeVar("T")
Steps = Generator[commands.Command, Any, T]
MOST = 128
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 30.0
TURN_SECONDS = 0.2
_Answer = tuple["_Task", replies.AnyReply | None, HubError | None]


class RequestTasks:
    def __init__(self, hub: "MessageHub", *, most: int = MOST) -> None:
        self.failure: HubError | None = None
        self._hub = hub
        self._most = most
        self._waiting: deque[_Task] = deque()
        self._under_way = 0
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._delayed: deque[_Task] = deque()
        self._pause_until = 0.0

    def add(self, steps: Steps[None]) -> None:
        self._waiting.append(_Task(steps))

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._under_way)

    def drop_waiting(self) -> None:
        """Forget the tasks that have not begun."""
        self._waiting.clear()

    def turn(self) -> None:
        """Begin what may begin, and use the answers that have come; wait for one for a moment if there is none."""
        now = time.monotonic()
        while self._delayed and now >= self._pause_until:
            self._send(self._delayed.popleft())
        while self._waiting and self._under_way < self._most:
            self._under_way += 1
            self._go_on(self._waiting.popleft(), None, None)
        for task, reply, error in self._taken_answers():
            if isinstance(error, RateLimited) and time.monotonic() < task.begun_at + PATIENCE_SECONDS:
                self._pause_until = time.monotonic() + PAUSE_SECONDS
                self._delayed.append(task)
            else:
                self._go_on(task, reply, error)

    def run(self) -> None:
        """Return when every task has ended."""
        while self.is_busy:
            self.turn()

    def _taken_answers(self) -> Iterator[_Answer]:
        try:
            if self._under_way:
                yield self._answers.get(timeout=PAUSE_SECONDS / 2 if self._delayed else TURN_SECONDS)
            for _ in range(self._most):
                yield self._answers.get_nowait()
        except queue.Empty:
            return

    def _go_on(self, task: "_Task", reply: replies.AnyReply | None, error: HubError | None) -> None:
        try:
            task.command = task.steps.send(reply) if error is None else task.steps.throw(error)
            task.begun_at = time.monotonic()
            self._send(task)
        except StopIteration:
            self._under_way -= 1
        except HubError as failure:
            self._under_way -= 1
            self.failure = self.failure or failure

    def _send(self, task: "_Task") -> None:
        assert task.command is not None
        self._hub.submit(task.command, lambda reply, error: self._answers.put((task, reply, error)))


class _Task:
    __slots__ = ("begun_at", "command", "steps")

    def __init__(self, steps: Steps[None]) -> None:
        self.steps = steps
        self.command: commands.Command | None = None
        self.begun_at = 0.0
