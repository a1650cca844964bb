"""Types that any thread may decode.

msgspec works out at the first use of a type how to decode it, and ends the process if two threads do so at once
(0.22; tests/test_decodable_types.py shows it). Modules are imported by one thread, so types are made ready there: by a
decoder of their module, or by `decodable`.
"""

from typing import TypeVar

import msgspec

Kind = TypeVar("Kind")


def decodable(kind: Kind) -> Kind:
    """Return the type, of which msgspec knows everything from now on. It can be used as a decorator of classes."""
    msgspec.json.Decoder(kind)
    return kind
