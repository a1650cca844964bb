"""The ring's protocol in Python, with the names that the extension in C has: see `core`."""

from .python_primitives import fence
from .python_reader import Reader
from .python_writer import FULL, LOOK, REFRESH, Writer

__all__ = ["FULL", "LOOK", "REFRESH", "Reader", "Writer", "fence"]
