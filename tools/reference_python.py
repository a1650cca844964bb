"""docs/reference/python.md: signatures and docstrings of everything that users import.

Signatures are taken from the source, not from the running objects, so that the page is the same under every version of
Python.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

OURS = ("messagehub", "registry")
MODULES = ("messagehub", "messagehub.spark", "messagehub.testing", "messagehub.jupyter.kernel", "messagehub.streams")
WIDE = 100
_HEAD = """# Python

Written from signatures and docstrings by `make generate`.

Every method that waits has an asynchronous form, named with `_async`, where its entry says so.
Errors can be imported from `messagehub` too; they are listed in [errors](errors.md).
"""


@dataclass
class Members:
    """What one class offers, its bases of ours included."""

    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    methods: list[tuple[str, str, str]] = field(default_factory=list)
    twins: set[str] = field(default_factory=set)


def page() -> str:
    lines = [_HEAD]
    for name in MODULES:
        module = import_module(name)
        lines += [f"## {name}", "", inspect.cleandoc(module.__doc__ or ""), ""]
        for public in public_names(module):
            lines += _section(public, getattr(module, public))
    return "\n".join(lines).rstrip() + "\n"


def public_names(module: ModuleType) -> list[str]:
    """Return what a user may import from the module, but for errors, which have a page of their own."""
    listed = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    return [name for name in sorted(listed) if not name.startswith("_") and _is_told(getattr(module, name))]


def _is_told(value: Any) -> bool:
    if isinstance(value, type) and issubclass(value, Exception):
        return value.__name__ == "HubError"
    return isinstance(value, type) or callable(value)


def _section(name: str, value: Any) -> list[str]:
    if isinstance(value, type):
        return _class_section(name, value)
    function = inspect.unwrap(getattr(value, "_fixture_function", value))
    node = _find(function.__module__, function.__name__)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef), name
    return [f"### {name}", "", *_signature(node, function.__module__), "", _doc(node), ""]


def _class_section(name: str, kind: type) -> list[str]:
    lines = [f"### {name}", "", _doc(_find(kind.__module__, kind.__name__)), ""]
    members = _members(kind)
    if members.attributes:
        lines += ["| attribute | type | |", "|---|---|---|"]
        lines += [f"| `{one}` | {_code(typed)} | {_cell(said)} |" for one, typed, said in members.attributes]
        lines.append("")
    for method, signature, said in members.methods:
        heading = f"{name}()" if method == "__init__" else f"{name}.{method}"
        lines += [f"#### {heading}", "", signature, "", said, ""]
        if f"{method}_async" in members.twins:
            lines += [f"`{method}_async` is the same, to be awaited.", ""]
    return lines


def _members(kind: type) -> Members:
    found, seen = Members(), set[str]()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in OURS:
            continue
        node = _find(base.__module__, base.__name__)
        assert isinstance(node, ast.ClassDef), base
        for member, documented in _with_docstrings(node.body):
            name = _name_of(member)
            if name == "__init__" and isinstance(member, ast.FunctionDef):
                is_made_by_users = bool(_doc(member)) and not _doc(node).startswith("Made by") and base is kind
                own = [] if not is_made_by_users else [(member, "")]
                told = [*own, *_with_docstrings(member.body)]
            else:
                told = [(member, documented)]
            for one, said in told:
                public = _name_of(one)
                if public not in seen and (not public.startswith("_") or public == "__init__"):
                    seen.add(public)
                    _add(found, one, said or _described(base, public), base.__module__)
    return found


def _add(found: Members, member: ast.stmt, documented: str, module: str) -> None:
    name = _name_of(member)
    if isinstance(member, ast.AnnAssign):
        if not ast.unparse(member.annotation).startswith(("ClassVar", "'ClassVar")):
            found.attributes.append((name, _annotation(member.annotation, module), documented))
    elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        said = _doc(member)
        if any(ast.unparse(one) in ("property", "cached_property") for one in member.decorator_list):
            typed = _annotation(member.returns, module) if member.returns else ""
            found.attributes.append((name, typed, said))
        elif not any(ast.unparse(one).endswith((".setter", "overload")) for one in member.decorator_list):
            found.methods.append((name, "\n".join(_signature(member, module)), said))
    elif isinstance(member, ast.Assign) and ast.unparse(member.value).startswith("awaitable("):
        found.twins.add(name)
    elif isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Attribute):
        typed = type(member.value.value).__name__ if isinstance(member.value, ast.Constant) else ""
        found.attributes.append((name, typed, documented))


def _described(kind: type, name: str) -> str:
    """Return the description in the annotation of a field, as messages have it."""
    metadata = getattr(inspect.get_annotations(kind).get(name), "__metadata__", ())
    return next((one.description for one in metadata if getattr(one, "description", None)), "")


def _with_docstrings(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement with the string that stands behind it, which documents an attribute."""
    for member, behind in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            yield member, inspect.cleandoc(str(behind.value.value))
        else:
            yield member, ""


