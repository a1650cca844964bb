"""A Spark job's table shows the fields of a published table and a ring, on this host and on another."""

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from messagehub import MessageHub
from messagehub.errors import BlockOnOtherHost
from messagehub.shm.identity import host
from tests.integration.harness import Served
from tests.integration.other_host import NAME, OtherHost, Views
from tests.spark.sessions import environment

pytestmark = pytest.mark.timeout(300, func_only=True)

ABOUT_SCHEMA = ("schema", "schema_id", "schema_version", "schema_hash", "schema_type")
READER = """
from messagehub.errors import HubError
from tests.integration.other_host import Views

shown = Views(hub, endpoint, http).all("sales")
try:
    hub.consumer("sales")
except HubError as error:
    say(shown=shown, refused=str(error))
"""
JOB = """
from pathlib import Path
from tests.spark.sessions import new_session

spark = new_session(Path(work), "local[1]")
options = {"endpoint": endpoint, "domain": os.environ["MESSAGEHUB_DOMAIN"]}
spark.range(0, 10, 1, 2).write.format("messagehub").options(channel="far", **options).mode("overwrite").save()
try:
    spark.read.format("messagehub").options(channel="near", **options).load().count()
except Exception as error:
    say(application=spark.sparkContext.applicationId, refused=str(error))
spark.stop()
"""


class Hub(NamedTuple):
    endpoint: str
    client: MessageHub
    views: Views
    http: str

    def spark_options(self, channel: str) -> dict[str, str]:
        return {"channel": channel, "endpoint": self.endpoint, "domain": os.environ["MESSAGEHUB_DOMAIN"]}


@pytest.fixture
def hub(domain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("MESSAGEHUB_DOMAIN", domain)
    addresses = ("--endpoint", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0")
    with (
        Served(tmp_path / "hub", *addresses, with_http=True) as server,
        MessageHub(endpoint=server.endpoint, domain=domain) as client,
    ):
        yield Hub(server.endpoint, client, Views(client, server.endpoint, server.http), server.http)


def test_a_spark_table_shows_what_a_published_table_and_a_ring_show(spark: SparkSession, hub: Hub) -> None:
    spark.range(0, 10, 1, 2).write.format("messagehub").options(**hub.spark_options("sales")).mode("overwrite").save()
    schema = pa.schema([("id", pa.int64())])
    hub.client.publish_table("published", schema.empty_table())
    with hub.client.producer("ring", schema=schema):
        sales, published, ring = (hub.views.all(channel) for channel in ("sales", "published", "ring"))
    for shown in (sales, published, ring):
        del shown["cli"]["readers"]  # of the memory of the host that asks: nobody else can see them
    for way in ("python", "cli", "http"):
        assert sales[way].keys() == published[way].keys() == ring[way].keys()
        for name in (*ABOUT_SCHEMA, "status"):
            assert sales[way][name] == published[way][name] == ring[way][name], (way, name)
        assert sales[way]["table"].keys() == published[way]["table"].keys()
        hosts = {block["host"] for shown in (sales, published, ring) for block in shown[way]["blocks"]}
        assert hosts == {host()}
        assert {shown[way]["table"]["user"] for shown in (sales, published)} == {pwd.getpwuid(os.geteuid()).pw_name}
        assert sales[way]["table"] == sales["python"]["table"]
    assert sales["cli"] == sales["python"]
    assert sales["python"]["schema"] == "verified"
    there = OtherHost(
        {"endpoint": hub.endpoint, "domain": os.environ["MESSAGEHUB_DOMAIN"]},
        READER,
        endpoint=hub.endpoint,
        http=hub.http,
    )
    try:
        said = there.hear()
    finally:
        there.close()
    del said["shown"]["cli"]["readers"]
    assert (said["shown"]["python"], said["shown"]["cli"]) == (sales["python"], sales["cli"])
    assert said["shown"]["http"] | {"id": ""} == sales["http"] | {"id": ""}
    assert f"'{host()}'" in said["refused"]
    assert f"'{NAME}'" in said["refused"]


@pytest.mark.slow
def test_a_spark_job_of_another_host_is_shown_with_its_host_and_reads_only_there(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.client.publish_table("near", pa.table({"id": pa.array([1], pa.int64())}))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    there = OtherHost(
        {"endpoint": hub.endpoint, "domain": os.environ["MESSAGEHUB_DOMAIN"]},
        JOB,
        endpoint=hub.endpoint,
        work=str(tmp_path / "spark"),
    )
    try:
        said = there.hear()
        there.finish()
    finally:
        there.close()
    assert "BlockOnOtherHost" in said["refused"]
    assert f"'{host()}'" in said["refused"]
    shown = hub.views.all("far")
    table = shown["python"]["table"]
    del shown["cli"]["readers"]
    assert shown["cli"] == shown["python"]
    assert shown["http"]["table"] == table
    assert (shown["python"]["schema"], shown["python"]["schema_version"]) == ("verified", "1")
    assert (table["host"], table["hosts"], table["application"]) == (NAME, {NAME: 2}, said["application"])
    with pytest.raises(BlockOnOtherHost, match=f"{NAME}.*{host()}"):
        hub.client.consumer("far")
