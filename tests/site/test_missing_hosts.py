"""What a consumer reads, and is told, while one of several hosts that have data of its channel cannot be reached."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from messagehub import BrokerUnavailable, DataLost, MessageHub
from messagehub.shm.errors import BlockOnOtherHost
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, gateway_of, gateway_pid, on, process_on, producing, site

SHARED = 'p = hub.producer("%s", access="shared", producer_id="%s", capacity=64)\np.write(b"%s")'


def test_what_can_be_read_is_read_and_what_is_missing_is_told_once_and_read_when_it_is_back(
    hosts: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with process_on(hosts["alpha"]) as there, process_on(hosts["beta"]) as near, on(hosts["beta"]) as here:
        there.do(SHARED % ("m.part", "far", "far"))
        near.do(SHARED % ("m.part", "near", "near"))
        producing(here, "m.part", "alpha", "beta")
        os.kill(gateway_pid(hosts["alpha"]), signal.SIGSTOP)
        try:
            consumer = here.consumer("m.part", start="oldest", timeout=20.0)
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"near"
            assert list(consumer.unreachable) == ["alpha"]
            near.do("p.write(b'more')")
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"more"
        finally:
            os.kill(gateway_pid(hosts["alpha"]), signal.SIGCONT)
        assert consumer.read(timeout=PATIENCE_SECONDS) == b"far"
        assert consumer.unreachable == {}
        consumer.close()
        told = [record.message for record in caplog.records if "cannot be read now, the rest is" in record.message]
        assert len(told) == 1, told


def test_what_is_lost_while_a_gateway_is_away_is_not_called_slow_reading(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("m.lost", capacity=4)\np.write(b"0")')
        with here.consumer("m.lost", start="oldest", on_lag="raise") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"0"
            os.kill(gateway_pid(hosts["alpha"]), signal.SIGKILL)
            there.do("for n in range(1, 30): p.write(b'%d' % n)")
            with pytest.raises(DataLost, match=r"gateway of host 'alpha' was away for \d+\.\d s"):
                consumer.read(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def pair(member: EtcdMember, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Hosts gamma and delta, of which gamma is lost on the way."""
    started = Site(tmp_path_factory.mktemp("pair"), member.url)
    try:
        for name in ("delta", "gamma"):
            started.add(name, "--http", "127.0.0.1:0")
        gateway_of(started["delta"], "gamma")
        yield started
    finally:
        started.close()


def health(hub: MessageHub | Site, name: str) -> str:
    assert isinstance(hub, Site)
    return next(str(each["health"]) for each in hub["delta"].hosts()["hosts"] if each["host"] == name)


