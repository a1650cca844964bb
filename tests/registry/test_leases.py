"""Leases: silence stalls, then ends; any sign of life starts a full new term."""

import pytest

from registry import commands
from registry.channels.leases import MAX_NOTICES, Leases, Member, Terms
from registry.registry import Registry
from registry.replies import Notice
from tests.registry.driving import Driver
from tests.registry.observing import Watcher

TERMS = Terms(heartbeat_seconds=1, stall_seconds=10, lease_seconds=100)
MEMBER = Member("producer", "c", "p")
OTHER = Member("consumer", "c", "p")


@pytest.fixture
def leases() -> Leases:
    return Leases(TERMS)


def terms(leases: Leases, now: float) -> list[tuple[str, str]]:
    return [(lease.lease_id, term) for lease, term in leases.due(now=now)]


def test_silence_stalls_once_and_then_ends_once(leases: Leases) -> None:
    leases.attach("L", MEMBER, now=0)
    assert terms(leases, 9.9) == []
    assert terms(leases, 10) == [("L", "stalled")]
    assert terms(leases, 99.9) == []
    assert terms(leases, 100) == [("L", "ended")]
    assert terms(leases, 1000) == []
    assert len(leases) == 0
    assert leases.next_deadline() is None


def test_long_silence_ends_at_once(leases: Leases) -> None:
    leases.attach("L", MEMBER, now=0)
    assert terms(leases, 500) == [("L", "ended")]


def test_renewed_lease_has_a_full_new_term(leases: Leases) -> None:
    lease = leases.attach("L", MEMBER, now=0)
    assert not leases.renew(lease, now=9)
    assert terms(leases, 18.9) == []
    assert terms(leases, 19) == [("L", "stalled")]
    assert terms(leases, 109) == [("L", "ended")]


def test_revived_lease_stalls_again_after_one_stall_term(leases: Leases) -> None:
    lease = leases.attach("L", MEMBER, now=0)
    terms(leases, 10)
    assert leases.renew(lease, now=11)
    assert leases.next_deadline() == 21
    assert terms(leases, 21) == [("L", "stalled")]
    assert terms(leases, 100) == [], "the deadline of the first silence counts no more"
    assert terms(leases, 111) == [("L", "ended")]


def test_reviving_again_and_again_leaves_no_queue_behind(leases: Leases) -> None:
    lease = leases.attach("L", MEMBER, now=0)
    for round_ in range(1, 200):
        terms(leases, round_ * 10.0)
        leases.renew(lease, now=round_ * 10.0)
    assert len(leases._deadlines) < 20  # private: old deadlines only take memory


def test_lease_that_was_ended_starts_anew(leases: Leases) -> None:
    leases.attach("L", MEMBER, now=0)
    terms(leases, 100)
    leases.attach("L", MEMBER, now=100)
    assert leases.is_alive("L")
    assert terms(leases, 110) == [("L", "stalled")]


def test_stalled_and_unknown_leases_are_not_alive(leases: Leases) -> None:
    leases.attach("L", MEMBER, now=0)
    assert leases.is_alive("L")
    terms(leases, 10)
    assert not leases.is_alive("L")
    assert not leases.is_alive("nobody")


def test_lease_keeps_the_newest_notices_until_they_are_taken(leases: Leases) -> None:
    lease = leases.attach("L", MEMBER, now=0)
    for revision in range(MAX_NOTICES + 5):
        leases.tell("L", Notice(event="E", channel="c", member=None, reason=None, revision=revision), now=0)
    assert [notice.revision for notice in lease.take_notices()] == list(range(5, MAX_NOTICES + 5))
    assert lease.take_notices() == []


def test_a_lease_ends_with_its_last_member_and_says_so_once(leases: Leases) -> None:
    leases.attach("L", MEMBER, now=0)
    leases.attach("L", OTHER, now=0)
    leases.hold("L", is_held=True)
    leases.detach("L", MEMBER, now=1)
    assert (len(leases), leases.take_ended()) == (1, [])
    leases.detach("L", OTHER, now=1)
    assert (len(leases), leases.take_ended()) == (0, ["L"])
    assert (leases.get("L"), leases.take_ended(), terms(leases, 1000)) == (None, [], [])


