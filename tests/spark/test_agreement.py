"""Whether a write may change a channel's schema, with a broker and without."""

import time
from typing import Any

import pyarrow as pa
import pytest

from messagehub import MessageHub, embedded_broker
from messagehub.datablock.tables import TableStore
from messagehub.errors import SchemaIncompatible
from messagehub.spark.agreement import Agreed, agree
from messagehub.spark.options import Options
from messagehub.spark.schema_mapping import schema_text
from registry import commands
from registry.records import SchemaConfig

PRICES = pa.schema([("id", pa.int64()), ("price", pa.float64())])
EXTENDED = PRICES.append(pa.field("note", pa.string()))
NARROWED = pa.schema([("id", pa.int64()), ("price", pa.int32())])


def publish(options: Options, schema: pa.Schema, agreed: Agreed) -> None:
    tables = TableStore(options.tables().path)
    options.directory().make_channel(options.channel)
    tables.publish((), schema, now=time.time(), schema_hash=agreed.digest, details=agreed.details())


@pytest.fixture
def options(channel_options: dict[str, str]) -> Options:
    return Options.parse(channel_options)


def test_without_a_broker_the_newest_table_decides(options: Options) -> None:
    first = agree(options, schema_text(PRICES), "overwrite")
    assert (first.version, first.schema_id) == ("", None)
    publish(options, PRICES, first)
    assert agree(options, schema_text(PRICES), "append").digest == first.digest
    assert agree(options, schema_text(EXTENDED), "overwrite").digest != first.digest
    with pytest.raises(SchemaIncompatible, match=r'"price" changed from .* to int32'):
        agree(options, schema_text(NARROWED), "overwrite")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (EXTENDED, '"note" is new'),
        (pa.schema([PRICES.field(0)]), '"price" is missing'),
        (NARROWED, '"price" changed'),
        (pa.schema([PRICES.field(1), PRICES.field(0)]), "order"),
    ],
)
def test_append_keeps_the_schema_as_it_is(options: Options, schema: pa.Schema, said: str) -> None:
    publish(options, PRICES, agree(options, schema_text(PRICES), "overwrite"))
    with pytest.raises(SchemaIncompatible, match=said):
        agree(options, schema_text(schema), "append")


def test_with_a_broker_the_schema_is_registered_under_the_channels_subject(domain: str) -> None:
    with embedded_broker(domain=domain) as endpoint, MessageHub(endpoint=endpoint, domain=domain) as hub:
        options = Options.parse({"channel": "sales", "domain": domain, "endpoint": endpoint})
        agreed = agree(options, schema_text(PRICES), "overwrite")
        assert agreed.version == "1"
        assert hub.subjects() == ["sales"]
        assert [each.schema_id for each in hub.schema_versions("sales")] == [agreed.schema_id]


def test_with_a_broker_the_subjects_level_decides(domain: str) -> None:
    with embedded_broker(domain=domain) as endpoint, MessageHub(endpoint=endpoint, domain=domain) as hub:
        options = Options.parse({"channel": "sales", "domain": domain, "endpoint": endpoint})
        first: Any = agree(options, schema_text(PRICES), "overwrite")
        with pytest.raises(SchemaIncompatible, match="price"):
            agree(options, schema_text(NARROWED), "overwrite")
        command = commands.ConfigureSchemas(subject="sales", config=SchemaConfig(compatibility="NONE"))
        hub.ask(command, timeout=5.0)
        second = agree(options, schema_text(NARROWED), "overwrite")
        assert (first.version, second.version) == ("1", "2")
