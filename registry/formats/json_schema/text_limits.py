"""From text to JSON values and back to one canonical text, within limits that later steps rely on."""

import json
import math
from typing import Any, NoReturn

from registry.formats.differences import BudgetExceeded, InvalidSchema, TooLarge

MAX_CHARACTERS = 4_000_000
MAX_NESTING = 100
MAX_DIGITS = 400
_UNORDERED = ("enum", "required", "type")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def read(text: str, what: str = "schema") -> tuple[Any, str]:
    """Return the JSON value and its canonical text.

    The value is no deeper than `MAX_NESTING`, with finite numbers of bounded size and valid Unicode.
    """
    if len(text) > MAX_CHARACTERS:
        raise TooLarge("characters of a schema", MAX_CHARACTERS)
    try:
        text.encode()
        value = _decode(text)
        canonical = write(value)
        canonical.encode()
    except RecursionError:
        raise BudgetExceeded("nesting of a schema", MAX_NESTING) from None
    except UnicodeEncodeError:
        raise InvalidSchema(f"the {what} holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise InvalidSchema(
            f"the {what} is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    _check_limits(value)
    return value, canonical


def _not_json(name: str) -> NoReturn:
    raise InvalidSchema(f"{name} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidSchema(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


_decode = json.JSONDecoder(parse_constant=_not_json, parse_int=_integer).decode


def _check_limits(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise BudgetExceeded("nesting of a schema", MAX_NESTING)
        following: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                following += item.values()
            elif isinstance(item, list):
                following += item
            elif isinstance(item, float) and not math.isfinite(item):
                raise InvalidSchema("a number is too large")
        level = following


def write(value: Any) -> str:
    """Compact JSON in the order given: differs from another text only where more than white space differs."""
    return _encode(value)


def write_normalized(schema: Any) -> str:
    """Compact JSON that ignores the order of keys and of the keyword values that are sets."""
    return json.dumps(_ordered(schema), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _ordered(value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, item in value.items():
        ordered = _ordered(item)
        if key in _UNORDERED and isinstance(item, list):
            ordered = sorted(ordered, key=lambda member: json.dumps(member, sort_keys=True))
        result[key] = ordered
    return result
