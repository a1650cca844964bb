"""One broker per module, for the tests that leave it as it is; a directory of its own for the others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Program


@pytest.fixture(scope="module")
def hub() -> Iterator[Program]:
    """A program whose directory has a running broker."""
    with tempfile.TemporaryDirectory(prefix="mh-") as place:
        program = Program(Path(place))
        program.configure()
        with program.serve() as broker:
            yield program
            assert broker.end() == 0, broker.err
        program.remove_blocks()


@pytest.fixture
def alone() -> Iterator[Program]:
    """A program without a broker, and a directory that does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="mh-") as place:
        program = Program(Path(place))
        yield program
        program.remove_blocks()
