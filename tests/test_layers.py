"""The layers of docs and STYLE, enforced: each part imports only what stands below it, and the registry is pure.

    cli | admin | spark | testing | notebook  →  cluster  →  messagehub (the API)  →  hub  →  hub_parts
    →  channels | services | jupyter  →  broker | topics | streams | discovery  →  client | store | payloads | flight
    →  security  →  shm  →  protocol | runtime | display  →  settings  →  setting_checks | arguments  →  errors
    →  registry

Parts of one row do not import each other. Imports inside functions and for type checkers count as well; only a cycle
may be closed by an import for type checkers, which nobody runs.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS: list[set[str]] = [
    {"registry"},
    {"errors", "version"},
    {"setting_checks", "arguments"},
    {"settings"},
    {"runtime", "protocol", "display"},
    {"shm"},
    {"security"},
    {"client", "store", "payloads", "flight"},
    {"broker", "topics", "streams", "discovery"},
    {"channels", "services", "jupyter"},
    {"hub_parts"},
    {"hub"},
    {"messagehub"},
    {"cluster"},
    {"cli", "admin", "spark", "testing", "notebook"},
    {"__main__"},
]
LEVEL = {part: level for level, row in enumerate(ROWS) for part in row}
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "selectors", "signal", "subprocess", "threading"),
    *("http", "socket", "ssl", "zmq"),
    *("io", "mmap", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
    *("datetime", "time", "random", "secrets", "uuid"),
    *("logging", "messagehub"),
}
ONLY_IN = {
    "fastapi": "messagehub.admin",
    "starlette": "messagehub.admin",
    "uvicorn": "messagehub.admin",
    "pyspark": "messagehub.spark",
    "jupyter_client": "messagehub.jupyter",
    "ipykernel": "messagehub.jupyter",
    "grpc": "messagehub.store.etcd",
    "textual": "messagehub.cli.dashboard",
    "IPython": "messagehub.notebook",
    "typer": "messagehub.cli",
    "rich": "messagehub.cli",
    "sqlite3": "messagehub.store",
    "zmq": "messagehub",
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name; a package is its `__init__`."""
    found = {}
    for top in ("registry", "messagehub"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def statements(module: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements of a module, and whether a program runs them: those for type checkers it does not."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []
    open_nodes: list[tuple[ast.AST, bool]] = [(ast.parse(modules()[module].read_text()), True)]
    while open_nodes:
        node, is_run = open_nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, is_run))
        elif not isinstance(node, ast.expr):  # which holds no statement
            is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name)
            if is_for_types and node.test.id == "TYPE_CHECKING":  # type: ignore[attr-defined]
                is_run = False
            open_nodes += [(inner, is_run) for inner in ast.iter_child_nodes(node)]
    return found


@cache
def imports(module: str, *, when_run: bool = False) -> frozenset[str]:
    """The modules that a module names in import statements: ours in full, others as they are written."""
    found: set[str] = set()
    for node, is_run in statements(module):
        if when_run and not is_run:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = _absolute(module, node)
            named = {f"{base}.{alias.name}" for alias in node.names}
            ours = named & modules().keys()
            found |= ours
            if ours != named:
                found.add(base)
    return frozenset(found)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    is_package = modules()[module].name == "__init__.py"
    base = module.split(".")[: len(module.split(".")) - node.level + is_package]
    return ".".join([*base, *filter(None, [node.module])])


def part(module: str) -> str:
    """What a module belongs to: `registry`, a name right below `messagehub`, or the API itself."""
    top, _, rest = module.partition(".")
    return top if top == "registry" or not rest else rest.partition(".")[0]


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("registry", "messagehub")


def every_import() -> Iterator[tuple[str, str]]:
    for module in modules():
        for imported in imports(module):
            yield module, imported


def test_every_part_has_a_place_in_the_layers() -> None:
    unplaced = {part(module) for module in modules()} - LEVEL.keys()
    assert not unplaced, f"say in {Path(__file__).name} where they stand"


def test_each_part_imports_only_what_stands_below_it() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in every_import()
        if is_ours(imported) and part(module) != part(imported) and LEVEL[part(module)] <= LEVEL[part(imported)]
    ]
    assert wrong == []


def test_the_registry_is_pure() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in every_import()
        if part(module) == "registry" and imported.partition(".")[0] in IMPURE
    ]
    assert wrong == []


def test_the_registry_opens_nothing_and_prints_nothing() -> None:
    wrong = [
        f"{module} calls {node.func.id}"
        for module, path in modules().items()
        if part(module) == "registry"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "input")
    ]
    assert wrong == []


def test_heavy_and_optional_packages_stay_in_their_folders() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in every_import()
        if (home := ONLY_IN.get(imported.partition(".")[0])) and not f"{module}.".startswith(f"{home}.")
    ]
    assert wrong == []


def names_flight(node: ast.Import | ast.ImportFrom) -> bool:
    names = {alias.name for alias in node.names}
    if isinstance(node, ast.Import):
        return "pyarrow.flight" in names
    return node.module == "pyarrow" and "flight" in names


def test_only_what_reads_or_serves_other_hosts_imports_flight() -> None:
    homes = ("messagehub.flight.", "messagehub.cluster.gateway.")
    importing = {module for module in modules() for node, is_run in statements(module) if is_run and names_flight(node)}
    assert importing
    assert [module for module in importing if not f"{module}.".startswith(homes)] == []


def test_there_are_no_import_cycles() -> None:
    seen: dict[str, bool] = {}  # False while its imports are being followed
    cycles: list[str] = []

    def follow(module: str, path: list[str]) -> None:
        seen[module] = False
        for imported in sorted(imports(module, when_run=True) & modules().keys()):
            if imported not in seen:
                follow(imported, [*path, imported])
            elif not seen[imported] and imported != module:
                cycles.append(" → ".join([*path[path.index(imported) :], imported]))
        seen[module] = True

    for module in modules():
        if module not in seen:
            follow(module, [module])
    assert cycles == []


@pytest.mark.parametrize("top", ["registry", "messagehub", "tests", "benchmarks", "tools"])
def test_no_module_has_a_name_that_says_nothing(top: str) -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / top).rglob("*.py")]
    wrong = [str(path) for path in paths if FORBIDDEN_NAMES & {*path.parts[:-1], path.stem}]
    assert wrong == []


def test_importing_messagehub_loads_nothing_heavy() -> None:
    heavy = [
        "asyncio",
        "fastapi",
        "uvicorn",
        "pyspark",
        "jupyter_client",
        "ipykernel",
        "pyarrow",
        "messagehub.flight",
        "pandas",
        "numpy",
        "typer",
        "rich",
        "grpc",
        "google.protobuf",
        "textual",
        "IPython",
        "html",
    ]
    program = f"import sys, messagehub; print(*[name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == []


def test_a_hub_on_its_embedded_default_loads_nothing_of_etcd() -> None:
    program = (
        "import sys; from messagehub.broker.loop import Broker; from messagehub.store.sqlite import SQLiteStore;"
        "print(*[name for name in sys.modules if 'grpc' in name or 'etcd' in name or name == 'google.protobuf'"
        " or name.startswith(('messagehub.cluster', 'messagehub.broker.site'))])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == []
