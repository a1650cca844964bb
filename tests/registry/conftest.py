"""Fixtures of the pure tests, and the flag that writes the golden transcripts anew."""

from collections.abc import Iterator

import pytest

from tests.registry.driving import Driver


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-transcripts", action="store_true", help="write tests/registry/transcripts/*.txt as they are now"
    )


@pytest.fixture
def hub() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.check()
