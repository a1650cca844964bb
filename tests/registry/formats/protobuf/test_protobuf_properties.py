"""Any text is a schema or refused; readable source reads the same to another parser."""

import base64
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

from registry.formats import protobuf
from registry.formats.differences import BudgetExceeded, MalformedSchema
from registry.formats.protobuf.model import SCALARS
from tests.levels import examples

SOURCE = (
    'syntax = "proto3" ; message M { } enum E string int32 a b = 1 2 [ ] ( ) < > , . oneof map reserved'
    " option repeated optional group extend import package service rpc returns to max 'x' -1 1.5 // /* */"
)
WORDS = st.sampled_from(SOURCE.split())


def parse_or_refuse(text: str) -> None:
    try:
        protobuf.parse(text, {})
    except (MalformedSchema, BudgetExceeded):
        pass


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.text() | st.lists(WORDS, max_size=60).map(" ".join))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    parse_or_refuse(text)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=3, max_size=60), st.integers(0, 300), st.binary(max_size=2))
def test_any_bytes_are_a_descriptor_or_refused(data: bytes, place: int, change: bytes) -> None:
    parse_or_refuse(base64.b64encode(data).decode())
    good = descriptor_pb2.FileDescriptorProto(
        syntax="proto3",
        message_type=[{"name": "M", "field": [{"name": "a", "number": 1, "type": 9, "label": 1}]}],
    ).SerializeToString()
    place %= len(good)
    parse_or_refuse(base64.b64encode(good[:place] + change + good[place + len(change) :]).decode())


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 300), st.binary(max_size=3), st.integers(0, 4))
def test_google_protobuf_reads_every_descriptor_that_is_accepted(place: int, change: bytes, removed: int) -> None:
    good = descriptor_pb2.FileDescriptorProto(
        syntax="proto3",
        options={"java_package": "a.b", "optimize_for": "SPEED"},
        message_type=[
            {
                "name": "M",
                "field": [{"name": "a", "number": 1, "type": 9, "label": 1, "options": {"retention": 1}}],
                "reserved_range": [{"start": 7, "end": 9}],
            }
        ],
    ).SerializeToString()
    place %= len(good)
    data = good[:place] + change + good[place + removed :]
    try:
        protobuf.parse(base64.b64encode(data).decode(), {})
    except (MalformedSchema, BudgetExceeded):
        return
    descriptor_pb2.FileDescriptorProto.FromString(data)


FIELD = st.tuples(st.sampled_from(sorted(SCALARS)), st.sampled_from(["", "repeated ", "optional "]))


@st.composite
def messages(draw: st.DrawFn) -> str:
    numbers = draw(st.lists(st.integers(1, 8), unique=True, max_size=6))
    fields = "".join(f"  {label}{kind} f{number} = {number};\n" for number in numbers for kind, label in [draw(FIELD)])
    return f'syntax = "proto3";\npackage p;\nmessage M {{\n{fields}}}\n'


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(messages())
def test_proto_schema_parser_reads_the_same_fields(text: str) -> None:
    ours = protobuf.parse(text, {}).linked.file.messages[0]
    theirs = next(element for element in Parser().parse(text).file_elements if isinstance(element, ast.Message))
    assert [(field.name, field.number, field.type) for field in ours.fields] == [
        (field.name, field.number, field.type) for field in theirs.elements if isinstance(field, ast.Field)
    ]


def message_class(text: str) -> Any:
    encoded = protobuf.serialized(protobuf.parse(text, {}), "m.proto")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(base64.b64decode(encoded))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


SAMPLES = {"string": "text", "bytes": b"text", "bool": True, "double": 1.5, "float": 1.5}


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(messages(), messages())
def test_what_is_called_readable_is_read_without_unknown_leftovers(old: str, new: str) -> None:
    """Every field that both schemas have arrives: nothing of it is pushed aside as another wire type."""
    if protobuf.compare(protobuf.parse(old, {}), protobuf.parse(new, {})):
        return
    written = message_class(old)()
    for field in written.DESCRIPTOR.fields:
        kind = next(f.type for f in protobuf.parse(old, {}).linked.file.messages[0].fields if f.name == field.name)
        value = SAMPLES.get(kind, 1)
        if field.is_repeated:
            getattr(written, field.name).append(value)
        else:
            setattr(written, field.name, value)
    read = message_class(new).FromString(written.SerializeToString())
    shared = {field.name for field in written.DESCRIPTOR.fields} & {field.name for field in read.DESCRIPTOR.fields}
    present = {field.name for field, _ in read.ListFields()}
    assert shared == present
