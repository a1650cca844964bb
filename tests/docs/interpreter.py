"""Runs the Python blocks of one page in one namespace: a JSON line in for each block, a line out when it is done."""

import io
import json
import sys
import traceback
from typing import Any


class Printed(io.TextIOBase):
    """Where blocks print to: the lines of one block, which go to stderr too."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begun = ""

    def write(self, text: str) -> int:
        *ended, self._begun = (self._begun + text).split("\n")
        self.lines += ended
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def main() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    answers = sys.stdout
    sys.stdout = printed = Printed()
    for line in sys.stdin:
        block = json.loads(line)
        code = compile("\n" * (block["line"] - 1) + block["text"], block["page"], "exec")
        raised, trace, printed.lines = "", "", []
        try:
            exec(code, namespace)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test says it
            raised, trace = type(error).__name__, traceback.format_exc()
        told = {"raised": raised, "trace": trace, "lines": printed.lines}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
