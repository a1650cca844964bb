"""What to write instead of a value that JSON has no form for: the end of an error message."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any

import msgspec

_CALLS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "value.value"),
    (tuple, "list(value)"),
    ((set, frozenset), "sorted(value)"),
    ((bytes, bytearray, memoryview), "the bytes as the whole payload, or base64.b64encode(value).decode()"),
    ((datetime.datetime, datetime.date, datetime.time), "value.isoformat()"),
    (datetime.timedelta, "value.total_seconds()"),
    ((decimal.Decimal, uuid.UUID), "str(value)"),
    (msgspec.Struct, "msgspec.to_builtins(value)"),
    (str, "str(value)"),
    (int, "int(value)"),
    (float, "float(value)"),
)

_TIMES = {"M": "value.astype(str).tolist()", "m": 'the seconds, (value / numpy.timedelta64(1, "s")).tolist()'}
"""Of NumPy's times and durations, by the kind of their dtype: `tolist` alone gives what JSON has no form for."""


def conversion_of(value: Any) -> str:
    library = type(value).__module__.partition(".")[0]
    if hasattr(value, "model_dump"):  # pydantic
        return 'send value.model_dump(mode="json")'
    if dataclasses.is_dataclass(value):
        return "send dataclasses.asdict(value)"
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if library == "numpy" and kind in _TIMES:
        return f"send {_TIMES[kind]}"
    if library == "numpy":
        return "send value.tolist(), or an array as the whole payload"
    if library in ("pandas", "polars", "pyarrow"):
        return "send a frame or table as the whole payload"
    return next((f"send {call}" for kind, call in _CALLS if isinstance(value, kind)), "convert it first")
