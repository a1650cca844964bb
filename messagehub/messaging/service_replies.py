"""Replies: what an answer says, and a request whose reply is waited for later."""

from collections.abc import Callable
from typing import Any

from messagehub.errors import HubError
from messagehub.messaging.service_frames import ANSWER, FAILURE, read_failure
from messagehub.messaging.service_link import Answer
from messagehub.messaging.topic_messages import BYTES, decode_payload


class PendingReply:
    """A request on its way; `result` waits for its reply."""

    def __init__(self, finish: Callable[[], Any]) -> None:
        self._finish: Callable[[], Any] | None = finish
        self._result: Any = None
        self._error: HubError | None = None

    def result(self) -> Any:
        """The reply; raises what `hub.request` would. Again and again, the same."""
        finish, self._finish = self._finish, None
        if finish is not None:
            try:
                self._result = finish()
            except HubError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._result


def checked(answer: Answer) -> Answer:
    """The answer, if it is none of a failure."""
    if answer.form == FAILURE:
        raise read_failure(memoryview(answer.frame)[ANSWER.size :])
    return answer


def payload_of(answer: Answer, address: str) -> Any:
    if answer.kind == BYTES:
        return answer.frame[ANSWER.size :]
    return decode_payload(answer.kind, memoryview(answer.frame)[ANSWER.size :], address)
