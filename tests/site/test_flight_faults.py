"""Data between hosts when something is killed, stopped or encrypted: it goes on, or is a typed error; nothing hangs."""

import os
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from messagehub.shm.errors import BlockOnOtherHost
from tests import preloaded
from tests.access.test_http_rights import certificate
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, gateway_of, gateway_pid, on, process_on, serving_gateway


def flight_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("messagehub-flight")]


def test_a_consumer_that_is_closed_leaves_neither_threads_there_nor_readers_here(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("f.closed", capacity=4, when_full="block")\np.write(b"0")')
        with here.consumer("f.closed", start="oldest") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"0"
            assert flight_threads()
        eventually(lambda: not flight_threads())
        # A reader that stayed would stop this producer after four items.
        there.do("for n in range(20): p.write(b'%d' % n, timeout=20)")


def test_a_hub_that_is_killed_and_comes_back_costs_its_readers_nothing(hosts: Site) -> None:
    alpha = hosts["alpha"]
    with process_on(alpha) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("f.hub", capacity=256)\nfor n in range(5): p.write(b"%d" % n)')
        with here.consumer("f.hub", start="oldest") as consumer:
            assert [consumer.read(timeout=PATIENCE_SECONDS) for _ in range(5)] == [b"%d" % n for n in range(5)]
            alpha.kill()
            there.do("for n in range(5, 10): p.write(b'%d' % n)")
            alpha.start()
            assert [consumer.read(timeout=PATIENCE_SECONDS) for _ in range(5)] == [b"%d" % n for n in range(5, 10)]
            assert consumer.missed == 0
    now = serving_gateway(alpha)
    eventually(lambda: gateway_of(hosts["beta"], "alpha") == now)  # the earlier one may have lived on for a moment


def test_a_gateway_that_is_stopped_is_an_error_that_names_both_hosts_and_is_over_when_it_goes_on(hosts: Site) -> None:
    table = pa.table({"x": [1]})
    with process_on(hosts["alpha"]) as there, on(hosts["beta"]) as here:
        there.do('p = hub.producer("f.stopped", capacity=256)\np.write(b"0")')
        there.do('hub.publish_table("f.stopped.table", pa.table({"x": [1]}))')
        eventually(lambda: here.discover("f.stopped.table"))
        pid = gateway_pid(hosts["alpha"])
        with here.consumer("f.stopped", start="oldest") as consumer:
            assert consumer.read(timeout=PATIENCE_SECONDS) == b"0"
            os.kill(pid, signal.SIGSTOP)
            try:
                there.do("p.write(b'1')")
                with pytest.raises(BlockOnOtherHost, match=r"'alpha', this is 'beta'.*gateway"):
                    consumer.read(timeout=2 * PATIENCE_SECONDS)
                with pytest.raises(BlockOnOtherHost, match=r"'alpha', this is 'beta'.*gateway"):
                    here.consumer("f.stopped.table")
            finally:
                os.kill(pid, signal.SIGCONT)

            def goes_on() -> bool:
                try:
                    return consumer.read(timeout=1.0) == b"1"
                except BlockOnOtherHost:
                    return False

            eventually(goes_on)
            assert consumer.missed == 0
        with here.consumer("f.stopped.table") as tables:
            assert tables.read(timeout=PATIENCE_SECONDS) == table
    eventually(lambda: not flight_threads())


def test_a_process_that_ends_or_forks_while_it_reads_does_not_hang(hosts: Site) -> None:
    with process_on(hosts["alpha"]) as there:
        there.do('p = hub.producer("f.ends", capacity=4)\np.write(b"0")')
        program = """
            import os, sys
            from messagehub import MessageHub
            from messagehub.shm.errors import BlockOnOtherHost, HandleClosed
            hub = MessageHub(dir=sys.argv[1])
            consumer = hub.consumer("f.ends", start="oldest")
            assert consumer.read(timeout=20) == b"0"
            child = os.fork()
            if child == 0:
                try:
                    consumer.read(timeout=1)
                except HandleClosed:
                    try:
                        hub.consumer("f.ends", start="oldest")
                    except BlockOnOtherHost as error:
                        sys.exit(7 if "was forked" in str(error) else 2)
                sys.exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert consumer.read(timeout=0.1) is None
        """
        done = preloaded.run(
            [sys.executable, "-c", textwrap.dedent(program), str(hosts["beta"].dir)],
            env=hosts["beta"].environment,
            timeout=2 * PATIENCE_SECONDS,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_hosts_read_each_other_by_tls_where_they_have_certificates(member: EtcdMember, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    site = Site(tmp_path, member.url)
    secure = ("--http", "127.0.0.1:0", "--http-cert", str(cert), "--http-key", str(key), "--gateway", "localhost:0")
    try:
        site.add("one", *secure)
        site.add("two", *secure)
        assert gateway_of(site["two"], "one").startswith("grpc+tls://")
        with process_on(site["one"]) as there, on(site["two"]) as here:
            there.do('p = hub.producer("tls", capacity=4)\np.write(b"secret")')
            with here.consumer("tls", start="oldest") as consumer:
                assert consumer.read(timeout=PATIENCE_SECONDS) == b"secret"
                assert list(consumer.block_sources.values()) == ["flight"]
    finally:
        site.close()
