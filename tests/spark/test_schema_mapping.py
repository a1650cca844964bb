import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from messagehub.errors import SchemaMismatch
from messagehub.spark.errors import UnsupportedColumn
from messagehub.spark.schema_mapping import check_columns, conform, schema_hash, schema_text, struct_of, written_schema


def struct(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind, False) for name, kind in columns.items()])


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (spark.VariantType(), "c"),
        (spark.CalendarIntervalType(), "c"),
        (spark.YearMonthIntervalType(), "c"),
        (spark.VarcharType(10), "c"),
        (spark.ArrayType(spark.VariantType()), "c[]"),
        (spark.MapType(spark.StringType(), spark.CalendarIntervalType()), "c.value"),
        (spark.StructType([spark.StructField("inner", spark.VariantType())]), "c.inner"),
    ],
)
def test_what_arrow_cannot_carry_is_refused_by_column(kind: spark.DataType, path: str) -> None:
    with pytest.raises(UnsupportedColumn) as refused:
        written_schema(struct(a=spark.LongType(), c=kind))
    assert f"{path} ({kind.simpleString() if path == 'c' else ''}" in refused.value.message


def test_two_columns_of_one_name_are_refused() -> None:
    twice = spark.StructType([spark.StructField("a", spark.LongType()), spark.StructField("a", spark.StringType())])
    with pytest.raises(UnsupportedColumn, match="'a' is there twice"):
        written_schema(twice)


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.float16(), pa.date64(), pa.decimal256(50, 2), pa.string_view(), pa.time32("s")]
)
def test_what_spark_has_no_type_for_is_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedColumn, match=r"inner\[\]"):
        struct_of(pa.schema([("inner", pa.list_(kind))]))


def test_the_hash_depends_on_nothing_but_names_and_types() -> None:
    columns = {"a": spark.LongType(), "at": spark.TimestampType(), "tags": spark.ArrayType(spark.StringType(), False)}
    nullable = spark.StructType([spark.StructField(n, k, True, {"comment": "x"}) for n, k in columns.items()])
    written = written_schema(struct(**columns))
    berlin = pa.schema(
        [
            ("a", pa.int64()),
            ("at", pa.timestamp("us", "Europe/Berlin")),
            ("tags", pa.large_list(pa.field("item", pa.large_string()))),
        ],
        metadata={"spark": "4.3"},
    )
    hashes = {schema_hash(schema_text(each)) for each in (written, written_schema(nullable), berlin)}
    assert len(hashes) == 1
    assert schema_hash(schema_text(written_schema(struct(a=spark.IntegerType())))) not in hashes


def test_batches_become_what_is_wanted_without_copying_what_fits() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": pa.array(["x", "y"]).dictionary_encode(), "c": [0.5, None]})
    wanted = pa.schema([("c", pa.float64()), ("b", pa.string())])
    found = conform(batch, wanted)
    assert found.to_pydict() == {"c": [0.5, None], "b": ["x", "y"]}
    assert found.column(0).buffers()[1].address == batch.column(2).buffers()[1].address
    assert conform(found, wanted) is found


def test_a_cast_that_loses_values_names_its_column() -> None:
    with pytest.raises(SchemaMismatch, match="column 'a'"):
        conform(pa.RecordBatch.from_pydict({"a": [1 << 40]}), pa.schema([("a", pa.int32())]))


def test_a_projection_of_a_column_that_is_not_there_names_the_nearest() -> None:
    available = pa.schema([("price", pa.int64()), ("amount", pa.int64())])
    with pytest.raises(SchemaMismatch, match=r"no column 'prize'; did you mean 'price'\?"):
        check_columns(available, struct(prize=spark.LongType()), "sales")


def test_a_frame_without_columns_is_refused() -> None:
    with pytest.raises(UnsupportedColumn, match="without columns"):
        written_schema(spark.StructType([]))


def test_collated_strings_are_refused_by_name() -> None:
    """Arrow would carry the text, and readers would compare it in another way."""
    inner = spark.StructType([spark.StructField("city", spark.StringType("UNICODE_CI"))])
    with pytest.raises(UnsupportedColumn, match=r"place\.city \(string collate UNICODE_CI\)"):
        written_schema(spark.StructType([spark.StructField("place", inner)]))
