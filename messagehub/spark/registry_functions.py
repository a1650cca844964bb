"""Columns of encoded payloads as columns of values, and back, by the schemas of the registry.

    from messagehub.spark import from_registry, to_registry

    df.select(from_registry("payload", "orders").alias("order")).select("order.*")
    df.select(to_registry(struct("id", "total"), "orders").alias("payload"))

Rule 1: the subject says what the columns are. It is asked for once, when the column is made.
Rule 2: each payload names the schema that it was written with. Executors ask the registry once for each.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType

from messagehub.arguments import choice
from messagehub.errors import ConfigurationError, SchemaNotFound
from messagehub.spark.encodings.formats import encoding_of
from messagehub.spark.encodings.payload_columns import PayloadColumn, Positions
from messagehub.spark.encodings.payloads import HEAD_BYTES, Encoding, InvalidPayload, Registered, framed, unframed
from messagehub.spark.errors import PayloadNotDecoded
from messagehub.spark.hubs import hub_of, patiently
from messagehub.spark.options import Options
from messagehub.spark.tracebacks import message_only
from registry import replies

if TYPE_CHECKING:
    from pyspark.sql import Column

    from messagehub.hub import MessageHub

Mode = Literal["FAILFAST", "PERMISSIVE"]
_PATIENCE_SECONDS = 30.0
_fetched: dict[tuple[Options, int], Registered] = {}
"""In an executor: the schemas that payloads named. A registered schema never changes."""
_unknown: dict[tuple[Options, int], float] = {}
"""Until when an id that nobody knows is not asked for again: payloads that are none name any number."""
_ROUNDED = (
    (pa.types.is_floating, pa.types.is_integer),
    (pa.types.is_decimal, pa.types.is_integer),
    (pa.types.is_timestamp, pa.types.is_date),
)
FEWEST_TOGETHER = 16
"""Payloads of one schema in a batch: fewer are decoded faster one by one."""
UNKNOWN_SECONDS = 10.0
MOST_UNKNOWN = 10_000


def from_registry(
    data: "Column | str",
    subject: str,
    *,
    version: int | None = None,
    mode: Mode = "FAILFAST",
    error_column: str | None = None,
    has_id: bool = True,
    message: str | None = None,
    dir: str | None = None,
    endpoint: str | None = None,
    domain: str | None = None,
) -> "Column":
    """Decode a binary column whose values are Avro, Protobuf or JSON of a subject's schemas.

    Values begin with a zero byte and the id of their schema, as serializers of Confluent's registry write them; without
    `has_id` they are bare payloads of the subject's schema. The columns are those of its newest version, or of
    `version`; payloads of its other versions are read as that one. `message` names one of several of a Protobuf schema.

    `mode`: a value that cannot be decoded fails the query (FAILFAST) or becomes null (PERMISSIVE). With `error_column`
    it becomes a struct with nulls and, in that field, the reason. To drop such rows, keep those where the result is not
    null, or where `error_column` is.

    `dir`, `endpoint` and `domain` say which hub, as in the environment by default.
    """
    if str(mode) == "DROPMALFORMED":
        raise ConfigurationError(
            "a column cannot drop rows: use mode='PERMISSIVE' and keep the rows whose result is not null"
        )
    choice(mode, "mode", ("FAILFAST", "PERMISSIVE"))
    options = Options(dir=dir, endpoint=endpoint, domain=domain)
    schema = _of_subject(options, subject, version)
    kind = encoding_of(schema, message).type
    if error_column is not None:
        fields = list(kind) if pa.types.is_struct(kind) else []
        if not fields or mode != "PERMISSIVE" or error_column in [field.name for field in fields]:
            raise PayloadNotDecoded(
                "error_column is for mode='PERMISSIVE' and payloads that are records, and is the name of a new field"
            )
        kind = pa.struct([*fields, pa.field(error_column, pa.string())])
    decode = Decoder(options, schema, message, kind, mode, error_column, has_id=has_id)

    def decode_all(values: pa.Array) -> pa.Array:
        with message_only():
            return decode(values)

    found: Column = arrow_udf(decode_all, from_arrow_type(kind))(data)  # type: ignore[call-overload]  # stubs
    return found


def to_registry(
    data: "Column | str",
    subject: str,
    *,
    version: int | None = None,
    has_id: bool = True,
    message: str | None = None,
    dir: str | None = None,
    endpoint: str | None = None,
    domain: str | None = None,
) -> "Column":
    """Encode a column, usually `struct(…)`, with the newest schema of a subject, or with its `version`.

    The result is binary: a zero byte, the id of the schema and the payload; without `has_id` only the payload. A value
    that the schema does not take fails the query. Other arguments are those of `from_registry`.
    """
    options = Options(dir=dir, endpoint=endpoint, domain=domain)
    schema = _of_subject(options, subject, version)
    encoding_of(schema, message)
    encode = Encoder(schema, message, has_id=has_id)

    def encode_all(values: pa.Array) -> pa.Array:
        with message_only():
            return encode(values)

    found: Column = arrow_udf(encode_all, BinaryType())(data)  # type: ignore[call-overload]  # stubs
    return found


class _Encoding:
    """The encoding of a schema, which cannot be pickled: each process makes its own when it is first used."""

    def __init__(self, schema: Registered, message: str | None) -> None:
        self._schema = schema
        self._message = message
        self._made: Encoding | None = None

    def get(self) -> Encoding:
        if self._made is None:
            self._made = encoding_of(self._schema, self._message)
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None}


class Decoder:
    """From payloads to values; pickled to the executors."""

    def __init__(
        self,
        options: Options,
        schema: Registered,
        message: str | None,
        kind: pa.DataType,
        mode: Mode,
        error_column: str | None,
        *,
        has_id: bool,
    ) -> None:
        self._options = options
        self._schema = schema
        self._encoding = _Encoding(schema, message)
        self._type = kind
        self._is_strict = mode == "FAILFAST"
        self._error_column = error_column
        self._has_id = has_id

    def __call__(self, values: pa.Array) -> pa.Array:
        """Decode the payloads of each schema together where its format can, and the others one by one."""
        payloads = PayloadColumn.of(values)
        is_left = payloads.is_present.copy()
        parts: list[pa.Array] = []
        places = np.full(len(values), -1, np.int64)
        for rows, writer in self._groups(payloads) if payloads.is_small else ():
            found = self._encoding.get().decode_columns(payloads.part(rows, self._head_bytes), writer)
            if found is None:
                continue
            column, is_decoded = found
            places[rows[is_decoded]] = np.nonzero(is_decoded)[0] + sum(map(len, parts))
            is_left[rows[is_decoded]] = False
            parts.append(self._with_error_column(column))
        if len(parts) == 1 and len(parts[0]) == len(values) and (places >= 0).all():
            return parts[0]
        (left,) = np.nonzero(is_left)
        places[left] = np.arange(len(left)) + sum(map(len, parts))
        parts.append(self._one_by_one(payloads.part(left).to_list()))
        return pa.concat_arrays(parts).take(pa.array(places, mask=places < 0))

    @property
    def _head_bytes(self) -> int:
        return HEAD_BYTES if self._has_id else 0

    def _groups(self, payloads: PayloadColumn) -> Iterator[tuple[Positions, Registered]]:
        """Yield rows whose payloads are of one schema, and that schema, where there are enough to be worth it."""
        if not self._has_id:
            yield np.nonzero(payloads.is_present)[0], self._schema
            return
        ids, has_head = payloads.schema_ids()
        for schema_id, count in zip(*np.unique(ids[has_head], return_counts=True), strict=True):
            if count < FEWEST_TOGETHER:
                continue
            try:
                writer = self._writer(int(schema_id))
            except InvalidPayload:  # each of these payloads will say so
                continue
            yield np.nonzero(has_head & (ids == schema_id))[0], writer

    def _with_error_column(self, column: pa.Array) -> pa.Array:
        if self._error_column is None:
            return column
        return pa.StructArray.from_arrays(
            [*column.flatten(), pa.nulls(len(column), pa.string())], fields=list(self._type)
        )

    def _one_by_one(self, payloads: list[bytes]) -> pa.Array:
        found = [self._tried(payload) for payload in payloads]
        try:
            return pa.array(found, self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):  # some value is not of its column's type
            return pa.array([self._checked(value) for value in found], self._type)

    def _tried(self, payload: bytes) -> Any:
        try:
            value = self._value(payload)
        except InvalidPayload as why:
            return self._failed(str(why))
        return value

    def _value(self, payload: bytes) -> Any:
        if not self._has_id:
            return self._encoding.get().decode(payload, self._schema, has_id=False)
        schema_id, body = unframed(payload)
        return self._encoding.get().decode(body, self._writer(schema_id))

    def _writer(self, schema_id: int) -> Registered:
        if schema_id == self._schema.schema_id:
            return self._schema
        key = (self._options, schema_id)
        unknown_until = _unknown.get(key, 0.0)
        if key not in _fetched and time.monotonic() >= unknown_until:
            try:
                _fetched[key] = _of_id(self._options, schema_id)
            except SchemaNotFound:
                _unknown[key] = time.monotonic() + UNKNOWN_SECONDS
                while len(_unknown) > MOST_UNKNOWN:
                    del _unknown[next(iter(_unknown))]
        if key not in _fetched:
            raise InvalidPayload(f"its schema {schema_id} is not registered")
        writer = _fetched[key]
        if writer.schema_type != self._schema.schema_type:
            raise InvalidPayload(f"its schema {schema_id} is {writer.schema_type}, not {self._schema.schema_type}")
        return writer

    def _checked(self, value: Any) -> Any:
        try:
            pa.array([value], self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return self._failed(f"it is not what its schema says: {error}")
        return value

    def _failed(self, why: str) -> Any:
        if self._is_strict:
            raise PayloadNotDecoded(
                f"a payload cannot be decoded: {why}. With mode='PERMISSIVE' such values become null, and with"
                " error_column their reason is told."
            )
        return None if self._error_column is None else {self._error_column: why}


class Encoder:
    """From values to payloads; pickled to the executors."""

    def __init__(self, schema: Registered, message: str | None, *, has_id: bool) -> None:
        self._schema = schema
        self._encoding = _Encoding(schema, message)
        self._has_id = has_id

    def __call__(self, values: pa.Array) -> pa.Array:
        """Values are brought to the types of the schema first, and none is rounded or cut for that."""
        encoding = self._encoding.get()
        misfit = _misfit(values.type, encoding.type, "the value")
        if misfit:
            raise PayloadNotDecoded(f"a value cannot be encoded: {misfit}")
        try:
            typed = pa.array(values.to_pylist(), encoding.type).to_pylist()
            bodies = [None if value is None else encoding.encode(value, has_id=self._has_id) for value in typed]
        except (InvalidPayload, pa.ArrowException, TypeError, ValueError, OverflowError) as why:
            raise PayloadNotDecoded(f"a value cannot be encoded: {why}") from None
        found = [framed(self._schema.schema_id, each) if each is not None and self._has_id else each for each in bodies]
        return pa.array(found, pa.binary())


def _misfit(given: pa.DataType, taken: pa.DataType, path: str) -> str | None:
    """Return what of a column Arrow would drop or round without a word."""
    if pa.types.is_struct(given) and pa.types.is_struct(taken):
        known = {field.name: field.type for field in taken}
        for field in given:
            if field.name not in known:
                return f"the schema has no field {path}.{field.name}"
            inside = _misfit(field.type, known[field.name], f"{path}.{field.name}")
            if inside:
                return inside
    elif pa.types.is_list(given) and pa.types.is_list(taken):
        return _misfit(given.value_type, taken.value_type, f"{path}[]")
    elif pa.types.is_map(given) and pa.types.is_map(taken):
        return _misfit(given.item_type, taken.item_type, f"{path}[]")
    elif any(loses(given) and keeps(taken) for loses, keeps in _ROUNDED):
        return f"{path} is {given}, and the schema's is {taken}: cast it"
    return None


def _of_subject(options: Options, subject: str, version: int | None) -> Registered:
    with hub_of(options, is_users_process=True) as hub:
        return _registered(hub.schema(subject, version=version))


def _of_id(options: Options, schema_id: int) -> Registered:
    def ask(hub: "MessageHub") -> Callable[[], replies.SchemaFound]:
        return lambda: hub.schema(schema_id=schema_id)

    with hub_of(options) as hub:
        return _registered(patiently(ask(hub), _PATIENCE_SECONDS))


def _registered(found: replies.SchemaFound) -> Registered:
    schema = found.schema
    return Registered(schema.schema_id, schema.schema_type, schema.schema, found.reference_texts)