def test_what_nobody_heard_is_kept_for_one_more_term(leases: Leases) -> None:
    said = [Notice(event="E", channel="c", member=None, reason=None, revision=revision) for revision in range(3)]
    for name in ("heard", "late", "again"):
        leases.attach(name, MEMBER, now=0)
        leases.tell(name, said[0], now=0)
        leases.detach(name, MEMBER, now=1)
        leases.tell(name, said[1], now=1)
    assert leases.take_unheard("heard") == said[:2]
    assert leases.take_unheard("heard") == []
    assert leases.attach("again", MEMBER, now=2).take_notices() == said[:2], "a lease of the same name hears it"
    leases.tell("other", said[2], now=102)
    assert leases.take_unheard("late") == [], "a full term has passed"


def test_many_leases_end_in_the_order_of_their_deadlines(leases: Leases) -> None:
    for number in (3, 1, 2):
        leases.attach(f"L{number}", Member("producer", "c", f"p{number}"), now=float(number))
    assert terms(leases, 50) == [("L1", "stalled"), ("L2", "stalled"), ("L3", "stalled")]


def test_silent_members_stall_and_are_then_unregistered(hub: Driver) -> None:
    hub.produce(lease="L")
    hub.consume(lease="L")
    hub.wait(15)
    assert hub.types() == ["PRODUCER_STALLED", "CONSUMER_STALLED"]
    assert hub.discover().status == "stalled"
    hub.wait(45)
    assert hub.types() == ["PRODUCER_UNREGISTERED", "CONSUMER_UNREGISTERED", "CHANNEL_ENDED"]
    assert {event.reason for event in hub.happened[:2]} == {"expired"}  # type: ignore[union-attr]


def test_one_heartbeat_covers_everything_the_process_holds(hub: Driver) -> None:
    hub.produce("a", lease="L")
    hub.produce("b", lease="L")
    hub.wait(15)
    assert hub.beat("L").known
    assert hub.types() == ["PRODUCER_RECOVERED", "PRODUCER_RECOVERED"]
    assert hub.discover("b").status == "active"


def test_recovered_producer_that_was_not_ready_is_pending_again(hub: Driver) -> None:
    hub.produce(ready=False)
    hub.wait(15)
    hub.beat("c/default")
    assert hub.discover().status == "pending"


def test_registration_is_a_sign_of_life_of_the_whole_process(hub: Driver) -> None:
    hub.produce("a", lease="L")
    hub.wait(15)
    hub.produce("b", lease="L")
    assert hub.types() == ["CHANNEL_CREATED", "PRODUCER_REGISTERED", "PRODUCER_RECOVERED", "PRODUCER_RECOVERED"]
    assert hub.discover("a").status == "active"


def test_refused_registration_is_no_sign_of_life(hub: Driver) -> None:
    hub.produce(producer_id="p1", lease="L1")
    hub.produce("d", lease="L2")
    hub.wait(14)
    hub.beat("L1")
    with pytest.raises(Exception, match="living producer"):
        hub.produce(producer_id="p2", lease="L2")
    hub.wait(1)
    assert hub.discover("d").status == "stalled"


def test_unknown_lease_is_told_to_register_again(hub: Driver) -> None:
    assert not hub.beat("nobody").known
    hub.produce(lease="L")
    hub.ask("PRODUCER_UNREGISTER", channel="c", lease="L")
    assert not hub.beat("L").known


