"""The wall clock is set back, by hours: nothing that the broker decides waits for it to catch up."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from messagehub import MessageHub
from messagehub.shm.channel_directory.cleaning import clean
from messagehub.shm.channel_directory.directory import Directory, ProducerEntry
from messagehub.shm.identity import ProcessIdentity
from tests.conftest import QUICK
from tests.integration.harness import Embedded, Peer, eventually, producer

pytestmark = pytest.mark.usefixtures("no_leaks")

HOURS = 3600.0 * 5


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = time.time

    def jump() -> None:
        monkeypatch.setattr(time, "time", lambda: real() - HOURS)

    return jump


def test_groups_go_on_under_a_broker_that_forgot_them(
    embedded: Callable[..., Embedded], set_back: Callable[[], None]
) -> None:
    consumer = {"type": "CONSUMER_REGISTER", "channel": "c", "consumer_id": "r", "group": "g"}
    epochs = []
    for run in range(3):
        broker = embedded(**QUICK)
        with Peer(broker.endpoint) as peer:
            peer.ask(producer("c"))
            for name in ("a", "b"):
                epochs.append(peer.ask(consumer | {"consumer_id": name})["assignment"]["epoch"])
        if run == 0:
            set_back()
    assert epochs == sorted(set(epochs))
    assert epochs[-1] < 1 << 53, "every JSON reader can say it"


def test_a_channel_that_was_destroyed_can_be_made_again_in_the_directory(
    embedded: Callable[..., Embedded], set_back: Callable[[], None], tmp_path: Path
) -> None:
    broker = embedded(**QUICK)
    with MessageHub(dir=tmp_path / "none") as hub, Peer(broker.endpoint) as peer:
        with hub.producer("c", capacity=2, page_size=64):
            eventually(lambda: peer.ask({"type": "CHANNEL_DESTROY", "channel": "c"})["type"] != "ERROR")
            said = eventually(lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "c"}).get("conflict"))
            assert "was destroyed, but its producer" in said
        set_back()
        with hub.producer("c", capacity=2, page_size=64):
            eventually(
                lambda: peer.ask({"type": "DISCOVERY_REQUEST", "channel": "c"}).get("status") == "active", timeout=10.0
            )


def test_what_is_dead_lingers_for_its_time_and_no_longer() -> None:
    directory = Directory(os.environ["MESSAGEHUB_DOMAIN"])
    entry = ProducerEntry(channel="c", producer_id="p", process=ProcessIdentity.current(), registered_at=1.0)
    with directory.locked("c") as locked:
        locked.register(entry).close()
    now = time.time()
    assert clean(directory, now=now, linger_seconds=10.0).producers == []
    assert clean(directory, now=now - HOURS, linger_seconds=10.0).producers == []
    assert clean(directory, now=now - HOURS + 11.0, linger_seconds=10.0).producers == ["p"]
