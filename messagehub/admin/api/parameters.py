"""Types of the parameters of our own API, as FastAPI reads and describes them.

Paths are matched before they are decoded, so that a name may hold slashes: names in paths are decoded here. What a
parameter must be completes a sentence that begins with its name and `is` (`routes.TypedRoute`).
"""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import unquote

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from messagehub.admin.openapi import VERSION_SCHEMA
from messagehub.admin.parameters import BAD_FLAG, FLAGS, MAX_VERSION, decoded_subject
from registry.schemas.catalog import LATEST

MAX_LIMIT = 10_000
MAX_OFFSET = 2**53
MAX_NAME = 300


def _decoded(text: str) -> str:
    return unquote(text, errors="replace")[:MAX_NAME]


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most):
            raise ValueError(f"a number from {least} to {most}")
        return int(text)

    return read


def _version(text: str) -> int:
    return LATEST if text == "latest" else whole_number(1, MAX_VERSION)(text)


def _seconds(text: str) -> float:
    try:
        return msgspec.json.decode(text, type=float)
    except msgspec.DecodeError:
        raise ValueError("seconds since the epoch") from None


def _flag(text: str) -> bool:
    is_true = FLAGS.get(text.lower())
    if is_true is None:
        raise PydanticCustomError(BAD_FLAG, "true or false")
    return is_true


Name = Annotated[str, AfterValidator(_decoded)]
Subject = Annotated[str, AfterValidator(decoded_subject)]
Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole_number(1, MAX_LIMIT))]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET), BeforeValidator(whole_number(0, MAX_OFFSET))]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Flag = Annotated[bool, BeforeValidator(_flag)]
"""Given as `name=true`, or bare."""
Version = Annotated[int, BeforeValidator(_version), WithJsonSchema(VERSION_SCHEMA)]
NotGiven = SkipJsonSchema[None]
"""What a parameter is that may be left out: nobody can send it, so it is not described."""