def test_restart_gives_every_lease_a_full_new_term(hub: Driver) -> None:
    hub.produce(lease="L")
    hub.consume(lease="M")
    hub.wait(15)
    restored = Registry(terms=hub.registry.terms)
    restored.restore(Watcher(hub.registry).channels.values(), revision=hub.registry.revision, now=5000.0)
    after = Driver(restored)
    after.now = 5000.0
    assert after.discover().status == "active"
    after.wait(14)
    assert after.happened == []
    after.wait(1)
    assert after.types() == ["PRODUCER_STALLED", "CONSUMER_STALLED"]


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_restored_consumer_that_nobody_claims_ends_although_its_process_lives(hub: Driver, is_claimed: bool) -> None:
    """The process may have closed it while no broker ran. A producer has a place in the directory that tells."""
    hub.produce(lease="L")
    hub.consume(lease="L")
    restored = Registry(terms=hub.registry.terms)
    restored.restore(Watcher(hub.registry).channels.values(), revision=hub.registry.revision, now=5000.0)
    restored.leases.hold("L", is_held=True)
    if is_claimed:
        restored.apply(commands.Heartbeat(lease="L"), now=5030.0)
    for now in (5015.0, 5050.0, 5061.0, 5200.0, 5400.0):
        restored.expire(now=now)
    channel = restored.channels["c"]
    assert (list(channel.producers), list(channel.consumers)) == (["c/default"], ["reader"] if is_claimed else [])


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_consumer_that_a_new_hub_of_its_host_does_not_hear_of_ends_after_a_term(
    hub: Driver, is_claimed: bool
) -> None:
    """The registry went on, at the hub that leads; only the host's own hub was away."""
    hub.produce(lease="L")
    hub.consume(lease="L")
    registry = Registry(terms=hub.registry.terms)
    registry.restore(Watcher(hub.registry).channels.values(), revision=hub.registry.revision, now=1000.0)
    registry.apply(commands.Heartbeat(lease="L"), now=1001.0)
    registry.leases.hold("L", is_held=True)
    registry.leases.unclaim("L", now=5000.0)  # long after it was heard of last
    registry.expire(now=5001.0)
    assert list(registry.channels["c"].consumers) == ["reader"], "it has a term to say that it is there"
    registry.leases.unclaim("L", now=5020.0)  # said again: the term does not begin anew
    if is_claimed:
        registry.apply(commands.Heartbeat(lease="L"), now=5025.0)
    for now in (5031.0, 5050.0, 5200.0):
        registry.expire(now=now)
    channel = registry.channels["c"]
    assert (list(channel.producers), list(channel.consumers)) == (["c/default"], ["reader"] if is_claimed else [])
    registry.leases.unclaim("unknown", now=5300.0)


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_worker_that_a_new_hub_of_its_host_does_not_hear_of_ends_after_a_term(is_claimed: bool) -> None:
    registry = Registry(logs_services=True)
    command = commands.RegisterWorker(address="name:scope", worker_id="w", endpoint="unix:@e", key="k", lease="L")
    registry.apply(command, now=1000.0)
    registry.leases.hold("L", is_held=True)
    registry.leases.unclaim("L", now=1010.0)
    if is_claimed:
        registry.apply(commands.Heartbeat(lease="L"), now=1011.0)
    for now in (1020.0, 1041.0, 1100.0):
        registry.expire(now=now)
    assert [worker.worker_id for worker in registry.services.workers()] == (["w"] if is_claimed else [])


def test_restart_goes_on_with_the_next_revision_and_schema_id(hub: Driver) -> None:
    hub.produce(priority="high")
    first = hub.ask("SCHEMA_REGISTER", subject="s", schema={"type": "object"})
    restored = Registry()
    restored.schemas.restore(
        hub.registry.schemas.every(), last_id=1, configs={}, modes={}, revision=hub.registry.revision
    )
    restored.restore(Watcher(hub.registry).channels.values(), revision=hub.registry.revision, now=0.0)
    after = Driver(restored)
    second = after.ask("SCHEMA_REGISTER", subject="s", schema=True)
    assert (second.revision, second.version, second.schema_id) == (first.revision + 1, 2, 2)
    assert restored.priorities == {"c": "high"}
    assert [s.channel for s in after.ask("CHANNEL_LIST_REQUEST").channels] == ["c"]


def test_next_deadline_is_when_the_broker_must_look_again(hub: Driver) -> None:
    assert hub.registry.next_deadline() is None
    hub.produce()
    assert hub.registry.next_deadline() == 1015.0
