"""NumPy arrays and data frames as payloads: they travel as Arrow, in shared memory where they are large.

An array is a record batch with one column, its items in C order; its dtype and shape stand in the metadata of the
schema, so that a subscriber gets an array again and a program that knows only Arrow still reads the items. A frame of
pandas or polars is the Arrow table that it converts to, and arrives as that.
"""

import json
from types import NoneType
from typing import Any

from messagehub.errors import InvalidRequest
from messagehub.shm.errors import DataBlockError
from messagehub.shm.payloads import NumpyCodec

PLAIN_TYPES = frozenset({bytes, str, dict, list, int, float, bool, NoneType})
"""Of which most payloads are: `as_arrow` would return them as they are."""
ARRAY = b"messagehub.numpy"
MOST_DIMENSIONS = 64
_IN_ARROW = "iuf"  # kinds of dtype whose items Arrow has a type for; others travel as their bytes


def as_arrow(payload: Any) -> Any:
    """Return arrays and frames as Arrow, any other payload as it is.

    Raise InvalidRequest if Arrow has no form for it.
    """
    library = type(payload).__module__.partition(".")[0]
    if library == "numpy":
        return _batch(payload)
    if library in ("pandas", "polars") and type(payload).__name__ == "DataFrame":
        return _table(payload, library)
    return payload


def restored(batch: Any) -> Any:
    """Return the array that a batch was made from, sharing its memory, or the batch itself.

    Raise ValueError if the batch does not fit the array that its metadata describes.
    """
    described = (batch.schema.metadata or {}).get(ARRAY)
    if described is None:
        return batch
    try:
        said = json.loads(described)
        dtype, shape = NumpyCodec.from_description(json.dumps(said["dtype"]).encode(), "a message").dtype, said["shape"]
        if len(shape) > MOST_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"its shape is {shape!r:.100}")
        flat = batch.column(0).to_numpy(zero_copy_only=True)
        return flat.view(dtype).reshape(shape)
    except (DataBlockError, LookupError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"its NumPy array is described as {described!r:.100}: {error}") from None


def _batch(array: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    if not isinstance(array, np.ndarray):
        return array  # a number, for which JSON has a form, or something that it refuses
    if type(array) not in (np.ndarray, np.memmap):
        raise InvalidRequest(
            f"a payload of type {type(array).__name__} would arrive as an array: send np.asarray(value), and a mask as"
            " an array of its own"
        )
    dtype = array.dtype
    if dtype.hasobject or dtype.itemsize == 0:
        raise InvalidRequest(f"an array of dtype {dtype} has no fixed bytes: send numbers, times or fixed-size strings")
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.kind not in _IN_ARROW or dtype.itemsize > 8 or not dtype.isnative:
        flat = flat.view(np.uint8)
    described = {"dtype": np.lib.format.dtype_to_descr(dtype), "shape": array.shape}
    items = pa.array(flat)
    schema = pa.schema([pa.field("item", items.type)], metadata={ARRAY: json.dumps(described).encode()})
    return pa.record_batch([items], schema=schema)


def _table(frame: Any, library: str) -> Any:
    import pyarrow as pa

    try:
        return pa.Table.from_pandas(frame) if library == "pandas" else frame.to_arrow()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRequest(f"this {library} frame has no form in Arrow: {error}") from None
