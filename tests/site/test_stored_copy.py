"""What a hub that led answers from when it cannot tell what became of its last changes."""

from messagehub.broker.persistence.stored_copy import StoredCopy
from registry import commands
from registry.events import AnyEvent
from registry.registry import Registry


def made(registry: Registry, *names: str) -> list[AnyEvent]:
    return [
        event for name in names for event in registry.apply(commands.CreateChannel(id=1, channel=name), now=1.0).events
    ]


def copied(events: list[AnyEvent]) -> Registry:
    registry = Registry()
    for event in events:
        registry.follow(event)
    return registry


def test_it_has_what_is_written_and_nothing_else() -> None:
    leader, copy = Registry(), StoredCopy()
    before = made(leader, "before")
    copy.begin(leader.revision)
    early = made(leader, "early")
    copy.note(early)
    copy.loaded(copied(before))
    both = made(leader, "written", "in_doubt")  # given to the store at once, which has written the first
    copy.note(both)
    written = both[0].revision
    copy.follow(written)
    copy.note(made(leader, "later"))
    stored = copy.take(written)
    assert stored is not None
    assert [*stored.channels] == ["before", "early", "written"]
    assert stored.revision == written
    assert copy.take(written) is None


def test_what_the_loaded_records_have_already_is_not_applied_again() -> None:
    leader, copy = Registry(), StoredCopy()
    copy.begin(leader.revision)
    happened = made(leader, "a") + _destroyed(leader, "a") + made(leader, "b")
    copy.note(happened)
    copy.loaded(copied(happened[:2]))
    stored = copy.take(leader.revision)
    assert stored is not None
    assert [*stored.channels] == ["b"]


def test_records_from_before_the_leadership_are_not_begun_with() -> None:
    leader, copy = Registry(), StoredCopy()
    before = made(leader, "a")
    missed = made(leader, "b")
    copy.begin(leader.revision)
    copy.loaded(copied(before))
    assert copy.take(leader.revision) is None
    copy.begin(leader.revision)
    copy.loaded(copied(before + missed))
    assert copy.take(leader.revision) is not None


def test_nothing_is_kept_by_a_hub_that_does_not_lead() -> None:
    leader, copy = Registry(), StoredCopy()
    copy.note(made(leader, "a"))
    copy.loaded(copied([]))
    assert copy.take(leader.revision) is None


def _destroyed(registry: Registry, name: str) -> list[AnyEvent]:
    return list(registry.apply(commands.DestroyChannel(id=2, channel=name), now=2.0).events)
