"""What a polling loop logs while it cannot be served: each thing once."""

from pathlib import Path

import pytest

from messagehub import MessageHub
from tests.etcd_server import etcd
from tests.integration.harness import eventually
from tests.site.hosts import on, process_on, producing, site

POLLS = 5


def test_without_a_hub_consumers_made_again_and_again_log_each_thing_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with MessageHub(dir=tmp_path) as hub:
        for _ in range(POLLS):
            with hub.consumer("o.nobody") as consumer:
                assert consumer.read(timeout=0.0) is None
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert "no broker runs" in said[0]
    assert "nobody produces channel 'o.nobody'" in said[1]


def test_a_hub_that_answers_reads_and_refuses_commands_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        etcd() as (member,),
        site(tmp_path, member.url, "one") as alone,
        on(alone["one"]) as hub,
        process_on(alone["one"]) as near,
    ):
        near.do('p = hub.producer("o.ring")\np.write(b"0")')
        producing(hub, "o.ring", "one")
        member.pause()
        try:
            eventually(lambda: not alone["one"].is_leader())
            for _ in range(POLLS):
                with hub.consumer("o.ring", timeout=0.5) as consumer:
                    assert consumer.read(timeout=0.0) is None
        finally:
            member.go_on()
    assert sum("going on without a broker" in record.getMessage() for record in caplog.records) == 1
