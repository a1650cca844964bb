"""The keys of one worker: what a caller proves to have, as the registry gave it to those who may resolve the address.

Rule 1: a worker changes its key when the rights of any peer have changed, so that whoever lost the right to call it,
and cannot ask for the new one, soon has a key that is of no use.
Rule 2: the old key counts until the registry has the new one, and FORMER_SECONDS longer, in which callers hear of it.
What was admitted before is answered all the same.
"""

import os
from time import monotonic

from messagehub.services.frames import key_id

KEY_BYTES = 16
FORMER_SECONDS = 10.0


class WorkerKeys:
    def __init__(self) -> None:
        self.current = os.urandom(KEY_BYTES).hex()
        self._next = self.current
        self._former = ""
        self._former_until = 0.0

    def propose(self) -> str:
        """Return a new key for the registry. It is valid from now on, beside the present one."""
        self._next = os.urandom(KEY_BYTES).hex()
        return self._next

    def adopt(self, key: str) -> None:
        """Use the key that the registry has now."""
        self._former, self._former_until = self.current, monotonic() + FORMER_SECONDS
        self.current = key

    def is_valid(self, key: str) -> bool:
        if key == self.current or key == self._next:  # noqa: PLR1714  a tuple for every message costs more
            return True
        return key == self._former and monotonic() < self._former_until

    def find(self, wanted: str) -> str | None:
        """Return the key with this id, if it is valid."""
        known = (self.current, self._next, self._former)
        return next((key for key in known if key_id(key) == wanted and self.is_valid(key)), None)
