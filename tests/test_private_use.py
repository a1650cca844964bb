"""Tests look at what a user can see. A use of a private name of ours says why nothing public would do.

The reason is a comment, `# private: reason`, on the line of the use or on the line above it. Programs that tests run
in other processes count too. A test's own classes may have private attributes of their own.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REASON = re.compile(r"# private: \w+ \w+")  # at least two words
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # public, in spite of the underscore
BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "patch", "object", "attrgetter", "methodcaller"}
TESTS = sorted(path.relative_to(ROOT) for path in ROOT.glob("tests/**/*.py") if path != Path(__file__))


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Private functions, classes, variables and attributes of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@cache
def ours() -> frozenset[str]:
    paths = [path for top in ("registry", "messagehub") for path in (ROOT / top).rglob("*.py")]
    names = {name for path in paths for name in names_defined(ast.parse(path.read_text()))}
    return frozenset(filter(PRIVATE.fullmatch, names - OF_NAMED_TUPLES))


def uses(source: str) -> Iterator[tuple[int, str]]:
    """The line and the name of every use of a private name of ours in the text of a test module."""
    tree = ast.parse(source)
    own = set(names_defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ours():
            if not (is_self(node.value) and node.attr in own):
                yield node.end_lineno or node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("registry", "messagehub"):
            path = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, name) for name in path if PRIVATE.fullmatch(name))
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            for argument in node.args:
                name = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(name, str) and (last := name.rpartition(".")[2]) in ours():
                    yield argument.lineno, last
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for number, line in enumerate(node.value.splitlines()):  # a program for another process
                yield from ((node.lineno + number, name) for name in re.findall(r"\w\.(_\w+)", line) if name in ours())


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def without_reason(source: str) -> list[str]:
    lines = ["", *source.splitlines()]
    return [
        f"{line}: {name}"
        for line, name in sorted(set(uses(source)))
        if not REASON.search(lines[line]) and not REASON.search(lines[line - 1])
    ]


@pytest.mark.parametrize("path", TESTS, ids=str)
def test_every_use_of_a_private_name_says_why(path: Path) -> None:
    found = without_reason((ROOT / path).read_text())
    assert found == [], "test what is public, or give the reason in a comment: `# private: reason`"


@pytest.mark.parametrize(
    "line",
    [
        "hub._connection.close()",
        "from messagehub.cli.doctor import _diagnose",
        "from registry import _x",
        "monkeypatch.setattr(hub, '_connection', None)",
        "monkeypatch.setattr('messagehub.hub.MessageHub._connection', None)",
        "getattr(hub, '_connection')",
        "PROGRAM = 'hub = MessageHub(); hub._connection.close()'",
        "class Own(Taps):\n    def f(self): return self._connection",
        "hub._connection.close()  # private:",
    ],
)
def test_a_use_without_a_reason_is_found(line: str) -> None:
    assert len(without_reason(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "hub._connection.close()  # private: no call of the hub closes it alone",
        "# private: no call of the hub closes it alone\nhub._connection.close()",
        "os._exit(0)",
        "position._replace(epoch=9)",
        "class Own:\n    def __init__(self): self._connection = 1\n    def f(self): return self._connection",
        "hub.__class__",
        "messagehub.__file__",
    ],
)
def test_what_is_explained_or_not_ours_is_not_found(line: str) -> None:
    assert without_reason(line) == []
