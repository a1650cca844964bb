"""What is known to be compatible, as long as the schemas are in memory.

Compatibility is transitive, so a check against all versions, newest first, is one comparison and a look at
what the checks of earlier versions left here. Only proofs are kept, so nothing here can go stale.
"""

from weakref import WeakKeyDictionary, WeakSet

from .nodes import Node

_above: WeakKeyDictionary[Node, WeakSet[Node]] = WeakKeyDictionary()


def remember(old: Node, new: Node) -> None:
    _above.setdefault(old, WeakSet()).add(new)


def is_known(old: Node, new: Node) -> bool:
    """Every document of the old is one of the new, by an earlier proof or by two of them."""
    above = _above.get(old, ())
    if new in above or any(new in _above.get(between, ()) for between in above):
        remember(old, new)
        return True
    return False
