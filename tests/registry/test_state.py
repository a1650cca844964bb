"""State from events, and names in order."""

import msgspec

from registry.channels.state import SLACK, Channels, SortedNames, restored
from registry.records import Channel, Consumer, Producer
from tests.registry.driving import Driver


def producer(producer_id: str, revision: int, **fields: object) -> Producer:
    return msgspec.convert(
        {
            "producer_id": producer_id,
            "lease": "L",
            "shm_name": "/s",
            "schema_hash": "h",
            "revision": revision,
            **fields,
        },
        Producer,
    )


def test_record_put_together_from_kept_parts_is_ordered_and_settled() -> None:
    parts = [producer("p2", 7, schema_version="2"), producer("p1", 3, schema_version="1")]
    channel = Channel(name="c", revision=2, producers={p.producer_id: p for p in parts})
    channel.consumers["r"] = Consumer(consumer_id="r", lease="L", revision=9)
    restored(channel)
    assert list(channel.producers) == ["p1", "p2"]
    assert (channel.schema_version, channel.revision) == ("2", 9)


def test_record_kept_from_before_its_producers_left_has_no_schema() -> None:
    kept = Channel(name="c", declared=True, schema_hash="h", access="shared", revision=4)
    assert restored(kept).schema_hash is None
    assert kept.access is None


def test_bound_schema_stays_without_producers() -> None:
    kept = Channel(name="c", declared=True, binds_schema=True, schema_hash="h", binds_access=True, access="shared")
    assert (restored(kept).schema_hash, kept.access) == ("h", "shared")


def test_member_that_says_something_new_moves_behind_the_others(hub: Driver) -> None:
    hub.produce(producer_id="p1", access="shared")
    hub.produce(producer_id="p2", access="shared")
    hub.produce(producer_id="p1", access="shared", metadata={"a": 1})
    assert list(hub.registry.channels["c"].producers) == ["p2", "p1"]
    hub.consume(consumer_id="r1")
    hub.consume(consumer_id="r2")
    hub.consume(consumer_id="r1", metadata={"a": 1})
    assert list(hub.registry.channels["c"].consumers) == ["r2", "r1"]


def test_end_of_a_channel_that_is_not_known_is_harmless(hub: Driver) -> None:
    hub.produce()
    hub.ask("CHANNEL_DESTROY", channel="c")
    view = Channels()
    view.evolve(hub.happened[0])  # type: ignore[arg-type]
    assert view == {}


def test_names_that_come_and_go_do_not_pile_up() -> None:
    present: dict[str, None] = {}
    names = SortedNames(present)
    for number in range(20 * SLACK):
        present[f"job{number}"] = None
        names.add(f"job{number}")
        del present[f"job{number}"]
    assert len(names._names) <= SLACK + 1  # private: old names only take memory
    assert names.page(after="", limit=10) == ([], None)


def test_name_that_came_twice_is_listed_once() -> None:
    present = dict.fromkeys("ab")
    names = SortedNames(present)
    for name in "abab":
        names.add(name)
    assert names.page(after="", limit=10) == (["a", "b"], None)


def test_names_that_went_are_passed_over_between_pages() -> None:
    present = dict.fromkeys("abcd")
    names = SortedNames(present)
    for name in "dcba":
        names.add(name)
    assert names.page(after="", limit=2) == (["a", "b"], "b")
    del present["c"]
    assert names.page(after="b", limit=1) == (["d"], None)
