"""Protobuf payloads, by Google's runtime, with descriptors that the registry's own parser makes."""

import base64
import datetime
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from messagehub.spark.encodings.payloads import Encoding, InvalidPayload, Registered, check_count
from messagehub.spark.errors import UnsupportedColumn
from registry.formats import protobuf
from registry.formats.protobuf.wire import varint

_Read = Callable[[Any], Any]
_KNOWN: Final = (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_SCALARS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FILE: Final = "messagehub.proto"


class ProtobufEncoding(Encoding):
    def __init__(self, schema: Registered, message: str | None) -> None:
        self._files: dict[int, Any] = {}
        file = self._file_of(schema)
        names = list(file.message_types_by_name)
        if not names or (message is not None and message not in names):
            raise UnsupportedColumn(f"schema {schema.schema_id} has the messages {names}, and not {message!r}")
        chosen = names[0] if message is None else message
        self._descriptor: Descriptor = file.message_types_by_name[chosen]
        self._head = _index_head(names.index(chosen))
        self._class = message_factory.GetMessageClass(self._descriptor)
        self.type, self._read = _type_of(self._descriptor, (), itertools.count(1))

    def decode(self, body: bytes, writer: Registered, *, has_id: bool = True) -> Any:
        """Behind an id stands which message of the schema it is."""
        name = self._descriptor.full_name
        if has_id:
            path, at = _indexes(body)
            try:
                written, body = _named(self._file_of(writer), path), body[at:]
            except UnsupportedColumn as refused:
                raise InvalidPayload(f"its schema cannot be used: {refused.message}") from None
            if written != name:
                raise InvalidPayload(f"it is a {written}, not a {name}")
        message = self._class()
        try:
            message.ParseFromString(body)
            return self._read(message)
        except (DecodeError, OverflowError) as error:
            raise InvalidPayload(f"it is no {name}: {error}") from None

    def encode(self, value: Any, *, has_id: bool = True) -> bytes:
        message = self._class()
        try:
            _fill(message, value)
            return (self._head if has_id else b"") + bytes(message.SerializeToString())
        except (TypeError, ValueError, AttributeError, EncodeError) as error:
            raise InvalidPayload(f"the schema does not take it: {error}") from None

    def _file_of(self, schema: Registered) -> Any:
        if schema.schema_id not in self._files:
            self._files[schema.schema_id] = _file(schema)
        return self._files[schema.schema_id]


def _file(schema: Registered) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in _KNOWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    waiting = dict(schema.references)
    while waiting:
        left = {name: text for name, text in waiting.items() if not _added(pool, name, text, schema.references)}
        if len(left) == len(waiting):
            break
        waiting = left
    if not _added(pool, _FILE, schema.text, schema.references):
        raise UnsupportedColumn(f"schema {schema.schema_id} imports what cannot be found")
    return pool.FindFileByName(_FILE)


def _added(pool: Any, name: str, text: str, references: Mapping[str, str]) -> bool:
    """False where a file that it imports is not there yet."""
    parsed = protobuf.parse(text, references)
    try:
        pool.AddSerializedFile(base64.b64decode(protobuf.serialized(parsed, name)))
    except TypeError:
        return False
    return True


# -- the messages of a file are numbered, and a payload begins with the number of its own


def _index_head(index: int) -> bytes:
    return b"\0" if index == 0 else varint(1 << 1) + varint(index << 1)  # zig-zag, as Avro writes integers


def _indexes(body: bytes) -> tuple[list[int], int]:
    """Return the path to the message and where the message begins."""
    count, at = _read_varint(body, 0)
    path = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        path.append(index)
    return path or [0], at


def _named(file: Any, path: list[int]) -> str:
    try:
        found = list(file.message_types_by_name.values())[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
    except IndexError:
        raise InvalidPayload(f"its schema has no message {path}") from None
    return str(found.full_name)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for position in range(at, min(at + 5, len(body))):
        number |= (body[position] & 0x7F) << shift
        shift += 7
        if not body[position] & 0x80:
            return number >> 1, position + 1
    raise InvalidPayload("it does not say which message it is")


# -- messages and values


def _type_of(
    descriptor: Descriptor, open_: tuple[str, ...], counter: "itertools.count[int]"
) -> tuple[pa.DataType, _Read]:
    if descriptor.full_name == _TIMESTAMP:
        return pa.timestamp(
            "us", tz="UTC"
        ), lambda message: _EPOCH + datetime.timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if descriptor.full_name in open_:
        raise UnsupportedColumn(f"message {descriptor.full_name} contains itself: Spark has no type for that")
    inside = (*open_, descriptor.full_name)
    columns = [(field.name, *_field_type(field, inside, counter), field.has_presence) for field in descriptor.fields]

    def read(message: Any) -> Any:
        return {
            name: convert(getattr(message, name)) if not has_presence or message.HasField(name) else None
            for name, _, convert, has_presence in columns
        }

    return pa.struct([pa.field(name, kind) for name, kind, _, _ in columns]), read


def _field_type(
    field: FieldDescriptor, open_: tuple[str, ...], counter: "itertools.count[int]"
) -> tuple[pa.DataType, _Read]:
    check_count(next(counter))
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, read_key = _one_type(entry["key"], open_, counter)
        value, read_value = _one_type(entry["value"], open_, counter)
        return pa.map_(key, value), lambda found: [(read_key(name), read_value(found[name])) for name in found]
    kind, read = _one_type(field, open_, counter)
    return (pa.list_(kind), lambda found: [read(item) for item in found]) if field.is_repeated else (kind, read)


def _one_type(
    field: FieldDescriptor, open_: tuple[str, ...], counter: "itertools.count[int]"
) -> tuple[pa.DataType, _Read]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _type_of(field.message_type, open_, counter)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()), _as_it_is
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        values = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: values.get(number, str(number))
    return _SCALARS[field.cpp_type], _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _fill(message: Message, value: Any) -> None:
    """Set the fields of a message. A member that is None is left out; one that the message does not have is refused."""
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        message.FromDatetime(value)
        return
    fields = message.DESCRIPTOR.fields_by_name
    for name, given in value.items():
        if name not in fields:
            raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
        if given is None:
            continue
        field = fields[name]
        if _is_map(field):
            _fill_map(getattr(message, name), field.message_type.fields_by_name, given)
        elif field.is_repeated:
            _fill_list(getattr(message, name), field, given)
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            _fill(getattr(message, name), given)
        else:
            setattr(message, name, _scalar(field, given))


def _fill_list(target: Any, field: FieldDescriptor, items: Any) -> None:
    for item in items:
        if field.message_type is not None:
            _fill(target.add(), item)
        else:
            target.append(_scalar(field, item))


def _fill_map(target: Any, fields: Mapping[str, FieldDescriptor], entries: Any) -> None:
    for name, item in entries:
        key = _scalar(fields["key"], name)
        if fields["value"].message_type is not None:
            _fill(target[key], item)
        else:
            target[key] = _scalar(fields["value"], item)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        if value not in field.enum_type.values_by_name:
            raise ValueError(f"enum {field.enum_type.full_name} has no value {value!r}")
        return field.enum_type.values_by_name[value].number
    return int(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value
