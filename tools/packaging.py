"""How a wheel is built: the rules of `registry/` are installed as `messagehub.registry`.

`registry` is a name that another distribution may own (decision 0024). In the repository, and in an editable install,
the folder stays where it is. In a wheel it lies inside of the package, and every import of it is rewritten.
"""

import re
import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped]

_IMPORT = re.compile(r"^(\s*(?:from|import)) registry\b", re.MULTILINE)
_QUOTED = re.compile(r"""(?<=["'])registry((?:\.\w+)+)(?=["'])""")


class BuildPackage(build_py):  # type: ignore[misc]
    """Copies the modules, and moves `registry` inside of `messagehub`."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            move_inside(Path(self.build_lib))


def move_inside(tree: Path) -> None:
    """Move `registry` inside of `messagehub` in a tree of installed packages."""
    place = tree / "messagehub" / "registry"
    shutil.rmtree(place, ignore_errors=True)  # of a build before
    shutil.move(tree / "registry", place)
    for file in tree.rglob("*.py"):
        text = file.read_text()
        moved = _QUOTED.sub(lambda found: _named(found, place), _IMPORT.sub(r"\1 messagehub.registry", text))
        if moved != text:
            file.write_text(moved)


def _named(found: re.Match[str], place: Path) -> str:
    """Return the new name of a module that a text names; `registry.db` is a file."""
    path = place.joinpath(*found[1].split(".")[1:])
    is_module = path.is_dir() or path.with_suffix(".py").is_file()
    return f"messagehub.registry{found[1]}" if is_module else found[0]
