"""Runs the Python blocks of one page in one namespace: a JSON line in for each block, a line out when it is done."""

import json
import sys
import traceback
from typing import Any


def main() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    answers = sys.stdout
    sys.stdout = sys.stderr  # what blocks print
    for line in sys.stdin:
        block = json.loads(line)
        code = compile("\n" * (block["line"] - 1) + block["text"], block["page"], "exec")
        raised, trace = "", ""
        try:
            exec(code, namespace)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test says it
            raised, trace = type(error).__name__, traceback.format_exc()
        print(json.dumps({"raised": raised, "trace": trace}), file=answers, flush=True)


if __name__ == "__main__":
    main()
