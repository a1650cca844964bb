"""The schema that a consumer expects, what else it can read, and data in that schema.

Rule 1: without the registry's word only an equal hash can be read.
Rule 2: columns are taken by name and cast, and are null where there are none. By the registry's rule for compatible
schemas (registry/formats/arrow/comparison.py) every value has a place in the expected type. What pyarrow cannot cast
all the same is refused, never changed.
Rule 3: arrays are read in the expected dtype in the same way. They have no nulls, so a missing field is refused.
"""

from collections.abc import Callable
from typing import Any

from messagehub.channels.payload_schema import arrow_schema
from messagehub.errors import SchemaMismatch


class ExpectedSchema:
    def __init__(
        self, channel: str, schema_hash: str | None, schema: Any, *, registered: Callable[[str, float], Any]
    ) -> None:
        """`schema` is the Arrow schema or dtype, where the consumer gave one; `registered` gives the Arrow schema of a
        hash, within so many seconds."""
        self.readable: set[str] = set() if schema_hash is None else {schema_hash}  # empty: whatever comes
        self._channel = channel
        self._hash = schema_hash
        self._schema = schema
        self._registered = registered
        self.is_as_written = schema is None  # values are handed out as they are

    def is_readable(self, written: str | None) -> bool:
        return not self.readable or written in self.readable

    def accept(self, written: str | None, *, timeout: float) -> bool:
        """The registry calls what is written with this schema readable; returns whether that is new."""
        if written is None or self._hash is None or written in self.readable:
            return False
        if self._schema is None:
            self._schema = self._registered(self._hash, timeout)
            self.is_as_written = self._schema is None
        self.readable.add(written)
        return True

    def mismatch(self, written: str | None) -> SchemaMismatch:
        return SchemaMismatch(
            f"channel {self._channel!r} has schema {written!r}, the consumer expects {self._hash!r}",
            channel=self._channel,
            expected=self._hash,
            actual=written,
        )

    def unreadable(self, written: Any, schema_hash: str) -> SchemaMismatch:
        """The refusal of a ring with this Arrow schema or dtype (None: raw bytes), by its fields and types."""
        wanted = f"schema {self._hash!r}" if self._schema is None else _described(self._schema)
        return SchemaMismatch(
            f"channel {self._channel!r} is written as {_described(written)}; the consumer expects {wanted}, and nobody"
            " says that the one can be read as the other. Expect what is written, or leave expected_schema out to read"
            " it as it is",
            channel=self._channel,
            expected=self._hash,
            actual=schema_hash,
        )

    def applied(self, value: Any) -> Any:
        if self._schema is None:
            return value
        if hasattr(value, "dtype"):
            return as_expected_array(value, self._schema, self._channel)
        schema = arrow_schema(self._schema) if hasattr(self._schema, "itemsize") else self._schema
        return as_expected(value, schema, self._channel)


def _described(schema: Any) -> str:
    if schema is None:
        return "raw bytes"
    if hasattr(schema, "itemsize"):
        names = schema.names
        return f"({', '.join(f'{name}: {schema[name]}' for name in names)})" if names else f"arrays of {schema}"
    nulls = {True: "", False: " not null"}
    return f"({', '.join(f'{field.name}: {field.type}{nulls[field.nullable]}' for field in schema)})"


def as_expected_array(value: Any, schema: Any, channel: str) -> Any:
    """Return an array in the expected dtype: as it is, or a copy. `schema` may be the Arrow schema of a dtype."""
    import numpy as np

    dtype = schema if isinstance(schema, np.dtype) else _dtype_of(schema, value.dtype)
    if dtype is None or value.dtype == dtype or _is_same_in_arrow(value.dtype, dtype):
        return value
    found = np.empty(value.shape, dtype)
    _fill(found, value, channel)
    return found


def _fill(target: Any, source: Any, channel: str) -> None:
    """Fill an array, field by field; raise SchemaMismatch where a value would change."""
    import numpy as np

    expected, written = target.dtype, source.dtype
    if expected.names is None:
        is_fitting = written.names is None and target.shape == source.shape and np.can_cast(written, expected, "safe")
        if is_fitting:
            target[...] = source
            is_time = expected.kind in "mM"  # which NumPy lets overflow
            is_fitting = not is_time or bool(((target.astype(written) == source) | np.isnat(source)).all())
        if not is_fitting:
            raise SchemaMismatch(
                f"arrays of channel {channel!r} are of dtype {written}, and cannot be read as {expected}",
                channel=channel,
            )
        return
    for name in expected.names:
        if name not in (written.names or ()):
            raise SchemaMismatch(f"channel {channel!r} has no field {name!r}", channel=channel)
        _fill(target[name], source[name], channel)


def _is_same_in_arrow(one: Any, other: Any) -> bool:
    """Whether two dtypes have one schema, and one hash: texts of other lengths, other byte orders."""
    found = arrow_schema(one)
    return found is not None and found == arrow_schema(other)


def _dtype_of(schema: Any, written: Any) -> Any:
    """Return the dtype for a consumer that expects an Arrow schema, or None where NumPy has none: arrays then come as
    they are. Arrays have no nulls, so columns that may be null and were not written are left out."""
    import numpy as np
    import pyarrow as pa

    present = written.names or ("value",)
    fields = [field for field in schema if field.name in present or not field.nullable]
    try:
        kinds = [(field.name, _item_dtype(field.type)) for field in fields]
    except (pa.ArrowException, NotImplementedError, TypeError):
        return None
    if not kinds or any(kind.hasobject for _, kind in kinds):
        return None
    return np.dtype(kinds) if written.names else kinds[0][1]


def _item_dtype(kind: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    return np.dtype("<M8[D]") if pa.types.is_date32(kind) else np.dtype(kind.to_pandas_dtype())


def as_expected(value: Any, schema: Any, channel: str) -> Any:
    """A record batch or table with exactly these columns; other values, and what fits already, as they are."""
    import pyarrow as pa

    if not isinstance(value, pa.RecordBatch | pa.Table) or value.schema.equals(schema):
        return value
    columns = []
    for field in schema:
        place = value.schema.get_field_index(field.name)
        if place < 0 and not field.nullable:
            raise SchemaMismatch(f"channel {channel!r} has no column {field.name!r}", channel=channel)
        try:
            column = pa.nulls(value.num_rows, field.type) if place < 0 else _cast(value.column(place), field.type)
            column.validate()  # some casts of pyarrow 26 (list views) give arrays that are none
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"column {field.name!r} of channel {channel!r} cannot be read as {field.type}: {error}", channel=channel
            ) from None
        columns.append(column)
    return type(value).from_arrays(columns, schema=schema)


def _cast(column: Any, kind: Any) -> Any:
    """Runs are decoded and encoded: pyarrow casts neither from nor to them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type.equals(kind):
        return column
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(column.cast(kind.value_type), run_end_type=kind.run_end_type)
    return column.cast(kind)
