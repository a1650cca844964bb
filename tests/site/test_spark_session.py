"""A session of Spark on one host of a site, with tables and rings on another one."""

from pathlib import Path

import pytest

from tests.site.hosts import Site, process_on


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
def test_a_session_reads_tables_and_streams_rings_of_another_host(hosts: Site, tmp_path: Path) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as spark:
        there.do("""
            hub.publish_table("j.table", pa.table({"x": list(range(1000))}))
            producer = hub.producer("j.ring", schema=pa.schema([("x", pa.int64())]), capacity=64, when_full="block")
            for value in range(3):
                producer.write(pa.record_batch([[value]], names=["x"]))
        """)
        spark.do(f"""
            from pathlib import Path
            from tests.spark.sessions import close, new_session
            work = Path({str(tmp_path)!r})
            session = new_session(work / "spark")
            session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
            where = {{"dir": str(hub.settings.dir), "domain": hub.settings.domain}}
            given = {{"channel": "j.table", "maxPartitionBytes": "2000"}} | where
            table = session.read.format("messagehub").options(**given).load()
            assert table.rdd.getNumPartitions() > 3
            assert table.selectExpr("sum(x)").first()[0] == 499500
            assert table.filter("x >= 990").count() == 10
            raw = session.readStream.format("messagehub").options(channel="j.ring", **where).load()
            def start():
                return (
                    raw.writeStream.format("messagehub").options(channel="j.copy", **where).outputMode("append")
                    .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
                )
            start().awaitTermination(100)
            with hub.consumer("j.copy") as copy:
                assert copy.latest().column("x").to_pylist() == [0, 1, 2]
        """)
        there.do("for value in range(3, 6): producer.write(pa.record_batch([[value]], names=['x']), timeout=10)")
        spark.do("""
            start().awaitTermination(100)
            with hub.consumer("j.copy") as copy:
                assert copy.latest().column("x").to_pylist() == [0, 1, 2, 3, 4, 5]
            close(session)
        """)
        there.do("producer.close()")


@pytest.mark.slow
@pytest.mark.timeout(300, func_only=True)
def test_a_query_reads_a_topic_whose_publisher_and_home_are_on_another_host(hosts: Site, tmp_path: Path) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as spark:
        there.do("""
            topic = hub.topic("j.orders", keep=1000)
            assert topic.describe().topic.home == "alpha"
            for number in range(10):
                topic.publish({"id": number})
        """)
        spark.do(f"""
            from pathlib import Path
            from tests.spark.sessions import close, new_session
            work = Path({str(tmp_path)!r})
            session = new_session(work / "spark")
            where = {{"dir": str(hub.settings.dir), "domain": hub.settings.domain}}
            loaded = session.readStream.format("messagehub").options(topic="j.orders", **where).load()
            rows = loaded.selectExpr("topic", "offset", "cast(payload as string) as text")
            def start():
                return (
                    rows.writeStream.format("messagehub").options(channel="j.read", **where).outputMode("append")
                    .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
                )
            def offsets():
                with hub.consumer("j.read") as found:
                    return sorted(found.latest().column("offset").to_pylist())
            start().awaitTermination(100)
            assert offsets() == list(range(1, 11)), offsets()
        """)
        there.do('for number in range(10, 15): topic.publish({"id": number})')
        spark.do("""
            start().awaitTermination(100)
            assert offsets() == list(range(1, 16)), offsets()
            close(session)
        """)
