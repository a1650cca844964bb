"""Who serves which address: one worker or a pool, refused atomically, kept by leases, told as whole records."""

from typing import Any

import pytest

from registry import commands, events, replies
from registry.channels.leases import Member
from registry.errors import (
    DuplicateRegistration,
    IdNotFound,
    InvalidName,
    NameNotFound,
    NotOwner,
    NotRegistered,
    PolicyMismatch,
    PoolEmpty,
    PoolNotEmpty,
    PoolNotFound,
    Refusal,
    RegistryError,
    ServiceNotFound,
)
from registry.records import Service
from registry.registry import Registry
from registry.services.dead_letters import MOST_LETTER_BYTES, MOST_LETTERS
from registry.services.workers import MOST_ADDRESSES
from tests.registry.driving import TERMS, Driver


def serve(hub: Driver, address: str, worker_id: str = "w", lease: str = "L", **fields: Any) -> replies.WorkerRegistered:
    reply = hub.ask(
        "SERVICE_REGISTER",
        address=address,
        worker_id=worker_id,
        endpoint=f"unix:@{lease}",
        key="k",
        lease=lease,
        **fields,
    )
    assert isinstance(reply, replies.WorkerRegistered)
    return reply


def resolve(hub: Driver, address: str) -> list[str]:
    reply = hub.ask("SERVICE_RESOLVE_REQUEST", address=address)
    assert isinstance(reply, replies.ServiceResolved)
    return [worker.worker_id for worker in reply.service.workers]


def told(hub: Driver) -> list[tuple[str, Service | None]]:
    return [(event.address, event.service) for event in hub.registry.services.take_happened()]


@pytest.mark.parametrize("address", ["id:w", "name:n", "service:s", "pool:p"])
def test_every_kind_of_address_resolves_and_so_does_the_workers_id(hub: Driver, address: str) -> None:
    serve(hub, address)
    assert resolve(hub, address) == ["w"]
    assert resolve(hub, "id:w") == ["w"]


@pytest.mark.parametrize(
    ("address", "refusal"),
    [("id:x", IdNotFound), ("name:x", NameNotFound), ("service:x", ServiceNotFound), ("pool:x", PoolNotFound)],
)
def test_each_unknown_kind_has_its_own_error(hub: Driver, address: str, refusal: type[Refusal]) -> None:
    assert hub.refused(refusal, "SERVICE_RESOLVE_REQUEST", address=address).details == {"address": address}


@pytest.mark.parametrize("address", ["", "x", "nobody:x", "name:", "name:1", "name:a b", "Name:a", "name:" + "a" * 300])
def test_what_is_no_address_is_refused_with_the_rule(hub: Driver, address: str) -> None:
    hub.refused(InvalidName, "SERVICE_RESOLVE_REQUEST", address=address)
    with pytest.raises(InvalidName):
        serve(hub, address)


def test_an_empty_pool_is_not_a_missing_pool_and_can_be_removed(hub: Driver) -> None:
    serve(hub, "pool:p")
    hub.refused(PoolNotEmpty, "POOL_REMOVE", address="pool:p")
    hub.ask("SERVICE_UNREGISTER", worker_id="w", lease="L")
    hub.refused(PoolEmpty, "SERVICE_RESOLVE_REQUEST", address="pool:p")
    hub.ask("POOL_REMOVE", address="pool:p")
    hub.refused(PoolNotFound, "SERVICE_RESOLVE_REQUEST", address="pool:p")
    hub.refused(PoolNotFound, "POOL_REMOVE", address="pool:p")
    hub.refused(InvalidName, "POOL_REMOVE", address="name:p")


@pytest.mark.parametrize("kind", ["name", "service"])
def test_a_second_worker_of_one_address_is_refused_and_changes_nothing(hub: Driver, kind: str) -> None:
    serve(hub, f"{kind}:x", "w1", "L1")
    for worker_id, lease in (("w2", "L2"), ("w2", "L1")):
        with pytest.raises(DuplicateRegistration) as caught:
            serve(hub, f"{kind}:x", worker_id, lease)
        assert caught.value.details["worker_id"] == "w1"
    assert resolve(hub, f"{kind}:x") == ["w1"]


