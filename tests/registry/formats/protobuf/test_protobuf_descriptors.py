"""FileDescriptorProto in base64: what `google.protobuf` writes is read, and what is written it accepts."""

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]

from registry.formats import protobuf
from registry.formats.differences import MalformedSchema

FULL = """
syntax = "proto3";
package demo.v1;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/duration.proto";
option java_package = "com.demo";
option java_multiple_files = true;
option optimize_for = CODE_SIZE;
message Reading {
  option deprecated = true;
  reserved 20 to 29, 40;
  reserved "gone";
  string sensor_id = 1;
  optional double value = 2;
  repeated int32 codes = 3 [packed = false];
  map<string, Reading> children = 4 [deprecated = true];
  google.protobuf.Timestamp at = 5 [json_name = "when"];
  oneof source { string host = 6; Kind kind = 7; }
  enum Kind { option allow_alias = true; UNKNOWN = 0; NONE = 0; NEG = -5 [deprecated = true]; reserved 7; }
  message Inner { bytes raw = 1; sfixed64 big = 2; }
  Inner inner = 8;
}
service Readings {
  rpc Watch (Reading) returns (stream Reading) { option idempotency_level = NO_SIDE_EFFECTS; }
}
"""
OLD = """
syntax = "proto2";
package demo.old;
message Old {
  required string name = 1 [default = "a\\"b\\n"];
  optional bytes raw = 2 [default = "\\xff\\001z"];
  optional float ratio = 3 [default = -inf];
  repeated group Part = 4 { optional int32 size = 1 [default = 3]; }
  extensions 100 to 199;
  enum Level { LOW = 1; HIGH = 2; }
  optional Level level = 5 [default = HIGH];
}
extend Old { optional Old next = 100; repeated string tags = 101; }
"""
EDITION = """
edition = "2023";
package demo.next;
option features.field_presence = IMPLICIT;
message Next {
  string name = 1 [features.field_presence = LEGACY_REQUIRED];
  reserved old_name;
}
"""


def descriptor(text: str) -> descriptor_pb2.FileDescriptorProto:
    encoded = protobuf.serialized(protobuf.parse(text, {}), "schema.proto")
    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(encoded))


@pytest.mark.parametrize("text", [FULL, OLD, EDITION], ids=["proto3", "proto2", "edition"])
def test_a_schema_survives_the_way_through_its_descriptor(text: str) -> None:
    schema = protobuf.parse(text, {})
    assert protobuf.parse(protobuf.serialized(schema), {}).canonical == schema.canonical


@pytest.mark.parametrize("text", [FULL, OLD, EDITION], ids=["proto3", "proto2", "edition"])
def test_the_official_library_accepts_the_descriptor(text: str) -> None:
    from google.protobuf import duration_pb2, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(descriptor(text))
    assert pool.FindFileByName("schema.proto").package.startswith("demo.")


def test_the_descriptor_says_what_the_text_says() -> None:
    reading = descriptor(FULL).message_type[0]
    fields = {field.name: field for field in reading.field}
    assert fields["sensor_id"].json_name == "sensorId"
    assert fields["value"].proto3_optional
    assert reading.oneof_decl[fields["value"].oneof_index].name == "_value"
    assert fields["children"].type_name == ".demo.v1.Reading.ChildrenEntry"
    assert fields["at"].json_name == "when"
    assert [(r.start, r.end) for r in reading.reserved_range] == [(20, 30), (40, 41)]
    assert descriptor(OLD).message_type[0].field[1].default_value == "\\377\\001z"


@pytest.mark.parametrize("module", ["struct", "type", "api", "wrappers", "any", "source_context"])
def test_descriptors_of_generated_modules_are_read(module: str) -> None:
    generated = __import__(f"google.protobuf.{module}_pb2", fromlist=["DESCRIPTOR"]).DESCRIPTOR
    schema = protobuf.parse(base64.b64encode(generated.serialized_pb).decode(), {})
    assert schema.linked.file.package == "google.protobuf"
    again = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(protobuf.serialized(schema, generated.name)))
    original = descriptor_pb2.FileDescriptorProto.FromString(generated.serialized_pb)
    assert [message.name for message in again.message_type] == [message.name for message in original.message_type]


def test_custom_options_of_a_descriptor_are_kept_by_number() -> None:
    file = descriptor(FULL)
    file.options.MergeFromString(bytes.fromhex("8ab5180178"))  # a string extension with number 50001
    text = base64.b64encode(file.SerializeToString()).decode()
    schema = protobuf.parse(text, {})
    assert schema.hash != protobuf.parse(FULL, {}).hash
    assert bytes.fromhex("8ab5180178") in base64.b64decode(protobuf.serialized(schema))
    assert protobuf.normalize(schema.canonical, {}) == schema.canonical


BROKEN = [
    (
        "a name that is code",
        descriptor_pb2.FileDescriptorProto(message_type=[{"name": "M { }"}]),
        "not a name",
    ),
    ("no name", descriptor_pb2.FileDescriptorProto(message_type=[{}]), "not a name"),
    ("an unknown syntax", descriptor_pb2.FileDescriptorProto(syntax="proto9"), "unknown syntax"),
    ("an unknown edition", descriptor_pb2.FileDescriptorProto(syntax="editions"), "unknown edition"),
    (
        "a field of no type",
        descriptor_pb2.FileDescriptorProto(message_type=[{"name": "M", "field": [{"name": "a"}]}]),
        "unknown type",
    ),
    (
        "a oneof that is not there",
        descriptor_pb2.FileDescriptorProto(
            message_type=[{"name": "M", "field": [{"name": "a", "number": 1, "type": 9, "oneof_index": 3}]}]
        ),
        "no oneof",
    ),
    (
        "a group that is defined elsewhere",
        descriptor_pb2.FileDescriptorProto(
            message_type=[
                {
                    "name": "M",
                    "field": [{"name": "n", "number": 1, "type": 10, "label": 1, "type_name": ".N"}],
                },
                {"name": "N"},
            ]
        ),
        "group",
    ),
    (
        "a message without a name of its own",
        descriptor_pb2.FileDescriptorProto(
            message_type=[{"name": "M", "field": [{"name": "n", "number": 1, "type": 11, "label": 1}]}]
        ),
        "unknown type",
    ),
    (
        "a repeated field in a oneof",
        descriptor_pb2.FileDescriptorProto(
            message_type=[
                {
                    "name": "M",
                    "field": [{"name": "n", "number": 1, "type": 9, "label": 3, "oneof_index": 0}],
                    "oneof_decl": [{"name": "o"}],
                }
            ]
        ),
        "no label",
    ),
    (
        "a type that is not there",
        descriptor_pb2.FileDescriptorProto(
            syntax="proto3",
            message_type=[{"name": "M", "field": [{"name": "a", "number": 1, "type": 11, "type_name": ".N"}]}],
        ),
        "N",
    ),
]


@pytest.mark.parametrize(("reason", "file", "words"), BROKEN, ids=[case[0] for case in BROKEN])
def test_a_broken_descriptor_is_refused(reason: str, file: descriptor_pb2.FileDescriptorProto, words: str) -> None:
    with pytest.raises(MalformedSchema, match=words):
        protobuf.parse(base64.b64encode(file.SerializeToString()).decode(), {})


def test_a_field_with_the_number_0_is_refused() -> None:
    data = descriptor(FULL).SerializeToString() + bytes([0, 1])
    with pytest.raises(MalformedSchema, match="number 0"):
        protobuf.parse(base64.b64encode(data).decode(), {})
