"""Parts that a job wrote on other hosts than its driver's: they live as long as the generation that names them."""

import json
from pathlib import Path

from messagehub.shm.channel_directory.directory import Directory
from messagehub.shm.tables.tables import TableStore
from tests.integration.harness import eventually
from tests.site.hosts import Elsewhere, Site, SiteHub, process_on

IMPORTS = """
import json, msgspec
from pathlib import Path
from messagehub import Retention
from messagehub.channels.payload_schema import hash_of
from messagehub.shm.channel_directory.entries import table_details
from messagehub.shm.channel_directory.location import directory_of
from messagehub.shm.identity import ProcessIdentity
from messagehub.shm.tables.manifests import Part
from messagehub.shm.tables.tables import TableStore
from registry.formats import arrow
schema = pa.schema([("x", pa.int64())])
def write(channel, job, value):
    directory = directory_of(hub.settings)
    directory.make_tables(channel)
    store = TableStore(directory.tables_path(channel))
    keeper = ProcessIdentity.from_json(job["keeper"])
    transaction = store.begin(now=time.time(), transaction_id=job["id"], keeper=keeper)
    return transaction, transaction.write_part([pa.record_batch([[value]], schema=schema)], schema)
"""


class Job:
    """A job whose driver is on one host, with tasks on two."""

    def __init__(self, name: str, driver: Elsewhere, executor: Elsewhere, directory: Path) -> None:
        self.channel = name
        self._driver, self._executor = driver, executor
        self._said = directory / f"{name}.json"
        for each in (driver, executor):
            each.do(IMPORTS)

    def write(self, job: str) -> None:
        """Have both hosts write a part; the executor's host another one too, which an attempt left that has lost."""
        self._driver.do(f"""
            job = {{"id": {job!r}, "keeper": ProcessIdentity.current().to_json()}}
            transaction, own = write({self.channel!r}, job, 1)
            Path({str(self._said)!r}).write_text(json.dumps(job))
        """)
        self._executor.do(f"""
            job = json.loads(Path({str(self._said)!r}).read_text())
            _, part = write({self.channel!r}, job, 2)
            _, lost = write({self.channel!r}, job, 3)
            Path({str(self._said)!r}).write_bytes(msgspec.json.encode(part))
        """)

    def commit(self, grace_seconds: float = 300.0) -> None:
        self._driver.do(f"""
            other = msgspec.json.decode(Path({str(self._said)!r}).read_bytes(), type=Part)
            details = table_details(arrow.from_arrow(schema), schema_version="", metadata={{}})
            retention = Retention(grace_seconds={grace_seconds})
            manifest = transaction.commit(
                [own, other], now=time.time(), schema_hash=hash_of(schema), details=details, retention=retention
            )
            hub.register_table({self.channel!r}, manifest)
        """)

    def part(self) -> str:
        """The name of the part that the executor's host has of the table."""
        return str(json.loads(self._said.read_text())["name"])


def store_of(hub: SiteHub, channel: str) -> TableStore:
    return TableStore(Directory(hub.environment["MESSAGEHUB_DOMAIN"]).tables_path(channel))


def blocks(store: TableStore) -> set[str]:
    return {path.name for path in Path(store.path).glob("*.arrow")}


def much_later(store: TableStore) -> set[str]:
    """Have a cleaner come that takes every transaction of another host for over, and return what it leaves."""
    store.sweep(now=1e12, foreign_seconds=0.0)
    return blocks(store)


def test_parts_live_as_long_as_the_generation_that_names_them(hosts: Site, tmp_path: Path) -> None:
    store = store_of(hosts["beta"], "p.lives")
    with process_on(hosts["alpha"]) as driver, process_on(hosts["beta"]) as executor:
        job = Job("p.lives", driver, executor, tmp_path)
        job.write("first")
        assert len(blocks(store)) == 2
        job.commit(grace_seconds=0.0)
        first = job.part()
        eventually(lambda: blocks(store) == {first})  # and what the lost attempt wrote is gone
        assert much_later(store) == {first}
        executor.do("""
            with hub.consumer("p.lives") as consumer:
                assert consumer.read(timeout=20).to_pydict() == {"x": [1, 2]}
        """)
        job.write("second")
        job.commit()
        eventually(lambda: blocks(store) == {first, job.part()})
        append = 'hub.publish_table("p.lives", pa.table({"x": [5]}), mode="append", retention=Retention(%s))'
        driver.do(append % "grace_seconds=0.0")
        eventually(lambda: store_of(hosts["alpha"], "p.lives").generations() == [3])  # a cleaner there came by
        driver.do(append % "")
        eventually(lambda: blocks(store) == {job.part()})
        executor.do('hub.drop_table("p.lives")')
        eventually(lambda: not blocks(store) and not list(Path(store.path).glob("*.parts")))


def test_parts_of_a_job_that_goes_on_are_kept_and_those_of_a_failed_one_are_not(hosts: Site, tmp_path: Path) -> None:
    store = store_of(hosts["beta"], "p.long")
    with process_on(hosts["alpha"]) as driver, process_on(hosts["beta"]) as executor:
        job = Job("p.long", driver, executor, tmp_path)
        job.write("before")
        job.commit()
        eventually(lambda: blocks(store) == {job.part()})
        before = blocks(store)
        job.write("long")
        begun = (Path(store.path) / "long.txn").read_text()
        driver.do('hub.publish_table("p.long", pa.table({"x": [5]}), mode="append")')  # so beta asks
        eventually(lambda: (Path(store.path) / "long.txn").read_text() != begun)
        driver.do("transaction.abort()")
        assert much_later(store) == before


def test_parts_stay_while_the_host_of_their_manifest_is_away(hosts: Site, tmp_path: Path) -> None:
    away = hosts.add("away", "--http", "127.0.0.1:0")
    store = store_of(hosts["beta"], "p.away")
    with process_on(away) as driver, process_on(hosts["beta"]) as executor:
        job = Job("p.away", driver, executor, tmp_path)
        job.write("only")
        job.commit()
        eventually(lambda: blocks(store) == {job.part()})
        away.kill()
        hosts["beta"].stop()
        hosts["beta"].start()
        assert much_later(store) == {job.part()}
        executor.do("assert hub.drop_table('p.away', forget=True).table.host == 'away'")
        assert much_later(store) == {job.part()}, "nobody has said yet that it is not needed"
