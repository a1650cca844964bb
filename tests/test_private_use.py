"""Tests look at what a user can see. A use of a private name of our packages says why nothing public would do.

The reason is a comment, `# private: reason`, on the line of the use or on the line above it. Programs that tests run
in other processes count too. The private attributes of a test's own classes do not.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("registry", "messagehub")
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
REASON = re.compile(r"# private: \w+ \w+")  # at least two words
IN_A_PROGRAM = re.compile(r"(?:\w\.|\bimport (?:\w+, )*)(_\w+)")
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # public, in spite of the underscore
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "patch", "object", "attrgetter", "methodcaller"}


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Functions, classes, variables and attributes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names() -> set[str]:
    """Of all modules of ours."""
    paths = [path for top in OURS for path in (ROOT / top).rglob("*.py")]
    names = {name for path in paths for name in names_defined(ast.parse(path.read_text()))}
    return {name for name in names if PRIVATE.fullmatch(name)} - OF_NAMED_TUPLES


def uses(tree: ast.AST, private: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the name of every use of a private name in a test module."""
    own = set(names_defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in private:
            if not (is_self(node.value) and node.attr in own):
                yield node.end_lineno or node.lineno, node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((node.lineno, name) for name in imported(node) if PRIVATE.fullmatch(name))
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            for argument in node.args:
                last = text_of(argument).rpartition(".")[2]
                if last in private:
                    yield argument.lineno, last
        elif text := text_of(node):
            for number, line in enumerate(text.splitlines(), node.lineno):  # type: ignore[attr-defined]
                for name in private.intersection(IN_A_PROGRAM.findall(line)):
                    yield min(number, node.end_lineno), name  # type: ignore[attr-defined]


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Each part of what is imported from our packages."""
    base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    paths = [f"{base}{alias.name}".split(".") for alias in node.names]
    return [part for path in paths if path[0] in OURS for part in path]


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def text_of(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def without_reason(source: str, private: set[str]) -> list[tuple[int, str]]:
    lines = ["", *source.splitlines()]
    found = sorted(set(uses(ast.parse(source), private)))
    return [(line, name) for line, name in found if not any(map(REASON.search, lines[line - 1 : line + 1]))]


def test_every_use_of_a_private_name_says_why() -> None:
    private = private_names()
    assert "_connection" in private
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != Path(__file__)
        for line, name in without_reason(path.read_text(), private)
    ]
    assert found == [], "test what is public, or say above it why nothing public would do: `# private: reason`"


@pytest.mark.parametrize(
    "source",
    [
        "hub._connection.close()",
        "hub._connection.close()  # private:",
        "(\n    hub\n    ._connection\n)",
        "from messagehub.cli.doctor import _diagnose",
        "from registry import _x",
        "import messagehub._x",
        "monkeypatch.setattr(hub, '_connection', None)",
        "monkeypatch.setattr('messagehub.hub.MessageHub._connection', None)",
        "getattr(hub, '_connection')",
        "PROGRAM = 'hub = MessageHub()\\n\\nhub._connection.close()'",
        "PROGRAM = 'from messagehub.hub import MessageHub, _connection'",
        "PROGRAM = '''\nhub = MessageHub()\nhub._connection.close()\n'''",
        "class Own(Taps):\n    def f(self): return self._connection",
    ],
)
def test_a_use_without_a_reason_is_found(source: str) -> None:
    assert len(without_reason(source, {"_connection"})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "hub._connection.close()  # private: no call of the hub closes it alone",
        "# private: no call of the hub closes it alone\nhub._connection.close()",
        "PROGRAM = '''\nhub._connection.close()  # private: no call of the hub closes it alone\n'''",
        "os._exit(0)",
        "from os import _exit",
        "class Own:\n    def __init__(self): self._connection = 1\n    def f(self): return self._connection",
        "hub.__class__",
        "'a sentence about private names such as _connection'",
    ],
)
def test_what_is_explained_or_not_ours_is_not_found(source: str) -> None:
    assert without_reason(source, {"_connection"}) == []
