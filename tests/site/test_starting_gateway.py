"""A hub whose gateway takes its time to start: who reads from other hosts is told so, and waits for it."""

import os
from pathlib import Path

import pytest

from messagehub.shm.errors import BlockOnOtherHost
from tests.etcd_server import EtcdMember
from tests.integration.harness import PATIENCE_SECONDS, eventually
from tests.site.hosts import Site, SiteHub, gateway_of, on, process_on, producing

HOLD = """
import os, sys, time
if any("messagehub.cluster.gateway" in part for part in sys.orig_argv):
    deadline = time.monotonic() + 60
    while os.path.exists({held!r}) and time.monotonic() < deadline:
        time.sleep(0.05)
"""
"""What Python runs before the program of a gateway: it waits, as on a host that is short of memory or processors."""
MAKE = 'p = hub.producer("m.starting", access="shared", producer_id="%s", capacity=4)\np.write(b"%s")'


class Launched(SiteHub):
    """A hub that nobody waits for."""

    def start(self) -> None:
        self.launch()


def test_a_gateway_that_starts_is_said_to_start_and_is_waited_for(
    member: EtcdMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    (tmp_path / "sitecustomize.py").write_text(HOLD.format(held=str(held)))
    hosts = Site(tmp_path, member.url)
    try:
        reader = hosts.add("reader")
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
            slow = Launched(tmp_path, member.url, hosts.name, "slow", "--no-http")
        try:
            eventually(lambda: {each["host"] for each in reader.hosts()["hosts"]} == {"reader", "slow"})
            eventually((slow.dir / "broker.json").exists)
            with process_on(slow) as there, on(reader) as here:
                there.do(MAKE % ("far", "far"))
                producing(here, "m.starting", "slow")
                with pytest.raises(BlockOnOtherHost, match="starts its Arrow Flight gateway") as refused:
                    here.consumer("m.starting")
                assert (refused.value.state, refused.value.is_lost) == ("starting", False)
                said = reader.ask({"type": "GATEWAY_REQUEST", "channel": "m.starting", "host": "slow"})
                assert (said["code"], said["details"]["state"]) == ("GATEWAY_UNAVAILABLE", "starting")
                there.do("p.close()")
                producing(here, "m.starting")
                with (
                    here.producer("m.starting", access="shared", producer_id="near", capacity=4) as near,
                    here.consumer("m.starting") as consumer,
                ):
                    there.do(MAKE % ("far.again", "far again"))
                    near.write(b"near")
                    assert consumer.read(timeout=PATIENCE_SECONDS) == b"near"
                    assert consumer.read(timeout=1.0) is None
                    assert consumer.unreachable == {}
                    held.unlink()
                    slow.await_ready()
                    gateway_of(reader, "slow")
                    assert consumer.read(timeout=PATIENCE_SECONDS) == b"far again"
        finally:
            held.unlink(missing_ok=True)
            slow.close()
    finally:
        hosts.close()
