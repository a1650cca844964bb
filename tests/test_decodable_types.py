"""A type is ready to be decoded before a thread can use it: see registry/decoding.py."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FREE = {"float", "kind"}
"""`float` has no fields. `kind` is a parameter: `JsonBody` makes the types of HTTP bodies ready (admin/routes.py)."""
OWN = {"cls": "the class whose method it is"}

THREADS = """
import dataclasses, sys, threading
from typing import Any
import msgspec
from registry.decoding import decodable

sys.setswitchinterval(1e-6)
is_ready = sys.argv[1] == "ready"
for _ in range(100):
    Part = dataclasses.make_dataclass("Part", [("name", str), ("columns", tuple[str, ...])])
    fields = [("number", int), ("parts", tuple[Part, ...]), ("more", dict[str, Any])]
    Table = dataclasses.make_dataclass("Table", fields)
    if is_ready:
        decodable(Table)
    together = threading.Barrier(4)

    def decode():
        together.wait()
        msgspec.json.decode(b'{"number": 1, "parts": [{"name": "a", "columns": ["b"]}], "more": {}}', type=Table)

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("fine")
"""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for top in ("registry", "messagehub"):
        for path in sorted((ROOT / top).rglob("*.py")):
            text = path.read_text()
            if "msgspec.convert" in text or "decod" in text.lower():  # most have nothing to look for
                yield path, ast.parse(text)


def type_of(call: ast.Call) -> ast.expr | None:
    """The type that a call gives to msgspec, if it gives one."""
    name = ast.unparse(call.func)
    if name.endswith("json.decode"):
        return next((word.value for word in call.keywords if word.arg == "type"), None)
    return call.args[1] if name == "msgspec.convert" else None


def names_in(kind: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(kind) if isinstance(node, ast.Name)} - {"list", "dict", "tuple", "Any"}


def made_ready(tree: ast.Module) -> set[str]:
    """Classes with the decorator, and what is given to `decodable` or to a decoder outside of functions."""
    found = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(one) == "decodable" for one in node.decorator_list)
    }
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in ("decodable", "msgspec.json.Decoder"):
                    found |= names_in(node.args[0]) if node.args else set()
    return found


def test_types_that_functions_give_to_msgspec_are_made_ready_when_their_module_is_imported() -> None:
    ready: set[str] = set()
    asked: list[tuple[str, set[str]]] = []
    messages = ast.parse((ROOT / "registry/commands.py").read_text()).body
    commands = {node.name for node in messages if isinstance(node, ast.ClassDef)}  # the protocol decodes all of them
    for path, tree in modules():
        ready |= made_ready(tree)
        for owner in ast.walk(tree):
            for node in ast.walk(owner) if isinstance(owner, ast.ClassDef) else ():
                if isinstance(node, ast.Call) and (kind := type_of(node)) is not None and ast.unparse(kind) in OWN:
                    asked.append((f"{path.relative_to(ROOT)}:{node.lineno}", {owner.name}))
            if isinstance(owner, ast.Call) and (kind := type_of(owner)) is not None and ast.unparse(kind) not in OWN:
                names = {ast.unparse(kind).rpartition(".")[2]} if isinstance(kind, ast.Attribute) else names_in(kind)
                asked.append((f"{path.relative_to(ROOT)}:{owner.lineno}", names))
    tables = {"_OUTPUT_TYPES", "message"}  # jupyter/outputs.py makes all values of its table ready
    missing = [(place, names - ready - commands - FREE - tables) for place, names in asked]
    assert len(asked) > 10
    assert [one for one in missing if one[1]] == []


@pytest.mark.parametrize("how", ["ready", "not ready"])
def test_threads_that_decode_a_type_for_the_first_time_do_no_harm_once_it_is_ready(how: str) -> None:
    """And without that they end the process. When msgspec can do it, `decodable` can go."""
    ran = [
        subprocess.run([sys.executable, "-c", THREADS, how], cwd=ROOT, capture_output=True, timeout=120, check=False)
        for _ in range(1 if how == "ready" else 5)
    ]
    if how == "ready":
        assert ran[0].stdout == b"fine\n", ran[0].stderr
    else:
        assert any(one.returncode < 0 for one in ran)
