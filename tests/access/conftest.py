from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.shared import SharedHub


@pytest.fixture
def shared(tmp_path: Path, no_leaks: None) -> Iterator[SharedHub]:
    with SharedHub(tmp_path / "hub").running() as hub:
        yield hub


@pytest.fixture(scope="module")
def shared_by_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedHub]:
    """For tests that leave it as it was."""
    with SharedHub(tmp_path_factory.mktemp("access") / "hub").running() as hub:
        yield hub
