"""What is known to be compatible, as long as the schemas are in memory.

Compatibility is transitive, so a check against all versions, newest first, is one comparison and a look at
what the checks of earlier versions left here. Only proofs are stored, so nothing here can go stale.
"""

from weakref import WeakKeyDictionary, WeakSet

from .nodes import Node

_above: WeakKeyDictionary[Node, WeakSet[Node]] = WeakKeyDictionary()


def remember(old: Node, new: Node) -> None:
    _above.setdefault(old, WeakSet()).add(new)


def is_known(old: Node, new: Node) -> bool:
    """Return whether one earlier proof, or two of them, show that the new schema takes every document of the old."""
    above = _above.get(old, ())
    if new in above or any(new in _above.get(between, ()) for between in above):
        remember(old, new)
        return True
    return False
