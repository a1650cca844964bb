"""How commands speak: tables for people, JSON for scripts, errors on stderr."""

import sys
from typing import Any

import msgspec


def echo(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def echo_json(value: Any) -> None:
    echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def complain(line: str) -> None:
    sys.stderr.write(line + "\n")