def test_a_host_that_is_lost_is_named_and_so_is_one_that_has_no_gateway(
    pair: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with on(pair["delta"]) as here:
        with process_on(pair["gamma"]) as there:
            there.do('p = hub.producer("m.gone", capacity=4)\np.write(b"0")')
            producing(here, "m.gone", "gamma")
            consumer = here.consumer("m.gone", start="oldest")
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"0"
            pair["gamma"].kill()
        eventually(lambda: health(pair, "gamma") == "lost")
        with pytest.raises(BlockOnOtherHost, match="host 'gamma' is lost"):
            consumer.read(timeout=2 * PATIENCE_SECONDS)
        consumer.close()
        with caplog.at_level(logging.WARNING), here.consumer("m.gone") as waiting:
            assert waiting.read(timeout=0.0) is None
        assert "'gamma' is lost" in caplog.text
        assert "on this host" not in caplog.text


def told_of(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def raised_by(read: Callable[[], Any]) -> str:
    """What reading raises about a host; nothing if it raises nothing."""
    try:
        read()
    except BlockOnOtherHost as error:
        return error.why
    return ""


def test_every_read_names_a_lost_host_until_it_is_back_and_what_is_lost_meanwhile_is_blamed_on_it(
    member: EtcdMember, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        site(tmp_path, member.url) as two,
        on(two.add("reader", "--http", "127.0.0.1:0")) as here,
        process_on(two.add("writer", "--http", "127.0.0.1:0")) as there,
    ):
        gateway_of(two["reader"], "writer")
        there.do('p = hub.producer("m.back", capacity=4)\np.write(b"0")')
        there.do('g = hub.producer("m.crew", capacity=64)\ng.write(b"0")')
        producing(here, "m.back", "writer")
        producing(here, "m.crew", "writer")
        consumer, onlooker = here.consumer("m.back", start="oldest"), here.consumer("m.back", start="oldest")
        crew = here.consumer("m.crew", group="crew", start="oldest")
        assert consumer.read(timeout=PATIENCE_SECONDS) == onlooker.latest() == b"0"
        assert crew.read(timeout=PATIENCE_SECONDS) == b"0"
        crew.acknowledge()
        two["writer"].kill()
        reads = {
            consumer: lambda: consumer.read(timeout=0.1),
            onlooker: onlooker.latest,
            crew: lambda: crew.read(timeout=0.1),
        }
        for each, read in reads.items():
            eventually(lambda each=each, read=read: "is lost" in raised_by(read) and each.unreachable)
            for _ in range(20):
                assert "'writer' is lost" in raised_by(read)
                assert list(each.unreachable) == ["writer"]
            assert each is crew or not each.has_ended  # others of a group do not wait for a lost host
        two["reader"].signal(signal.SIGSTOP)
        try:  # also while the own hub takes its time to say where the channel is
            assert all(raised_by(reads[consumer]) for _ in range(5))
        finally:
            two["reader"].signal(signal.SIGCONT)
        assert told_of(caplog, "channel 'm.back': what is on host writer cannot be read now") == 2  # of two consumers
        assert told_of(caplog, "channel 'm.crew': what is on host writer cannot be read now") == 1
        there.do("for n in range(1, 30): p.write(b'%d' % n)")
        there.do('g.write(b"1")')
        two["writer"].start()
        found: list[Any] = []
        for each, read in reads.items():
            eventually(
                lambda each=each, read=read: not raised_by(lambda: found.append(read())) and not each.unreachable
            )
        assert eventually(lambda: consumer.missed or raised_by(lambda: found.append(consumer.read(timeout=0.1)))) == 25
        assert eventually(onlooker.latest) == b"29"
        eventually(lambda: b"1" in found or found.append(crew.read(timeout=0.1)))
        assert told_of(caplog, "the gateway of host 'writer' was away for") == 1
        assert told_of(caplog, "or read faster") == 0
        for each in reads:
            each.close()


def answers(latest: Callable[[], Any], until: int) -> list[Any]:
    """What `latest` gives until it gives that table: the numbers of tables, None, and errors."""
    found: list[Any] = []

    def is_there() -> bool:
        try:
            table = latest()
            found.append(None if table is None else table.column("n")[0].as_py())
        except (BlockOnOtherHost, BrokerUnavailable) as error:
            found.append(error)
        return bool(found[-1] == until)

    eventually(is_there)
    return found


def test_the_newest_table_is_not_called_missing_while_it_is_not_known(
    member: EtcdMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagehub.flight.client.CALL_SECONDS", 1.0)
    with (
        site(tmp_path, member.url) as two,
        on(two.add("reader", "--http", "127.0.0.1:0")) as here,
        process_on(two.add("writer", "--http", "127.0.0.1:0")) as there,
    ):
        publish = 'for n in range(%d, %d): hub.publish_table("m.table", pa.table({"n": [n]}))'
        gateway_of(two["reader"], "writer")
        there.do(publish % (1, 2))
        eventually(lambda: here.discover("m.table"))
        with here.consumer("m.table") as held, here.consumer("m.nobody") as nobody:
            assert None not in answers(held.latest, 1)
            assert nobody.latest() is None
            two["writer"].kill()
            there.do(publish % (2, 8))
            two["writer"].start()
            assert None not in answers(held.latest, 7)

            two["reader"].kill()
            there.do(publish % (8, 14))
            with here.consumer("m.table") as new:
                with pytest.raises(BrokerUnavailable, match=r"other hosts have of channel 'm\.table' is not known"):
                    new.latest()
                gateway = gateway_pid(two["writer"])
                os.kill(gateway, signal.SIGSTOP)
                two["reader"].start()
                try:  # the hub says where the table is, and that host says nothing yet
                    with pytest.raises(BlockOnOtherHost, match="its gateway does not answer"):
                        eventually(lambda: not raised_by_broker(new.latest))
                finally:
                    os.kill(gateway, signal.SIGCONT)
                assert None not in answers(new.latest, 13)
                assert None not in answers(held.latest, 13)
            assert eventually(lambda: not raised_by_broker(nobody.latest))
            assert nobody.latest() is None


def raised_by_broker(read: Callable[[], Any]) -> bool:
    try:
        read()
    except BrokerUnavailable:
        return True
    return False


def test_what_a_task_that_reads_has_yet_to_look_at_is_not_called_missing(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here, here.consumer("m.task") as consumer:
        assert consumer.latest() is None

        async def main() -> None:
            reading = asyncio.create_task(consumer.read_async(timeout=PATIENCE_SECONDS))
            for _ in range(5):  # until the task has the turn, and waits
                await asyncio.sleep(0)
            there.do(SHARED % ("m.task", "far", "far"))
            eventually(lambda: raised_by_broker(consumer.latest))  # this keeps the loop from the task that is to look
            assert await reading == b"far"
            assert consumer.latest() == b"far"

        asyncio.run(main())


def test_a_hub_without_a_gateway_is_told_from_one_that_starts_it(member: EtcdMember, tmp_path: Path) -> None:
    site = Site(tmp_path, member.url)
    try:
        site.add("without")
        site.add("reader")
        with process_on(site["without"]) as there, on(site["reader"]) as here:
            there.do(SHARED % ("m.none", "far", "far"))
            producing(here, "m.none", "without")
            with pytest.raises(BlockOnOtherHost, match="runs no Arrow Flight gateway"):
                here.consumer("m.none")
            with here.producer("m.none", access="shared", producer_id="near", capacity=4) as producer:
                with pytest.raises(BlockOnOtherHost, match="'without'"):
                    here.consumer("m.none", on_unreachable="raise")
                with here.consumer("m.none") as consumer:
                    producer.write(b"near")
                    assert consumer.read(timeout=PATIENCE_SECONDS) == b"near"
                    assert list(consumer.unreachable) == ["without"]
    finally:
        site.close()
