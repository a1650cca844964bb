"""Programs of Debian that tests run against: installed when this is root and apt works, else the test is skipped."""

import pytest

from benchmarks import packages
from benchmarks.harness import PeerMissing


def program_or_skip(name: str, package: str) -> str:
    """The path of the program."""
    try:
        return packages.program(name, package)
    except PeerMissing as missing:
        pytest.skip(str(missing))
