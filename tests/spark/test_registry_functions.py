"""`from_registry` and `to_registry` in real executors, against the registry of a running hub."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import struct

from messagehub import MessageHub
from messagehub.errors import ConfigurationError, SubjectNotFound
from messagehub.spark import from_registry, to_registry
from messagehub.spark.encodings.payloads import framed
from messagehub.spark.errors import PayloadNotDecoded

pytestmark = pytest.mark.timeout(300, func_only=True)
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string note = 2; }'
JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}


def test_payloads_of_every_format_and_version_become_columns_and_back(
    spark: SparkSession, hub: MessageHub, domain: str, tmp_path: Path
) -> None:
    where = {"dir": str(tmp_path / "hub"), "domain": domain}
    hub.register_schema("avro", json.dumps(OLD), schema_type="AVRO")
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "id long, note string").coalesce(1)
    older = rows.select(to_registry(struct(rows.id.cast("int").alias("id")), "avro", **where).alias("payload"))
    older = older.localCheckpoint()  # encoded with the first version, before there is a second
    hub.register_schema("avro", json.dumps(NEW), schema_type="AVRO")
    hub.register_schema("proto", PROTO, schema_type="PROTOBUF")
    hub.register_schema("json", JSON)
    for subject in ("avro", "proto", "json"):
        encoded = rows.select(to_registry(struct("id", "note"), subject, **where).alias("payload"))
        both = encoded.union(older) if subject == "avro" else encoded
        decoded = both.select(from_registry("payload", subject, **where).alias("order")).select("order.*")
        assert decoded.columns == ["id", "note"]
        assert dict(decoded.dtypes) == {"id": "bigint", "note": "string"}
        expected = [(1, "a"), (2, "b")] + ([(1, "none"), (2, "none")] if subject == "avro" else [])
        assert [tuple(row) for row in decoded.collect()] == expected, subject


def test_what_cannot_be_decoded_fails_or_is_null_with_its_reason(
    spark: SparkSession, hub: MessageHub, domain: str, tmp_path: Path
) -> None:
    where = {"dir": str(tmp_path / "hub"), "domain": domain}
    known = hub.register_schema("orders", JSON).schema_id
    payloads = [
        (framed(known, b'{"id": 1, "note": "x"}'),),
        (None,),
        (b"no head",),
        (framed(9999, b"{}"),),
        (framed(known, b"{"),),
        (framed(known, b'{"id": "text"}'),),
    ]
    df = spark.createDataFrame(payloads, "payload binary").coalesce(1)
    with pytest.raises(PySparkException, match=r"a payload cannot be decoded: .*mode='PERMISSIVE'") as caught:
        df.select(from_registry("payload", "orders", **where)).collect()
    assert "Traceback" not in str(caught.value)
    quiet = df.select(from_registry("payload", "orders", mode="PERMISSIVE", **where).alias("order"))
    assert [row.order and row.order.id for row in quiet.collect()] == [1, None, None, None, None, None]
    told = df.select(
        from_registry("payload", "orders", mode="PERMISSIVE", error_column="why", **where).alias("order")
    ).collect()
    reasons = [row.order and row.order.why for row in told]
    assert reasons[:2] == [None, None]
    for said, reason in zip(
        ("does not begin with", "schema 9999 is not registered", "it is no JSON", "not what its schema says"),
        reasons[2:],
        strict=True,
    ):
        assert said in reason
    hub.register_schema("avro", json.dumps(NEW), schema_type="AVRO")
    with pytest.raises(PySparkException, match="a value cannot be encoded"):
        spark.range(1).select(to_registry(struct("id"), "avro", version=1, **where)).collect()


def test_arguments_that_make_no_sense_are_refused_when_the_column_is_made(
    spark: SparkSession, hub: MessageHub, domain: str, tmp_path: Path
) -> None:
    where = {"dir": str(tmp_path / "hub"), "domain": domain}
    hub.register_schema("orders", JSON)
    with pytest.raises(SubjectNotFound):
        from_registry("payload", "nothing", **where)
    with pytest.raises(ConfigurationError, match="mode 'QUIET' is not one of FAILFAST, PERMISSIVE"):
        from_registry("payload", "orders", mode="QUIET", **where)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a column cannot drop rows: use mode='PERMISSIVE'"):
        from_registry("payload", "orders", mode="DROPMALFORMED", **where)  # type: ignore[arg-type]
    with pytest.raises(PayloadNotDecoded, match="error_column is for"):
        from_registry("payload", "orders", error_column="why", **where)
