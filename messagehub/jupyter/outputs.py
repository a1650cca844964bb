"""What a kernel says, as typed values, and what can go wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from messagehub.errors import HubError
from messagehub.streams import StreamMessage
from registry.decoding import decodable


class KernelNotFound(HubError):
    """No kernel of that name is installed, or the connection file cannot be read."""

    code = "KERNEL_NOT_FOUND"


class KernelNotReady(HubError, TimeoutError):
    """The kernel did not answer in time after its start or on connecting."""

    code = "KERNEL_NOT_READY"
    retryable = True


class KernelDied(HubError):
    """The kernel's process ended by itself, or the connection to it broke."""

    code = "KERNEL_DIED"


class KernelRestarted(HubError):
    """The kernel was restarted on request while this execution was open."""

    code = "KERNEL_RESTARTED"


class KernelClosed(HubError):
    """This side closed the kernel, or another process (before a fork) owns it."""

    code = "KERNEL_CLOSED"


class KernelNotOwned(HubError):
    """Only the process that started a kernel can restart it."""

    code = "KERNEL_NOT_OWNED"


class ExecutionTimedOut(HubError, TimeoutError):
    """The next output, or the end, did not come in time. The code still runs; waiting again is fine."""

    code = "EXECUTION_TIMED_OUT"
    retryable = True


class ExecutionClosed(HubError):
    """The execution was closed on this side before its end."""

    code = "EXECUTION_CLOSED"


class KernelOutputUnreadable(HubError):
    """The kernel sent an output that is not as Jupyter's messaging specification says. Reading on is fine."""

    code = "KERNEL_OUTPUT_UNREADABLE"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a kernel. Fields are named as in Jupyter's messaging specification."""

    kind: str
    """The type of the message, such as stream or execute_result."""


class Status(Output, frozen=True, kw_only=True):
    execution_state: str
    """busy when the kernel begins with the code, idle when it has ended."""


class Input(Output, frozen=True, kw_only=True):
    code: str = ""
    """The code that is run."""
    execution_count: int | None = None
    """The number of the cell."""


class Text(Output, frozen=True, kw_only=True):
    name: str
    """stdout or stderr."""
    text: str
    """What was printed."""


class Display(Output, frozen=True, kw_only=True):
    """`kind` tells a new display from an update of the one with the same `transient["display_id"]`."""

    data: dict[str, Any]
    """What to show, by MIME type."""
    metadata: dict[str, Any] = {}
    """How to show it, such as the width of a picture."""
    transient: dict[str, Any] = {}
    """What is not stored, such as the id under which it is updated."""


class Result(Output, frozen=True, kw_only=True):
    data: dict[str, Any]
    """The value of the last line, by MIME type; text/plain is always there."""
    metadata: dict[str, Any] = {}
    """How to show it."""
    execution_count: int | None = None
    """The number of the cell."""


class ClearOutput(Output, frozen=True, kw_only=True):
    wait: bool = False
    """Whether to clear only when the next output comes."""


class Failure(Output, frozen=True, kw_only=True):
    ename: str = ""
    """The exception's class."""
    evalue: str = ""
    """Its text."""
    traceback: list[str] = []
    """Its lines, with colours of a terminal."""


class Comm(Output, frozen=True, kw_only=True):
    comm_id: str
    """The connection between widget and code."""
    target_name: str = ""
    """Who shall answer, in a message that opens a connection."""
    data: dict[str, Any] = {}
    """The message."""
    buffers: tuple[bytes, ...] = ()
    """Its bytes."""


class InputRequest(Output, frozen=True, kw_only=True):
    """The code calls `input()`, and waits for `execution.answer(…)`; `password` asks not to show what is typed."""

    prompt: str = ""
    """What `input()` asks."""
    password: bool = False
    """Whether what is typed must not be shown."""


class Reply(Output, frozen=True, kw_only=True):
    """The end of the code itself: "ok", "error" or "aborted". Outputs may still follow."""

    status: str
    """ok, error or aborted."""
    execution_count: int | None = None
    """The number of the cell."""


_OUTPUT_TYPES: Mapping[str, type[Output]] = {
    "status": Status,
    "execute_input": Input,
    "stream": Text,
    "display_data": Display,
    "update_display_data": Display,
    "execute_result": Result,
    "clear_output": ClearOutput,
    "error": Failure,
    "comm_open": Comm,
    "comm_msg": Comm,
    "comm_close": Comm,
    "execute_reply": Reply,
    "input_request": InputRequest,
}
for _kind in _OUTPUT_TYPES.values():
    decodable(_kind)


def typed_output(message: StreamMessage) -> Output:
    buffers = tuple(bytes(buffer) for buffer in message.body["buffers"])
    fields = message.body["content"] | {"kind": message.kind, "buffers": buffers}
    try:
        return msgspec.convert(fields, _OUTPUT_TYPES[message.kind])
    except (msgspec.ValidationError, RecursionError) as error:
        raise KernelOutputUnreadable(f"an output of kind {message.kind!r} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Completed:
    """All of one execution. `status` is "ok", "error" or, after another's error, "aborted"."""

    outputs: tuple[Output, ...]
    """Everything that came, in its order."""
    status: str
    """ok, error or aborted."""
    execution_count: int | None
    """The number of the cell."""

    @property
    def stdout(self) -> str:
        """Everything that the code printed to stdout."""
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        """Everything that the code printed to stderr."""
        return self._text("stderr")

    @property
    def result(self) -> Result | None:
        """The value of the last line; None without one."""
        return next((o for o in self.outputs if isinstance(o, Result)), None)

    @property
    def error(self) -> Failure | None:
        """The exception that ended the code; None without one."""
        return next((o for o in self.outputs if isinstance(o, Failure)), None)

    def _text(self, name: str) -> str:
        return "".join(o.text for o in self.outputs if isinstance(o, Text) and o.name == name)
