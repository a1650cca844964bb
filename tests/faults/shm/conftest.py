"""The same private root, with the same check for leaks, as the behaviour tests use."""

from tests.shm.conftest import root

__all__ = ["root"]
