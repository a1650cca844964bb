"""The same source over Spark Connect: batches and streams, both ways, of channels and topics. Prints results as JSON.

python -m tests.spark.connect_job WORK_DIR DIR DOMAIN
"""

import json
import os
import sys

from pyspark.sql import SparkSession

from messagehub import spark as hub_spark
from tests.spark.messages import through_topics
from tests.spark.sessions import environment


def main(work_dir: str, directory: str, domain: str) -> None:
    os.environ.update(environment())
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", work_dir)
        .config("spark.sql.warehouse.dir", work_dir)
        .getOrCreate()
    )
    options = {"domain": domain, "dir": directory}
    published = hub_spark.publish(spark.range(0, 100, 1, 2), "batch", progress=True, **options)
    back = hub_spark.read(spark, "batch", expected_schema="id long", **options).count()
    raw = spark.readStream.format("messagehub").options(channel="raw", **options).load()
    query = (
        raw.writeStream.format("messagehub")
        .options(channel="streamed", checkpointLocation=f"{work_dir}/checkpoint", **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    streamed = hub_spark.read(spark, "streamed", **options).count()
    messages = through_topics(spark, options, f"{work_dir}/messages")
    found = {"published": published and published.rows, "back": back, "streamed": streamed, "messages": messages}
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
