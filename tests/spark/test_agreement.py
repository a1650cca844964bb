"""Whether a write may change a channel's schema, with a broker and without."""

import time

import pyarrow as pa
import pytest

from messagehub import MessageHub
from messagehub.errors import ConfigurationError, SchemaIncompatible
from messagehub.shm.channel_directory.entries import table_details
from messagehub.shm.tables.tables import TableStore
from messagehub.spark.options import Options
from messagehub.spark.registration import check, register
from messagehub.spark.schema_mapping import schema_hash, schema_text
from registry import commands
from registry.records import SchemaConfig
from tests.integration.harness import checked_broker

PRICES = pa.schema([("id", pa.int64()), ("price", pa.float64())])
EXTENDED = PRICES.append(pa.field("note", pa.string()))
NARROWED = pa.schema([("id", pa.int64()), ("price", pa.int32())])


def publish(options: Options, schema: pa.Schema) -> None:
    text = schema_text(schema)
    check(options, text, "overwrite")
    tables = TableStore(options.tables().path)
    options.directory().make_channel(options.channel)
    details = table_details(text)
    register(options, tables.publish((), schema, now=time.time(), schema_hash=schema_hash(text), details=details))


@pytest.fixture
def options(channel_options: dict[str, str]) -> Options:
    return Options.parse(channel_options)


def test_without_a_broker_the_newest_table_decides(options: Options) -> None:
    publish(options, PRICES)
    check(options, schema_text(PRICES), "append")
    check(options, schema_text(EXTENDED), "overwrite")
    with pytest.raises(SchemaIncompatible, match=r'"price" changed from .* to int32'):
        check(options, schema_text(NARROWED), "overwrite")
    with pytest.raises(ConfigurationError, match="replace"):
        check(options, schema_text(PRICES), "replace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (EXTENDED, "Column 'note' is not in the table"),
        (pa.schema([PRICES.field(0)]), "Column 'price' is missing"),
        (NARROWED, "Column 'price' is double in the table and int32 here"),
        (pa.schema([PRICES.field(1), PRICES.field(0)]), "order"),
    ],
)
def test_append_keeps_the_schema_as_it_is(options: Options, schema: pa.Schema, said: str) -> None:
    publish(options, PRICES)
    with pytest.raises(SchemaIncompatible, match=said):
        check(options, schema_text(schema), "append")


def test_with_a_broker_only_the_commit_registers_the_schema(domain: str) -> None:
    with checked_broker(domain=domain) as endpoint, MessageHub(endpoint=endpoint, domain=domain) as hub:
        options = Options.parse({"channel": "sales", "domain": domain, "endpoint": endpoint})
        check(options, schema_text(PRICES), "overwrite")
        assert hub.subjects() == []
        publish(options, PRICES)
        commits = MessageHub.get_instance(endpoint=endpoint, domain=domain).metrics()["requests"]
        assert commits["TABLE_REGISTER"]["count"] == 1, "by the singleton of the process that commits"
        assert hub.subjects() == ["sales"]
        found = hub.discover("sales")
        assert found is not None
        assert [each.schema_id for each in hub.schema_versions("sales")] == [found.schema_id]
    MessageHub.reset_instance()


def test_with_a_broker_the_subjects_level_decides(domain: str) -> None:
    with checked_broker(domain=domain) as endpoint, MessageHub(endpoint=endpoint, domain=domain) as hub:
        options = Options.parse({"channel": "sales", "domain": domain, "endpoint": endpoint})
        publish(options, PRICES)
        with pytest.raises(SchemaIncompatible, match="price"):
            check(options, schema_text(NARROWED), "overwrite")
        hub.ask(commands.ConfigureSchemas(subject="sales", config=SchemaConfig(compatibility="NONE")))
        publish(options, NARROWED)
        found = hub.discover("sales")
        assert found is not None
        assert (found.schema_version, found.schema) == ("2", "verified")
    MessageHub.reset_instance()


def test_the_users_own_singleton_is_not_made_by_a_write(domain: str) -> None:
    with checked_broker(domain=domain) as endpoint:
        options = Options.parse({"channel": "sales", "domain": domain, "endpoint": endpoint})
        check(options, schema_text(PRICES), "overwrite", is_users_process=True)
        try:
            assert MessageHub.get_instance().settings.endpoint != endpoint
        finally:
            MessageHub.reset_instance()
