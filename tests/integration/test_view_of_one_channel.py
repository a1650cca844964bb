"""A watcher of one channel that missed its end finds out with the next beacon."""

from messagehub.client.replica import Replica
from messagehub.protocol import Beacon
from registry.records import Channel
from registry.replies import SnapshotPage


def view_of(*channels: Channel) -> Replica:
    view = Replica()
    view.begin()
    view.add_page(SnapshotPage(channels=list(channels), next=None, revision=20, broker_id="B"))
    assert view.is_current
    return view


def test_a_beacon_that_says_that_the_channel_is_gone_is_a_gap() -> None:
    view = view_of(Channel(name="c", revision=10))
    view.on_beacon(Beacon(revision=10, broker_id="B"), "c")
    assert view.is_current
    view.on_beacon(Beacon(revision=0, broker_id="B"), "c")
    assert not view.is_current


def test_a_channel_that_was_never_there_is_no_gap() -> None:
    view = view_of()
    view.on_beacon(Beacon(revision=0, broker_id="B"), "c")
    assert view.is_current


def test_an_empty_registry_is_no_gap_for_a_watcher_of_all() -> None:
    view = view_of(Channel(name="c", revision=10))
    view.on_beacon(Beacon(revision=0, broker_id="B"), None)
    assert view.is_current
