"""A live ring becomes a cleaned streaming table, a view over it, and a table that any process reads."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def cleaned() -> DataFrame:
    """What the sensors said, without the readings that cannot be."""
    readings = spark.readStream.format("messagehub").option("channel", "pipeline.readings").load()
    return readings.where(f.col("celsius").between(-90, 60))


@dp.materialized_view
def averages() -> DataFrame:
    return spark.read.table("cleaned").groupBy("sensor").agg(f.avg("celsius").alias("celsius"), f.count("*").alias("n"))


dp.create_sink(name="for_everybody", format="messagehub", options={"channel": "pipeline.cleaned"})


@dp.append_flow(target="for_everybody")
def hand_over() -> DataFrame:
    """The cleaned readings, in shared memory: `hub.consumer("pipeline.cleaned").latest()`."""
    return spark.readStream.table("cleaned")