def test_an_id_belongs_to_one_worker_whatever_it_serves(hub: Driver) -> None:
    serve(hub, "pool:p", "w", "L1")
    for address in ("pool:p", "pool:q", "name:n", "id:w"):
        with pytest.raises(DuplicateRegistration):
            serve(hub, address, "w", "L2")
    with pytest.raises(InvalidName):
        serve(hub, "id:other", "w3", "L3")


def test_saying_the_same_again_gives_the_same_answer_and_no_event(hub: Driver) -> None:
    first = serve(hub, "name:n")
    told(hub)
    assert serve(hub, "name:n") == first
    assert told(hub) == []


def test_a_worker_that_says_something_new_replaces_itself(hub: Driver) -> None:
    serve(hub, "pool:p", concurrency=1)
    serve(hub, "pool:p", concurrency=5)
    (summary,) = hub.ask("SERVICE_LIST_REQUEST").services
    assert [worker.concurrency for worker in summary.workers] == [5]
    serve(hub, "name:n")
    assert resolve(hub, "name:n") == ["w"]
    hub.refused(PoolEmpty, "SERVICE_RESOLVE_REQUEST", address="pool:p")


def test_workers_of_a_pool_are_in_the_order_of_their_registration_and_resolving_counts_turns(hub: Driver) -> None:
    for number in (1, 2, 3):
        serve(hub, "pool:p", f"w{number}", f"L{number}")
    assert resolve(hub, "pool:p") == ["w1", "w2", "w3"]
    assert [hub.ask("SERVICE_RESOLVE_REQUEST", address="pool:p").turn for _ in range(3)] == [1, 2, 3]


def test_a_pool_has_one_strategy(hub: Driver) -> None:
    serve(hub, "pool:p", "w1", "L1", strategy="random")
    serve(hub, "pool:p", "w2", "L2")
    with pytest.raises(PolicyMismatch):
        serve(hub, "pool:p", "w3", "L3", strategy="least_busy")
    assert hub.ask("SERVICE_RESOLVE_REQUEST", address="pool:p").service.strategy == "random"


def test_unregistering_an_unknown_is_an_error_and_only_the_owner_may(hub: Driver) -> None:
    hub.refused(NotRegistered, "SERVICE_UNREGISTER", worker_id="w", lease="L")
    serve(hub, "name:n")
    hub.refused(NotOwner, "SERVICE_UNREGISTER", worker_id="w", lease="other")
    hub.ask("SERVICE_UNREGISTER", worker_id="w", lease="L")
    hub.refused(NotRegistered, "SERVICE_UNREGISTER", worker_id="w", lease="L")
    hub.refused(NameNotFound, "SERVICE_RESOLVE_REQUEST", address="name:n")
    hub.refused(IdNotFound, "SERVICE_RESOLVE_REQUEST", address="id:w")


def test_silence_stalls_then_ends_a_worker_and_a_heartbeat_keeps_it(hub: Driver) -> None:
    serve(hub, "pool:p", "w1", "L1")
    serve(hub, "pool:p", "w2", "L2")
    hub.wait(TERMS.stall_seconds)
    assert hub.beat("L2").known
    statuses = {w.worker_id: w.status for w in hub.ask("SERVICE_LIST_REQUEST").services[0].workers}
    assert statuses == {"w1": "stalled", "w2": "active"}
    for _ in range(5):
        hub.wait(TERMS.stall_seconds - 1)
        assert hub.beat("L2").known
    assert resolve(hub, "pool:p") == ["w2"]
    assert not hub.beat("L1").known


def test_a_stalled_owner_is_replaced_by_whoever_comes(hub: Driver) -> None:
    serve(hub, "name:n", "w1", "L1")
    hub.wait(TERMS.stall_seconds)
    serve(hub, "name:n", "w2", "L2")
    assert resolve(hub, "name:n") == ["w2"]
    hub.refused(IdNotFound, "SERVICE_RESOLVE_REQUEST", address="id:w1")


def test_a_process_that_was_seen_to_die_loses_its_workers_at_once(hub: Driver) -> None:
    serve(hub, "pool:p", "w1", "L1")
    serve(hub, "name:n", "w2", "L1")
    members = [Member("worker", "", "w1"), Member("worker", "", "w2"), Member("worker", "", "gone")]
    assert hub.registry.host_events.died(members, now=hub.now) == []
    hub.refused(PoolEmpty, "SERVICE_RESOLVE_REQUEST", address="pool:p")
    hub.refused(NameNotFound, "SERVICE_RESOLVE_REQUEST", address="name:n")


