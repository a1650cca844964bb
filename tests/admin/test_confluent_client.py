"""The unmodified confluent_kafka client, with the token as Basic password and against an open hub."""

import json
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
registry = pytest.importorskip("confluent_kafka.schema_registry")

from confluent_kafka.schema_registry import (  # noqa: E402  after importorskip
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Schema,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: E402
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

from tests.admin.conftest import Web  # noqa: E402

AVRO = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
AVRO_WITH_DEFAULT = AVRO.replace("}]}", '},{"name":"note","type":"string","default":""}]}')
AVRO_BROKEN = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'


@pytest.fixture(params=["token", "open"])
def client(request: pytest.FixtureRequest) -> Iterator[SchemaRegistryClient]:
    if request.param == "token":
        web: Web = request.getfixturevalue("web")
        config = {"url": web.url, "basic.auth.user.info": f"anybody:{web.token}"}
    else:
        config = {"url": request.getfixturevalue("open_web").url}
    with SchemaRegistryClient(config) as connected:
        yield connected


def test_registers_looks_up_checks_configures_and_deletes(client: SchemaRegistryClient) -> None:
    subject = "confluent-orders"
    schema_id = client.register_schema(subject, Schema(AVRO, "AVRO"))
    assert client.register_schema(subject, Schema(AVRO, "AVRO")) == schema_id
    assert client.get_schema(schema_id).schema_str == AVRO
    assert client.lookup_schema(subject, Schema(AVRO, "AVRO")).version == 1
    assert subject in client.get_subjects()
    assert client.test_compatibility(subject, Schema(AVRO_WITH_DEFAULT, "AVRO"))
    assert not client.test_compatibility(subject, Schema(AVRO_BROKEN, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(AVRO_BROKEN, "AVRO"))
    assert refused.value.http_status_code == 409
    client.register_schema(subject, Schema(AVRO_WITH_DEFAULT, "AVRO"))
    assert client.get_versions(subject) == [1, 2]
    assert client.get_latest_version(subject).schema.schema_str == AVRO_WITH_DEFAULT
    client.set_compatibility(subject, "NONE")
    assert client.get_compatibility(subject) == "NONE"
    client.register_schema(subject, Schema(AVRO_BROKEN, "AVRO"))
    assert client.delete_version(subject, 3) == 3
    assert client.delete_subject(subject) == [1, 2]
    assert client.delete_subject(subject, permanent=True) == [1, 2, 3]
    assert subject not in client.get_subjects()


def test_finds_by_metadata_guid_and_place_and_changes_modes_and_configs(client: SchemaRegistryClient) -> None:
    subject = "confluent-more"
    owned = Schema(AVRO, "AVRO", metadata=Metadata(None, MetadataProperties({"owner": "lab"}), None))
    first, second = (client.register_schema_full_response(subject, one) for one in (Schema(AVRO, "AVRO"), owned))
    assert (first.version, second.version) == (1, 2)
    assert client.lookup_schema(subject, owned).schema_id == second.schema_id
    assert client.lookup_schema(subject, Schema(AVRO, "AVRO")).schema_id == first.schema_id
    assert client.get_latest_with_metadata(subject, {"owner": "lab"}).version == 2
    assert client.get_schema_by_guid(second.guid).metadata == owned.metadata
    assert client.get_schema(first.schema_id, subject).schema_str == AVRO
    assert client.get_subjects_by_schema_id(first.schema_id, subject) == [subject]
    assert client.get_referenced_by(subject, 1) == []
    assert client.test_compatibility_all_versions(subject, Schema(AVRO_WITH_DEFAULT, "AVRO"))
    assert client.test_compatibility("confluent-nobody", Schema(AVRO, "AVRO")), "everything goes with nothing"
    level = ConfigCompatibilityLevel.FULL
    client.set_config(subject, ServerConfig(compatibility=level, default_metadata=owned.metadata))
    found = client.get_config(subject)
    assert found.compatibility_level == level
    assert found.default_metadata.properties == owned.metadata.properties
    assert client.update_mode(subject, "READONLY") == "READONLY"
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema(subject, Schema(AVRO_WITH_DEFAULT, "AVRO"))
    assert refused.value.error_code == 42205
    assert client.delete_mode(subject) == "READONLY"
    client.delete_config(subject)
    assert client.delete_version(subject, "latest") == 2
    assert client.delete_subject(subject) == [1]
    assert client.delete_subject(subject, permanent=True) == [1, 2]


def test_serialises_avro(client: SchemaRegistryClient) -> None:
    context = SerializationContext("avro-topic", MessageField.VALUE)
    data = AvroSerializer(client, AVRO)({"id": 7}, context)
    assert AvroDeserializer(client)(data, context) == {"id": 7}


def test_serialises_json(client: SchemaRegistryClient) -> None:
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
    context = SerializationContext("json-topic", MessageField.VALUE)
    data = JSONSerializer(schema, client)({"id": 7}, context)
    assert JSONDeserializer(schema, schema_registry_client=client)(data, context) == {"id": 7}


def test_serialises_protobuf_with_imports(client: SchemaRegistryClient) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.type import interval_pb2

    context = SerializationContext("protobuf-topic", MessageField.VALUE)
    config = {"use.deprecated.format": False}
    message = interval_pb2.Interval()
    message.start_time.seconds = 5
    data = ProtobufSerializer(interval_pb2.Interval, client, config)(message, context)
    found = ProtobufDeserializer(interval_pb2.Interval, config, client)(data, context)
    assert found.start_time.seconds == 5
