"""What the HTTP process loads: it is a client, so nothing of the broker."""

import subprocess
import sys

PROGRAM = """
import ast, inspect, sys
from messagehub.admin import __main__ as process
for node in ast.walk(ast.parse(inspect.getsource(process))):
    if isinstance(node, ast.Import | ast.ImportFrom):
        exec(ast.unparse(node))
print(*sorted(sys.modules))
"""
"""Runs every import statement of the process, also those that wait for their function."""


def test_the_http_process_loads_nothing_of_the_broker() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    loaded = ran.stdout.split()
    assert {"messagehub.admin.app", "messagehub.admin.connections", "messagehub.hub"} <= set(loaded)
    assert [name for name in loaded if name.startswith("messagehub.broker")] == []
