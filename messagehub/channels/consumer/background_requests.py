"""Requests to a broker that a reader does not wait for: made on another thread, answered when the answer is there."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
RunLater = Callable[[Callable[[], Any], Callable[[], Any]], Any]
"""Run the first on another thread, or call the second where that is not possible any more."""


class BackgroundRequest(Generic[Answer]):
    """One at a time: the reader asks, and takes the answer. It refers to nobody while it is not asked."""

    def __init__(self, otherwise: Answer) -> None:
        """`otherwise` is the answer where nobody can be asked any more."""
        self._otherwise = otherwise
        self._answer = otherwise
        self._error: BaseException | None = None
        self.is_asked = False
        self.is_answered = False

    def ask(self, ask: Callable[[], Answer], run_later: RunLater, on_answer: Callable[[], object]) -> None:
        """Unless it is asked already, or its answer was not taken yet. `on_answer` is called on the other thread."""
        if self.is_asked:
            return

        def run() -> None:
            self._answer = self._otherwise
            try:
                self._answer = ask()
            except BaseException as error:  # noqa: BLE001  raised where the answer is taken
                self._error = error
            say()

        def say() -> None:
            self.is_answered = True
            on_answer()

        self.is_asked = True
        run_later(run, say)

    def take(self) -> Answer:
        """The answer, once; what asking raised is raised."""
        error, self._error = self._error, None
        answer, self._answer = self._answer, self._otherwise
        self.is_asked = self.is_answered = False
        if error is not None:
            raise error
        return answer
