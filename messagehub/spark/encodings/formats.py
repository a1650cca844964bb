"""Which format a schema is of."""

from messagehub.spark.encodings.payloads import Encoding, Registered
from messagehub.spark.errors import UnsupportedColumn


def encoding_of(schema: Registered, message: str | None = None) -> Encoding:
    """`message` names the message of a Protobuf schema that has several."""
    if message is not None and schema.schema_type != "PROTOBUF":
        raise UnsupportedColumn(f"message is for PROTOBUF; the schema is {schema.schema_type}")
    if schema.schema_type == "AVRO":
        try:
            from messagehub.spark.encodings.avro import AvroEncoding
        except ModuleNotFoundError as missing:
            raise UnsupportedColumn(f"AVRO needs {missing.name}: pip install 'messagehub[spark]'") from None
        return AvroEncoding(schema)
    if schema.schema_type == "PROTOBUF":
        from messagehub.spark.encodings.protobuf import ProtobufEncoding

        return ProtobufEncoding(schema, message)
    if schema.schema_type == "JSON":
        from messagehub.spark.encodings.json_schema import JsonEncoding

        return JsonEncoding(schema)
    raise UnsupportedColumn("an ARROW schema is for channels: read the channel with format('messagehub')")
