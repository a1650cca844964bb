"""The ring's protocol (layout 3), in C where the extension was built, else the same in Python.

`ring.h` has the rules. Both implementations have the types `Writer` and `Reader` with the same methods, and one process
may write with the one while another reads with the other. `MESSAGEHUB_PURE_PYTHON=1` chooses Python.
"""

import logging
import os
import platform
from typing import TYPE_CHECKING, Final, Literal

from messagehub.shm.errors import RingCoreMissing

Implementation = Literal["c", "python"]
_INTERFACE: Final = 2

if TYPE_CHECKING:
    from .python_ring import FULL, LOOK, REFRESH, Reader, Writer, fence

    IMPLEMENTATION: Final[Implementation] = "python"
    REASON: Final = ""
else:
    REASON = ""
    try:
        if os.environ.get("MESSAGEHUB_PURE_PYTHON", "") not in ("", "0"):
            raise ImportError("MESSAGEHUB_PURE_PYTHON is set")
        from . import _ring

        if getattr(_ring, "INTERFACE", 0) != _INTERFACE:
            raise ImportError("the compiled core is of another version of the sources; `make setup` builds it anew")
        from ._ring import FULL, LOOK, REFRESH, Reader, Writer, fence

        IMPLEMENTATION = "c"
    except ImportError as error:
        REASON = str(error)
        from .python_ring import FULL, LOOK, REFRESH, Reader, Writer, fence

        IMPLEMENTATION = "python"

IS_ATOMIC: Final = IMPLEMENTATION == "c"
"""Whether `take_value` and `put` are one step to the other threads of a process."""

# Python has no memory fence. On these machines taking and releasing a lock is one; on others rings need the extension.
_STRONGLY_ORDERED: Final = ("x86_64", "AMD64", "i686", "i386")


_told: list[str] = []
log = logging.getLogger("messagehub")


def check_usable() -> None:
    """Raise RingCoreMissing where rings need the extension. Log once which implementation this process uses."""
    if _told:
        return
    if IMPLEMENTATION == "python" and platform.machine() not in _STRONGLY_ORDERED:
        raise RingCoreMissing(platform.machine(), REASON)
    _told.append(IMPLEMENTATION)
    log.debug("rings run in %s", "C" if IMPLEMENTATION == "c" else f"Python ({REASON})")


__all__ = [
    "FULL",
    "IMPLEMENTATION",
    "IS_ATOMIC",
    "LOOK",
    "REASON",
    "REFRESH",
    "Implementation",
    "Reader",
    "Writer",
    "check_usable",
    "fence",
]
