"""Replies: what an answer says, and a request whose reply is waited for later."""

import threading
from collections.abc import Callable
from typing import Any

from messagehub.messaging.service_frames import ANSWER, FAILED, REFUSED, read_failure
from messagehub.messaging.service_link import Answer
from messagehub.messaging.topic_messages import decode_payload
from messagehub.topic_frames import BYTES


class PendingReply:
    """A request on its way; `result` waits for its reply."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def result(self) -> Any:
        """The reply; raises what `hub.request` would. Again and again, the same, also after an interrupt."""
        with self._lock:
            if self._finish is not None:
                try:
                    self._result = self._finish()
                except Exception as error:  # noqa: BLE001  raised below, each time
                    self._error = error
                self._finish = None
        if self._error is not None:
            raise self._error
        return self._result


def checked(answer: Answer) -> Answer:
    """The answer, unless the message was refused before a handler saw it: that is raised."""
    if answer.form == REFUSED:
        raise read_failure(memoryview(answer.frame)[ANSWER.size :])
    return answer


def payload_of(answer: Answer, address: str) -> Any:
    """What the handler returned; what it raised is raised."""
    body = memoryview(answer.frame)[ANSWER.size :]
    if answer.form == FAILED:
        raise read_failure(body)
    return bytes(body) if answer.kind == BYTES else decode_payload(answer.kind, body, address)