def _name_of(member: ast.stmt) -> str:
    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
        return member.name
    target: ast.expr | None = None
    if isinstance(member, ast.AnnAssign):
        target = member.target
    elif isinstance(member, ast.Assign):
        target = member.targets[0]
    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
        return target.attr
    return target.id if isinstance(target, ast.Name) else "_"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, module: str) -> list[str]:
    """Return the head of the function, an argument a line where it is wide."""
    arguments = _arguments(node.args, module)
    returns = f" -> {_annotation(node.returns, module)}" if node.returns else ""
    begins = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}("
    line = f"{begins}{', '.join(arguments)}){returns}"
    text = [line] if len(line) <= WIDE else [begins, *(f"    {one}," for one in arguments), f"){returns}"]
    marks = [f"@{mark}" for mark in ("classmethod", "staticmethod") if mark in map(ast.unparse, node.decorator_list)]
    return ["```pyi", *marks, *text, "```"]


def _arguments(given: ast.arguments, module: str) -> list[str]:
    plain = [*given.posonlyargs, *given.args]
    without = len(plain) - len(given.defaults)
    texts = [
        _argument(one, given.defaults[place - without] if place >= without else None, module)
        for place, one in enumerate(plain)
        if one.arg not in ("self", "cls")
    ]
    if given.vararg:
        texts.append("*" + _argument(given.vararg, None, module))
    elif given.kwonlyargs:
        texts.append("*")
    texts += [_argument(one, value, module) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        texts.append("**" + _argument(given.kwarg, None, module))
    return texts


def _argument(one: ast.arg, value: ast.expr | None, module: str) -> str:
    text = f"{one.arg}: {_annotation(one.annotation, module)}" if one.annotation else one.arg
    if value is None:
        return text
    default = _default(value, module)
    return f"{text} = {default}" if one.annotation else f"{text}={default}"


def _default(node: ast.expr, module: str) -> str:
    """Return the text of a default: of a constant of ours its value."""
    value = vars(import_module(module)).get(node.id) if isinstance(node, ast.Name) else None
    return repr(value) if isinstance(value, int | float | str) else ast.unparse(node)


class _Spelled(ast.NodeTransformer):
    """Annotations as a reader needs them: without quotes, and with the values of our own Literals."""

    def __init__(self, module: str) -> None:
        self._names = vars(sys.modules[module])

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        parsed: ast.AST = self.visit(ast.parse(node.value, mode="eval").body)
        return parsed

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            plain: ast.AST = self.visit(node.slice.elts[0])
            return plain
        if ast.unparse(node.value).startswith("fields."):  # of registry/fields.py: a type with its description
            described: ast.AST = self.visit(node.slice)
            return described
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._names.get(node.id)
        if get_origin(value) is not Literal:
            return node
        return ast.parse(f"Literal[{', '.join(map(repr, get_args(value)))}]", mode="eval").body


def _annotation(node: ast.expr, module: str) -> str:
    import_module(module)
    return ast.unparse(_Spelled(module).visit(node))


def _doc(node: ast.AST) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return ast.get_docstring(node) or ""


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(module)))


def _find(module: str, name: str) -> ast.AST:
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise LookupError(f"{module} has no {name} at its top level")


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
