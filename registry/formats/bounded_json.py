"""JSON text of schemas, decoded within budgets, so that code which walks the value may recurse."""

from typing import Any

import msgspec

from registry.formats.differences import BudgetExceeded, MalformedSchema, TooLarge

MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_NESTING = 192


def decode(text: str) -> Any:
    """Return the JSON value of the text, nested at most MAX_NESTING levels deep."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise MalformedSchema(f"the text is not valid Unicode: {error.reason}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise TooLarge("schema text bytes", MAX_TEXT_BYTES)
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise BudgetExceeded("schema nesting", MAX_NESTING) from None
    except msgspec.DecodeError as error:
        raise MalformedSchema(f"the text is not JSON: {error}") from None
    check_nesting(value, MAX_NESTING, "schema nesting")
    return value


def check_nesting(value: Any, budget: int, name: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > budget:
            raise BudgetExceeded(name, budget)
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
