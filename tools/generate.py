"""Everything in the repository that is written from the code: `schemas/` and the generated pages of docs/reference.

python -m tools.generate            write what differs
python -m tools.generate --check    change nothing; exit 1 when a file is not up to date
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tools import reference_cli, reference_metrics, reference_protocol, reference_python, schema_files

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "cli.md": reference_cli.page,
    "metrics.md": reference_metrics.page,
    "protocol.md": reference_protocol.page,
    "python.md": reference_python.page,
}


def changed(name: str) -> str | None:
    """Return what the page has to say now, or None where it says that already."""
    path, text = REFERENCE / name, PAGES[name]()
    return None if path.exists() and path.read_text() == text else text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description="Write what is made from the code.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a file is not up to date")
    options = parser.parse_args(arguments)
    stale = {name: text for name in PAGES if (text := changed(name)) is not None}
    for name, text in stale.items():
        if not options.check:
            (REFERENCE / name).write_text(text)
        print(f"docs/reference/{name}: {'is not up to date: run `make generate`' if options.check else 'written'}")
    return max(schema_files.main(["--check"] if options.check else []), int(options.check and bool(stale)))


if __name__ == "__main__":
    sys.exit(main())