def test_events_carry_the_whole_record_in_order(hub: Driver) -> None:
    serve(hub, "pool:p", "w1", "L1")
    serve(hub, "pool:p", "w2", "L2")
    hub.ask("SERVICE_UNREGISTER", worker_id="w1", lease="L1")
    happened = hub.registry.services.take_happened()
    assert [event.revision for event in happened] == list(range(1, len(happened) + 1))
    of_pool = [event for event in happened if event.address == "pool:p"]
    assert [[w.worker_id for w in event.service.workers] for event in of_pool if event.service] == [
        ["w1"],
        ["w1", "w2"],
        ["w2"],
    ]
    assert [event.previous for event in of_pool] == [0, *(event.revision for event in of_pool[:-1])]
    assert events.ServiceChanged(address="id:w1", service=None, revision=6, previous=2, at=hub.now) == happened[-1]


def test_channels_and_services_of_a_process_share_its_lease(hub: Driver) -> None:
    hub.produce(lease="L")
    serve(hub, "name:n")
    hub.wait(TERMS.stall_seconds)
    serve(hub, "name:n")  # a sign of life of the whole process
    assert hub.types() == ["PRODUCER_RECOVERED"]


def test_services_outlive_a_registry_that_starts_over_from_its_store() -> None:
    hub = Driver()
    serve(hub, "name:n")
    registry = Registry(terms=TERMS)
    registry.take_over_unstored(hub.registry, now=hub.now)
    assert registry.apply(commands.ResolveService(address="name:n"), now=hub.now)
    registry.expire(now=hub.now + TERMS.lease_seconds)
    with pytest.raises(NameNotFound):
        registry.apply(commands.ResolveService(address="name:n"), now=hub.now)


def test_listing_is_paged_without_keys_and_names_ids_only_when_asked(hub: Driver) -> None:
    serve(hub, "pool:p", "w1", "L1")
    serve(hub, "id:w2", "w2", "L2")
    listed = hub.ask("SERVICE_LIST_REQUEST")
    assert [service.address for service in listed.services] == ["id:w2", "pool:p"]
    assert not hasattr(listed.services[0].workers[0], "key")
    assert [s.address for s in hub.ask("SERVICE_LIST_REQUEST", prefix="id:").services] == ["id:w1", "id:w2"]
    page = hub.ask("SERVICE_LIST_REQUEST", prefix="id:", limit=1)
    assert page.next == "id:w1"


def test_a_full_registry_refuses_more_and_takes_them_when_there_is_room() -> None:
    registry = Registry(terms=TERMS)

    def add(number: int) -> None:
        command = commands.RegisterWorker(
            address=f"name:n{number}", worker_id=f"w{number}", endpoint="unix:@e", key="k", lease="L"
        )
        registry.apply(command, now=0.0)

    most = MOST_ADDRESSES // 2
    for number in range(most):
        add(number)
    with pytest.raises(RegistryError):
        add(most)
    add(0)  # who is there may say it again
    registry.apply(commands.UnregisterWorker(worker_id="w0", lease="L"), now=0.0)
    add(most)


def letter(size: int = 0, **fields: Any) -> dict[str, Any]:
    said = {"address": "name:n", "code": "NAME_NOT_FOUND", "reason": "r", "form": "send", "payload_base64": "x" * size}
    return said | fields


def test_dead_letters_are_kept_oldest_first_and_bounded_in_number_and_bytes(hub: Driver) -> None:
    for number in range(MOST_LETTERS + 5):
        hub.ask("DEAD_LETTER_REPORT", letter=letter(attempts=number, address=f"name:n{number % 2}"))
    listed = hub.ask("DEAD_LETTER_LIST_REQUEST", limit=3)
    assert [each.attempts for each in listed.letters] == [MOST_LETTERS + 2, MOST_LETTERS + 3, MOST_LETTERS + 4]
    assert (listed.kept, listed.dropped) == (MOST_LETTERS, 5)
    of_one = hub.ask("DEAD_LETTER_LIST_REQUEST", address="name:n1", limit=10_000)
    assert {each.address for each in of_one.letters} == {"name:n1"}
    for _ in range(300):
        hub.ask("DEAD_LETTER_REPORT", letter=letter(2**17))
    assert hub.ask("DEAD_LETTER_LIST_REQUEST").kept * 2**17 <= MOST_LETTER_BYTES + 2**17
